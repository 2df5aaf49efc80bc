"""Draws node failures and process crashes from a seed; every policy sees the same ones.

Called by `reshape simulate` and by tests. Pure.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reshape_papers.report import shapes
from simulator.scenario import Outage, Submission, Workload


@dataclass(frozen=True, slots=True)
class RandomOutages:
    """Independent node failures: exponential time to failure of mean `mtbf_s`, repair in `repair_s`.

    No node fails after `until_s`, so that every job can end.
    """

    nodes: tuple[str, ...]
    mtbf_s: float
    repair_s: float
    until_s: float
    seed: int

    def __iter__(self) -> Iterator[Outage]:
        """Yield the outages by time, then name; every iteration yields the same ones."""
        return heapq.merge(*map(self._of, self.nodes), key=lambda outage: (outage.at_s, outage.node))

    def _of(self, node: str) -> Iterator[Outage]:
        rng = random.Random(f"{node} {self.seed}")
        at_s = rng.expovariate(1 / self.mtbf_s)
        while at_s <= self.until_s:
            back_s = at_s + self.repair_s
            yield Outage(node, at_s, back_s)
            at_s = back_s + rng.expovariate(1 / self.mtbf_s)


@dataclass(frozen=True, slots=True)
class DrawnFailures:
    """Failures to draw; none by default."""

    node_mtbf_s: float | None = None
    node_repair_s: float = 0.0
    job_crashes: float = 0.0  # probability that a job's process crashes once, at a uniform share of its work

    def __bool__(self) -> bool:
        return self.node_mtbf_s is not None or self.job_crashes > 0

    def drawn(self, workload: Workload, seed: int) -> Workload:
        """Return the workload with failures, and with this seed if nothing else was drawn."""
        jobs, said = workload.jobs, []
        if self.job_crashes:
            jobs = self._crashing(jobs, seed)
            said.append(f"crashes: once in {self.job_crashes:.0%} of the jobs, at a uniform share of the work")
        outages = workload.outages
        if self.node_mtbf_s is not None:
            until_s = _one_after_another_s(workload)
            names = tuple(node.name for node in workload.nodes)
            outages = RandomOutages(names, self.node_mtbf_s, self.node_repair_s, until_s, seed)
            mean = f"{self.node_mtbf_s:g} s after it was up last in the mean, exponentially"
            said.append(f"outages: each node fails {mean}, and is back {self.node_repair_s:g} s later")
        return replace(workload, seed=seed, jobs=jobs, outages=outages, invented=(*workload.invented, *said))

    def _crashing(self, jobs: Sequence[Submission], seed: int) -> tuple[Submission, ...]:
        rng = random.Random(f"crashes {seed}")
        drawn = [(rng.random() < self.job_crashes, rng.random()) for _ in jobs]
        return tuple(
            replace(job, fails_at=(at,)) if crashes else job for job, (crashes, at) in zip(jobs, drawn, strict=True)
        )


NONE = DrawnFailures()


def _one_after_another_s(workload: Workload) -> float:
    """Return the end of all jobs run sequentially at their slowest, an upper limit for every run."""
    work_s = math.fsum(max(shapes(workload, job).values(), default=0.0) for job in workload.jobs)
    return max(job.arrival_s for job in workload.jobs) + work_s
