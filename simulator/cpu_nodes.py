"""Simulates jobs trained on CPU: the jobs on a node share its cores (`algorithms.md` 5.6).

Promises: cores are shared by water-filling at every moment, each job capped by its demand and its limit; every change
takes its time. Called by `cluster.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from adaptive_scheduler.decision import Limit, Move, Start
from adaptive_scheduler.models.contention import water_fill
from simulator.scene import RunContext
from simulator.state import CpuLoad, Occupancy, SimulatedJob


class CpuNodes:
    """Nodes with cores and the jobs on each, in the order in which they joined."""

    def __init__(self, scene: RunContext) -> None:
        self._scene = scene
        self._costs = scene.costs
        self.cores = {n.name: n.cores for n in scene.workload.nodes if n.cores > 0}
        self._left_core_s = dict.fromkeys(self.cores, 0.0)  # by jobs that have left the node
        self._since: dict[str, float] = {}
        self.on: dict[str, list[SimulatedJob]] = {name: [] for name in self.cores}
        self.changed: Callable[[str], None] = lambda node: None  # called when a job joins or leaves a node

    def core_s_by(self, node: str, now: float) -> float:
        """Return the core-seconds used on the node so far."""
        return self._left_core_s[node] + math.fsum(job.used_by(now) - job.used_before for job in self.on[node])

    # operations that a decision begins

    def start(self, job: SimulatedJob, decision: Start) -> None:
        self._scene.starts(job, decision.node)
        again = self._costs.cpu_restore if job.resumes else 0.0
        self._scene.later(job, self._costs.cpu_launch + again, partial(self._join, job))

    def move(self, job: SimulatedJob, decision: Move) -> None:
        """Save the job, and restore it on another node; it uses no core in between and loses its limit."""
        self._leave(job)
        self._scene.stops(job)
        job.busy = True
        job.moves = True
        job.node = decision.node
        if decision.rebalance:
            job.rebalanced = True
        else:
            job.migrated_s = self._scene.now
        seconds = self._costs.cpu_save + self._costs.cpu_launch + self._costs.cpu_restore
        self._scene.later(job, seconds, partial(self._join, job))

    def requeue(self, job: SimulatedJob) -> None:
        """Checkpoint and stop the job, and put it back in the queue."""
        self._leave(job)
        self._scene.stops(job)
        job.busy = True
        job.node = None
        self._scene.later(job, self._costs.cpu_save, partial(self._back, job))

    def limit(self, job: SimulatedJob, decision: Limit) -> None:
        """Limit the job at once, until the next limit or until this one expires."""
        self._scene.outcome.limits += decision.cores != job.cpu_limit
        self._lift(job)
        job.limits += decision.cores != job.cpu_limit
        job.cpu_limit = decision.cores
        if decision.cores is not None:
            job.limit_until_s = self._scene.now + decision.lasts_s
            job.limit_end = self._scene.event_queue.at(job.limit_until_s, partial(self._expire, job))
        self._share_out(decision.node)

    def finish(self, job: SimulatedJob) -> None:
        self._leave(job)
        self._scene.ends(job)

    # later steps of an operation

    def crashed(self, job: SimulatedJob) -> None:
        self._leave(job)
        self._scene.later(job, self._costs.cpu_restore, partial(self._join, job))

    def next_task(self, job: SimulatedJob) -> None:
        self._leave(job)
        job.saved = job.done
        self._scene.queues(job, resumes=False)

    def fails(self, node: str) -> None:
        """Fail a node: jobs on it or on their way to it are lost; a job that is saving in order to leave survives."""
        for job in [j for j in self._scene.active.values() if j.given.cpu is not None and j.node == node]:
            trains = job in self.on[node]
            self._scene.is_lost(job)
            if trains:
                self._leave(job)
            self._scene.queues(job, resumes=job.done > 0)

    def _back(self, job: SimulatedJob) -> None:
        self._scene.resumed(job)
        self._scene.queues(job, resumes=True)

    def _join(self, job: SimulatedJob) -> None:
        since, cost = job.stopped_at, self._scene.resumed(job)
        if since is not None and cost is not None:
            self._scene.outcome.stops.append(Occupancy(job.node or "", job.given.id, since, self._scene.now))
            self._scene.outcome.moves += job.moves
        job.moves = False
        job.busy = False
        job.demand = job.given.demand(job.task)
        self._scene.begins(job)
        self._since[job.given.id] = self._scene.now
        job.used_before = job.used
        self.on[job.node or ""].append(job)
        self._share_out(job.node or "")
        self.changed(job.node or "")
        self._scene.ask()

    def _leave(self, job: SimulatedJob) -> None:
        """Stop the job on its node; the other jobs share its cores."""
        node, now = job.node or "", self._scene.now
        self._scene.settle(job)
        job.share = 0.0
        self._lift(job)
        job.cpu_limit = None
        self.on[node].remove(job)
        self._left_core_s[node] += job.used - job.used_before
        self._scene.outcome.on_cpu.append(Occupancy(node, job.given.id, self._since.pop(job.given.id), now))
        self._share_out(node)
        self.changed(node)
        self._scene.ask()

    def _share_out(self, node: str) -> None:
        """Divide the cores anew; only jobs whose share changed get another speed."""
        jobs = self.on[node]
        caps = [min(job.demand, math.inf if job.cpu_limit is None else job.cpu_limit) for job in jobs]
        shares = water_fill(self.cores[node], caps)
        alone = (1.0 - self._scene.workload.contention) ** max(0, len(jobs) - 1)
        for job, share in zip(jobs, shares, strict=True):
            assert job.given.cpu is not None
            iteration_s = job.given.cpu.core_s / job.given.iterations / (share * alone)
            if iteration_s != job.iteration_s:
                self._scene.settle(job)
                job.share = job.rated_on = share
                job.rate = 1.0 / iteration_s
                self._scene.trains(job, iteration_s, self)
        self._scene.outcome.loads.append(CpuLoad(node, self._scene.now, math.fsum(shares), len(jobs)))

    def _lift(self, job: SimulatedJob) -> None:
        """Remove the limit and its expiry."""
        if job.limit_end is not None:
            job.limit_end.called_off = True
        job.limit_end = job.limit_until_s = None

    def _expire(self, job: SimulatedJob) -> None:
        job.limits += 1
        job.cpu_limit = job.limit_end = job.limit_until_s = None
        self._share_out(job.node or "")
        self._scene.ask()
