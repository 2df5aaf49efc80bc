"""Simulates Pollux's cluster: decisions in rounds of 60 s, 30 s of standstill after each change of GPUs.

Separate from our simulator: Pollux's published figures for itself, Optimus and Tiresias come from a model with fixed
rounds, jobs spread over nodes and batches that depend on the number of GPUs, which ours does not have. The policies are
the same objects that our simulator runs. Called by `pollux_figures.py`. Pure, deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reshape_papers.comparison_policies.allotment import Allot, AllotmentRequest
from reshape_papers.pollux_jobs import PER_NODE, BatchShape, Placement, PolluxApplication, packed

ROUND_S = 60.0
RESTART_S = 30.0
NODES = 16
NO_SHAPE = BatchShape(0, 0)  # of a job without GPUs

Count = Callable[["RoundedJob"], tuple[int, ...]]
"""What counts a job may have."""


@dataclass
class RoundedJob:
    """The state of one job."""

    name: str
    app: PolluxApplication
    submit_s: float
    asked: int
    batch: int
    tuned: bool = False  # its batch depends on its GPUs, as in Pollux
    nodes: tuple[int, ...] = ()  # the node of each of its GPUs
    shape: BatchShape = NO_SHAPE
    standstill_s: float = 0.0
    progress: float = 0.0
    epoch: int = 0
    attained: float = 0.0
    restarts: int = -1  # the first start is not one
    finished_s: float | None = None

    @property
    def placement(self) -> Placement:
        return placement_of(self.nodes)

    def run(self, start_s: float, seconds: float) -> None:
        """Train for a round that began at `start_s`; a job ends at a whole second after its last epoch began."""
        if not self.nodes:
            return
        still = min(self.standstill_s, seconds)
        self.standstill_s -= still
        self.attained += still * len(self.nodes)
        left = seconds - still
        while left > 0 and self.finished_s is None:
            rate = self.app.goodput(self.placement, self.shape, self.epoch)
            to_go = self.app.boundaries[self.epoch] - self.progress
            if rate * left < to_go:
                self.progress += rate * left
                took = left
            else:
                self.progress, self.epoch = self.app.boundaries[self.epoch], self.epoch + 1
                took = float(round(to_go / rate))
                if self.epoch == self.app.max_epochs:
                    self.finished_s = start_s + seconds - left + took
            self.attained += took * len(self.nodes)
            left -= took
            self.shape = self._best_shape()

    def placed(self, nodes: tuple[int, ...]) -> None:
        """Set the job's GPUs. A change costs a restart, even the first start; losing all of them costs nothing."""
        if nodes == self.nodes:
            return
        self.nodes = nodes
        if nodes:
            self.shape, self.standstill_s = self._best_shape(), RESTART_S
            self.restarts += 1

    def _best_shape(self) -> BatchShape:
        if not self.tuned:
            return self.app.shape(self.batch, len(self.nodes))
        return self.app.best(self.placement, min(self.epoch, self.app.max_epochs - 1))[1]


class Rounds:
    """One run of one policy on one list of jobs."""

    def __init__(self, jobs: Sequence[RoundedJob], allot: Allot, counts: Count) -> None:
        self._jobs = [replace(job) for job in jobs]
        self._allot = allot
        self._counts = counts

    def run(self) -> list[RoundedJob]:
        """Run until all jobs are done and return them in the order given."""
        now = 0.0
        while alive := [job for job in self._jobs if job.finished_s is None]:
            for job in alive:
                job.run(now, ROUND_S)
            now += ROUND_S
            here = [job for job in alive if job.finished_s is None and job.submit_s <= now]
            given = self._allot([self._request(job, now) for job in here], NODES * PER_NODE, now)
            by_name = {job.name: job for job in here}
            self._place(by_name, {name: given[name] for name in given if given[name]})
        return self._jobs

    def _place(self, jobs: dict[str, RoundedJob], given: dict[str, int]) -> None:
        """Place the jobs: those whose count stays keep their GPUs; the others, in order, take the emptiest nodes."""
        free = [PER_NODE] * NODES
        for name, job in jobs.items():
            if len(job.nodes) == given.get(name, 0):
                for node in job.nodes:
                    free[node] -= 1
            elif name not in given:
                job.placed(())
        for name, count in given.items():
            if len(jobs[name].nodes) != count:
                jobs[name].placed(take_gpus(free, count))

    def _request(self, job: RoundedJob, now: float) -> AllotmentRequest:
        return AllotmentRequest(
            id=job.name,
            submit_s=job.submit_s,
            counts=self._counts(job),
            asked=job.asked,
            has=len(job.nodes),
            attained=job.attained,
            seconds=partial(seconds_left, job),
            age_s=now - job.submit_s,
            restarts=max(0, job.restarts),
        )


def seconds_left(job: RoundedJob, gpus: int) -> float:
    """Return the remaining seconds on `gpus` GPUs packed onto few nodes, with the updates that its batch needs."""
    if job.tuned:
        epoch = min(job.epoch, job.app.max_epochs - 1)
        return (job.app.boundaries[-1] - job.progress) / job.app.best(packed(gpus), epoch)[0]
    return job.app.packed_s(job.batch, gpus) * job.app.updates_left(job.batch, job.epoch)


def placement_of(nodes: tuple[int, ...]) -> Placement:
    """Return the GPUs on each node, in the order in which the nodes were taken."""
    return tuple(nodes.count(node) for node in dict.fromkeys(nodes))


def take_gpus(free: list[int], count: int) -> tuple[int, ...]:
    """Take `count` GPUs out of `free`, those of the emptiest node first; return the node of each."""
    nodes: list[int] = []
    while len(nodes) < count:
        node = max(range(len(free)), key=lambda i: free[i])
        here = min(free[node], count - len(nodes))
        assert here > 0  # no policy allocates more GPUs than there are
        nodes += [node] * here
        free[node] -= here
    return tuple(nodes)
