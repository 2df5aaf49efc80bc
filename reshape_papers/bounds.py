"""Computes lower bounds on makespan and mean job completion time (JCT).

Promises that no schedule of these jobs on these GPUs beats a bound (up to the solver's accuracy, about one part in a
million), so that the distance of a policy to the bound limits what a better policy could gain. Called by the reports.
Imports no policy: a bound depends only on jobs, speeds and GPUs.

The bounds permit more than any real schedule can do: a job changes its shape (a number of GPUs of one type) as often as
it likes, pauses, and moves between nodes, all instantly and at no cost; launches and checkpoints take no time; the GPUs
of a type form one pool. A schedule may not give a job two shapes at a time, run a job before it arrives, or use more
GPUs of a type than there are. In one shape a job progresses at a constant rate.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scipy.optimize import linprog
from scipy.sparse import csr_array

PRICES = 50
"""Maximum number of prices tried per GPU type; each of them gives a valid bound."""

Term = tuple[int, float]
"""A variable of a linear program and its factor."""


@dataclass(frozen=True, slots=True)
class BoundJob:
    """A job: its arrival, and the seconds that all of it takes in each shape (GPU type, number of GPUs).

    A job trained on CPU has one shape, the most cores it can use, of type "": with fewer it progresses in proportion,
    which is like pausing now and then. List only shapes that the policies may use: for a job that must stay on one
    node, none larger than a node. Raises ValueError if a number makes no sense.
    """

    arrival_s: float
    seconds: Mapping[tuple[str, float], float]

    def __post_init__(self) -> None:
        if not math.isfinite(self.arrival_s):
            raise ValueError(f"A job's arrival must be a finite number of seconds, not {self.arrival_s!r}.")
        for (gpu_type, gpus), seconds in self.seconds.items():
            if not gpus > 0 or not 0 < seconds < math.inf:
                shape = f"{gpus} {gpu_type} in {seconds} s"
                raise ValueError(f"A job's shape needs some GPUs or cores and a finite time above 0 s, not {shape}.")


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A host with GPUs of one type, or with cores (type ""). Raises ValueError if their number is negative."""

    gpu_type: str
    gpus: float

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise ValueError(f"A node must have 0 or more GPUs, not {self.gpus}.")


@dataclass(frozen=True, slots=True)
class _Run:
    """A job with the shapes that fit the cluster; `arrival` is relative to the first job's."""

    arrival: float
    shapes: tuple[tuple[str, float, float], ...]  # GPU type, GPUs, seconds

    @property
    def fastest(self) -> float:
        return min(seconds for _, _, seconds in self.shapes)

    @property
    def least_gpu_seconds(self) -> float:
        return min(gpus * seconds for _, gpus, seconds in self.shapes)


def fluid_makespan(jobs: Sequence[BoundJob], nodes: Sequence[BoundNode]) -> float:
    """Return a lower bound on the seconds from the first arrival to the last end.

    It is the work left at any moment, over everything that can do it: at t a job that arrived at a has at least the
    share 1 - (t - a) / (its fastest run) left. However a GPU-second of each type is priced, what is left costs at least
    its least price, and all GPUs together deliver no more than the price of their number each second; so nothing ends
    before t + price left / price per second. The bound is the maximum over all t where anything changes, and over the
    prices (with two types the best ones): area and critical path in one. Milliseconds for 40 jobs, never above
    `lp_makespan`. Raises ValueError as there.
    """
    runs, pool = _prepare(jobs, nodes)
    prices = dict.fromkeys(pool, 1.0)
    best = _latest_end(runs, pool, prices)
    for kind in sorted(pool)[1:] * (1 if len(pool) == 2 else 3):
        for price in _indifferent(runs, prices, kind):
            if (end := _latest_end(runs, pool, prices | {kind: price})) > best:
                best, prices = end, prices | {kind: price}
    return best


def _indifferent(runs: Sequence[_Run], prices: Mapping[str, float], kind: str) -> list[float]:
    """Return prices of a type at which a job costs the same on another type; the best price is among them."""
    found = set()
    for run in runs:
        costs: dict[str, float] = {}
        for other, count, seconds in run.shapes:
            costs[other] = min(costs.get(other, math.inf), count * seconds)
        elsewhere = min((prices[other] * cost for other, cost in costs.items() if other != kind), default=None)
        if kind in costs and elsewhere:
            found.add(elsewhere / costs[kind])
    return sorted(found)[:: 1 + len(found) // PRICES]


def _latest_end(runs: Sequence[_Run], pool: Mapping[str, float], prices: Mapping[str, float]) -> float:
    """Return the largest t + price left / price per second at these prices. O(n log n)."""
    per_second = math.fsum(pool[kind] * price for kind, price in prices.items())
    left, slope, changes = 0.0, 0.0, list[tuple[float, float]]()
    for run in runs:
        seconds = min(prices[kind] * count * s for kind, count, s in run.shapes) / per_second
        left += seconds
        changes += [(run.arrival, -seconds / run.fastest), (run.arrival + run.fastest, seconds / run.fastest)]
    changes.sort()
    best, last = changes[-1][0], 0.0  # the critical path with unlimited GPUs
    for moment, change in changes:
        left, last = left + slope * (moment - last), moment
        best = max(best, moment + left)
        slope += change
    return best


def lp_makespan(jobs: Sequence[BoundJob], nodes: Sequence[BoundNode]) -> float:
    """Return the least seconds from the first arrival to the last end of all malleable, preemptive schedules.

    Between two arrivals nothing changes, so only the seconds that each job spends in each shape there matter: at most
    the interval's length in total, and per GPU type at most GPUs x length of GPU-seconds. Every real schedule yields
    such seconds, with what follows the last arrival as the last interval; the linear program chooses those that
    minimize it. Measured from the first arrival because makespan is last end less first submission (`algorithms.md`
    1.5). About 0.06 s for 40 jobs of 4 shapes and 4 s for 200; the number of variables grows with the square of the
    number of jobs.

    Raises ValueError for no jobs, or a job with no shape for which the cluster has GPUs.
    """
    runs, pool = _prepare(jobs, nodes)
    program = _Program()
    stretch = program.variable(cost=1.0)
    arrivals = sorted({run.arrival for run in runs})
    windows = [_Window(start, end - start) for start, end in pairwise(arrivals)]
    for shares in _spend(program, runs, pool, [*windows, _Window(arrivals[-1], 0.0, stretch)]):
        program.exactly(shares, 1.0)
    return arrivals[-1] + program.least()


def jct_bound(jobs: Sequence[BoundJob], nodes: Sequence[BoundNode], slot_s: float | None = 200.0) -> float:
    """Return a lower bound on the mean seconds from arrival to end.

    It is the largest of `_slot_jct`, `_srpt_jct` and the fastest runs; without `slot_s` only of the latter two:
    instantly, for any number of jobs. `slot_s`: shorter slots give a higher bound and take longer. On workload S, 40
    jobs, 200 s slots take 0.2 s and stay 4 % below the limit, 100 s slots 2 %; 200 jobs take 16 s. Keep the makespan to
    a few hundred slots. Raises ValueError as `lp_makespan`, or if `slot_s` is not above 0.
    """
    if slot_s is not None and not 0 < slot_s < math.inf:
        raise ValueError(f"Slots must last longer than 0 s, not {slot_s!r}.")
    runs, pool = _prepare(jobs, nodes)
    fastest = math.fsum(run.fastest for run in runs) / len(runs)
    at_once = max(_srpt_jct(runs, math.fsum(pool.values())), fastest)
    if slot_s is None:
        return at_once
    # The bound holds wherever the slots end; a quarter past the least makespan, workload S loses nothing by it. Rounded
    # so that the solver's last digit does not decide on one slot more.
    slots = math.ceil(round(1.25 * lp_makespan(jobs, nodes) / slot_s, 6))
    return max(_slot_jct(runs, pool, slot_s, slots), at_once)


def _slot_jct(runs: Sequence[_Run], pool: Mapping[str, float], slot_s: float, slots: int) -> float:
    """Return the bound on mean JCT by mean busy times, on slots of equal length from the first arrival.

    Why no schedule is below it. Take any; of job j let r be the arrival, C the end, m the seconds of its fastest shape,
    and M the mean busy time: the mean of the clock over the job's progress.

    1. C >= M + m/2: progress is at most 1/m per second, and all of it lies before C. M is largest if the
       progress comes as late as possible, at full rate from C - m to C, and then M = C - m/2.
    2. Progress made in a slot is made after the slot's start and after r, so M is at least the sum over slots
       of (share of the job done there) x (the later of the two).
    3. The seconds that the schedule spends in each slot on each job and shape respect the slot's length from r
       on and the GPU-seconds of each type; all shares of a job sum to 1.

    The program minimizes the mean of M - r by 2 under 3, so that with the mean of m/2 it is at most the mean of C - r.
    What is done after the last slot counts as done at its end, at no cost in GPUs: a longer schedule fits too.
    """
    program = _Program()
    windows = [_Window(i * slot_s, slot_s) for i in range(slots)]
    for run, shares in zip(runs, _spend(program, runs, pool, windows, 1 / len(runs)), strict=True):
        after = program.variable(cost=max(slots * slot_s - run.arrival, 0.0) / len(runs))
        program.exactly([*shares, (after, 1.0)], 1.0)
    return program.least() + math.fsum(run.fastest / 2 for run in runs) / len(runs)


def _srpt_jct(runs: Sequence[_Run], gpus: float) -> float:
    """Return the mean JCT on one machine that pools all GPUs and runs each job's least GPU-seconds at their total rate.

    Why no schedule is below it: while a job holds n of N GPUs it takes at most n/N of that machine, since its least
    GPU-seconds are no more than those of its current shape. So the machine, shared among the jobs, can copy any
    schedule with the same ends; and of all preemptive schedules of one machine, shortest remaining job first has the
    least mean JCT (Schrage 1968).
    """
    now = total = 0.0
    waiting: list[tuple[float, float]] = []  # seconds left, arrival
    coming = sorted((run.arrival, run.least_gpu_seconds / gpus) for run in runs)
    for (arrival, work), (following, _) in pairwise([*coming, (math.inf, 0.0)]):
        now = max(now, arrival)
        heapq.heappush(waiting, (work, arrival))
        while waiting and now < following:
            left, since = heapq.heappop(waiting)
            if now + left > following:
                heapq.heappush(waiting, (left - (following - now), since))
                now = following
            else:
                now += left
                total += now - since
    return total / len(runs)


def _prepare(jobs: Sequence[BoundJob], nodes: Sequence[BoundNode]) -> tuple[list[_Run], dict[str, float]]:
    """Return the jobs with their usable shapes, relative to the first arrival, and the GPUs of each type."""
    if not jobs:
        raise ValueError("There is nothing to bound: give at least one job.")
    pool: dict[str, float] = {}
    for node in nodes:
        pool[node.gpu_type] = pool.get(node.gpu_type, 0) + node.gpus
    # From the first arrival, so that calendar times do not cost the solver digits.
    first = min(job.arrival_s for job in jobs)
    runs = []
    for position, job in enumerate(jobs, start=1):
        shapes = tuple((kind, gpus, s) for (kind, gpus), s in job.seconds.items() if gpus <= pool.get(kind, 0))
        if not shapes:
            there = ", ".join(f"{gpus} {kind}" for kind, gpus in sorted(pool.items()) if gpus) or "no GPUs"
            raise ValueError(f"Job {position} can never run here: give it a shape that fits into {there}.")
        runs.append(_Run(job.arrival_s - first, shapes))
    return runs, pool


@dataclass(frozen=True, slots=True)
class _Window:
    """A time window of a linear program; `stretch` is the variable that extends it, if any."""

    start: float
    length: float
    stretch: int | None = None


def _spend(
    program: _Program, runs: Sequence[_Run], pool: Mapping[str, float], windows: Sequence[_Window], weight: float = 0.0
) -> list[list[Term]]:
    """Add variables for the seconds that each job spends in each shape in each window, with their limits.

    Return for each job the share of it that they complete. `weight`: the cost of delaying a whole job by a second.
    """
    shares: list[list[Term]] = [[] for _ in runs]
    for window in windows:
        on_type: dict[str, list[Term]] = {gpu_type: [] for gpu_type in pool}
        for run, done in zip(runs, shares, strict=True):
            start = max(window.start, run.arrival)
            left = window.start + window.length - start
            if left < 0 or (left == 0 and window.stretch is None):
                continue
            here = [program.variable(weight * (start - run.arrival) / seconds) for _, _, seconds in run.shapes]
            for variable, (gpu_type, gpus, seconds) in zip(here, run.shapes, strict=True):
                done.append((variable, 1 / seconds))
                on_type[gpu_type].append((variable, gpus))
            program.at_most([(variable, 1.0) for variable in here], left, window.stretch)
        for gpu_type, terms in on_type.items():
            program.at_most(terms, pool[gpu_type] * window.length, window.stretch, pool[gpu_type])
    return shares


@dataclass
class _Rows:
    """Sparse rows of a linear program: a sum of terms against a limit."""

    limits: list[float] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    factor: list[float] = field(default_factory=list)

    def add(self, terms: Sequence[Term], limit: float) -> None:
        for variable, factor in terms:
            self.row.append(len(self.limits))
            self.column.append(variable)
            self.factor.append(factor)
        self.limits.append(limit)

    def matrix(self, columns: int) -> csr_array:
        return csr_array((self.factor, (self.row, self.column)), shape=(len(self.limits), columns))


class _Program:
    """A linear program under construction: non-negative variables, minimal cost. The only user of the solver."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._below = _Rows()
        self._equal = _Rows()

    def variable(self, cost: float = 0.0) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def at_most(self, terms: Sequence[Term], limit: float, stretch: int | None = None, by: float = 1.0) -> None:
        """Require sum of terms <= limit + by x stretch."""
        self._below.add(terms if stretch is None else [*terms, (stretch, -by)], limit)

    def exactly(self, terms: Sequence[Term], amount: float) -> None:
        self._equal.add(terms, amount)

    def least(self) -> float:
        """Return the least cost. Raises RuntimeError if the solver gives up: every program made here has a solution."""
        columns = len(self._costs)
        below, equal = self._below.matrix(columns), self._equal.matrix(columns)
        # On hundreds of jobs the interior-point method is 3 times faster than the simplex method, on few no slower.
        found = linprog(self._costs, below, self._below.limits, equal, self._equal.limits, method="highs-ipm")
        if found.status != 0:
            raise RuntimeError(f"The solver found no bound ({found.message}); leave the bounds out for this workload.")
        return float(found.fun)
