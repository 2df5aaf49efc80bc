"""Every way that Algorithm 1 may take, with what each is predicted to lead to (seed 004).

Promises the exhaustive search as printed: every way is weighed, in arrays; only the best of them, as many as
can be listed, become objects with a reason. Called by `elastic.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.prediction import t_new
from adaptive_scheduler.search import Bools, Column, Floats, Givers, Ints, Table, smallest
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker
from adaptive_scheduler.ways import (
    GOOD,
    LATE,
    LISTED,
    REFUSED,
    TO_MEASURE,
    Found,
    Way,
    gpus,
    healthy_on,
    no_speed,
    nodes_for,
    seconds,
    spread,
)


class Place(NamedTuple):
    """Where idle GPUs are counted together: one host, or as printed the whole cluster (G7)."""

    node: Node
    idle: int
    nodes: tuple[Node, ...]


def places(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> list[Place]:
    """Open nodes one by one, or all of them as one place named after the node with most idle GPUs (G7)."""
    nodes = tuple(n for n in nodes_for(snapshot, job) if n.open)
    if settings.placement == "host" or not nodes:
        return [Place(n, n.idle, (n,)) for n in nodes]
    most = min(nodes, key=lambda n: (-n.idle, n.name))
    return [Place(most, sum(n.idle for n in nodes), nodes)]


def held_together(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> int:
    """How many GPUs several nodes could ever give the job together; 0 where it needs them all on one."""
    if settings.placement == "count_only":
        return sum(n.healthy for n in nodes_for(snapshot, job) if n.schedulable)
    return healthy_on(nodes_for(snapshot, job), job.max_workers) if job.max_workers > 1 else 0


def exactly(need: int, settings: Settings) -> str:
    return f"{need} or more" if settings.over_release else f"exactly {need}"


class _Cells(NamedTuple):
    """Ways as numbers: node, which of the allowed counts, whose GPUs (an entry of `Givers`; -1: nobody's)."""

    node: Ints
    at: Ints
    giver: Ints
    launch_s: Floats  # what the newcomer takes, without waiting for a victim
    workers: dict[int, tuple[Worker, ...]]  # of those that are on several hosts, by their place here


class Incoming:
    """All ways to start one waiting job: on each host, with idle GPUs or also those of one running job."""

    def __init__(self, table: Table, job: Job) -> None:
        self.table, self.job, self.settings = table, job, table.settings
        self.counts = np.array(job.optional, np.intp)
        profiles = table.snapshot.profiles
        refined = profiles.overheads(job.type).k8s_init if self.settings.refined else 0.0
        self.givers: Givers = table.givers(refined)  # G5: the victim trains on during the launch
        self.open = self._allowed(lambda n: n.open)
        self.together = self.settings.placement == "count_only" and len(self.open) > 1
        self.room = table.idle if not self.together else np.full_like(table.idle, table.idle[self.open].sum())

    def _allowed(self, rule: Callable[[Node], bool]) -> Ints:
        """Positions of the nodes that the job may be on."""
        position = self.table.position
        return np.array([position[n.name] for n in nodes_for(self.table.snapshot, self.job) if rule(n)], np.intp)

    # all ways, as numbers

    @cached_property
    def cells(self) -> _Cells:
        """Without a victim, with one, spread over several hosts."""
        node, at, giver = (np.concatenate(pair) for pair in zip(self._alone(), self._taking(), strict=True))
        if self.settings.tiebreak == "first":  # as they come in the printed loops
            g = self.givers
            order = (at, g.gives[giver], node) if self.together else (node, at, g.gives[giver])
            first = np.lexsort((g.row[giver], *reversed(order)))
            node, at, giver = node[first], at[first], giver[first]
        cells = _Cells(node, at, giver, self._launch_s[self.table.kind[node], at], {})
        if self.together:
            return self._on_several(cells)
        return self._with_spread(cells) if self.job.max_workers > 1 and self.settings.placement == "host" else cells

    @cached_property
    def _launch_s(self) -> Floats:
        """By GPU type and count."""
        table, profiles = self.table, self.table.snapshot.profiles
        taken = np.zeros((len(table.book.kinds), len(self.counts)))
        here = set(table.kind[self.open].tolist())
        for name, number in table.book.kinds.items():
            if number in here:
                taken[number] = [t_new(profiles, self.job, name, count) for count in self.job.optional]
        return taken

    def _alone(self) -> tuple[Ints, Ints, Ints]:
        here = self.open[:1] if self.together else self.open
        node, at = np.nonzero(self.counts <= self.room[here][:, None])
        return here[node], at, np.full(len(at), -1)

    def _taking(self) -> tuple[Ints, Ints, Ints]:
        """Exactly what is needed, or with `over_release` also more (G3)."""
        g, allowed = self.givers, np.zeros(len(self.room), np.bool_)
        allowed[self.open] = True
        room = self.room[g.node]
        reach, usable = room + g.gives, allowed[g.node] & (g.gives > 0)
        if self.settings.over_release:
            at, giver = np.nonzero((room < self.counts[:, None]) & (self.counts[:, None] <= reach) & usable)
            return g.node[giver], at, giver
        largest = int(reach.max()) + 1
        numbers = np.full(largest + 1, -1, np.intp)
        numbers[np.minimum(self.counts, largest)] = np.arange(len(self.counts))
        numbers[largest] = -1
        at = numbers[reach]
        giver = np.flatnonzero((at >= 0) & usable)
        return g.node[giver], at[giver], giver

    def _on_several(self, cells: _Cells) -> _Cells:
        """G7: the hosts of each way, a victim's first."""
        snapshot, there = self.table.snapshot, [self.table.snapshot.nodes[i] for i in self.open.tolist()]
        idle, node, launch_s, workers = int(self.room[0]), cells.node.copy(), cells.launch_s.copy(), cells.workers
        for cell, (at, giver) in enumerate(zip(cells.at.tolist(), cells.giver.tolist(), strict=True)):
            count = self.job.optional[at]
            own = {snapshot.nodes[node[cell]].name: count - idle} if giver >= 0 else {}
            hosts = spread(count, there, len(there), own)
            if giver < 0:
                node[cell] = self.table.position[hosts[0].node]
            workers[cell] = hosts if len(hosts) > 1 else ()
            kind = snapshot.nodes[node[cell]].gpu_type
            launch_s[cell] = t_new(snapshot.profiles, self.job, kind, count, len(hosts) or 1)
        return cells._replace(node=node, launch_s=launch_s)

    def _with_spread(self, cells: _Cells) -> _Cells:
        """Also over several hosts of one GPU type, for counts that no host holds."""
        held = set(cells.at[self._ranks(cells) < LATE].tolist())
        node, at, launch_s = list[int](), list[int](), list[float]()
        snapshot, position = self.table.snapshot, self.table.position
        nodes = [snapshot.nodes[i] for i in self.open.tolist()]
        for kind in sorted({n.gpu_type for n in nodes}):
            of_kind = [n for n in nodes if n.gpu_type == kind]
            for number, count in enumerate(self.job.optional):
                hosts = () if number in held else spread(count, of_kind, self.job.max_workers)
                if hosts:
                    cells.workers[len(cells.node) + len(node)] = hosts if len(hosts) > 1 else ()
                    node.append(position[hosts[0].node])
                    at.append(number)
                    launch_s.append(t_new(snapshot.profiles, self.job, kind, count, len(hosts)))
        more = np.array([node, at, [-1] * len(node)], np.intp)
        together = (np.concatenate(pair) for pair in zip(cells[:3], more, strict=True))
        return _Cells(*together, np.append(cells.launch_s, launch_s), cells.workers)

    # what they lead to

    def _job_s(self, cells: _Cells) -> Floats:
        """G5: refined, the newcomer waits for its victim's checkpoint and exit."""
        if not self.settings.refined:
            return cells.launch_s
        waits_s = np.append(self.table.jobs.lets_go, 0.0)
        return cells.launch_s + waits_s[self.givers.row[cells.giver]]

    def _times(self, cells: _Cells) -> tuple[Floats, Floats, Floats]:
        """(the newcomer's seconds, makespan, sum)"""
        job_s = self._job_s(cells)
        makespan = np.maximum(self.givers.makespan[cells.giver], job_s)
        return job_s, makespan, self.givers.total[cells.giver] + job_s

    def _unmeasured(self, cells: _Cells) -> Bools:
        speeds, kinds = self.table.snapshot.profiles.speeds, self.table.book.kinds
        return np.array([not speeds.get((self.job.type, kind)) for kind in kinds], np.bool_)[self.table.kind[cells.node]]

    def _ranks(self, cells: _Cells) -> NDArrayRanks:
        unmeasured = self._unmeasured(cells)
        ranks = np.where(unmeasured, TO_MEASURE, GOOD)
        if self.table.lateness.limits:
            ranks[self._breaks(cells, unmeasured)] = LATE
        ranks[self.givers.no_speed[cells.giver]] = REFUSED
        return ranks
