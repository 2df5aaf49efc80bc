"""Finds all candidates of Algorithm 2 with their predictions (SideCar scheduling; sequences C and D).

Exhaustive search as printed, in arrays; of equal target nodes of a move only the first by name. Only the best, as many
as are listed, become objects with a reason. Called by `algorithms.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from adaptive_scheduler.candidates import (
    GOOD,
    LISTED,
    REFUSED,
    CandidateList,
    RankedCandidate,
    no_speed,
    nodes_for,
    seconds,
    spread,
)
from adaptive_scheduler.cost_table import Bools, Column, CostTable, smallest
from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.index import Floats, Ints
from adaptive_scheduler.models.prediction import pause_words, t_run
from adaptive_scheduler.snapshot import Worker


class _Cells(NamedTuple):
    """Candidates as numbers: job, node, GPU count, and index of the printed loop that finds it."""

    row: Ints
    node: Ints
    num_gpus: Ints
    loop: Ints  # 0: grows in place; above: moves to GPUs of the first, second… type


class GrowthCandidates:
    """All candidates that give idle GPUs to a running job: on its own hosts, on further ones, or elsewhere (G8)."""

    def __init__(self, table: CostTable) -> None:
        self.table, self.settings, self._here = table, table.settings, table.ints("node")
        rows = np.flatnonzero((table.jobs.free > 0) & (table.jobs.node >= 0))
        several, self.hosts = self._spread(rows)
        moved = self._moved(rows) if self.settings.moves else ()
        self.cells = self._by_right(
            _Cells(*(np.concatenate(columns) for columns in zip(several, self._grown(rows), *moved, strict=True)))
        )

    def _by_right(self, cells: _Cells) -> _Cells:
        """Return the candidates that leave each job with no more GPUs than it may have by right."""
        most = self.table.most_by_right
        if most is None:
            return cells
        allowed = np.flatnonzero(cells.num_gpus <= most[cells.row])
        self.hosts = {at: self.hosts[cell] for at, cell in enumerate(allowed.tolist()) if cell in self.hosts}
        return _Cells(*(column[allowed] for column in cells))

    def _larger(self, rows: Ints) -> Ints:
        return self.table.index.larger[self.table.ints("shape")[rows]]

    def _grown(self, rows: Ints) -> _Cells:
        """Return the candidates that grow a job on its own host."""
        table = self.table
        rows = rows[(table.nodes.idle[self._here[rows]] > 0) & (table.jobs.spread[rows] == 0)]
        counts, node = self._larger(rows), self._here[rows]
        more = counts - table.ints("num_gpus")[rows][:, None]
        job, i = np.nonzero((more > 0) & (more <= table.nodes.idle[node][:, None]))
        return _Cells(rows[job], node[job], counts[job, i], np.zeros_like(job))

    def _spread(self, rows: Ints) -> tuple[_Cells, dict[int, tuple[Worker, ...]]]:
        """Over as few further hosts as possible, where its own have too few."""
        if self.settings.placement == "host":
            rows = rows[self.table.jobs.several[rows] > 0]
        candidates = [candidate for row in rows.tolist() for candidate in self._spread_candidates(row)]
        columns = np.array([(row, self._here[row], count, 0) for row, count, _ in candidates], np.intp).reshape(-1, 4).T
        return _Cells(*columns), {cell: workers for cell, (_, _, workers) in enumerate(candidates)}

    def _spread_candidates(self, row: int) -> Iterator[tuple[int, int, tuple[Worker, ...]]]:
        snapshot, anywhere = self.table.snapshot, self.settings.placement == "count_only"
        job, node = snapshot.jobs[row], snapshot.nodes[self._here[row]]
        most = len(snapshot.nodes) if anywhere else job.max_workers
        own = {w.node: w.num_gpus for w in placed_on(job)}
        if most == 1 or not all((host := snapshot.node.get(name)) and host.heard for name in own):
            return
        near = [n for n in nodes_for(snapshot, job) if n.heard and (anywhere or n.gpu_type == node.gpu_type)]
        for count in job.optional:
            beyond = count > job.num_gpus and (job.workers or count - job.num_gpus > node.idle)
            if beyond and (workers := spread(count, near, most, own, job.gpus_per_pod or 1)):
                yield row, count, workers

    def _moved(self, rows: Ints) -> Iterator[_Cells]:
        """Sequence D: to a node that holds the whole new count, if the job's present speed is known."""
        table = self.table
        idle_nodes = np.flatnonzero((table.nodes.idle > 0) & table.nodes.heard)
        idle_nodes = idle_nodes[np.argsort(table.node_rank[idle_nodes])]
        largest = table.nodes.idle[idle_nodes].max(initial=0)
        rows = rows[(table.ints("num_gpus")[rows] <= largest) & (table.jobs.pinned[rows] == 0)]
        here = self._here[rows]
        rows = rows[table.nodes.heard[here] & table.known(rows, table.nodes.kind[here], table.ints("count_id")[rows])]
        kinds = table.index.kinds
        there = sorted(name for name, kind in kinds.items() if kind in set(table.nodes.kind[idle_nodes].tolist()))
        for loop, name in enumerate(there, start=1):
            yield self._moved_to(kinds[name], idle_nodes[table.nodes.kind[idle_nodes] == kinds[name]], loop, rows)

    def _moved_to(self, kind: int, idle_nodes: Ints, loop: int, rows: Ints) -> _Cells:
        """Return the moves; to the same count only on other GPUs (X2); with unknown length not to another GPU type."""
        table, only = self.table, self.table.ints("only")[rows]
        same = table.nodes.kind[self._here[rows]] == kind
        rows = rows[((only < 0) | (only == kind)) & (same | (table.jobs.known_length[rows] > 0))]
        here, counts = self._here[rows], self._larger(rows)
        first = np.array([_first(table, idle_nodes, count) for count in range(table.nodes.idle[idle_nodes].max() + 1)])
        same = (table.nodes.kind[here] == kind) & (table.jobs.spread[rows] == 0)
        more = counts - table.ints("num_gpus")[rows][:, None]
        nearer = same[:, None] & (more <= table.nodes.idle[here][:, None])
        job, i = np.nonzero((counts > 0) & (counts < len(first)) & ~nearer)
        row, count = rows[job], counts[job, i]
        node = self._not_own(row, count, first[count], idle_nodes)
        good = (node >= 0) & table.known(row, np.full_like(row, kind), table.index.count_ids(count))
        return _Cells(row[good], node[good], count[good], np.full(good.sum(), loop))

    def _not_own(self, row: Ints, count: Ints, node: Ints, idle_nodes: Ints) -> Ints:
        """Replace target nodes on which the job already runs by the next suitable ones."""
        table = self.table
        for cell in np.flatnonzero((node == self._here[row]) | (table.jobs.spread[row] > 0)).tolist():
            own = [table.position.get(w.node, -1) for w in placed_on(table.snapshot.jobs[row[cell]])]
            node[cell] = _first(table, idle_nodes[~np.isin(idle_nodes, own)], count[cell])
        return node

    @cached_property
    def _beyond(self) -> dict[int, float]:
        """Cost of launches on further hosts, for candidates over several hosts; 0 without further ones."""
        snapshot, costs = self.table.snapshot, dict[int, float]()
        for cell, workers in self.hosts.items():
            job = snapshot.jobs[self.cells.row[cell]]
            further = {w.node for w in workers} - {w.node for w in placed_on(job)}
            costs[cell] = snapshot.profiles.overheads(job.type).k8s_init if further else 0.0
        return costs

    @cached_property
    def elsewhere(self) -> Bools:
        away = self.cells.loop > 0
        for cell, workers in self.hosts.items():
            own = {w.node for w in placed_on(self.table.snapshot.jobs[self.cells.row[cell]])}
            away[cell] = not own.issuperset(w.node for w in workers)
        return away

    @cached_property
    def extra_s(self) -> Floats:
        """Extra cost over a reshape of a change beyond the job's own hosts. Counted in full: it trains on while further
        hosts are launched, but gains nothing yet."""
        extra = np.where(self.cells.loop > 0, self.table.jobs.elsewhere[self.cells.row], 0.0)
        for cell, cost in self._beyond.items():
            extra[cell] = cost
        return extra

    @cached_property
    def _count_id(self) -> Ints:
        return self.table.index.count_ids(self.cells.num_gpus)

    @cached_property
    def job_s(self) -> Floats:
        table, cells = self.table, self.cells
        took = table.t_run(cells.row, table.nodes.kind[cells.node], self._count_id, types="alone")
        snapshot = table.snapshot
        for cell, workers in self.hosts.items():
            job, kind = snapshot.jobs[cells.row[cell]], snapshot.nodes[cells.node[cell]].gpu_type
            took[cell] = t_run(snapshot.profiles, job, kind, int(cells.num_gpus[cell]), hosts=len(workers))
        return took + self.extra_s

    @cached_property
    def gain_s(self) -> Floats:
        return self.table.keep_s[self.cells.row] - self.job_s

    @cached_property
    def enough_s(self) -> Floats:
        """G6, if doing nothing competes: the gain that must be exceeded. Only this job's time changes, so its gain is
        that of the sum and never below that of the makespan: one test covers both lines of 1.7."""
        return self.settings.min_gain_factor * (self.table.jobs.cost[self.cells.row] + self.extra_s)

    @cached_property
    def no_speed(self) -> Bools:
        return ~self.table.known(self.cells.row, self.table.nodes.kind[self.cells.node], self._count_id)

    @cached_property
    def refused(self) -> Bools:
        """As printed, only a move to the same count must gain anything."""
        too_little = ~(self.gain_s > self.enough_s)
        if not self.settings.allow_noop:
            too_little &= self.cells.num_gpus == self.table.ints("num_gpus")[self.cells.row]
        return too_little | self.no_speed

    @cached_property
    def times(self) -> tuple[Floats, Floats]:
        """(makespan, sum)"""
        return self.table.with_scope(self.cells.row, self.job_s)

    def best(self, most: int) -> list[tuple[int, int]]:
        """Return (rank, cell) of the first `most`, in order; nothing if all are refused."""
        good = smallest(np.flatnonzero(~self.refused), self._columns(GOOD), most).tolist()
        if not good:
            return []
        rest = smallest(np.flatnonzero(self.refused), self._columns(REFUSED), most - len(good)).tolist()
        return [*((GOOD, cell) for cell in good), *((REFUSED, cell) for cell in rest)]

    def _columns(self, rank: int) -> list[Column]:
        """G4; a converged job loses ties (X10)."""
        table, cells = self.table, self.cells
        loops: list[Column] = [cells.row.__getitem__, cells.num_gpus.__getitem__, cells.loop.__getitem__]
        name: Column = lambda c: table.node_rank[cells.node[c]]  # noqa: E731
        if rank == REFUSED:
            return [cells.num_gpus.__getitem__, lambda c: -table.nodes.idle[cells.node[c]], name, *loops]
        times: list[Column] = [self.times[0].__getitem__, self.times[1].__getitem__]
        if self.settings.tiebreak == "first":
            return [times[0], *loops]
        return [
            *times,
            lambda c: table.jobs.converged[cells.row[c]],
            self.elsewhere.__getitem__,
            cells.num_gpus.__getitem__,
            lambda c: table.job_rank(cells.row[c]),
            name,
        ]

    def candidate(self, cell: int, rank: int, place: int) -> RankedCandidate:
        snapshot, count = self.table.snapshot, int(self.cells.num_gpus[cell])
        node, why = snapshot.nodes[self.cells.node[cell]], ""
        if rank == REFUSED:
            why = no_speed(count, node)
            if not self.no_speed[cell]:
                why = _not_worth_it(float(self.gain_s[cell]), float(self.enough_s[cell]))
                job, moves = snapshot.jobs[self.cells.row[cell]], bool(self.cells.loop[cell] > 0)
                pause = pause_words(snapshot.profiles, job, moves)
                why += f" ({pause})" if pause else ""
        makespan, total = (float(column[cell]) for column in self.times)
        workers = self.hosts.get(cell, ())
        return RankedCandidate(
            (rank, place),
            snapshot.jobs[self.cells.row[cell]],
            node,
            count,
            makespan,
            total,
            float(self.job_s[cell]),
            refused=why,
            workers=workers if len(workers) > 1 else (),
        )


def growth_candidates(table: CostTable) -> CandidateList:
    """Return all candidates that give idle GPUs to one running job, best first; none if no job gains enough."""
    growths = GrowthCandidates(table)
    best = growths.best(LISTED)
    candidates = [growths.candidate(cell, rank, i) for i, (rank, cell) in enumerate(best)]
    return CandidateList(candidates, len(growths.cells.row) - len(candidates))


def _first(table: CostTable, idle_nodes: Ints, count: int) -> int:
    """Return the first of these nodes with `count` idle GPUs; -1 if there is none."""
    found = idle_nodes[table.nodes.idle[idle_nodes] >= count][:1]
    return int(found[0]) if len(found) else -1


def _not_worth_it(gain: float, enough: float) -> str:
    if gain > 0:
        return f"gains only {seconds(gain)}, and a reshape must gain more than {seconds(enough)}"
    return f"ends {seconds(-gain)} later than if left as it is" if gain < 0 else "gains nothing"
