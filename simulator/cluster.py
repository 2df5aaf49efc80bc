"""Simulates one policy on one workload, event by event.

Promises: a GPU has one holder at a time; every overhead takes its time; the same workload gives the same outcome in
every process. Calls the policy when a job arrives or ends, when an operation or a cool-down ends, or when a monitor
reports, with the snapshot that the coordinator would build, and carries out its decisions. Called by
`reshape_papers/run.py`, and by `coordinator/forecasts/forecast.py` to look ahead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from adaptive_scheduler.decision import Decision, End, Finish, Hold, Limit, Move, Requeue, Reshape, Start, Stay, check
from adaptive_scheduler.engine import is_cut_short
from adaptive_scheduler.shares import DecayedUse, JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from simulator.cpu_monitors import CpuMonitors
from simulator.cpu_nodes import CpuNodes
from simulator.gpu_jobs import GpuJobs
from simulator.outages import Outages
from simulator.scenario import PolicySetup, Submission, TimedPlanner, Workload
from simulator.scene import RunContext
from simulator.snapshots import job_view
from simulator.state import SimulatedJob, SimulationOutcome, SimulationStuck

LOOKS_BEFORE_S = (1200.0, 600.0, 300.0, 120.0, 60.0, 30.0)
"""Seconds before a reservation at which the policy is asked whether to free its GPUs."""


class SimulatedCluster:
    """One run of one policy on one workload."""

    def __init__(self, workload: Workload, policy_setup: PolicySetup) -> None:
        self._scene = RunContext(workload, policy_setup)
        self._gpus = GpuJobs(self._scene)
        self._cpu = CpuNodes(self._scene)
        self._monitors = CpuMonitors(self._scene, self._cpu)
        self._cpu.changed = self._monitors.changed
        self._given = {node.name: node for node in workload.nodes}
        self._nodes = dict(self._given)
        self._to_come = len(workload.jobs)
        self._meter, self._counted_s = DecayedUse(workload.used, {}), 0.0  # until this time
        self._timed_planner = policy_setup.plan if isinstance(policy_setup.plan, TimedPlanner) else None
        self._next_look_s = -math.inf
        for given in workload.jobs:
            self._scene.event_queue.at(max(0.0, given.arrival_s), partial(self._arrive, given))
        self._outages = Outages(self._scene, self._gpus, self._cpu)
        for one in workload.reservations:
            # Its GPUs are freed some time before, which depends on the jobs there then.
            looks = (one.from_s, one.until_s, *(one.from_s - before_s for before_s in LOOKS_BEFORE_S))
            for look_s in looks:
                if look_s >= 0.0:
                    self._scene.event_queue.at(look_s, self._scene.ask)

    def run(self, goes_on: Callable[[], bool] = lambda: True) -> SimulationOutcome:
        """Run until the last job has ended, or until `goes_on`, called after each moment, returns False.

        Raises `SimulationStuck` if a job can never start, `BrokenDecision` for a decision that cannot be carried out.
        """
        scene, arriving = self._scene, self._to_come
        # 1. All events of one moment, before the policy sees any of them.
        for now in scene.event_queue.moments():
            # 2. The policy decides, and 3. its decisions begin.
            if scene.asks:
                scene.asks = False
                self._carry_out(self._decide(now))
                self._look_again(now)
            if arriving and not self._to_come:
                arriving = 0
                scene.outcome.pending_at_last_arrival = sum(j.node is None for j in scene.active.values())
            if not goes_on():
                return scene.outcome
        if scene.active:
            raise SimulationStuck(
                f"job {next(iter(scene.active))} can never start on these nodes; allow it a smaller count."
            )
        return scene.outcome

    @property
    def outcome(self) -> SimulationOutcome:
        """Return what has happened so far, even after `run` has raised."""
        return self._scene.outcome

    def snapshot(self) -> ClusterSnapshot:
        """Return the snapshot that the coordinator would build; waiting jobs come last."""
        now, waiting = self._scene.now, self._scene.waiting
        placed = [job_view(job, now) for name, job in self._scene.active.items() if name not in waiting]
        self._count_use(now, placed)
        return ClusterSnapshot(
            nodes=tuple(map(self._node, self._nodes)),
            jobs=(*placed, *waiting.values()),
            profiles=self._scene.profiles,
            observations=self._scene.workload.observations,
            shares=self._scene.workload.shares,
            used=dict(self._meter.use),
            spent=self._scene.workload.spent,
            reservations=tuple(one for one in self._scene.workload.reservations if one.until_s > now),
        )

    def _count_use(self, now: float, placed: Iterable[Job]) -> None:
        """Count the use since the last snapshot. Between two of them nobody holds more or fewer GPUs."""
        shares = self._scene.workload.shares
        held = Counter[JobOwner]()
        for job in placed:
            if job.num_gpus:
                held[shares.owner_of(job.queue, job.owner)] += job.num_gpus
        self._meter.look(now - self._counted_s, held, shares.half_life_s)
        self._counted_s = now

    def _node(self, name: str) -> Node:
        """Return the node for the snapshot, rebuilt only after a change: on large clusters most stay the same."""
        node, gpus, cpu_use = self._nodes[name], self._gpus.view(name), self._monitors.cpu_use.get(name, 0.0)
        is_up, given = self._outages.is_up(name), self._given[name]
        heard = given.heard and is_up
        if node.gpus is not gpus or node.cpu_use != cpu_use or node.heard != heard:
            node = replace(given, gpus=gpus, cpu_use=cpu_use, schedulable=given.schedulable and is_up, heard=heard)
            self._nodes[name] = node
        return node

    def _arrive(self, given: Submission) -> None:
        job = SimulatedJob(given)
        self._scene.active[given.id] = job
        self._scene.outcome.jobs.append(job)
        self._to_come -= 1
        if given.like is not None:
            job.cooling_until, job.grew_from = given.like.cooling_until, given.like.grew_from
            job.reshape_cost_s = given.like.reshape_cost_s
            if job.cooling_until > self._scene.now:
                self._scene.event_queue.at(job.cooling_until, self._scene.ask)
        if given.gpus and given.like is not None:
            self._gpus.place(job, given.like)
        else:
            self._scene.queues(job, resumes=False)

    def _decide(self, now: float) -> tuple[Decision, ...]:
        """Call the policy and record its decisions with their reasons; for a waiting job, only the last reason."""
        snapshot, outcome = self.snapshot(), self._scene.outcome
        decisions = self._scene.policy_setup.plan(snapshot, now)
        check(snapshot, decisions, anywhere=self._scene.settings.placement == "count_only")
        for decision in decisions:
            if isinstance(decision, Hold):
                outcome.waits[decision.job] = (now, decision)
            else:
                outcome.decisions.append((now, decision))
            if isinstance(decision, Start) and self._scene.policy_setup.expected is not None:
                job = self._scene.active[decision.job]
                job.expected_s = self._scene.policy_setup.expected(snapshot, snapshot.job[decision.job])
        if is_cut_short(snapshot, decisions):  # a coordinator's next tick comes before anything else happens
            self._scene.event_queue.at(now, self._scene.ask)
        return decisions

    def _look_again(self, now: float) -> None:
        """Schedule the next call that a `TimedPlanner` requests, while any job is left."""
        if self._timed_planner is None or not (self._scene.active or self._to_come):
            return
        look_s = self._timed_planner.next_look_s(now)
        if look_s is not None and look_s > now and look_s != self._next_look_s:
            self._next_look_s = look_s
            self._scene.event_queue.at(look_s, self._scene.ask)

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            job = self._scene.active[decision.job]
            if job.given.cpu is None:
                self._on_gpus(job, decision)
            else:
                self._on_cpu(job, decision)
            if isinstance(decision, Requeue):
                job.preempts += 1
                job.yields_to = decision.yields_to
                self._scene.outcome.requeues += 1
            elif isinstance(decision, Start):
                job.began_s = self._scene.now if job.began_s is None else job.began_s
                job.yields_to = ()

    def _on_gpus(self, job: SimulatedJob, decision: Decision) -> None:
        match decision:
            case Start():
                self._gpus.start(job, decision)
            case Reshape():
                self._gpus.reshape(job, decision)
            case Move():
                self._gpus.move(job, decision)
            case Requeue():
                self._gpus.requeue(job)
            case Finish() | End():
                self._gpus.finish(job)
            case _:
                assert isinstance(decision, Hold | Limit | Stay)  # limits are for jobs trained on CPU (X4)

    def _on_cpu(self, job: SimulatedJob, decision: Decision) -> None:
        match decision:
            case Start():
                self._cpu.start(job, decision)
            case Move():
                self._cpu.move(job, decision)
            case Limit():
                self._cpu.limit(job, decision)
            case Requeue():
                self._cpu.requeue(job)
            case Finish() | End():
                self._cpu.finish(job)
            case Stay():
                job.migrated_s = decision.at_s if decision.spends_move else job.migrated_s
                job.move_refused_s = decision.at_s
            case _:
                assert isinstance(decision, Hold)  # no GPUs to reshape
