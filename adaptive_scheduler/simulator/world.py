"""A cluster that exists only in numbers: jobs train, stop, start again and end; GPUs change hands.

Promises that a GPU has one holder at a time, that every overhead takes its time, and that the same
workload gives the same outcome in every process. Asks the contender's planner whenever a job arrives
or ends, an operation is done or a cool-down is over, with the snapshot that the coordinator would
build, and carries out what it answers. Called by `run.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from adaptive_scheduler.decision import Decision, Hold, Reshape, Start, check
from adaptive_scheduler.simulator.events import Agenda, Event
from adaptive_scheduler.simulator.scenario import Contender, Submission, Workload
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, GpuState, Job, JobState, Node


class Stuck(Exception):
    """Nothing more will happen, but jobs are left; the text names one."""


@dataclass(slots=True)
class LiveGpu:
    """`owner` is whom it is promised to; `holder` whose process is on it."""

    id: str
    owner: str | None = None
    holder: str | None = None


@dataclass(slots=True)
class LiveJob:
    """A job on its way. `gpus` are those it will have once its operation is done."""

    given: Submission
    state: JobState = "submitted"
    node: str | None = None
    gpus: list[LiveGpu] = field(default_factory=list)
    leased: bool = False
    waits_for_gpus: bool = False  # it could begin if its GPUs were free
    victim: LiveJob | None = None  # who is to shrink for it once it is launched
    done: float = 0.0  # iterations, at `since`
    since: float = 0.0
    iteration_s: float = 0.0  # 0 while it does not train
    end: Event | None = None
    stopped_at: float | None = None
    stopped_gpus: int = 0
    cooling_until: float = 0.0
    reshape_cost_s: float | None = None
    began_s: float | None = None  # its first GPUs were promised
    trained_from_s: float | None = None
    finished_s: float | None = None
    stopped_s: float = 0.0  # all its reshapes together

    def done_by(self, now: float) -> float:
        return self.done + (now - self.since) / self.iteration_s if self.iteration_s else self.done


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU was held by a job's process from `begin_s` to `end_s`."""

    gpu: str
    job: str
    begin_s: float
    end_s: float


@dataclass
class Outcome:
    """All that happened."""

    jobs: list[LiveJob]
    held: list[Held] = field(default_factory=list)
    stops: list[Held] = field(default_factory=list)  # when a reshaped job stood still, on the GPUs it then had
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    adds: int = 0
    removes: int = 0
    pending_at_last_arrival: int = 0


class World:
    """One run of one contender on one workload."""

    def __init__(self, workload: Workload, contender: Contender) -> None:
        self._contender = contender
        self._costs = contender.costs
        self._nodes = workload.nodes
        self._gpus = {n.name: [LiveGpu(g.id) for g in n.gpus] for n in workload.nodes}
        self._gpu_types = {n.name: n.gpu_type for n in workload.nodes}
        self._held_since: dict[str, float] = {}
        self._live: dict[str, LiveJob] = {}  # arrived and not ended, by arrival
        self._agenda = Agenda()
        self._ask = False
        self._to_come = len(workload.jobs)
        self.outcome = Outcome([])
        for given in workload.jobs:
            self._agenda.at(given.arrival_s, partial(self._arrive, given))

    def run(self) -> Outcome:
        """Until the last job has ended. Raises `Stuck` if one never can, `Broken` for an impossible decision."""
        arriving = self._to_come
        # 1. Everything that happens at one moment, before anybody looks at it.
        for now in self._agenda.moments():
            # 2. What the policy makes of it, and 3. the beginning of what it wants.
            if self._ask:
                self._ask = False
                self._carry_out(now, self._decide(now))
            if arriving and not self._to_come:
                arriving = 0
                self.outcome.pending_at_last_arrival = sum(not j.gpus for j in self._live.values())
        if self._live:
            raise Stuck(f"job {next(iter(self._live))} can never start on these nodes; allow it a smaller count.")
        return self.outcome

    def snapshot(self) -> ClusterSnapshot:
        """As the coordinator would see it: every GPU that nobody is promised counts as idle."""
        now = self._agenda.now
        return ClusterSnapshot(
            nodes=tuple(Node(n.name, n.gpu_type, tuple(map(_gpu, self._gpus[n.name]))) for n in self._nodes),
            jobs=tuple(_job(job, now) for job in self._live.values()),
            profiles=self._contender.profiles,
        )

    def _decide(self, now: float) -> tuple[Decision, ...]:
        snapshot = self.snapshot()
        decisions = self._contender.plan(snapshot, now)
        check(snapshot, decisions)
        self.outcome.decisions += [(now, d) for d in decisions]
        return decisions

    def _carry_out(self, now: float, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Start):
                self._start(decision, now)
            elif isinstance(decision, Reshape):
                self._reshape(decision)
            else:
                assert isinstance(decision, Hold)

    # a job's way

    def _arrive(self, given: Submission) -> None:
        job = LiveJob(given)
        self._live[given.id] = job
        self.outcome.jobs.append(job)
        self._to_come -= 1
        self._ask = True

    def _start(self, decision: Start, now: float) -> None:
        job = self._live[decision.job]
        job.state, job.leased, job.node, job.began_s = "initializing", True, decision.node, now
        missing = decision.num_gpus
        own = self._idle(decision.node)[:missing]
        if decision.victim is not None and decision.victim_num_gpus is not None:
            job.victim = self._live[decision.victim]
            job.victim.leased = True
            own += self._take(job.victim, decision.victim_num_gpus)[: missing - len(own)]
        self._promise(job, own)
        self._agenda.after(self._costs.launch, partial(self._launched, job))

    def _launched(self, job: LiveJob) -> None:
        job.state = "initialized"
        victim, job.victim = job.victim, None
        if victim is not None and victim.finished_s is None:
            self._stop(victim)
        job.waits_for_gpus = True
        self._begin_if_free(job)

    def _reshape(self, decision: Reshape) -> None:
        job = self._live[decision.job]
        job.leased = True
        more = decision.num_gpus - len(job.gpus)
        if more > 0:
            self._promise(job, self._idle(decision.node)[:more])
        else:
            self._take(job, decision.num_gpus)
        self._stop(job)

    def _stop(self, job: LiveJob) -> None:
        """Checkpoint and exit; what was done since the last iteration boundary is kept (1.4, assumption 2)."""
        now = self._agenda.now
        assert job.end is not None
        job.end.called_off = True
        job.done, job.since, job.iteration_s = job.done_by(now), now, 0.0
        job.state, job.stopped_at = "adjusting", now
        job.stopped_gpus = sum(g.holder == job.given.id for g in self._gpus[job.node or ""])
        self._agenda.after(self._costs.stop, partial(self._stopped, job))

    def _stopped(self, job: LiveJob) -> None:
        job.waits_for_gpus = True
        self._let_go(job)

    def _begin_if_free(self, job: LiveJob) -> None:
        if not job.waits_for_gpus or any(g.holder is not None for g in job.gpus):
            return
        job.waits_for_gpus = False
        for gpu in job.gpus:
            gpu.holder = job.given.id
            self._held_since[gpu.id] = self._agenda.now
        seconds = self._costs.begin
        if job.stopped_at is not None:
            seconds = self._costs.shrunk if len(job.gpus) < job.stopped_gpus else self._costs.grown
        self._agenda.after(seconds, partial(self._train, job))

    def _train(self, job: LiveJob) -> None:
        now = self._agenda.now
        speed = self._contender.profiles.speed(job.given.type, self._gpu_types[job.node or ""], len(job.gpus))
        if speed is None:
            raise Stuck(f"job {job.given.id} of type {job.given.type} has no known speed; give its profile.")
        job.state, job.leased, job.since, job.iteration_s = "running", False, now, speed.seconds
        if job.trained_from_s is None:
            job.trained_from_s = now
        if job.stopped_at is not None:
            self._count_reshape(job, job.stopped_at)
        job.end = self._agenda.after((job.given.iterations - job.done) * speed.seconds, partial(self._finish, job))
        self._ask = True

    def _count_reshape(self, job: LiveJob, stopped_at: float) -> None:
        now = self._agenda.now
        cost = now - stopped_at
        self.outcome.stops += [Held(g.id, job.given.id, stopped_at, now) for g in job.gpus]
        job.stopped_at, job.reshape_cost_s, job.stopped_s = None, cost, job.stopped_s + cost
        if len(job.gpus) > job.stopped_gpus:
            self.outcome.adds += 1
        else:
            self.outcome.removes += 1
        job.cooling_until = now + self._contender.settings.cooldown_factor * cost
        if job.cooling_until > now:
            self._agenda.at(job.cooling_until, self._look_again)

    def _look_again(self) -> None:
        self._ask = True

    def _finish(self, job: LiveJob) -> None:
        """Its GPUs are to be had at once, though its process is on them until it has saved and ended."""
        job.done, job.iteration_s, job.finished_s = job.given.iterations, 0.0, self._agenda.now
        for gpu in job.gpus:
            gpu.owner = None
        del self._live[job.given.id]
        self._agenda.after(self._costs.end, partial(self._let_go, job))
        self._ask = True

    # GPUs

    def _idle(self, node: str) -> list[LiveGpu]:
        """Those without a process on them first: they can be used at once."""
        return sorted((g for g in self._gpus[node] if g.owner is None), key=lambda g: g.holder is not None)

    def _promise(self, job: LiveJob, gpus: list[LiveGpu]) -> None:
        for gpu in gpus:
            gpu.owner = job.given.id
        job.gpus = job.gpus + gpus

    def _take(self, job: LiveJob, keeps: int) -> list[LiveGpu]:
        """Nobody's from now on, though the job is on them until it stops."""
        job.gpus, taken = job.gpus[:keeps], job.gpus[keeps:]
        for gpu in taken:
            gpu.owner = None
        return taken

    def _let_go(self, job: LiveJob) -> None:
        now = self._agenda.now
        owners: dict[str, None] = {}
        for gpu in self._gpus[job.node or ""]:
            if gpu.holder == job.given.id:
                gpu.holder = None
                self.outcome.held.append(Held(gpu.id, job.given.id, self._held_since.pop(gpu.id), now))
                if gpu.owner is not None:
                    owners[gpu.owner] = None
        for owner in [job.given.id, *owners]:
            if owner in self._live:
                self._begin_if_free(self._live[owner])


def _gpu(gpu: LiveGpu) -> Gpu:
    state: GpuState = "idle" if gpu.owner is None else "in use" if gpu.owner == gpu.holder else "reserved"
    return Gpu(gpu.id, state, gpu.owner, gpu.holder)


def _job(job: LiveJob, now: float) -> Job:
    done = job.done_by(now)
    return Job(
        id=job.given.id,
        type=job.given.type,
        state=job.state,
        optional=job.given.optional,
        submit_s=job.given.arrival_s,
        num_gpus=len(job.gpus),
        node=job.node,
        iterations_left=job.given.left(done),
        iterations_done=done,
        running_s=0.0 if job.trained_from_s is None else now - job.trained_from_s,
        leased=job.leased,
        cooling_until=job.cooling_until,
        reshape_cost_s=job.reshape_cost_s,
    )
