"""Runs the case study once: two jobs on four emulated GPUs under one policy, with real processes.

Starts `reshape up` as a process and uses it over HTTP, as any user does. Every reported value comes
from its events and from what the trainers wrote beside their own GPU locks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reshape import shipped
from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from reshape.demo.lengths import EPOCH, DemoPlan, StartTimes
from reshape.what_if.live import LiveState
from reshape_hooks import locks as gpu_locks

View = dict[str, Any]

GPUS = 4
GPU_TYPE = "V100"
START_S = 300.0  # for `reshape up` to answer
FIRST, SECOND = "one", "two"
MEASURED = "start"  # the job that measures a start, and trains no longer
LONG = 9_400  # iterations that it never does
MEASURE_LIMIT_S = 900.0
ENDED = ("completed", "failed", "cancelled")


class DemoFailed(Exception):
    """Raised if the run did not reach its end; the sentence says why."""


def documents(plan: DemoPlan) -> tuple[View, View]:
    """Return the documents of job one, which requests 4 GPUs and can shrink, and of job two, which requests 2."""
    one = _job(plan.trainer, FIRST, plan.first_iterations, [1, 2, 4])
    return one, _job(plan.trainer, SECOND, plan.second_iterations, [2])


def _job(trainer: str, name: str, iterations: int, counts: list[int]) -> View:
    """Return a job of the example script: of Keras the one that knows nothing of us."""
    of_keras = trainer == "keras"
    script = shipped.folder("examples") / ("keras_plain.py" if of_keras else "numpy_digits.py")
    length = ["--epochs", str(iterations // EPOCH[trainer])] if of_keras else ["--iterations", str(iterations)]
    return {
        "job_id": name, "state": "submitted", "job_type": f"digits-{trainer}", "dataset": "digits",
        "command": [sys.executable, str(script), *length], "iterations": iterations, "optional_num_gpus": counts,
    }  # fmt: skip


ENVIRONMENT = {
    "RESHAPE_STORE": "",  # its own, not the one of the user's `reshape up`
    "RESHAPE_HEARTBEAT_S": "2",
    "RESHAPE_FIRST_STEP_TIMEOUT_S": "900",  # what is shown is measured, however slowly this machine starts it
    # The case study in small: its jobs live a minute, not twenty, but a reshape costs what it costs.
    "RESHAPE_COOLDOWN_FACTOR": "2",
}


@dataclass
class DemoRun:
    """The results of one run. Times are seconds since job one was submitted."""

    policy: str
    events: list[View] = field(default_factory=list)
    jobs: dict[str, View] = field(default_factory=dict)
    overheads: View = field(default_factory=dict)
    speeds: dict[int, float] = field(default_factory=dict)  # seconds per iteration by GPU count
    violations: list[View] = field(default_factory=list)
    steps: dict[str, list[int]] = field(default_factory=dict)
    asked: LiveState | None = None  # the system when job two came, with job two

    @property
    def began(self) -> float:
        return float(self.jobs[FIRST]["submit_ts"])

    @property
    def makespan_s(self) -> float:
        """Return last finish minus first submission."""
        return max(float(j["finish_ts"]) for j in self.jobs.values()) - self.began

    @property
    def jct_s(self) -> dict[str, float]:
        return {name: float(j["finish_ts"]) - float(j["submit_ts"]) for name, j in sorted(self.jobs.items())}

    def of(self, kind: str, job: str | None = None) -> list[View]:
        return [e for e in self.events if e["type"] == kind and job in (None, e.get("job_id"))]

    @property
    def reshapes(self) -> list[View]:
        fields = ("direction", "from_gpus", "to_gpus", "stages_s", "gap_s", "for", "decision_id")
        return [{"job": e["job_id"], **{f: e.get(f) for f in fields}} for e in self.of("reshaped")]

    @property
    def pids(self) -> dict[str, list[list[int]]]:
        """Return, per job, the different (shim, sidecar) process ids that it trained under."""
        pairs: dict[str, set[tuple[int, int]]] = {name: set() for name in self.jobs}
        for event in self.events:
            if event["type"] in ("started", "restarted", "reshaped"):
                pairs[event["job_id"]].add((event["shim_pid"], event["sidecar_pid"]))
        return {name: sorted(map(list, found)) for name, found in sorted(pairs.items())}

    @property
    def every_step_once(self) -> bool:
        """True if each job did every step from its first to its last once, in order, over all generations."""
        return all(
            steps == list(range(1, int(self.jobs[name]["iterations"]) + 1)) for name, steps in self.steps.items()
        )


def measure(trainer: str, folder: Path, show: Callable[[View, float], None]) -> StartTimes:
    """Measure one real start of the trainer and one cold reshape on this machine, on the path of the demo's jobs."""
    with _up(folder / "state", "sidecar", folder / "gpu-locks") as client:
        run = DemoRun("sidecar")
        _submit(client, _job(trainer, MEASURED, LONG, [2, 4]) | {"env": {"RESHAPE_WARM": "0"}})
        follow = _Follower(client, run, show, time.monotonic() + MEASURE_LIMIT_S)
        follow.until(lambda e: e["type"] == "started")
        stages = run.of("started")[0]["stages_s"]
        if not {"launch", "first step"} <= set(stages):
            raise DemoFailed("how long a start takes here was not measured")
        _reshape(client, MEASURED, 2)
        follow.until(lambda e: e["type"] == "reshaped")
        (cold,) = run.reshapes
        speeds = _speeds(client, f"digits-{trainer}")
        return StartTimes(
            stages["launch"], stages["first step"], speeds, {**cold["stages_s"], "gap": cold["gap_s"] or 0.0}
        )


def _reshape(client: Client, job: str, gpus: int) -> None:
    """Request another GPU count, again while the job has not shown yet that it resumes."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.reshape(job, gpus)
            return
        except CoordinatorRefused as error:
            if error.status != 409 or time.monotonic() > deadline:
                raise DemoFailed(str(error)) from None
            time.sleep(0.1)


def execute(
    plan: DemoPlan, policy: str, folder: Path, show: Callable[[View, float], None], invite: Callable[[str], None]
) -> DemoRun:
    """Run the two jobs to their end and return the results. Raises `DemoFailed`, with nothing left running.

    `invite` gets a link into the dashboard of this run.
    """
    locks = folder / "gpu-locks"
    with _up(folder / "state", policy, locks) as client:
        invite(client.login_link())
        run = DemoRun(policy)
        one, two = documents(plan)
        _submit(client, one)
        follow = _Follower(client, run, show, time.monotonic() + plan.limit_s)
        follow.until(lambda e: e["type"] == "started" and e["job_id"] == FIRST)
        follow.pause(plan.arrival_s)
        if policy == "sidecar":
            run.asked = LiveState.of(client).with_jobs([two])
        _submit(client, two)
        follow.until(lambda _: len(run.of("closed")) == 2)
        run.jobs = {name: client.job(name) for name in (FIRST, SECOND)}
        run.steps = {name: gpu_locks.steps(locks, name) for name in (FIRST, SECOND)}
        run.overheads = _overheads(client, plan.job_type)
        run.speeds = _speeds(client, plan.job_type)
    run.violations = gpu_locks.violations(locks)
    return run


class _Follower:
    """Reads events until a condition holds, or gives up at the deadline."""

    def __init__(self, client: Client, run: DemoRun, show: Callable[[View, float], None], deadline: float) -> None:
        self._client, self._run, self._show, self._deadline = client, run, show, deadline
        self._stream: Iterator[View] = iter(())

    def until(self, wanted: Callable[[View], bool]) -> None:
        while True:
            for event in self._stream:
                self._take(event)
                if wanted(event):
                    return
            if time.monotonic() > self._deadline:
                raise DemoFailed("the jobs did not get on; see `reshape up`'s log in the output folder")
            after = self._run.events[-1]["_id"] if self._run.events else 0
            self._stream = self._client.events(after)

    def pause(self, seconds: float) -> None:
        """Wait; events of this time are read afterwards."""
        time.sleep(seconds)

    def _take(self, event: View) -> None:
        self._run.events.append(event)
        first = next((e["at"] for e in self._run.events if e["type"] == "submitted"), event["at"])
        self._show(event, event["at"] - first)
        if event["type"] in ("failed", "cancelled", "refused"):
            raise DemoFailed(f"job {event['job_id']}: {event.get('sentence') or event.get('problems')}")
        if time.monotonic() > self._deadline:
            raise DemoFailed("the jobs took longer than this demo waits")


def _submit(client: Client, doc: View) -> None:
    try:
        client.submit(doc)
    except (CoordinatorRefused, CoordinatorUnreachable) as error:
        raise DemoFailed(str(error)) from None


def _overheads(client: Client, job_type: str) -> View:
    """Return the overheads that this run measured, once the coordinator has stored them."""
    deadline = time.monotonic() + 60
    while True:
        rows = [r for r in client.profiles("overheads") if (r["job_type"], r["origin"]) == (job_type, "measured")]
        if rows and {"k8s_init", "k8s_term", "proc_init"} <= set(rows[0].get("measured", ())):
            return rows[0]
        if time.monotonic() > deadline:
            raise DemoFailed("no overheads were measured")
        time.sleep(0.2)


def _speeds(client: Client, job_type: str) -> dict[int, float]:
    """Return seconds per iteration by GPU count: measured by this run, else the emulated pace."""
    rows = [r for r in client.profiles("speed_profiles") if (r["job_type"], r["gpu_type"]) == (job_type, GPU_TYPE)]
    rows.sort(key=lambda r: r["origin"] == "measured")
    return {int(r["num_gpus"]): float(r["seconds_per_iteration"]) for r in rows}


@contextlib.contextmanager
def _up(state: Path, policy: str, locks: Path) -> Iterator[Client]:
    """Run `reshape up` as a process; at the end, also after an error, stop it and all its jobs."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "reshape", "--state", str(state), "up"]
    command += ["--gpus", f"{GPUS}x{GPU_TYPE}", "--policy", policy]
    environment = os.environ | ENVIRONMENT | {"RESHAPE_GPU_LOCKS": str(locks)}
    with (state / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        client = _wait_up(process, state)
        try:
            yield client
        finally:
            _cancel_all(client)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_up(process: subprocess.Popen[bytes], state: Path) -> Client:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed("`reshape up` did not start: " + (state / "up.log").read_text().strip()[-500:])
        with contextlib.suppress(CoordinatorUnreachable):
            client = Client.find(state)
            if client.health()["ok"]:
                return client
        time.sleep(0.05)
    raise DemoFailed(f"`reshape up` did not answer within {START_S:.0f} s")


def _cancel_all(client: Client) -> None:
    """Cancel all open jobs and wait for their end, after Ctrl-C, too."""
    with contextlib.suppress(CoordinatorRefused, CoordinatorUnreachable):
        for job in client.jobs():
            client.cancel(str(job["job_id"]))
        deadline = time.monotonic() + 120
        while any(j["state"] not in ENDED or not _closed(client, j) for j in client.jobs(include_ended=True)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)


def _closed(client: Client, job: View) -> bool:
    return job["launch"] == 0 or bool(client.job(str(job["job_id"])).get("closed"))
