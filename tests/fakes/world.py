"""A whole cluster in one thread: the real coordinator, fake machines, and a clock moved by hand.

Nothing here is random and nothing sleeps. `boot` throws the coordinator away with all it had in
memory and makes a new one from the store; machines and trainers live on. `broken` says what an
outside observer finds wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.config import Config
from coordinator.errors import Conflict, ReshapeError, Transient
from coordinator.model import fields
from coordinator.model import states as s
from coordinator.model.progress import ObservedJob
from coordinator.model.records import GpuRecord, JobRecord, Moment
from coordinator.scheduling.decision_records import DecisionBasis
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs
from coordinator.service import Coordinator
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_nodes
from coordinator.stores.elector import Elector, Holder
from coordinator.telemetry.ingest import Telemetry
from sidecar.protocol import HeartbeatReply, launch_key, sign
from tests.fakes.gangs import Gangs
from tests.fakes.shims import Behaviour, Launch
from tests.fakes.store import MemoryStore

NODE, GPU_TYPE, JOB_TYPE = "n1", "V100", "mnist"
MASTER = b"0" * 32
SPEEDS = {1: 1.0, 2: 0.5, 3: 0.36, 4: 0.25}
OVERHEADS = {"k8s_init": 3.0, "k8s_term": 1.0, "proc_init": 1.0, "proc_term": 1.0, "ckpt": 0.5}
SHORT = Config(
    heartbeat_s=2.0, lease_s=30.0, grace_s=5.0, kill_s=2.0, init_timeout_s=20.0, first_step_timeout_s=6.0,
    retries=3, retry_s=1.0, term_s=15.0,
)  # fmt: skip
ROUNDS = 60  # of reconciling everything until nothing changes; more is a loop


class Crash(BaseException):
    """The coordinator's process ends here. Not an Exception: nothing in it may catch this."""


class Compared(SnapshotBuilder):
    """Builds each snapshot from nothing as well: what was kept from the last one, and what is noted as changed since,
    must lead to the same."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._telemetry = telemetry

    def build(
        self,
        jobs: Mapping[str, JobRecord],
        gpus: Mapping[str, GpuRecord],
        seen: Mapping[str, ObservedJob],
        known: SnapshotInputs,
        at: Moment,
    ) -> ClusterSnapshot:
        found = super().build(jobs, gpus, seen, known, at)
        now = {job.id: self._telemetry.seen(job) for job in jobs.values()}
        assert found == as_submitted(found, SnapshotBuilder().build(jobs, gpus, now, known, at))
        return found


def as_submitted(known: ClusterSnapshot, anew: ClusterSnapshot) -> ClusterSnapshot:
    """`anew` with the submissions of `known`: no jump of the clock changes them, but who sees a job first sees it."""
    submitted = {job.id: job.submit_s for job in known.jobs}
    return anew.then(jobs=tuple(replace(job, submit_s=submitted.get(job.id, 0.0)) for job in anew.jobs))


class FakeClock:
    ahead_s = 0.0  # by which the wall clock was set ahead

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_700_000_000.0 + self.time + self.ahead_s

    def boot_id(self) -> str:
        return "since this test began"


class World:
    """`run` until something holds."""

    def __init__(
        self,
        gpus: int = 4,
        config: Config = SHORT,
        settings: Settings | None = None,
        store: MemoryStore | None = None,
        nodes: Sequence[FoundNode] = (),
        agent_key: bytes = b"",
    ) -> None:
        self.clock, self.store = FakeClock(), store or MemoryStore()
        self.users = self.store.healthy()  # what users and observers see, whatever the coordinator's connection does
        self.agent_key = agent_key
        self.config, self.settings = config, settings or Settings(cooldown_factor=1.0)
        self.machines = Gangs(self.clock, config.grace_s, config.kill_s)
        self.passed: list[str] = []  # failpoints, in order
        self.acted_at: int | None = None  # how many failpoints were passed before a test first did something
        self.crash_at: int | None = None  # the position in `passed` at which the coordinator dies
        self.meanwhile: list[tuple[int, Callable[[], None]]] = []  # what other threads do at a position in `passed`
        self.late: list[tuple[Launch, bytes, str]] = []  # heartbeats on their way for too long
        self.last: list[tuple[Launch, bytes, str]] = []  # those delivered most recently
        self._fill(gpus, nodes)
        self.store.between_parts = lambda: self._failpoint(f"within:{self.passed[-1].partition(':')[2]}")
        self.boot()

    def _fill(self, gpus: int, more: Sequence[FoundNode]) -> None:
        own = tuple(FoundGpu(f"gpu-{i}", GPU_TYPE, None, True) for i in range(gpus))
        register_nodes(self.store, [FoundNode(NODE, own), *more])
        for n, seconds in SPEEDS.items():
            row = {"job_type": JOB_TYPE, "gpu_type": GPU_TYPE, "num_gpus": n, "seconds_per_iteration": seconds}
            self.store.put("speed_profiles", {"_id": f"{JOB_TYPE}|{n}", "origin": "shipped", **row})
        self.store.put("overheads", {"_id": JOB_TYPE, "job_type": JOB_TYPE, "origin": "shipped", **OVERHEADS})

    def boot(self) -> None:
        """A coordinator process begins; what another one had in memory is lost."""
        self.meanwhile = []
        elector = Elector(self.store, self.clock, self.config.term_s, Holder.of_process(os.getpid()))
        self.c = Coordinator(
            self.store, self.machines, self.machines, self.clock, self.config, self.settings, MASTER, elector, "test",
            self._failpoint, self.agent_key,
        )  # fmt: skip
        self.c.trouble = ""  # it acts, by the world's ticks in place of its own cycles
        self.api = self.c.services
        self.c.loop._snapshots = Compared(self.c.telemetry)

    def _failpoint(self, name: str) -> None:
        self.passed.append(name)
        if self.crash_at is not None and len(self.passed) > self.crash_at:
            self.crash_at = None
            raise Crash(name)
        due = [what for at, what in self.meanwhile if at < len(self.passed)]
        self.meanwhile = [(at, what) for at, what in self.meanwhile if at >= len(self.passed)]
        for what in due:
            what()

    # what users do

    def submit(self, job: Any, counts: list[int], behaviour: Behaviour | None = None, **more: Any) -> None:
        """By inserting a document, as any user could."""
        if behaviour is not None:
            self.machines.behaviour[str(job)] = behaviour
        doc = {"job_id": job, "state": "submitted", "optional_num_gpus": counts, "command": ["python", "train.py"]}
        given = {"job_type": JOB_TYPE, "iterations": self.machines.of(str(job)).iterations, "elastic": True, **more}
        self.users.insert("jobs", {"_id": job, **doc, **given})

    def job(self, job: str) -> JobRecord:
        """As it lies in the store."""
        return next(j for j in map(JobRecord, self.users.list("jobs")) if j.id == job)

    def gpu(self, gpu: str) -> GpuRecord:
        doc = self.users.get("gpus", gpu)
        assert doc is not None
        return GpuRecord(doc)

    @classmethod
    def training(cls, counts: list[int], behaviour: Behaviour | None = None, **more: Any) -> World:
        """A world whose job `one` runs on one of these numbers of GPUs, for long unless told otherwise."""
        world = cls()
        world.submit("one", counts, behaviour or Behaviour(iterations=4_000), **more)
        world.run(lambda w: w.states() == {"one": s.RUNNING})
        return world

    # time

    def pass_time(self, seconds: float) -> None:
        """Let the coordinator work for so many seconds."""
        end = self.clock.time + seconds
        self.run(lambda w: w.clock.time >= end)

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, carry messages, decide, act until nothing moves."""
        self.clock.time += seconds
        self.machines.advance()
        self.carry()
        self.turn()

    def turn(self) -> None:
        """One turn of the decision loop, and all that follows from it."""
        self.decide()
        self.settle()

    def decide(self) -> None:
        """As `service` does it."""
        try:
            led = self.c.elector.leads
            if self.c.elector.try_to_lead():
                if not led:
                    self.c._queue_all()
                if self.c.elector.rewound:
                    self.c.recover()
                self.c.inventory.mark_faulty_gpus()
                if self.c.awaited.all_are_known():
                    self.c.loop.tick()
        except Transient:
            pass
        self.c._queue_changed()

    def order(self, decision: Decision) -> None:
        """As if this had just been decided."""
        jobs, at = self.c.cache.jobs(), Moment(self.clock.now(), self.clock.wall())
        snapshot = SnapshotBuilder().build(jobs, self.c.cache.gpus(), {}, self.c.loop.inputs, at)
        self.c.loop._apply(decision, DecisionBasis(jobs, snapshot, 0.0))

    def settle(self) -> None:
        for _ in range(ROUNDS):
            before = self._effects()
            self.reconcile()
            if self._effects() == before:
                return
        raise AssertionError("the coordinator does not come to rest")

    def reconcile(self) -> None:
        """Each job that waits in the coordinator's queue now, once. One that another thread is at stays there."""
        queue = self.c.queue
        for job_id in sorted(iter(queue.take_key, None)):
            try:
                if self.c.elector.leads and not self.c.awaited.waits:
                    self.c._look_again(job_id, self.c.reconciler.reconcile(job_id).seconds)
            except (Conflict, Transient):
                queue.add(job_id)
            finally:
                queue.done(job_id)

    def _effects(self) -> tuple[int, int]:
        return self.store.writes, self.machines.effects

    def run(self, until: Callable[[World], bool], limit_s: float = 400.0, step_s: float = 1.0) -> None:
        """Tick by `step_s` until it holds; an observer looks after every tick."""
        deadline = self.clock.time + limit_s
        while not until(self):
            assert self.clock.time < deadline, f"not reached in {limit_s} s: {self.story()}"
            try:
                self.tick(step_s)
            except Crash:
                self.boot()
            assert self.broken() == [], self.story()

    # messages

    def carry(self) -> None:
        """Every sidecar that is up reports, unless its network is down."""
        for launch in list(self.machines.launches.values()):
            if not launch.up or not launch.alive:
                continue
            raw = msgspec.json.encode(launch.heartbeat(self.machines.of(launch.job)))
            signature = sign(launch_key(MASTER, launch.uid, launch.number), "POST", "/v1/heartbeats", raw)
            if self.machines.cut(launch):
                self.late = [*self.late[-20:], (launch, raw, signature)]
            else:
                self.last = [*self.last[-3:], (launch, raw, signature)]
                self.deliver(launch, raw, signature)

    def deliver(self, launch: Launch, raw: bytes, signature: str, answered: bool = True) -> None:
        """Hand one heartbeat over and, if it is answered, do what the answer says."""
        sent_at, rest = self.clock.time, launch.status.exit_at
        try:
            body, _ = self.api.messages.heartbeat(launch.job, launch.number, raw, signature)
        except ReshapeError:
            return
        reply = msgspec.json.decode(body, type=HeartbeatReply)
        if not answered:
            return
        launch.told = rest
        if reply.known:
            launch.renew(sent_at + reply.lease_s, self.clock.time)
        else:
            self.machines._end(launch)

    def deliver_late(self, answered: bool = False) -> None:
        """Whatever was held up arrives now, newest first; nobody hears the answers any more."""
        for launch, raw, signature in reversed(self.late):
            self.deliver(launch, raw, signature, answered)
        self.late = []

    def deliver_last(self) -> None:
        """The same heartbeats once more."""
        for launch, raw, signature in list(self.last):
            self.deliver(launch, raw, signature, answered=False)

    # observing

    def states(self) -> dict[str, str]:
        return {j.id: j.state for j in map(JobRecord, self.users.list("jobs"))}

    def at_rest(self) -> bool:
        """Every job ended and closed."""
        return all(j.state in s.ENDED and j.doc.get("closed") for j in map(JobRecord, self.users.list("jobs")))

    def broken(self) -> list[str]:
        """What no outside observer may ever see."""
        jobs = {j.id: j for j in map(JobRecord, self.users.list("jobs")) if j.accepted}
        gpus = [GpuRecord(doc) for doc in self.users.list("gpus")]
        return [*self.machines.violations, *self._broken_gpus(gpus), *_broken_jobs(jobs)]

    def _broken_gpus(self, gpus: list[GpuRecord]) -> list[str]:
        found = []
        for gpu in gpus:
            owner = self.machines.owners.get(gpu.id)
            if owner is not None and owner.job != gpu.held_by:
                found.append(f"{gpu.id} is used by {owner.url}, but the books say {gpu.held_by}")
            shape = (gpu.job is not None, gpu.held_by is not None)
            fits = {s.IDLE: [(False, False)], s.RESERVED: [(True, False), (True, True)], s.IN_USE: [(True, True)]}
            if shape not in fits.get(gpu.state, [shape]) or (gpu.state == s.IN_USE and gpu.job != gpu.held_by):
                found.append(f"{gpu.id} is {gpu.state} with job {gpu.job}, held by {gpu.held_by}")
        return found

    def story(self) -> str:
        """How things stand, for a failing test."""
        jobs = [f"{j.id}: {j.state} g{j.generation} l{j.launch} {j.gpu_ids} {j.doc.get('reshape')} "
                f"{j.doc.get('message')}" for j in map(JobRecord, self.users.list("jobs"))]  # fmt: skip
        gpus = [f"{g.id}: {g.state} {g.job} {g.held_by}" for g in map(GpuRecord, self.users.list("gpus"))]
        shims = [f"{m.url}: up={m.up} alive={m.alive} {m.status}" for m in self.machines.launches.values()]
        return "\n".join([*self.broken(), *jobs, *gpus, *shims, f"passed: {self.passed[-30:]}"])


def _broken_jobs(jobs: dict[str, JobRecord]) -> list[str]:
    found, taken = [], dict[str, str]()
    for job in jobs.values():
        count = job.doc.get("num_gpus")
        if job.doc.get("closed") is None:
            continue
        if (count or 0) != len(job.gpu_ids) or (count and count not in job.optional):
            found.append(f"job {job.id} has num_gpus {count} with {job.gpu_ids}, allowed are {job.optional}")
        if unknown := [*fields.unknown_fields(job.doc)]:
            found.append(f"job {job.id} has fields that coordinator/model/fields.py does not list: {unknown}")
        op = job.operation
        if op is not None and op.kind == "start" and job.generation < op.generation:
            continue  # promised, perhaps by a victim that still has them
        for gpu in job.gpu_ids:
            if (other := taken.setdefault(gpu, job.id)) != job.id:
                found.append(f"{gpu} belongs to {other} and to {job.id}")
    return found
