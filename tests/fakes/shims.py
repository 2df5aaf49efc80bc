"""Launches, shims and trainers on a clock moved by hand, with chosen misbehaviour.

`Machines` is both ports at once: the platform that starts and removes launches, and the sidecars that
answer signed calls, by the rules of `sidecar/shim.py` and `sidecar/core.py`. Beside them it keeps what
the coordinator must never be asked about: who really uses each GPU, and what lies on the disk. What is
wrong there is written to `violations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coordinator.errors import Conflict, Transient
from coordinator.ports import Clock, Doc, Evidence, LivingLaunch
from sidecar import protocol
from sidecar.protocol import (
    Checkpoint,
    CheckpointCall,
    GpuReading,
    Heartbeat,
    Progress,
    ShimStatus,
    StartCall,
    StopCall,
    Usage,
)  # fmt: skip

FRESH = ShimStatus()
REMOVAL_S = 1.0
DRIVER_S = 2.0  # to freeze or thaw a trainer


@dataclass
class Behaviour:
    """How one job's code, launches and network behave; a test changes it at any time. Seconds and steps."""

    iterations: int = 40
    says_total: bool = True
    speed: float = 1.0  # steps per second on one GPU
    launch_s: float = 3.0
    first_step_s: float = 1.0
    save_s: float = 1.0  # from SIGTERM to its exit
    warms_s: float | None = None  # from its first step until an interpreter waits for its next start; None: none will
    stop_code: int = 143
    ignores_stop: bool = False
    exits: list[int] = field(default_factory=list)  # codes with which the next trainers end before a step
    exit_note: str = ""
    output_tail: str = ""
    early_end_at: int | None = None  # exits with 0 at this step
    silent_training: bool = False  # no progress is ever seen
    launch_failures: int = 0  # how many of the next launches fail
    never_comes_up: bool = False
    unfit: str = ""  # what its sidecars say of its command
    value: float | None = None  # as measured at every step
    sick: set[str] | None = None  # GPUs that its sidecar reads as sick; None: it reads none
    busy: float | None = None  # what it reports of its GPUs
    cores: float | None = None  # that it uses, as its sidecar reports
    value_name: str = "val_accuracy"
    partitioned: bool = False  # nothing passes between the coordinator, its platform and the launch's machine
    agrees: bool = False  # that all pods of a gang stop at the same step once one of them was asked to
    cut: set[int] = field(default_factory=set)  # pods of a gang of which the same is true
    freezes: bool = False  # that its launches can freeze its trainer
    unfrozen: list[str] = field(default_factory=list)  # why the next freezes and thaws are in vain; empty: one is not
    answers_lost: int = 0  # how many of the next calls are carried out and not answered


class Launch:
    """One launch: a shim, and the trainer that it may have."""

    def __init__(self, job: str, doc: Doc, up_at: float, pid: int, member: int | None = None) -> None:
        self.member, self.variables = member, dict[str, str]()  # of a gang: which pod, and where it meets the others
        self.job, self.number, self.uid, self.up_at, self.pid = job, int(doc["launch"]), str(doc["uid"]), up_at, pid
        self.doc = doc
        self.up, self.alive, self.ending, self.failure = False, True, False, ""
        self.vanished = False  # whether its pod object was deleted by force
        self.ends_at = 0.0
        self.removal_asked = False
        self.wanted_again: Doc | None = None  # asked for while it was being removed
        self.status = msgspec.structs.replace(FRESH, shim_pid=pid)
        self.done: set[str] = set()
        self.told: float | None = None  # `exit_at` of the trainer's end that a heartbeat has told
        self.seq = 0
        self.base = self.steps = 0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.previous_last_at: float | None = None
        self.kill_at = float("inf")
        self.checkpoint: Checkpoint | None = None  # as verified at the trainer's last rest
        self.checkpoint_at: float | None = None
        self.calls_driver: tuple[float, StartCall | StopCall] | None = None  # to freeze or thaw, until then
        self.thawed_at: float | None = None

    @property
    def url(self) -> str:
        place = f"{self.job}/{self.number}"
        return place if self.member is None else f"http://10.0.0.{self.pid % 250}:8477/{place}/{self.member}"

    @property
    def trains(self) -> bool:
        return self.status.trainer in ("running", "stopping")

    def change(self, **fields: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **fields)

    def renew(self, deadline: float, now: float) -> None:
        """Take the later deadline, but a shorter lease after an endless one."""
        held = self.status.lease_deadline
        self.change(lease_deadline=deadline if held > now + protocol.ENDLESS_LEASE_S else max(held, deadline))

    def answer(self) -> ShimStatus:
        """An end is first told by a heartbeat, which names its checkpoint (`core.sayable`)."""
        untold = self.status.trainer == "exited" and self.told != self.status.exit_at
        return msgspec.structs.replace(self.status, trainer="stopping") if untold else self.status

    def heartbeat(self, behaviour: Behaviour) -> Heartbeat:
        self.seq += 1
        quiet = behaviour.silent_training
        total = behaviour.iterations if behaviour.says_total else None
        speed = None if self.first_at is None or self.last_at is None or self.steps - self.base < 2 else 1.0
        span = (self.last_at or 0.0) - (self.first_at or 0.0)
        progress = Progress(
            iterations=0 if quiet else self.steps,
            total_iterations=total,
            first_step_at=None if quiet else self.first_at,
            last_step_at=self.last_at,
            value=behaviour.value,
            value_name=behaviour.value_name if behaviour.value is not None else "",
            evaluations=self.steps if behaviour.value is not None else 0,
            previous_last_step_at=self.previous_last_at,
            seconds_per_iteration=None if speed is None or span <= 0 else span / (self.steps - self.base - 1),
        )
        return Heartbeat(
            job_id=self.job, launch=self.number, seq=self.seq, url=self.url, sidecar_pid=self.pid + 1,
            shim=self.status, progress=progress, checkpoint=self.checkpoint, checkpoint_at=self.checkpoint_at,
            usage=Usage(cpu_cores=behaviour.cores if self.trains else None), member=self.member or 0,
            boot="" if self.member is None else f"machine/{self.pid}", unfit=behaviour.unfit,
            gpus=self.readings(behaviour.sick, behaviour.busy),
        )  # fmt: skip

    def readings(self, sick: set[str] | None, busy: float | None) -> list[GpuReading]:
        every = () if sick is None and busy is None else self.status.gpu_ids
        return [
            GpuReading(gpu_id=g, healthy=False, problem="GPU is lost")
            if sick and g in sick
            else GpuReading(gpu_id=g, utilisation=busy)
            for g in every
        ]


class Machines:
    """`coordinator.ports.Sidecars` and `coordinator.ports.Platform` in one. Moves on only in `advance`."""

    def __init__(self, clock: Clock, grace_s: float, kill_s: float) -> None:
        self._clock, self._grace_s, self._kill_s = clock, grace_s, kill_s
        self.launches: dict[tuple[str, int], Launch] = {}
        self.behaviour: dict[str, Behaviour] = {}
        self.outputs: dict[str, bytes] = {}  # what trainers have written, by job
        self.disk: dict[str, Checkpoint] = {}  # newest checkpoint of each job
        self.owners: dict[str, Launch] = {}  # who really uses a GPU
        self.violations: list[str] = []
        self.executed: Counter[str] = Counter()  # command id -> how often it had an effect
        self.effects = 0
        self.records: dict[str, Doc] = {}  # copies of documents beside the store, by uid
        self._pid = 100

    def of(self, job: str) -> Behaviour:
        return self.behaviour.setdefault(job, Behaviour())

    def cut(self, launch: Launch) -> bool:
        behaviour = self.of(launch.job)
        return behaviour.partitioned or launch.member in behaviour.cut

    def present(self, job: str) -> Launch | None:
        """The newest launch of a job."""
        numbers = [number for name, number in self.launches if name == job]
        return self.launches[job, max(numbers)] if numbers else None

    # Platform

    def launch(self, doc: Doc) -> None:
        key = str(doc["job_id"]), int(doc["launch"])
        old, behaviour = self.launches.get(key), self.of(key[0])
        if old is not None and old.alive and not old.ending:
            return
        if old is not None and old.alive:
            old.wanted_again = doc
            return
        self._launch(key, doc, behaviour)

    def _launch(self, key: tuple[str, int], doc: Doc, behaviour: Behaviour) -> None:
        self.effects += 1
        self._pid += 10
        new = self.launches[key] = Launch(key[0], dict(doc), self._clock.now() + behaviour.launch_s, self._pid)
        if behaviour.launch_failures > 0:
            behaviour.launch_failures -= 1
            new.failure = "the disk is full"

    def failure(self, doc: Doc) -> str | None:
        launch = self._find(doc)
        return launch.failure if launch and launch.failure and not launch.alive else None

    def keep(self, doc: Doc) -> None:
        self.records[str(doc["uid"])] = dict(doc)

    def adopt(self, doc: Doc) -> None:
        return None

    def recall(self, jobs: Sequence[Doc]) -> Evidence:
        """The copies, and every launch that is up."""
        up = [one for one in self.launches.values() if one.up and one.alive]
        living = [LivingLaunch(one.job, one.uid, one.number, one.status) for one in up]
        return Evidence(tuple(self.records.values()), tuple(living))

    def vanished(self, doc: Doc) -> frozenset[int]:
        launch = self._find(doc)
        return frozenset({0}) if launch is not None and launch.vanished else frozenset()

    def nothing_runs(self, job_id: str) -> bool:
        return all(self.gone({"job_id": job_id, "launch": n}) for name, n in list(self.launches) if name == job_id)

    def unplaced(self, doc: Doc) -> str | None:
        return None

    def remove(self, doc: Doc) -> None:
        if (launch := self._find(doc)) is not None:
            launch.removal_asked = True

    def gone(self, doc: Doc) -> bool:
        launch = self._find(doc)
        return launch is None or (not launch.alive and not self.cut(launch))

    def ended(self, doc: Doc) -> frozenset[int]:
        return frozenset()

    output_read = 0  # bytes of `outputs`, by all calls

    def output(self, doc: Doc, offset: int, limit: int) -> tuple[bytes, int]:
        whole = self.outputs.get(str(doc.get("job_id")), b"")
        begin = offset if offset >= 0 else max(0, len(whole) + offset)
        text = whole[begin : begin + limit]
        self.output_read += len(text)
        return text, begin + len(text)

    def _find(self, doc: Doc) -> Launch | None:
        return self.launches.get((str(doc["job_id"]), int(doc["launch"])))

    # Sidecars

    def start(self, url: str, key: bytes, job: str, launch: int, call: StartCall) -> ShimStatus:
        shim = self._reach(url)
        if self._new(shim, call.generation, call.command_id):
            if shim.status.trainer == "frozen":
                self._executed(shim, call.generation, call.command_id)
                self._own(shim, call.gpu_ids)
                return self._call_driver(shim, call, gpu_ids=call.gpu_ids)
            if shim.trains:
                raise Conflict("a trainer is still running here; stop it first")
            self._executed(shim, call.generation, call.command_id)
            self._spawn(shim, call)
        return self._answered(shim)

    def stop(self, url: str, key: bytes, job: str, launch: int, call: StopCall) -> ShimStatus:
        shim = self._reach(url)
        if call.freeze and self._new(shim, call.generation, call.command_id):
            if shim.status.trainer != "running" or shim.calls_driver:
                raise Conflict("no trainer runs here that could be frozen now")
            return self._call_driver(shim, call)
        if self._new(shim, call.generation, call.command_id):
            self._executed(shim, call.generation, call.command_id)
            self._quit(shim, self._clock.now() + call.grace_s)
        return self._answered(shim)

    def _call_driver(self, shim: Launch, call: StartCall | StopCall, **more: Any) -> ShimStatus:
        self.effects += 1
        shim.calls_driver = self._clock.now() + DRIVER_S, call
        shim.change(trainer="stopping", unfrozen="", unfrozen_by="", **more)
        return self._answered(shim)

    def _driver_answers(self, shim: Launch) -> None:
        """Freeze or thaw the trainer, or leave it as it was."""
        if shim.calls_driver is None or self._clock.now() < shim.calls_driver[0] or not shim.trains:
            return
        (_, call), unfrozen = shim.calls_driver, self.of(shim.job).unfrozen
        shim.calls_driver, why = None, unfrozen.pop(0) if unfrozen else ""
        if why:
            shim.change(unfrozen=why, unfrozen_by=call.command_id)
        if isinstance(call, StopCall) and not why:
            self._executed(shim, call.generation, call.command_id)
        if isinstance(call, StopCall) == bool(why):
            shim.change(trainer="running")
            shim.thawed_at, shim.base = self._clock.now(), shim.steps - 1
        else:
            self._release(shim)
            shim.change(trainer="frozen", gpu_ids=[], lease_deadline=0.0)

    def checkpoint(self, url: str, key: bytes, job: str, launch: int, call: CheckpointCall) -> ShimStatus:
        raise Conflict("this trainer cannot save without exiting")

    def _reach(self, url: str) -> Launch:
        launch = next((one for one in self.launches.values() if one.url == url), None)
        if launch is None or not launch.alive or not launch.up or self.cut(launch):
            raise Transient(f"the sidecar at {url} does not answer")
        return launch

    def _new(self, shim: Launch, generation: int, command: str) -> bool:
        if command in shim.done:
            return False
        if generation < shim.status.generation:
            raise Conflict("old generation")
        return True

    def _executed(self, shim: Launch, generation: int, command: str) -> None:
        self.effects += 1
        self.executed[command] += 1
        shim.done.add(command)
        shim.change(generation=generation, command_id=command)

    def _answered(self, shim: Launch) -> ShimStatus:
        behaviour = self.of(shim.job)
        if behaviour.answers_lost > 0:
            behaviour.answers_lost -= 1
            raise Transient("the answer was lost")
        return shim.answer()

    # trainers

    def _spawn(self, shim: Launch, call: StartCall) -> None:
        now, newest = self._clock.now(), self.disk.get(shim.job)
        if newest is not None and call.checkpoint not in (None, newest.name):  # none named: the newest is taken
            self.violations.append(f"{shim.url} resumes from {call.checkpoint}, though {newest.name} is newer")
        self._own(shim, call.gpu_ids)
        shim.thawed_at = None
        shim.previous_last_at = shim.last_at
        shim.base = shim.steps = newest.step if newest else 0
        shim.first_at = shim.last_at = None
        shim.kill_at = float("inf")
        shim.renew(now + call.lease_s, now)
        deadline = shim.status.lease_deadline
        kept = {"generation": shim.status.generation, "command_id": shim.status.command_id, "shim_pid": shim.pid}
        kept["freezes"] = shim.status.freezes
        fresh = {"trainer": "running", "trainer_pid": shim.pid + 2, "gpu_ids": call.gpu_ids, "spawn_at": now}
        shim.status = msgspec.structs.replace(FRESH, **kept, **fresh, lease_deadline=deadline)

    def _own(self, shim: Launch, gpu_ids: Sequence[str]) -> None:
        for gpu in gpu_ids:
            if (owner := self.owners.get(gpu)) is not None:
                self.violations.append(f"GPU {gpu} is given to {shim.url} while {owner.url} uses it")
            self.owners[gpu] = shim

    def _quit(self, shim: Launch, kill_at: float, fenced: bool = False) -> None:
        shim.kill_at = min(shim.kill_at, kill_at)
        if shim.status.trainer == "running":
            shim.change(trainer="stopping", stop_asked=True, stop_at=self._clock.now(), fenced=fenced)

    def _exit(self, shim: Launch, code: int, saved: bool = False, note: str = "", tail: str = "") -> None:
        now, old = self._clock.now(), self.disk.get(shim.job)
        if saved and (old is None or shim.steps > old.step):
            generation = shim.status.generation
            self.disk[shim.job] = Checkpoint(f"g{generation}-s{shim.steps}", shim.steps, generation)
            shim.checkpoint_at = now
        self._release(shim)
        shim.checkpoint = self.disk.get(shim.job)
        shim.change(trainer="exited", trainer_pid=None, exit_code=code, exit_at=now, exit_note=note, output_tail=tail)

    def _release(self, shim: Launch) -> None:
        for gpu in [g for g, owner in self.owners.items() if owner is shim]:
            del self.owners[gpu]

    def _end(self, shim: Launch) -> None:
        """Stop training, then end: what the platform's removal and an unknown launch come to."""
        if not shim.ending:
            self.effects += 1
            shim.ending, shim.ends_at = True, self._clock.now() + REMOVAL_S
            self._quit(shim, self._clock.now() + self._grace_s)

    def kill_shim(self, job: str) -> None:
        """By SIGKILL: the kernel kills its trainer with it. Of the newest launch that is up."""
        numbers = [number for (name, number), shim in self.launches.items() if name == job and shim.up]
        if numbers:
            shim = self.launches[job, max(numbers)]
            self._release(shim)
            shim.alive = False

    def end_trainer(self, job: str, code: int) -> None:
        """It ends by itself; with 0 it has saved."""
        for shim in [one for (name, _), one in self.launches.items() if name == job and one.alive and one.trains]:
            self._exit(shim, code, saved=code == 0, tail="Traceback (most recent call last):\nout of memory")

    def zombie_stop(self, job: str, generation: int) -> None:
        """What a coordinator that no longer leads might still send."""
        shim = self.present(job)
        if shim is not None and shim.up and shim.alive and generation >= shim.status.generation:
            shim.change(generation=generation, command_id=f"{job}:{generation}:stop")
            self._quit(shim, self._clock.now() + self._grace_s)

    # time

    def advance(self) -> None:
        """Bring every launch to the clock's present."""
        for shim in list(self.launches.values()):
            if shim.alive:
                if shim.removal_asked and not self.cut(shim):
                    self._end(shim)
                self._bring_up(shim)
                self._driver_answers(shim)
                self._train(shim)
                self._finish(shim)

    def _bring_up(self, shim: Launch) -> None:
        behaviour, now = self.of(shim.job), self._clock.now()
        if shim.up or now < shim.up_at:
            return
        if shim.failure:
            shim.alive = False
        elif not behaviour.never_comes_up:
            shim.up, shim.checkpoint = True, self.disk.get(shim.job)
            shim.change(freezes=behaviour.freezes)

    def _train(self, shim: Launch) -> None:
        now, behaviour = self._clock.now(), self.of(shim.job)
        if not shim.trains or shim.calls_driver:
            return
        spawned, stop_at = shim.status.spawn_at or 0.0, shim.status.stop_at
        obeys = shim.status.trainer == "stopping" and stop_at is not None and not behaviour.ignores_stop
        first = spawned + behaviour.first_step_s if shim.thawed_at is None else shim.thawed_at
        if behaviour.exits and now >= first:
            self._exit(shim, behaviour.exits.pop(0), note=behaviour.exit_note, tail=behaviour.output_tail)
            return
        self._step(shim, first, (stop_at or 0.0) if obeys else now)
        length = min(behaviour.iterations, behaviour.early_end_at or behaviour.iterations)
        if shim.steps >= length:
            self._exit(shim, 0, saved=True)
        elif obeys and now >= (stop_at or 0.0) + behaviour.save_s:
            self._exit(shim, behaviour.stop_code, saved=True)
        else:
            self._fence(shim, now)

    def _fence(self, shim: Launch, now: float) -> None:
        """Stop in time before the lease ends; kill what does not stop."""
        deadline = shim.status.lease_deadline
        if deadline and now >= deadline - self._grace_s:
            self._quit(shim, deadline, fenced=True)
        if now >= shim.kill_at:
            self._exit(shim, -9)

    def _step(self, shim: Launch, first: float, until: float) -> None:
        behaviour = self.of(shim.job)
        if until < first:
            return
        pace = 1.0 / (behaviour.speed * max(1, len(shim.status.gpu_ids)))
        done = min(behaviour.iterations, shim.base + 1 + int((until - first) / pace))
        if shim.first_at is None:
            shim.first_at = first
        if behaviour.warms_s is not None:
            shim.change(
                warm="ready" if self._clock.now() >= first + behaviour.warms_s else "begins to wait", warm_s=3.0
            )
        if done > shim.steps:
            shim.steps, shim.last_at = done, first + (done - shim.base - 1) * pace

    def _finish(self, shim: Launch) -> None:
        if shim.ending and not shim.trains and self._clock.now() >= shim.ends_at:
            shim.alive = False
            if shim.wanted_again is not None:
                self._launch((shim.job, shim.number), shim.wanted_again, self.of(shim.job))
