"""Holds the state of one run that the parts of the simulator share: clock, active jobs, and the progress of a job.

Called by `cluster.py`, `gpu_jobs.py`, `cpu_nodes.py` and `cpu_monitors.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from adaptive_scheduler.snapshot import Job
from simulator.event_queue import EventQueue
from simulator.scenario import Costs, PolicySetup, Workload
from simulator.snapshots import job_view
from simulator.state import SimulatedJob, SimulationOutcome


class JobRunner(Protocol):
    """Carries out the steps of a job, on GPUs or on CPU."""

    def crashed(self, job: SimulatedJob) -> None: ...

    def next_task(self, job: SimulatedJob) -> None: ...

    def finish(self, job: SimulatedJob) -> None: ...


class RunContext:
    """One run: its input, its present state and its outcome so far."""

    def __init__(self, workload: Workload, policy_setup: PolicySetup) -> None:
        self.workload = workload
        self.policy_setup = policy_setup
        self.costs = policy_setup.costs
        self.settings = policy_setup.settings
        self.profiles = policy_setup.profiles.scaled(policy_setup.settings.batch_scaling)  # G12
        self.event_queue = EventQueue()
        self.active: dict[str, SimulatedJob] = {}  # arrived and not ended, by arrival
        self.waiting: dict[str, Job] = {}  # views of the queued jobs, which do not change in the queue
        self.outcome = SimulationOutcome([])
        self.asks = False  # the policy is called at the end of this moment

    @property
    def now(self) -> float:
        return self.event_queue.now

    def costs_of(self, job: SimulatedJob) -> Costs:
        return self.policy_setup.costs_by_type.get(job.given.type, self.costs)

    @property
    def is_over(self) -> bool:
        """Return whether every job has arrived and ended."""
        return not self.active and len(self.outcome.jobs) == len(self.workload.jobs)

    def ask(self) -> None:
        self.asks = True

    def later(self, job: SimulatedJob, seconds: float, step: Callable[[], None]) -> None:
        """Schedule the next step of the job's operation; a node failure cancels it."""
        job.ahead = self.event_queue.after(seconds, step)

    def trains(self, job: SimulatedJob, iteration_s: float, part: JobRunner) -> None:
        """Train at this speed until the process crashes or the task ends, then call `part`."""
        self.settle(job)
        job.iteration_s = iteration_s
        job.ahead = self.event_queue.after(
            max(0.0, job.next_stop - job.done) * iteration_s, partial(self._reach, job, part)
        )

    def settle(self, job: SimulatedJob) -> None:
        """Record the progress until now; the job stands still until `trains` is called."""
        if job.ahead is not None:
            job.ahead.called_off, job.ahead = True, None
        job.done, job.used = job.done_by(self.now), job.used_by(self.now)
        job.since, job.iteration_s = self.now, 0.0
        trail, point = self.outcome.trails.setdefault(job.given.id, []), (self.now, job.done)
        if not trail or trail[-1] != point:
            trail.append(point)

    def _reach(self, job: SimulatedJob, part: JobRunner) -> None:
        stop = job.next_stop
        self.settle(job)
        job.done = stop
        if stop < job.task_end:
            self._crashes(job)
            part.crashed(job)
        elif job.task + 1 < len(job.given.task_ends):
            job.task += 1
            part.next_task(job)
        else:
            part.finish(job)

    def begins(self, job: SimulatedJob) -> None:
        """Note that the job's process trains, again or for the first time."""
        job.state = "running"
        if job.trained_from_s is None:
            job.trained_from_s = self.now
        if job.started_s is None:
            job.started_s = self.now
        if job.task_from_s is None:
            job.task_from_s = self.now
            self._look_when_overdue(job)
        job.trained_since_s = self.now
        if self._may_fail(job):
            self._save_later(job)

    def stops(self, job: SimulatedJob) -> None:
        """Checkpoint and stop the process; a part of an iteration is kept (1.4, assumption 2)."""
        self.settle(job)
        job.generation += 1
        job.state, job.stopped_at = "adjusting", self.now

    def _crashes(self, job: SimulatedJob) -> None:
        self._falls_back(job)
        job.state = "restarting"
        job.busy = True
        job.stopped_at = self.now
        job.crashes += 1
        self.ask()

    def is_lost(self, job: SimulatedJob) -> None:
        """Lose the job's process with its node; the caller puts the job back in the queue."""
        self.settle(job)
        self._falls_back(job)
        self.resumed(job)
        job.moves = False
        job.outages += 1

    def _falls_back(self, job: SimulatedJob) -> None:
        """Return to the last checkpoint."""
        if job.done > job.saved:
            job.lost_s += (self.now if job.stopped_at is None else job.stopped_at) - job.trained_since_s
        job.done = job.saved
        job.generation += 1

    def resumed(self, job: SimulatedJob) -> float | None:
        """Return the seconds that the job stood still; None if it was not stopped."""
        if job.stopped_at is None:
            return None
        seconds, job.stopped_at = self.now - job.stopped_at, None
        job.stopped_s += seconds
        job.saved = job.done
        return seconds

    def starts(self, job: SimulatedJob, node: str) -> None:
        """Take the job out of the queue; its operation is in progress."""
        del self.waiting[job.given.id]
        job.state = "initializing"
        job.busy = True
        job.node = node

    def ends(self, job: SimulatedJob) -> None:
        self.settle(job)
        job.finished_s = self.now
        del self.active[job.given.id]
        self.ask()

    def queues(self, job: SimulatedJob, resumes: bool) -> None:
        """Put the job back in the queue with its checkpoint, within a task or before the next one."""
        job.resumes = resumes
        job.state = "submitted"
        job.busy = False
        job.node = None
        job.task_s = job.ran_by(self.now) if job.resumes else 0.0
        job.task_from_s = job.expected_s = job.started_s = None
        job.queued_s = None if job.began_s is None else self.now
        self.waiting[job.given.id] = job_view(job, self.now)
        self.ask()

    def _save_later(self, job: SimulatedJob) -> None:
        self.event_queue.after(self.costs.checkpoint_every_s, partial(self._save, job, job.generation))

    def _save(self, job: SimulatedJob, generation: int) -> None:
        if job.generation == generation and job.finished_s is None and job.state == "running" and self._may_fail(job):
            job.saved, job.trained_since_s = job.done_by(self.now), self.now
            self._save_later(job)

    def _may_fail(self, job: SimulatedJob) -> bool:
        return job.may_crash or bool(self.workload.outages)

    def _look_when_overdue(self, job: SimulatedJob) -> None:
        """Call the policy at the first tick at which the task exceeds its expected time and tolerance (Slaml)."""
        deadlines = self.settings.deadlines
        if "deadline" in self.settings.systems and job.expected_s is not None and deadlines.tick_s > 0:
            overdue = self.now - job.task_s + job.expected_s * (1 + deadlines.beta)
            tick = (max(overdue, self.now) // deadlines.tick_s + 1) * deadlines.tick_s
            self.event_queue.at(tick, self.ask)
