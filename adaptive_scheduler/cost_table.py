"""Holds a snapshot as arrays: predicted remaining times of every job on every allowed GPU count.

Its numbers equal those of `prediction.py` bit for bit, so that an exhaustive search over 10,000 jobs is a few passes
over arrays (goal D1). Columns are computed on first use; `then` recomputes only jobs that have changed. Called by
Algorithms 1 and 2 of SideCar scheduling and by the engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_scheduler.candidates import nodes_for, protected_gpus, reshape_obstacle
from adaptive_scheduler.decision import givable
from adaptive_scheduler.index import Floats, Ints, NameIndex, ranks
from adaptive_scheduler.models.prediction import (
    RemainingTimes,
    Tardiness,
    all_work_s,
    assumed_s,
    cross_host_s,
    gpu_release_s,
    reshape_cost_s,
    reshape_delay_s,
)
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

Bools = NDArray[np.bool_]
Column = Callable[[Ints], NDArray[Any]]
"""A sort key of candidates, by their indices."""


def smallest(cells: Ints, columns: Sequence[Column], most: int) -> Ints:
    """Return the first `most` of these cells in the order of their columns; equal ones keep their order."""
    taken, rest, missing = [cells[:0]], cells, most
    for column in columns:
        if len(rest) <= missing or not missing:
            break
        values = column(rest)
        limit = values.min()
        if np.count_nonzero(values == limit) < missing:  # most makespans are equal: rarely needed
            limit = np.partition(values, missing - 1)[missing - 1]
        taken.append(rest[values < limit])
        rest, missing = rest[values == limit], missing - len(taken[-1])
    few = np.sort(np.concatenate([*taken, rest[:missing]]))
    return few[np.lexsort([column(few) for column in reversed(columns)])] if columns else few


class _Columns(NamedTuple):
    """One number per job of the snapshot, in its order; all 0 for a job that is not placed."""

    placed: Floats
    free: Floats  # may be reshaped now
    protected_gpus: Floats  # GPUs that no waiting job may take from it now
    grew_from: Floats  # count before it last grew; 0: it has not
    spread: Floats  # runs on several hosts
    several: Floats  # may run on several
    node: Floats  # position in the snapshot; -1: not in it
    shape: Floats
    here: Floats  # index of (type, hosts), as it runs
    alone: Floats  # the same on one host
    num_gpus: Floats
    count_id: Floats
    known_length: Floats
    left: Floats  # iterations; seconds where the length is unknown
    assumed: Floats
    reshape: Floats
    finish: Floats
    lets_go: Floats  # checkpoint and exit (G5)
    cost: Floats
    elsewhere: Floats  # extra cost of a move
    only: Floats  # required GPU type; -1: any
    pinned: Floats  # may not move; a gang neither: it grows onto further nodes
    converged: Floats


_NOTHING = (0.0,) * len(_Columns._fields)


class VictimOptions(NamedTuple):
    """GPU amounts that each victim could give on one of its hosts, with the predicted times without the newcomer. The
    last entry (-1) stands for no victim."""

    row: Ints
    node: Ints
    gives: Ints
    run_s: Floats
    makespan: Floats
    total: Floats
    no_speed: Bools
    grown: Bools  # it keeps its count from before it last grew


class CostTable:
    """The arrays of one snapshot that all searches of one tick share."""

    def __init__(
        self, snapshot: ClusterSnapshot, now: float, settings: Settings, before: CostTable | None = None
    ) -> None:
        self.snapshot, self.now, self.settings = snapshot, now, settings
        self._before = before
        self._victims: dict[float, VictimOptions] = {}
        self.refused: dict[object, list[str]] = {}  # jobs that cannot start now, by their request

    def then(self, snapshot: ClusterSnapshot) -> CostTable:
        """Return the table of a later snapshot, reusing what has not changed."""
        if snapshot is self.snapshot:
            return self
        known = self if "_numbers" in self.__dict__ else self._before
        return CostTable(snapshot, self.now, self.settings, known)

    # Nodes in the order of the snapshot; the last entry (-1) stands for an unknown node.
    @cached_property
    def position(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.snapshot.nodes)}

    @cached_property
    def idle(self) -> Ints:
        return np.array([*(node.idle for node in self.snapshot.nodes), 0], np.intp)

    @cached_property
    def heard(self) -> Bools:
        return np.array([*(node.heard for node in self.snapshot.nodes), False], np.bool_)

    @cached_property
    def kind(self) -> Ints:
        """By node: index of its GPU type in `index.kinds`."""
        kinds = self.index.kinds
        return np.array([*(kinds[node.gpu_type] for node in self.snapshot.nodes), kinds[""]], np.intp)

    @cached_property
    def open(self) -> Bools:
        return np.array([*(node.open for node in self.snapshot.nodes), False], np.bool_)

    @cached_property
    def kept(self) -> Bools:
        """By node: whether it is reserved for an aged job."""
        kept = (node.schedulable and node.kept_for is not None for node in self.snapshot.nodes)
        return np.array([*kept, False], np.bool_)

    @cached_property
    def node_rank(self) -> Ints:
        """By node: position by name."""
        return ranks([node.name for node in self.snapshot.nodes])

    def nodes_for(self, job: Job) -> Ints:
        """Positions of `candidates.nodes_for`; cached for all tables derived from one another."""
        known, wanted = self.index.allowed, (job.gpu_type, job.pinned)
        if wanted not in known:
            known[wanted] = np.array([self.position[n.name] for n in nodes_for(self.snapshot, job)], np.intp)
        return known[wanted]

    @property
    def index(self) -> NameIndex:
        return self._numbers[0]

    @cached_property
    def _numbers(self) -> tuple[NameIndex, Floats]:
        before, self._before = self._before, None
        jobs = self.snapshot.jobs
        if before is None or not self._comes_of(before):
            index = NameIndex(self.snapshot.profiles, self.settings)
            return index, self._columns(index, jobs)
        index, columns = before._numbers
        for name in ("position", "job_rank", "node_rank"):  # names have not changed
            self.__dict__[name] = getattr(before, name)
        changed = [i for i, job in enumerate(jobs) if job is not before.snapshot.jobs[i]]
        if changed:
            columns = columns.copy()
            columns[:, changed] = self._columns(index, [jobs[i] for i in changed])
        return index, columns

    def _comes_of(self, before: CostTable) -> bool:
        """Return whether both snapshots have the same jobs and nodes in the same order."""
        old, new = before.snapshot, self.snapshot
        return new.profiles is old.profiles and list(new.job) == list(old.job) and list(new.node) == list(old.node)

    def _columns(self, index: NameIndex, jobs: Iterable[Job]) -> Floats:
        return np.array([self._row(index, job) for job in jobs], np.float64).reshape(-1, len(_NOTHING)).T.copy()

    def _row(self, index: NameIndex, job: Job) -> tuple[float, ...]:
        if job.num_gpus <= 0 or job.node is None:
            return _NOTHING
        profiles = self.snapshot.profiles
        o, assumed = profiles.overheads(job.type), assumed_s(job)
        length = job.iterations_left
        return (
            True, not reshape_obstacle(job, self.now), protected_gpus(job, self.now), job.grew_from,
            bool(job.workers), job.max_workers > 1,
            self.position.get(job.node, -1),
            index.shape(job), index.types[job.type, len(job.workers) or 1], index.types[job.type, 1],
            job.num_gpus, index.counts[job.num_gpus],
            length is not None, assumed if length is None else max(length, 0.0), min(assumed, LARGEST),
            reshape_delay_s(profiles, job), o.finish, gpu_release_s(profiles, job), reshape_cost_s(profiles, job),
            cross_host_s(profiles, job),
            -1 if job.gpu_type is None else index.kinds[job.gpu_type],
            job.pinned is not None or job.gpus_per_pod > 0, job.growth.category == "CC",
        )  # fmt: skip

    @cached_property
    def jobs(self) -> _Columns:
        return _Columns(*self._numbers[1])

    def ints(self, name: str) -> Ints:
        """Return a column of whole numbers as an index array."""
        found = self._ints.get(name)
        if found is None:
            found = self._ints[name] = getattr(self.jobs, name).astype(np.intp)
        return found

    @cached_property
    def _ints(self) -> dict[str, Ints]:
        return {}

    @cached_property
    def job_rank(self) -> Ints:
        """By job: position by id; -1 at -1."""
        return ranks([job.id for job in self.snapshot.jobs])

    def known(self, row: Ints, kind: Ints, count_id: Ints) -> Bools:
        """Return whether a speed is known for these jobs on one host of these GPU types with these counts."""
        return ~np.isnan(self.index.seconds[kind, self.ints("alone")[row], count_id])

    def t_train(self, row: Ints, kind: Ints, count_id: Ints, types: str) -> Floats:
        """`prediction.t_train` of these jobs. `types`: "here" as they are spread now, "alone" on one host."""
        jobs, seconds = self.jobs, self.index.seconds
        each = seconds[kind, self.ints(types)[row], count_id]
        left, known = jobs.left[row], jobs.known_length[row] > 0
        with np.errstate(over="ignore"):
            whole = left * each
            if not known.all():
                present = seconds[kind, self.ints("alone")[row], self.ints("count_id")[row]]
                whole = np.where(known, whole, whole / present)
        return np.where(np.isnan(whole), jobs.assumed[row], np.minimum(whole, LARGEST))

    def t_run(self, row: Ints, kind: Ints, count_id: Ints, trains_on_s: float = 0.0, types: str = "here") -> Floats:
        """`prediction.t_run` of these jobs."""
        reshape, finish = self.jobs.reshape[row], self.jobs.finish[row]
        training = self.t_train(row, kind, count_id, types)
        if trains_on_s == 0.0:
            return reshape + training + finish
        as_is = self.t_train(row, kind, self.ints("count_id")[row], "here")
        ends_first = as_is <= trains_on_s
        share = 1.0 - trains_on_s / np.where(ends_first, np.inf, as_is)
        return np.where(ends_first, as_is + finish, trains_on_s + reshape + training * share + finish)

    @cached_property
    def keep_s(self) -> Floats:
        """`prediction.t_keep` of every placed job; 0 for the others."""
        row = np.flatnonzero(self.jobs.placed)
        seconds = np.zeros(len(self.snapshot.jobs))
        training = self.t_train(row, self.kind[self.ints("node")[row]], self.ints("count_id")[row], "here")
        seconds[row] = training + self.jobs.finish[row]
        return seconds

    @cached_property
    def times(self) -> RemainingTimes:
        """Remaining times of all placed jobs."""
        placed, seconds = self.jobs.placed.tolist(), self.keep_s.tolist()
        return RemainingTimes({j.id: s for j, s, p in zip(self.snapshot.jobs, seconds, placed, strict=True) if p})

    @cached_property
    def scope(self) -> RemainingTimes:
        """Remaining times of the jobs that count for a newcomer's makespan (G1)."""
        return self.times if self.settings.makespan_scope == "cluster" else RemainingTimes({})

    @cached_property
    def tardiness(self) -> Tardiness:
        return Tardiness.of(self.snapshot, self.times, self.now, self.settings)

    @cached_property
    def limit_s(self) -> Floats:
        """By job: seconds until its deadline with tolerance; infinite at -1 and without a deadline."""
        limits = self.tardiness.limits
        return np.array([*(limits.get(job.id, math.inf) for job in self.snapshot.jobs), math.inf])

    @cached_property
    def late_s(self) -> Floats:
        """By job: predicted tardiness in seconds if nothing changes; 0 at -1."""
        return np.array([*(self.tardiness.late.get(job.id, 0.0) for job in self.snapshot.jobs), 0.0])

    @cached_property
    def all_work_s(self) -> float:
        return all_work_s(self.snapshot)

    @cached_property
    def others_s(self) -> Floats:
        """By job: the longest remaining time of all other jobs."""
        others = np.full(len(self.snapshot.jobs), self.times.max)
        if len(others):
            others[self.keep_s.argmax()] = self.times.runner_up
        return others

    def victims(self, trains_on_s: float) -> VictimOptions:
        """Return the options of all jobs that may give GPUs now. `trains_on_s` as in `t_run`."""
        if trains_on_s not in self._victims:
            self._victims[trains_on_s] = self._all_victims(trains_on_s)
        return self._victims[trains_on_s]

    def _all_victims(self, trains_on_s: float) -> VictimOptions:
        hosts, nodes, has = self._hosts()
        amounts = self.index.gives[self.ints("shape")[hosts]]
        most = self.ints("num_gpus")[hosts] - self.ints("protected_gpus")[hosts]
        at, i = np.nonzero((amounts > 0) & (amounts < has[:, None]) & (amounts <= most[:, None]))
        row, node, gives = hosts[at], nodes[at], amounts[at, i]
        kind, count_id = self.kind[node], self.index.count_ids(self.ints("num_gpus")[row] - gives)
        run_s = self.t_run(row, kind, count_id, trains_on_s)
        makespan, total = self.with_scope(row, run_s)
        return VictimOptions(
            np.append(row, -1), np.append(node, -1), np.append(gives, 0), np.append(run_s, 0.0),
            np.append(makespan, self.scope.max), np.append(total, self.scope.sum),
            np.append(~self.known(row, kind, count_id), False), np.append(self._grown(row, gives), False),
        )  # fmt: skip

    def _grown(self, row: Ints, gives: Ints) -> Bools:
        before: Ints = self.ints("grew_from")[row]
        return (before > 0) & (self.ints("num_gpus")[row] - gives >= before)

    def _hosts(self) -> tuple[Ints, Ints, Ints]:
        """Return (job, node, GPUs there) of all jobs that may give GPUs now, on known nodes."""
        free = self.jobs.protected_gpus < self.jobs.num_gpus
        spread = [
            (row, self.position[node], less_than)
            for row in np.flatnonzero(free & (self.jobs.spread > 0)).tolist()
            for node, less_than in givable(self.snapshot.jobs[row])
            if node in self.position
        ]
        row = np.flatnonzero(free & (self.jobs.spread == 0) & (self.jobs.node >= 0))
        more = np.array(spread, np.intp).reshape(-1, 3).T
        one = row, self.ints("node")[row], self.ints("num_gpus")[row]
        return tuple(np.concatenate(pair) for pair in zip(one, more, strict=True)) if spread else one  # type: ignore[return-value]

    def with_scope(self, row: Ints, seconds: Floats) -> tuple[Floats, Floats]:
        """`RemainingTimes.replace` for each of these jobs: (makespan, sum)."""
        if self.settings.makespan_scope == "pair":
            return seconds, seconds
        return np.maximum(self.others_s[row], seconds), self.times.sum + (seconds - self.keep_s[row])
