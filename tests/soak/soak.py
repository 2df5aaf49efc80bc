"""Carries out the plan of a soak against a real `reshape up`, and reports what came of it.

Promises: it signals only processes of its own folder, and leaves none, also after Ctrl-C. What else goes wrong
(`tests/soak/machine.py`) concerns its own processes only.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from coordinator.model.states import IDLE
from reshape.client import CoordinatorRefused, CoordinatorUnreachable
from reshape.services.local_gpus import USED_BY
from reshape_hooks.plain import boottime
from tests.e2e.up import Up, of_folder
from tests.fakes import cuda
from tests.patience import patient
from tests.soak import machine, processes, training
from tests.soak.machine import Connections, Foreigner, Machine
from tests.soak.oracle import Other, Verdict, judge
from tests.soak.plan import JUMPS_S, SLOW_EVERY, Arrival, Fault, plan

TIMES = {"RESHAPE_RETRIES": "1000"}  # a training that is killed often is not at fault
WELL = "completed: completed"  # state and message
NEVER_SAID = ("NVML does not answer", "Too many open files", "Traceback")  # of what goes wrong here, nothing does this
LOG_MOST = 4 << 20  # bytes of the coordinators' log: who repeats a line without end writes that in seconds
CALM_S = 20.0  # after its start a coordinator's memory is measured from then on
STALL_S = 60.0  # without a step of any job, on a machine that is not loaded
LOOK_S = 0.5
EARLIEST_S = 20.0  # a shim or trainer of a job is killed again after that, so that it comes on


class Soak:
    def __init__(self, folder: Path, seed: int, seconds: float, store: str | None) -> None:
        self.plan, self.seconds, self.began = plan(seed, seconds), seconds, time.monotonic()
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.machine = Machine(folder / "machine")
        self.machine.make()
        here = {"TMPDIR": str(self.temporary), machine.FOLDER: str(self.machine.folder)}
        here["LD_LIBRARY_PATH"] = str(cuda.build(folder / "driver"))
        times = TIMES | {"RESHAPE_NO_STEP_S": str(self.plan.no_step_s)}
        self.up = Up(folder / "state", (), store, program=machine.__name__, **here, **times)
        self.waiting, self.kills, self.others = list(self.plan.arrivals), list(self.plan.kills), list(self.plan.others)
        self.submitted: dict[str, Arrival] = {}
        self.killed: Counter[str] = Counter()
        self.hunted: list[Fault] = []  # kills of what holds a state on a GPU, once there is one
        self.done: Counter[str] = Counter()  # of the other faults
        self.holders: set[int] = set()  # processes that have held a state on a GPU
        self.hung: list[int] = []  # processes
        self.connections: list[Connections] = []
        self.foreigners: list[Foreigner] = []
        self.foreign: list[Other] = []  # what the foreigners that have ended did
        self.killed_at: dict[str, list[float]] = {}  # by job, boot time
        self.back_s: list[float] = []  # how long coordinators took to answer again
        self.memory: dict[int, list[tuple[float, int]]] = {}  # by coordinator
        self.started_at = 0.0
        self.launches: set[Path] = set()
        self.violations: list[str] = []
        self.victims = "not counted"
        self.stalled_s, self.stepped_at, self.size, self.killed_last = 0.0, time.monotonic(), 0, 0.0
        self.stalled_on = ""  # what was open in the longest stall

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> None:
        """Until the plan is carried out and all jobs have ended, or nothing moves any more."""
        self._start()
        self.began = time.monotonic()  # on a busy machine the faults of the plan came before its first jobs trained
        while self.now < self.seconds or not self._all_ended():
            if self.waiting and self.waiting[0].at_s <= self.now:
                self._submit(self.waiting[0])
            if self.kills and self.kills[0].at_s <= self.now and self.comes_on:
                self._kill(self.kills.pop(0))
            if self.others and self.others[0].at_s <= self.now:
                self._disturb(self.others.pop(0))
            self._relieve()
            self._look()
            if self.stalled_now > patient(STALL_S):
                self.violations.append(f"no step for {self.stalled_now:.0f} s, {len(self._jobs())} jobs are open")
                return
            time.sleep(LOOK_S)

    def _start(self) -> None:
        began = time.monotonic()
        self.up.start()
        self.started_at = time.monotonic()
        self.back_s.append(self.started_at - began)

    def _submit(self, job: Arrival) -> None:
        command = [sys.executable, str(training.__file__), "--iterations", str(job.steps)]
        command += ["--save-every", str(job.save_every)]
        command += ["--evaluate-every", str(SLOW_EVERY)] if job.evaluation_s else []
        doc = {
            "job_id": job.name, "job_type": "digits-numpy", "command": command, "iterations": job.steps,
            "optional_num_gpus": job.counts, "elastic": True,
            "env": {
                training.SAVE_S: str(job.save_s), training.EVALUATION_S: str(job.evaluation_s),
                training.ON_GPU: "yes" if job.on_gpu else "no",
            },
        }  # fmt: skip
        with suppress(CoordinatorUnreachable):
            if job.name not in {found["job_id"] for found in self._every_job()}:  # its answer may have been lost
                self.up.client.submit(doc)
            self.submitted[job.name] = job
            self.waiting.pop(0)

    def _kill(self, kill: Fault) -> None:
        if kill.kind == "coordinator":
            self._kill_coordinator(kill.for_s)
        elif kill.kind == "holder":
            self.hunted.append(kill)
        elif kill.kind == "launcher":
            self._kill_one(kill, [("", pid) for pid in self._launchers()])
        else:
            field, now = f"{kill.kind}_pid", boottime()
            ready = [job for job in self._jobs() if job.get(field)]
            if kill.kind != "sidecar":
                ready = [j for j in ready if now - self.killed_at.get(j["job_id"], [0.0])[-1] > EARLIEST_S]
            self._kill_one(kill, [(job["job_id"], job[field]) for job in ready])

    # what else goes wrong

    def _disturb(self, fault: Fault) -> None:
        kind, _, whom = fault.kind.partition(" ")
        if kind == "hung":
            self._hang(whom, fault)
        elif kind == "clock":
            self.machine.jump(JUMPS_S[int(fault.choice * len(JUMPS_S))])
            self.done[fault.kind] += 1
        elif kind == "wish":
            self._wish(fault)
        elif kind == "connections":
            found = [self.up.client.url] if whom == "to coordinator" else self._urls()
            for url in found[int(fault.choice * len(found)) :][:1]:
                self.connections.append(Connections(url, time.monotonic() + fault.for_s))
                self.done[fault.kind] += 1
        else:
            self._use(whom, fault)

    def _hang(self, whom: str, fault: Fault) -> None:
        found = [job[f"{whom}_pid"] for job in self._jobs() if job.get(f"{whom}_pid")] if whom != "coordinator" else []
        if whom == "coordinator" and self.up.process is not None:
            found = [self.up.process.pid]
        for pid in found[int(fault.choice * len(found)) :][:1]:
            if processes.send(pid, signal.SIGSTOP, self.temporary.parent):
                self.hung.append(pid)
                self.done[fault.kind] += 1
                threading.Timer(fault.for_s, self._go_on, (pid,)).start()  # a hung coordinator may keep us waiting

    def _go_on(self, pid: int) -> None:
        processes.send(pid, signal.SIGCONT, self.temporary.parent)

    def _wish(self, fault: Fault) -> None:
        """The user of a running job asks for another number of GPUs, or leaves it to the scheduler again."""
        found = [job for job in self._jobs() if job["state"] == "running" and len(job["optional_num_gpus"]) > 1]
        for job in found[int(fault.choice * len(found)) :][:1]:
            others = [count for count in job["optional_num_gpus"] if count != job["num_gpus"]]
            wish = None if job["pinned"] else others[int(fault.choice * 1000) % len(others)]
            with suppress(CoordinatorUnreachable, CoordinatorRefused):  # as GPUs may not be free
                self.up.client.reshape(job["job_id"], wish)
                self.done[fault.kind] += 1

    def _urls(self) -> list[str]:
        return [job["sidecar_url"] for job in self._jobs() if job.get("sidecar_url")]

    def _use(self, how: str, fault: Fault) -> None:
        """Somebody else comes onto a GPU: one that is free now, if any is."""
        free: list[str] = []
        with suppress(CoordinatorUnreachable, CoordinatorRefused):
            free = [gpu["gpu_id"] for gpu in self.up.client.gpus() if gpu["state"] == IDLE]
        free = free or self.machine.gpus
        gpu = free[int(fault.choice * len(free))]
        begin = machine.foreign_process if how == "process" else machine.foreign_lock
        one = begin(self.machine.folder, gpu, fault.for_s)
        self.foreigners.append(one)
        self.done[fault.kind] += 1
        if one.shown:
            self.machine.use(gpu, [*self.machine.users(gpu), one.process.pid])

    def _relieve(self, all_of_it: bool = False) -> None:
        """End what has lasted as long as it was to last, and keep up the rest."""
        now = float("inf") if all_of_it else time.monotonic()
        for pid in self.hung if all_of_it else ():
            self._go_on(pid)
        for held in self.connections:
            held.close() if held.until <= now else held.press()
        self.connections = [one for one in self.connections if one.until > now]
        for one in [one for one in self.foreigners if one.until <= now or one.process.poll() is not None]:
            self.foreigners.remove(one)
            self.foreign += one.end(self.machine)

    def _see_holders(self) -> None:
        """Count the states that are held on a GPU, and kill one if that is due."""
        found = processes.holders(self.up.state)
        self.holders |= {pid for _, pid in found}
        if found and self.hunted:
            self._kill_one(self.hunted.pop(0), found)

    def _see_foreigners(self) -> None:
        """Note which GPUs the coordinator shows as another one's."""
        unseen = [one for one in self.foreigners if one.shown and one.shown_at is None]
        with suppress(CoordinatorUnreachable, CoordinatorRefused):
            problems = {gpu["gpu_id"]: str(gpu["problem"] or "") for gpu in self.up.client.gpus()} if unseen else {}
            for one in unseen:
                if problems.get(one.gpu, "").startswith(USED_BY) and f"process {one.process.pid} " in problems[one.gpu]:
                    one.shown_at = boottime()

    def _kill_coordinator(self, away_s: float) -> None:
        self.up.kill()
        self.killed["coordinator"] += 1
        self.killed_last = time.monotonic()
        time.sleep(away_s)
        self._start()

    def _kill_one(self, kill: Fault, found: list[tuple[str, int]]) -> None:
        if not found:
            return
        job, pid = found[int(kill.choice * len(found))]
        if processes.send(pid, signal.SIGKILL, self.temporary.parent):
            self.killed[kill.kind] += 1
            self.killed_last = time.monotonic()
            if kill.kind in ("shim", "trainer", "holder"):
                self.killed_at.setdefault(job, []).append(boottime())

    def _launchers(self) -> list[int]:
        return [] if self.up.process is None else processes.launchers(self.up.process.pid)

    def _jobs(self) -> list[dict[str, Any]]:
        with suppress(CoordinatorUnreachable, CoordinatorRefused):
            return self.up.client.jobs()
        return []

    def _look(self) -> None:
        """Measure, and note a new step. Nothing stalls while no job is open."""
        self._see_foreigners()
        self._see_holders()
        self.launches |= {path.parent for path in self.up.state.glob("jobs/*/shim.lock")}
        process = self.up.process
        if process is not None and time.monotonic() > self.started_at + CALM_S:
            with suppress(OSError):
                self.memory.setdefault(process.pid, []).append(processes.memory(process.pid))
        size = sum(path.stat().st_size for path in self.up.locks.glob("*.jsonl")) if self.up.locks.exists() else 0
        if size != self.size or self._idle():
            self.stepped_at, self.size = time.monotonic(), size
        if self.stalled_now > self.stalled_s:
            self.stalled_s = self.stalled_now
            self.stalled_on = ", ".join(f"{job['job_id']} {job['state']}" for job in self._jobs()) or self.stalled_on

    def _idle(self) -> bool:
        with suppress(CoordinatorUnreachable, CoordinatorRefused):
            return not self.up.client.jobs()
        return False

    @property
    def comes_on(self) -> bool:
        """False until a step was made since the last kill: else a slow machine could do nothing but start again."""
        return self.stepped_at > self.killed_last

    @property
    def stalled_now(self) -> float:
        return time.monotonic() - self.stepped_at

    def _all_ended(self) -> bool:
        with suppress(CoordinatorUnreachable, CoordinatorRefused):
            return not self.waiting and all(job["closed"] for job in self._every_job())
        return False

    def _every_job(self) -> list[dict[str, Any]]:
        return self.up.client.jobs(include_ended=True)

    # the end

    def judge(self) -> Verdict:
        """Stop the coordinator and say what came of it all."""
        self._relieve(all_of_it=True)
        try:
            states = {job["job_id"]: f"{job['state']}: {job['message']}"[:120] for job in self._every_job()}
            self.victims = self._count_victims()
        except (CoordinatorUnreachable, CoordinatorRefused) as error:
            states = {}
            self.violations.append(f"the coordinator does not answer: {error}")
        for name in self.submitted:
            if states.get(name, "unknown") != WELL:
                self.violations.append(f"{name} is {states.get(name, 'unknown')}")
        self.violations += [f"two users of a GPU: {found}" for found in self.up.violations()]
        if self.up.stop():
            self.violations.append("`reshape up` did not end with 0")
        uses = {name: self.up.uses(name) for name in self.submitted}
        verdict = judge(uses, self.submitted.values(), self.killed_at, self.foreign)
        self.violations += [f"a log says {words!r}" for words in NEVER_SAID if words in self.up.log]
        if (size := len(self.up.log)) > LOG_MOST:
            self.violations.append(f"the coordinators wrote {size:,} characters into their log")
        verdict.violations = self.violations + verdict.violations
        return verdict

    def leaks(self) -> list[str]:
        """What is left of a soak whose jobs have ended and whose coordinator was stopped."""
        left = [
            f"process {pid}: {line}" for pid, line in of_folder(self.temporary.parent).items() if "nx_27017" not in line
        ]
        files = [f"socket {path}" for path in processes.sockets(self.up.state)]
        return left + files + [f"/dev/shm/{name}" for name in processes.in_memory(self.launches)]

    def _taken(self) -> int:
        return sum(
            path.read_text(errors="replace").count("state taken from GPU")
            for path in self.up.state.glob("jobs/*/output.log*")
        )

    def growth(self) -> str:
        """Of the coordinator that lived longest: memory and open files, from when it had come up to its end."""
        longest = max(self.memory.values(), key=len, default=[])
        if len(longest) < 2:
            return "not measured: no coordinator lived long enough"
        (first, files), (last, more) = longest[0], longest[-1]
        return f"{first:.0f} to {last:.0f} MiB, {files} to {more} open files in {len(longest) * LOOK_S:.0f} s at least"

    def report(self, verdict: Verdict, leaks: list[str]) -> str:
        ended = [name for name in self.submitted if not any(v.startswith(f"{name} is ") for v in verdict.violations)]
        kills, others = _counted(self.killed), _counted(self.done)
        steps = sum(job.steps for job in self.submitted.values())
        slow = sum(bool(job.save_s or job.evaluation_s) for job in self.submitted.values())
        lines = [
            f"seconds      {self.now:.0f}",
            f"jobs         {len(self.submitted)}, {len(ended)} completed; {slow} of them slow",
            f"kills        {self.killed.total()}: {kills}",
            f"others       {self.done.total()}: {others}",
            f"on a GPU     {sum(job.on_gpu for job in self.submitted.values())} jobs, "
            f"{len(self.holders)} processes held their state, {self._taken()} states taken from there",
            f"foreign      {sum(one.locked for one in self.foreign)} locks held, "
            f"{sum(not one.locked for one in self.foreign)} processes shown",
            f"victims      {self.victims}",
            f"violations   {len(verdict.violations)}",
            f"steps        {steps}, {verdict.lost} lost, {verdict.again} done twice after kills",
            f"stalls       at most {self.stalled_s:.1f} s without any step ({self.stalled_on}); "
            f"{max(self.back_s):.1f} s for a start",
            f"leaks        {len(leaks)}",
            f"growth       {self.growth()}",
        ]
        return "\n".join(
            [*lines, *(f"  violation: {v}" for v in verdict.violations), *(f"  leak: {one}" for one in leaks)]
        )

    def _count_victims(self) -> str:
        decided = {one["decision_id"]: one for name in self.submitted for one in self.up.client.decisions(name)}
        starts = [one for one in decided.values() if one["kind"] == "start"]
        several = sum(bool(one.get("more_victims")) for one in starts)
        some = sum(one["victim"] is not None for one in starts)
        return f"{some} decisions took GPUs of running jobs for a start, {several} of several jobs"


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))


@contextmanager
def soaking(folder: Path, seed: int, seconds: float, store: str | None) -> Iterator[Soak]:
    """A soak, of which nothing is left afterwards."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    soak = Soak(folder, seed, seconds, store)
    try:
        yield soak
    finally:
        soak._relieve(all_of_it=True)
        soak.machine.remove()
        with suppress(AssertionError), redirect_stdout(StringIO()):  # it prints the log
            soak.up.clear()
