"""Finds all candidates of Algorithm 1 with their predictions (SideCar scheduling).

Exhaustive search as printed, in arrays; only the best, as many as are listed, become objects with a reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from adaptive_scheduler.candidates import (
    GOOD,
    LATE,
    LISTED,
    REFUSED,
    TO_MEASURE,
    CandidateList,
    RankedCandidate,
    gpus,
    healthy_on,
    no_speed,
    nodes_for,
    seconds,
    spread,
)
from adaptive_scheduler.cost_table import Bools, Column, CostTable, VictimOptions, smallest
from adaptive_scheduler.index import Floats, Ints
from adaptive_scheduler.models.prediction import t_new
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker


class IdlePool(NamedTuple):
    """Nodes whose idle GPUs are counted together: one host, or as printed the whole cluster (G7)."""

    node: Node
    idle: int
    nodes: tuple[Node, ...]


def idle_pools(table: CostTable, job: Job) -> list[IdlePool]:
    """Return each open node, or all as one pool named after the node with most idle GPUs (G7)."""
    nodes = tuple(n for n in nodes_for(table.snapshot, job) if n.open)
    if table.settings.placement == "host" or not nodes:
        return [IdlePool(n, n.idle, (n,)) for n in nodes]
    most = min(nodes, key=lambda n: (-n.idle, n.name))
    return [IdlePool(most, sum(n.idle for n in nodes), nodes)]


def combined_capacity(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> int:
    """Return the GPUs that several nodes could ever give the job; 0 if it needs all on one."""
    if settings.placement == "count_only":
        return sum(n.healthy for n in nodes_for(snapshot, job) if n.schedulable)
    return healthy_on(nodes_for(snapshot, job), job.max_workers) if job.max_workers > 1 else 0


def exactly(need: int, settings: Settings) -> str:
    return f"exactly {need}" if settings.over_release == "never" else f"{need} or more"


class _Cells(NamedTuple):
    """Candidates as numbers: node, index of the allowed count, entry of `VictimOptions` (-1: no victim)."""

    node: Ints
    at: Ints
    option: Ints

    @classmethod
    def from_parts(cls, *parts: _Cells) -> _Cells:
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def of_these(self, chosen: Ints) -> _Cells:
        return _Cells(self.node[chosen], self.at[chosen], self.option[chosen])


class IncomingJob:
    """One waiting job and the nodes open to it."""

    def __init__(self, table: CostTable, job: Job) -> None:
        self.table, self.job, self.settings = table, job, table.settings
        self.counts = np.array(job.optional, np.intp)
        # G5: refined, the victim trains on during a launch that can begin before it has released its GPUs.
        refined = table.snapshot.profiles.overheads(job.type).k8s_init if self.settings.refined else 0.0
        refined *= not job.relaunches
        self.victims: VictimOptions = table.victims(refined)
        allowed = table.nodes_for(job)
        self.open = allowed[table.nodes.open[allowed]]
        self.kept = allowed[table.nodes.kept[allowed]]
        self.together = self.settings.placement == "count_only" and len(self.open) > 1
        idle = table.nodes.idle
        self.idle = np.full_like(idle, idle[self.open].sum()) if self.together else idle

    @property
    def keeps_its_count(self) -> bool:
        """True if its first count is final: it cannot be grown later, and no other job waits."""
        return not self.job.stoppable and [job.id for job in self.table.snapshot.queue] == [self.job.id]

    @cached_property
    def launch_s(self) -> Floats:
        """By GPU type and count: remaining seconds on one host."""
        table, profiles = self.table, self.table.snapshot.profiles
        taken = np.zeros((len(table.index.kinds), len(self.counts)))
        here = set(table.nodes.kind[np.append(self.open, self.kept)].tolist())
        for name, kind in table.index.kinds.items():
            if kind in here:
                taken[kind] = [t_new(profiles, self.job, name, count) for count in self.job.optional]
        return taken

    @cached_property
    def unmeasured(self) -> Bools:
        """By GPU type: whether no speed is known."""
        speeds = self.table.snapshot.profiles.speeds
        return np.array([not speeds.get((self.job.type, kind)) for kind in self.table.index.kinds], np.bool_)

    def cells(self, more: Bools | None = None) -> _Cells:
        """Candidates on one host, or with G7's counts on the first of several. `more`: options that may give more than
        needed (G3); by default as configured."""
        cells = _Cells.from_parts(self._alone(), self._taking(more))
        if self.settings.tiebreak == "full":
            return cells
        gives, row = self.victims.gives[cells.option], self.victims.row[cells.option]
        loops = (cells.at, gives, cells.node) if self.together else (cells.node, cells.at, gives)
        return cells.of_these(np.lexsort((row, *reversed(loops))))  # order of the printed loops

    def _alone(self) -> _Cells:
        here = self.open[:1] if self.together else self.open
        here = here[self.idle[here] > 0]
        node, at = np.nonzero(self.counts <= self.idle[here][:, None])
        return _Cells(here[node], at, np.full(len(at), -1))

    def _taking(self, more: Bools | None) -> _Cells:
        """With a victim that gives exactly what is missing, or also more (G3)."""
        g, idle, usable = self.victims, self.idle[self.victims.node], np.zeros(len(self.idle), np.bool_)
        usable[self.open] = True
        reach = np.where(usable[g.node], idle + g.gives, 0)
        if self.settings.over_release == "always" or more is not None:
            counts = self.counts[:, None]
            at, option = np.nonzero((idle < counts) & (counts <= np.where(True if more is None else more, reach, 0)))
        else:
            number = np.full(int(reach.max()) + 1, -1, np.intp)
            found_on_one = self.counts < len(number)
            number[self.counts[found_on_one]] = np.flatnonzero(found_on_one)
            number[0] = -1
            option = np.flatnonzero(number[reach] >= 0)
            at = number[reach[option]]
        return _Cells(g.node[option], at, option)

    def refused(self, evaluated: EvaluatedCandidates) -> _Cells:
        """Counts that no victim there can make up for, and nodes reserved for another job."""
        table, here = self.table, self.open
        at_home = np.ones(len(evaluated.cells.at), np.bool_)
        if self.together:
            here = here[np.lexsort((table.node_rank[here], -table.nodes.idle[here]))[:1]]
        else:
            at_home[list(evaluated.hosts)] = False  # spread over several, no single host held it
        got = np.zeros((len(self.idle), len(self.counts)), np.bool_)
        got[here if self.together else evaluated.cells.node[at_home], evaluated.cells.at[at_home]] = True
        node, at = np.nonzero(~got[here])
        no_option = np.full(len(at) + len(self.kept), -1)
        return _Cells(np.append(here[node], self.kept), np.append(at, np.zeros_like(self.kept)), no_option)


class EvaluatedCandidates:
    """Candidates with their predicted outcome and ranks."""

    def __init__(self, new: IncomingJob, cells: _Cells, hosts: dict[int, tuple[Worker, ...]] | None = None) -> None:
        self.new, self.table, self.cells = new, new.table, cells
        self.hosts = hosts or {}  # of candidates over several hosts, by cell
        self.launch_s = new.launch_s[self.table.nodes.kind[cells.node], cells.at]
        for cell, workers in self.hosts.items():
            kind, count = new.table.snapshot.nodes[cells.node[cell]].gpu_type, new.job.optional[cells.at[cell]]
            self.launch_s[cell] = t_new(new.table.snapshot.profiles, new.job, kind, count, len(workers))

    @cached_property
    def job_s(self) -> Floats:
        """Remaining seconds of the newcomer, with its victim's checkpoint and exit where that is counted (G5). Or must
        be counted: a job whose launch holds its GPUs is launched only once they are free."""
        if not (self.new.settings.refined or self.new.job.relaunches):
            return self.launch_s
        waits_s: Floats = np.append(self.table.jobs.lets_go, 0.0)[self.new.victims.row[self.cells.option]]
        return self.launch_s + waits_s

    @cached_property
    def makespan(self) -> Floats:
        return np.maximum(self.new.victims.makespan[self.cells.option], self.job_s)

    def total(self, cells: Ints) -> Floats:
        total: Floats = self.new.victims.total[self.cells.option[cells]] + self.job_s[cells]
        return total

    @cached_property
    def unmeasured(self) -> Bools:
        return self.new.unmeasured[self.table.nodes.kind[self.cells.node]]

    @cached_property
    def ranks(self) -> Ints:
        ranks = np.where(self.unmeasured, TO_MEASURE, GOOD)
        if self.table.tardiness.limits:
            ranks[self._breaks()] = LATE
        ranks[self.new.victims.no_speed[self.cells.option]] = REFUSED
        return ranks

    def _breaks(self) -> Bools:
        """Return True where a deadline that held before is broken. A guess about an unmeasured newcomer breaks none."""
        row, run_s = self.new.victims.row[self.cells.option], self.new.victims.run_s[self.cells.option]
        limit, before = self.table.limit_s[row], np.append(self.table.keep_s, 0.0)[row]
        mine = self._limit
        its_own = ~self.unmeasured & (mine < self.job_s) if mine >= 0 else np.zeros(len(row), np.bool_)
        return its_own | ((before <= limit) & (limit < run_s))

    @property
    def _limit(self) -> float:
        return self.table.tardiness.limits.get(self.new.job.id, np.inf)

    def late_s(self, cells: Ints) -> Floats:
        """Total tardiness."""
        option = self.cells.option[cells]
        row, tardiness = self.new.victims.row[option], self.table.tardiness
        theirs = np.maximum(0.0, self.new.victims.run_s[option] - self.table.limit_s[row]) - self.table.late_s[row]
        mine = np.where(self.unmeasured[cells], 0.0, np.maximum(0.0, self.job_s[cells] - self._limit))
        late: Floats = tardiness.total + (theirs + mine)
        return late

    def best(self, most: int) -> list[tuple[int, int]]:
        """Return (rank, cell) of the first `most` acceptable ones, in order."""
        found, ranks = list[tuple[int, int]](), self.ranks
        for rank in (GOOD, TO_MEASURE):
            found += [(rank, c) for c in self._first(ranks == rank, rank, most - len(found))]
        if len(found) < most and (ranks == LATE).any():
            late = [
                (self.late_s(np.array([c]))[0], rank, c)
                for rank, of_rank in ((GOOD, ~self.unmeasured), (TO_MEASURE, self.unmeasured))
                for c in self._first((ranks == LATE) & of_rank, rank, most, self.late_s)
            ]
            found += [(LATE, c) for *_, c in sorted(late, key=lambda candidate: candidate[:2])[: most - len(found)]]
        return found

    def _first(self, these: Bools, rank: int, most: int, *before: Column) -> list[int]:
        if most <= 0:
            return []
        return list(map(int, smallest(np.flatnonzero(these), [*before, *self._columns(rank)], most)))

    def _columns(self, rank: int) -> Sequence[Column]:
        """Sort keys of G4. Candidates to be measured go by few GPUs."""
        cells, new = self.cells, self.new
        times: list[Column] = [self.makespan.__getitem__, self.total]
        if rank == GOOD and new.settings.tiebreak == "first":
            return times[:1]
        taken: Column = lambda c: cells.option[c] >= 0  # noqa: E731
        count: Column = lambda c: new.counts[cells.at[c]]  # noqa: E731
        names: list[Column] = [
            lambda c: self.table.node_rank[cells.node[c]],
            lambda c: self.table.job_rank(new.victims.row[cells.option[c]]),
            lambda c: new.victims.gives[cells.option[c]],
        ]
        if rank == GOOD:
            return [*times, taken, count, *names]
        most: Column = lambda c: -count(c)  # noqa: E731
        return [taken, most, *times, *names] if new.keeps_its_count else [count, taken, *times, *names]

    def candidate(self, cell: int, rank: int, place: int, refused: str = "") -> RankedCandidate:
        new, snapshot, option = self.new, self.table.snapshot, int(self.cells.option[cell])
        node, count = snapshot.nodes[self.cells.node[cell]], new.job.optional[self.cells.at[cell]]
        at, late_s = np.array([cell]), 0.0
        victim = snapshot.jobs[new.victims.row[option]] if option >= 0 else None
        keeps = victim.num_gpus - int(new.victims.gives[option]) if victim else 0
        job_s = float(self.job_s[cell])
        if rank == LATE:
            late_s = float(self.late_s(at)[0])
            after = {victim.id: float(new.victims.run_s[option])} if victim else {}
            after |= {} if self.unmeasured[cell] else {new.job.id: job_s}
            broken = self.table.tardiness.broken_by(after)
            refused = " and ".join(f"{job} would miss its deadline by {seconds(s)}" for job, s in broken.items())
        if rank == REFUSED and victim:
            refused = no_speed(keeps, node, victim.id)
        return RankedCandidate(
            (rank, late_s, place),
            new.job,
            node,
            count,
            float(self.makespan[cell]),
            float(self.total(at)[0]),
            job_s,
            victim,
            keeps,
            refused,
            self.hosts.get(cell, ()),
        )


def incoming_candidates(table: CostTable, job: Job) -> CandidateList:
    """Return all candidates to start a waiting job: on each host; for counts that no host holds over several. Best
    first, at most `LISTED`; refused ones last, with the reason."""
    new = IncomingJob(table, job)
    evaluated = evaluate(new)
    cells, best = evaluated.cells, evaluated.best(LISTED)
    candidates = [evaluated.candidate(cell, rank, i) for i, (rank, cell) in enumerate(best)]
    none = new.refused(evaluated)
    if len(candidates) < LISTED:
        silent = np.flatnonzero(evaluated.ranks == REFUSED)
        hosts = {i: evaluated.hosts[cell] for i, cell in enumerate(silent.tolist()) if cell in evaluated.hosts}
        refused = EvaluatedCandidates(new, _Cells.from_parts(cells.of_these(silent), none), hosts)
        # Nobody was asked for more than is missing if somebody can give just that (G3).
        exact = bool((evaluated.ranks < REFUSED).any()) and new.settings.over_release != "always"
        candidates += _refused_candidates(refused, LISTED - len(candidates), exact)
    return CandidateList(candidates, len(cells.node) + len(none.node) - len(candidates))


def evaluate(new: IncomingJob) -> EvaluatedCandidates:
    """Evaluate all candidates. If no victim can give exactly what is missing, grown jobs may give back what they grew
    by, also if that is more; then all jobs, if so configured (G3)."""
    evaluated, grown = _evaluate(new, new.cells()), new.victims.grown
    any_victim = np.full_like(grown, new.settings.over_release == "needed")
    for more in (grown, any_victim):
        if more.any() and not (evaluated.ranks < REFUSED).any():
            evaluated = _evaluate(new, new.cells(more))
    return evaluated


def _evaluate(new: IncomingJob, cells: _Cells) -> EvaluatedCandidates:
    if new.together:
        return _on_several(new, cells)
    evaluated = EvaluatedCandidates(new, cells)
    if new.job.max_workers == 1 or new.settings.placement != "host":
        return evaluated
    found_on_one = set(cells.at[evaluated.ranks < LATE].tolist())
    hosts = list(_spread(new, [at for at in range(len(new.counts)) if at not in found_on_one]))
    node = [new.table.position[workers[0].node] for _, workers in hosts]
    more = _Cells(*np.array([node, [at for at, _ in hosts], [-1] * len(hosts)], np.intp))
    first = len(cells.node)
    several = {first + i: workers for i, (_, workers) in enumerate(hosts) if len(workers) > 1}
    return EvaluatedCandidates(new, _Cells.from_parts(cells, more), several)


def _spread(new: IncomingJob, counts: Sequence[int]) -> Any:
    """Yield placements over several hosts of one GPU type, for counts that no host holds."""
    nodes = [new.table.snapshot.nodes[i] for i in new.open.tolist()]
    for kind in sorted({n.gpu_type for n in nodes}):
        of_kind = [n for n in nodes if n.gpu_type == kind]
        for at in counts:
            if workers := spread(new.job.optional[at], of_kind, new.job.max_workers, each=new.job.gpus_per_pod or 1):
                yield at, workers


def _on_several(new: IncomingJob, cells: _Cells) -> EvaluatedCandidates:
    """G7: place each candidate on as few hosts as possible, its victim's first."""
    snapshot, position = new.table.snapshot, new.table.position
    nodes, idle = [snapshot.nodes[i] for i in new.open.tolist()], int(new.idle[0])
    node, several = cells.node.copy(), dict[int, tuple[Worker, ...]]()
    for cell, (at, option) in enumerate(zip(cells.at.tolist(), cells.option.tolist(), strict=True)):
        count = new.job.optional[at]
        own = {snapshot.nodes[node[cell]].name: count - idle} if option >= 0 else {}
        workers = spread(count, nodes, len(nodes), own)
        if option < 0:
            node[cell] = position[workers[0].node]
        if len(workers) > 1:
            several[cell] = workers
    return EvaluatedCandidates(new, cells._replace(node=node), several)


def _refused_candidates(evaluated: EvaluatedCandidates, most: int, exact: bool) -> list[RankedCandidate]:
    """Return those with the fewest GPUs first, on nodes with many idle. `exact`: whether victims were only to give
    exactly what is missing."""
    new, table, cells = evaluated.new, evaluated.table, evaluated.cells
    columns: list[Column] = [
        lambda c: new.counts[cells.at[c]],
        lambda c: -table.nodes.idle[cells.node[c]],
        lambda c: table.node_rank[cells.node[c]],
        lambda c: table.job_rank(new.victims.row[cells.option[c]]),
        lambda c: -new.victims.gives[cells.option[c]],
    ]
    chosen = smallest(np.arange(len(cells.node)), columns, most).tolist()
    refused = [evaluated.candidate(cell, REFUSED, i, _why(new, cells, cell, exact)) for i, cell in enumerate(chosen)]
    return [candidate._replace(possible=False) for candidate in refused]


def _why(new: IncomingJob, cells: _Cells, cell: int, exact: bool) -> str:
    node, count = new.table.snapshot.nodes[cells.node[cell]], new.job.optional[cells.at[cell]]
    if node.kept_for is not None:
        return f"{node.name} is kept for {node.kept_for}"
    idle = int(new.idle[cells.node[cell]])
    where = "all nodes" if new.together else node.name
    wait = f"would have to wait: {idle} of {gpus(count)} idle on {where}, "
    missing = f"exactly {count - idle}" if exact else exactly(count - idle, new.settings)
    return f"{wait}no running job there can give {missing}"
