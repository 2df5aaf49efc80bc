"""Holds a snapshot as arrays: predicted remaining times of every job on every allowed GPU count.

Its numbers equal those of `prediction.py` bit for bit, so that an exhaustive search over 10,000 jobs is a few passes
over arrays (goal D1). Columns are computed on first use; what depends on one job or node alone is taken over from the
snapshot before, and worked out only where that has changed. Called by Algorithms 1 and 2 of SideCar scheduling and by
the engine. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_scheduler.candidates import change_obstacle
from adaptive_scheduler.decision import givable
from adaptive_scheduler.index import Floats, Ints, NameIndex, ranks
from adaptive_scheduler.models import pause
from adaptive_scheduler.models.prediction import (
    RemainingTimes,
    Tardiness,
    all_work_s,
    assumed_s,
    time_left_s,
)
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

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
    """One number per job of the snapshot, in its order; all 0 for a job that is not placed. Up to `converged` they are
    of the job alone, by `_row`; the others of its type and the time, too."""

    placed: Floats
    changeable: Floats  # may be reshaped once it has cooled down
    cooling_until: Floats
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
    most: Floats  # seconds that its time limit leaves it
    unsaved: Floats
    relaunches: Floats
    own_cost: Floats  # measured seconds of a reshape; NaN: not measured
    state: Floats  # seconds that the size of its state adds to a reshape
    state_save: Floats  # of these until its GPUs are let go
    state_away: Floats  # and more to a move
    only: Floats  # required GPU type; -1: any
    pinned: Floats  # may not move; a gang neither: it grows onto further nodes
    converged: Floats
    free: Floats  # may be reshaped now
    protected_gpus: Floats  # GPUs that no waiting job may take from it now
    reshape: Floats
    finish: Floats
    lets_go: Floats  # checkpoint and exit (G5)
    cost: Floats
    elsewhere: Floats  # extra cost of a move


_NOTHING, _NONE = (0.0,) * _Columns._fields.index("free"), np.zeros(0)


def _row(job: Job, index: NameIndex, position: Mapping[str, int]) -> tuple[float, ...]:
    if job.num_gpus <= 0 or job.node is None:
        return _NOTHING
    assumed, length = assumed_s(job), job.iterations_left
    most = min(time_left_s(job), LARGEST)
    return (
        True,
        not change_obstacle(job),
        job.cooling_until,
        job.grew_from,
        bool(job.workers),
        job.max_workers > 1,
        position.get(job.node, -1),
        index.shape(job),
        index.types[job.type, len(job.workers) or 1],
        index.types[job.type, 1],
        job.num_gpus,
        index.counts[job.num_gpus],
        length is not None,
        assumed if length is None else max(length, 0.0),
        min(assumed, most),
        most,
        job.unsaved_s,
        job.relaunches,
        math.nan if job.reshape_cost_s is None else job.reshape_cost_s,
        *_state_delays(job, index),
        -1 if job.gpu_type is None else index.kinds[job.gpu_type],
        job.pinned is not None or job.gpus_per_pod > 0,
        job.growth.category == "CC",
    )


def _state_delays(job: Job, index: NameIndex) -> tuple[float, float, float]:
    """Return what its state adds to the seconds of a reshape, to those until its GPUs are let go, and to a move."""
    if not job.state_bytes:
        return 0.0, 0.0, 0.0
    overheads, path = index.profiles.overheads(job.type), pause.path_of(job)
    saving = pause.more_to_save_s(overheads, job.state_bytes, path)
    return pause.more_of_s(overheads, job), saving, pause.more_elsewhere_s(overheads, job)


class _NodeColumns(NamedTuple):
    """Likewise per node; the added last entry (-1) stands for an unknown node."""

    heard: Bools
    open: Bools
    kept: Bools  # reserved for an aged job
    has_gpus: Bools
    idle: Ints
    kind: Ints  # index of its GPU type in `index.kinds`


def _node_row(node: Node, index: NameIndex) -> tuple[int, ...]:
    kept = node.schedulable and node.kept_for is not None
    return node.heard, node.open, kept, bool(node.gpus), node.idle, index.kinds[node.gpu_type]


def _positions(names: tuple[str, ...]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}


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

    def __init__(self, snapshot: ClusterSnapshot, now: float, settings: Settings) -> None:
        self.snapshot, self.now, self.settings = snapshot, now, settings
        self.index = snapshot.once(NameIndex, snapshot.profiles, settings, fits=NameIndex.is_small)
        self._ints, self._victims = dict[str, Ints](), dict[float, VictimOptions]()
        self.refused: dict[object, list[str]] = {}  # jobs that cannot start now, by their request
        self.failed_searches = Counter[object]()  # by request, of all tables that were made of this one by rights
        self.kept_by_right: Floats | None = None  # by job: GPUs that others may not have; None: no rights bind
        self.most_by_right: Floats | None = None  # by job: GPUs that it may grow to; likewise

    def then(self, snapshot: ClusterSnapshot) -> CostTable:
        """Return the table of a later snapshot."""
        return self if snapshot is self.snapshot else CostTable(snapshot, self.now, self.settings)

    def keeping(self, keeps: Floats, settings: Settings) -> CostTable:
        """Return this table for a waiting job for which each job keeps so many GPUs, besides those it keeps anyway."""
        protected = np.maximum(self.jobs.protected_gpus, np.minimum(keeps, self.jobs.num_gpus))
        _ = self.others_s, self.tardiness  # worked out once for all that see this table
        table = copy(self)
        table.settings = settings
        table.kept_by_right = keeps
        table.refused = {}
        table._victims = {}
        table._ints = {name: column for name, column in self._ints.items() if name != "protected_gpus"}
        vars(table)["jobs"] = self.jobs._replace(protected_gpus=protected)
        return table

    def growing(self, most: Floats) -> CostTable:
        """Return this table with the GPUs that each job may grow to."""
        table = copy(self)
        table.most_by_right = most
        return table

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Return by id the position in the snapshot."""
        return {job.id: row for row, job in enumerate(self.snapshot.jobs)}

    @cached_property
    def position(self) -> dict[str, int]:
        return self.snapshot.once(_positions, tuple(map(attrgetter("name"), self.snapshot.nodes)))

    @cached_property
    def node_rank(self) -> Ints:
        """By node: position by name."""
        return self.snapshot.once(ranks, tuple(self.position))

    @cached_property
    def nodes(self) -> _NodeColumns:
        rows = self.snapshot.node_rows(_node_row, self.index).reshape(-1, len(_NodeColumns._fields))
        columns = np.vstack((rows, (False, False, False, False, 0, self.index.kinds[""]))).T
        return _NodeColumns(*columns[:4] > 0, *columns[4:].astype(np.intp))

    def nodes_for(self, job: Job) -> Ints:
        """Positions of `candidates.nodes_for`."""
        fits = self.nodes.has_gpus.copy()
        if job.gpu_type is not None:
            fits &= self.nodes.kind == self.index.kinds.get(job.gpu_type, -1)
        if job.pinned is not None:
            fits &= np.arange(len(fits)) == self.position.get(job.pinned, -1)
        return np.flatnonzero(fits)

    @cached_property
    def jobs(self) -> _Columns:
        rows = self.snapshot.rows(_row, self.index, self.position).reshape(-1, len(_NOTHING))
        own = _Columns(*rows.T.copy(), *[_NONE] * (len(_Columns._fields) - len(_NOTHING)))
        types = np.where(own.placed > 0, own.alone, -1).astype(np.intp)
        in_launch, finish, exits, ends, relaunch = self.index.overheads[:, types]
        reshape = in_launch + own.state + np.where(own.relaunches > 0, relaunch, 0.0)
        free, cooled = own.changeable > 0, own.cooling_until <= self.now
        keeps = np.minimum(np.where(own.grew_from != 0, own.grew_from, own.num_gpus), own.num_gpus)
        return own._replace(
            free=(free & cooled).astype(np.float64),
            protected_gpus=np.where(free, np.where(cooled, 0.0, keeps), own.num_gpus),
            reshape=reshape + own.unsaved,
            finish=finish,
            lets_go=exits + own.state_save + np.where(own.relaunches > 0, ends, 0.0),
            cost=np.where(np.isnan(own.own_cost), reshape, own.own_cost),
            elsewhere=np.where(own.relaunches > 0, 0.0, relaunch) + own.state_away,
        )

    def ints(self, name: str) -> Ints:
        """Return a column of whole numbers as an index array."""
        found = self._ints.get(name)
        if found is None:
            found = self._ints[name] = getattr(self.jobs, name).astype(np.intp)
        return found

    def job_rank(self, row: Ints) -> Ints:
        """Return the positions of these jobs among each other by id; -1 at -1."""
        jobs, rank = self.snapshot.jobs, np.full(len(self.snapshot.jobs) + 1, -1)
        some = sorted(set(row[row >= 0].tolist()), key=lambda i: jobs[i].id)
        rank[some] = np.arange(len(some))
        return rank[row]

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
        return np.where(np.isnan(whole), jobs.assumed[row], np.minimum(whole, jobs.most[row]))

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
        training = self.t_train(row, self.nodes.kind[self.ints("node")[row]], self.ints("count_id")[row], "here")
        seconds[row] = training + self.jobs.finish[row]
        return seconds

    @cached_property
    def times(self) -> RemainingTimes:
        """Remaining times of all placed jobs."""
        placed = self.jobs.placed > 0
        ids = compress(self.snapshot.job, placed.tolist())
        return RemainingTimes(dict(zip(ids, self.keep_s[placed].tolist(), strict=True)))

    @cached_property
    def scope(self) -> RemainingTimes:
        """Remaining times of the jobs that count for a newcomer's makespan (G1)."""
        return self.times if self.settings.makespan_scope == "cluster" else RemainingTimes({})

    @cached_property
    def tardiness(self) -> Tardiness:
        return Tardiness.estimate(self.snapshot, self.times, self.now, self.settings)

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
        kind, count_id = self.nodes.kind[node], self.index.count_ids(self.ints("num_gpus")[row] - gives)
        run_s = self.t_run(row, kind, count_id, trains_on_s)
        makespan, total = self.with_scope(row, run_s)
        return VictimOptions(
            np.append(row, -1),
            np.append(node, -1),
            np.append(gives, 0),
            np.append(run_s, 0.0),
            np.append(makespan, self.scope.max),
            np.append(total, self.scope.sum),
            np.append(~self.known(row, kind, count_id), False),
            np.append(self._grown(row, gives), False),
        )

    def _grown(self, row: Ints, gives: Ints) -> Bools:
        before: Ints = self.ints("grew_from")[row]
        return (before > 0) & (self.ints("num_gpus")[row] - gives >= before)

    def _hosts(self) -> tuple[Ints, Ints, Ints]:
        """Return (job, node, GPUs there) of all jobs that may give GPUs now, on known nodes."""
        free = self.jobs.protected_gpus < self.jobs.num_gpus
        position, jobs = self.position, self.snapshot.jobs
        spread = [
            (row, position[node], less_than)
            for row in np.flatnonzero(free & (self.jobs.spread > 0)).tolist()
            for node, less_than in givable(jobs[row])
            if node in position
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
