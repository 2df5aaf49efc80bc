"""Gives the figures access to an experiment's results: first-seed runs, means over all seeds, and published numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from reshape_papers.figures.chart import Points
from reshape_papers.published_figures import published
from reshape_papers.run import SimulationRun
from simulator.scenario import Submission

SINCE = "seconds since the first job was submitted"


@dataclass(frozen=True)
class ExperimentResults:
    """An experiment's results.

    `runs`: of the first seed, one per policy; `summary`: of all seeds (`report.summary`).
    """

    runs: Sequence[SimulationRun]
    summary: Mapping[str, Any]

    @property
    def jobs(self) -> tuple[Submission, ...]:
        return self.runs[0].workload.jobs

    @property
    def zero(self) -> float:
        """Return the first submission, the origin of time in all charts."""
        return min(job.arrival_s for job in self.jobs)

    def run(self, policy: str) -> SimulationRun:
        return next(run for run in self.runs if run.policy == policy)

    def simulated(self, *policies: str) -> tuple[str, ...]:
        """Return those of these policies that were simulated."""
        known = {run.policy for run in self.runs}
        return tuple(policy for policy in policies if policy in known)

    def mean(self, policy: str, measure: str) -> float:
        """Return the mean over all seeds."""
        return next(float(r[measure]) for r in self.summary["rows"] if r["policy"] == policy and r["seed"] is None)

    def spread(self, policy: str, measure: str) -> float:
        """Return the standard deviation over the seeds; 0 for one."""
        rows = [r[measure] for r in self.summary["rows"] if r["policy"] == policy and r["seed"] is not None]
        return statistics.stdev(rows) if len(rows) > 1 else 0.0

    def published(self, policy: str, measure: str, against: str | None = None, kind: str | None = None) -> float | None:
        """Return the number that the paper prints, if it does."""
        wanted = (policy, measure, against, kind)
        figures = published(self.summary["workload"])
        return next((f.paper for f in figures if (f.policy, f.measure, f.against, f.kind) == wanted), None)

    def completion_times(self, policy: str) -> dict[str, float]:
        """Return the completion time of each job of the first seed, in the order of submission."""
        done = {job.given.id: job.finished_s for job in self.run(policy).outcome.jobs}
        return {job.id: (done[job.id] or 0.0) - job.arrival_s for job in self.jobs}

    def rates(self, policy: str, job: str) -> list[tuple[float, float, float]]:
        """Return (begin, end, iterations per second) between two changes of a job's speed, seconds from `zero`."""
        trail = self.run(policy).outcome.trails.get(job, [])
        return [
            (a - self.zero, b - self.zero, (more - done) / (b - a)) for (a, done), (b, more) in pairwise(trail) if b > a
        ]

    def rate_steps(self, policy: str, job: str, factor: float = 1.0) -> Points:
        """Return the rate as steps that hold until the next point; 0 before and after. `factor`: for another unit."""
        points: Points = []
        for begin, end, rate in self.rates(policy, job):
            points += [] if points and points[-1][0] == begin else [(begin, 0.0)]
            points = [*points[:-1], (begin, rate * factor), (end, 0.0)]
        return points

    @property
    def one_run(self) -> str:
        """Return the origin of what a single run shows."""
        seeds = len(self.summary["seeds"])
        return f"Simulated, seed {self.runs[0].workload.seed} of {seeds}" if seeds > 1 else "Simulated"

    @property
    def all_runs(self) -> str:
        """Return the origin of means."""
        seeds = len(self.summary["seeds"])
        return f"Simulated, mean of {seeds} seeds" if seeds > 1 else "Simulated"
