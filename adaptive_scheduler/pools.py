"""Splits a snapshot by pools: the GPUs that placeholder pods hold for the jobs of one namespace and queue.

A job of a pool uses GPUs of its pool only, so that quotas of its namespace and of its queue bind; all other jobs use
GPUs of nodes without pools. Each part is therefore decided on by itself. What users have reserved are GPUs of nodes
without pools; maintenance concerns the jobs of every part. Limits of queues count the GPUs of all parts together.
Pure. Called by the engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node

NO_POOL = ""
"""The pool of jobs that are in none."""


def split_by_pool(snapshot: ClusterSnapshot) -> tuple[ClusterSnapshot, ...]:
    """Return one snapshot per pool with jobs; the same snapshot where nothing is in a pool."""
    pooled = snapshot.node_rows(has_pools).any() or snapshot.where(_is_in_pool)
    return tuple(parts_by_pool(snapshot).values()) if pooled else (snapshot,)


def parts_by_pool(snapshot: ClusterSnapshot) -> Mapping[str, ClusterSnapshot]:
    """Return what the jobs of each pool with jobs see, and those that are in none, in the order of the pools."""
    return snapshot.once(PoolParts).parts_of(snapshot)


def _is_in_pool(job: Job) -> bool:
    return job.pool != NO_POOL


def seen_by(node: Node, pool: str) -> Node:
    """Return the node as jobs of a pool see it: GPUs that they must not use are faulty."""
    # One that is asked back concerns the job that trains on it, whoever may use it now.
    gpus = tuple(gpu if gpu.asked_back or _is_usable(gpu, pool) else _as_hidden(gpu, pool) for gpu in node.gpus)
    return replace(node, gpus=gpus)


def _is_usable(gpu: Gpu, pool: str) -> bool:
    return gpu.pool is None if pool == NO_POOL else gpu.pool == pool


def _as_hidden(gpu: Gpu, pool: str) -> Gpu:
    """A GPU that Kubernetes may reserve for this pool one day counts as one that somebody else uses now."""
    return Gpu(gpu.id, "faulty", used_by_others=pool != NO_POOL and gpu.pool is not None, pool=gpu.pool)


def reservations_in(snapshot: ClusterSnapshot, pool: str) -> tuple[Reservation, ...]:
    """Return the reservations that concern the jobs of a pool, so that no GPU is kept in two parts."""
    return tuple(one for one in snapshot.reservations if pool == NO_POOL or one.user is None)


def has_pools(node: Node) -> bool:
    """Return whether GPUs of a node are used only while placeholder pods hold them."""
    return any(gpu.pool is not None for gpu in node.gpus)


def held_by_owner(snapshot: ClusterSnapshot) -> Counter[JobOwner]:
    """Return how many GPUs the jobs of each owner have; empty where no queue has a limit, as nobody asks then."""
    shares = snapshot.shares
    held = Counter[JobOwner]()
    if any(one.most < math.inf or one.user_limit is not None for one in shares.queues.values()):
        for job in snapshot.placed:
            held[shares.owner_of(job.queue, job.owner)] += job.num_gpus
    return held


class PoolParts:
    """The parts of one snapshot after the other, of which only what has changed is worked out again."""

    def __init__(self) -> None:
        self._parts: dict[str, ClusterSnapshot] = {}
        self._views: dict[str, dict[str, tuple[Node, Node]]] = {}  # by pool and name: a node, and as the pool sees it

    def parts_of(self, snapshot: ClusterSnapshot) -> Mapping[str, ClusterSnapshot]:
        by_pool: dict[str, list[Job]] = {NO_POOL: []}
        for job in snapshot.jobs:
            by_pool.setdefault(job.pool, []).append(job)
        self._parts = {
            pool: self._part_of_pool(snapshot, pool, tuple(by_pool[pool]), self._parts.get(pool))
            for pool in sorted(by_pool)
        }
        self._views = {pool: views for pool, views in self._views.items() if pool in by_pool}
        return self._parts

    def _part_of_pool(
        self, snapshot: ClusterSnapshot, pool: str, jobs: tuple[Job, ...], last: ClusterSnapshot | None
    ) -> ClusterSnapshot:
        nodes = self._nodes_seen(snapshot, pool)
        same_nodes = last is not None and _are_same(last.nodes, nodes)
        same_jobs = last is not None and _are_same(last.jobs, jobs)
        return (last or ClusterSnapshot((), ())).then(
            nodes=last.nodes if last is not None and same_nodes else nodes,
            jobs=last.jobs if last is not None and same_jobs else jobs,
            profiles=snapshot.profiles,
            observations=snapshot.observations,
            shares=snapshot.shares,
            used=snapshot.used,
            reservations=reservations_in(snapshot, pool),
            spent=snapshot.spent,
        )

    def _nodes_seen(self, snapshot: ClusterSnapshot, pool: str) -> tuple[Node, ...]:
        before = self._views.get(pool, {})
        views: dict[str, tuple[Node, Node]] = {}
        for node in snapshot.nodes:
            kept = before.get(node.name)
            views[node.name] = kept if kept is not None and kept[0] is node else (node, seen_by(node, pool))
        self._views[pool] = views
        return tuple(view for _, view in views.values())


def _are_same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))
