"""Runs the case study: two jobs on four emulated GPUs under one policy, with real processes.

Starts `reshape up` as a process and uses it over HTTP, as any user does. Every reported value comes
from its events and from what the trainers wrote beside their own GPU locks. What a start and a restart take is measured
in the same system before: it then knows both, as after a rehearsal.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.forecasts.live_state import LiveState
from reshape import shipped
from reshape.client import Client, CoordinatorRefused
from reshape.demo.lengths import EPOCH, DemoPlan, StartTimes
from reshape.services.temporary_system import Follower, RunFailed, running, submit
from reshape.what_if.live import live_state
from reshape_hooks import locks as gpu_locks

View = dict[str, Any]

GPUS = 4
GPU_TYPE = "V100"
FIRST, SECOND = "one", "two"
MEASURED = ("cold", "warm")  # jobs that measure a start and a reshape, and train no longer
LONG = 9_400  # iterations that they never do
MEASURE_LIMIT_S = 900.0


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
        "job_id": name,
        "state": "submitted",
        "job_type": f"digits-{trainer}",
        "dataset": "digits",
        "command": [sys.executable, str(script), *length],
        "iterations": iterations,
        "optional_num_gpus": counts,
    }


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

    def events_of_kind(self, kind: str, job: str | None = None) -> list[View]:
        return [e for e in self.events if e["type"] == kind and job in (None, e.get("job_id"))]

    @property
    def reshapes(self) -> list[View]:
        fields = ("direction", "from_gpus", "to_gpus", "stages_s", "gap_s", "for", "decision_id")
        return [{"job": e["job_id"], **{f: e.get(f) for f in fields}} for e in self.events_of_kind("reshaped")]

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


class DemoSystem:
    """A `reshape up` of the demo, used by one call after another. All raise `RunFailed`."""

    def __init__(self, client: Client, locks: Path, show: Callable[[View, float], None]) -> None:
        self.client, self._locks, self._show = client, locks, show
        self._after = 0  # the last event that was read

    def measure(self, trainer: str) -> StartTimes:
        """Measure real starts of the trainer, a cold reshape and a warm one, on the path of the demo's jobs.

        The cold one is of a job type of its own, as restarts of the type that is shown will not be like it. It comes
        first, and so reads from the disk what all later starts find in memory.
        """
        cold, warm = (
            self._one_reshape(_job(trainer, name, LONG, [2, 4]) | more)
            for name, more in zip(
                MEASURED, ({"job_type": f"digits-{trainer}-cold", "env": {"RESHAPE_WARM": "0"}}, {}), strict=True
            )
        )
        (stages,) = (e["stages_s"] for e in warm.events_of_kind("started"))
        (without,), (again,) = cold.reshapes, warm.reshapes
        if not {"launch", "first step"} <= set(stages) or again["gap_s"] is None:
            raise RunFailed("how long a start takes here was not measured")
        return StartTimes(
            stages["launch"],
            stages["first step"],
            again["gap_s"],
            _speeds(self.client, f"digits-{trainer}"),
            {**without["stages_s"], "gap": without["gap_s"] or 0.0},
        )

    def _one_reshape(self, doc: View) -> DemoRun:
        """Start a job, reshape it once and end it."""
        run, name = DemoRun("sidecar"), str(doc["job_id"])
        submit(self.client, doc)
        follow = self._follow(run, MEASURE_LIMIT_S)
        follow.until(lambda e: e["type"] == "started")
        _reshape(
            self.client, name, 6 - int(run.events_of_kind("started")[0]["num_gpus"])
        )  # from 2 to 4, or from 4 to 2
        follow.until(lambda e: e["type"] == "reshaped")
        self.client.cancel(name)
        follow.until(lambda e: e["type"] == "closed")
        self._after = run.events[-1]["_id"]
        return run

    def execute(self, plan: DemoPlan, policy: str) -> DemoRun:
        """Run the two jobs to their end."""
        run = DemoRun(policy)
        one, two = documents(plan)
        submit(self.client, one)
        follow = self._follow(run, plan.limit_s)
        follow.until(lambda e: e["type"] == "started" and e["job_id"] == FIRST)
        time.sleep(plan.arrival_s)  # events of this time are read afterwards
        if policy == "sidecar":
            run.asked = live_state(self.client).with_jobs([two])
        submit(self.client, two)
        follow.until(lambda _: len(run.events_of_kind("closed")) == 2)
        run.jobs = {name: self.client.job(name) for name in (FIRST, SECOND)}
        run.steps = {name: gpu_locks.steps(self._locks, name) for name in (FIRST, SECOND)}
        run.overheads = _overheads(self.client, plan.job_type)
        run.speeds = _speeds(self.client, plan.job_type)
        run.violations = gpu_locks.violations(self._locks)
        return run

    def _follow(self, run: DemoRun, limit_s: float) -> Follower:
        follower = Follower(self.client, self._show, time.monotonic() + limit_s, self._after, MEASURED)
        run.events = follower.events
        return follower


def _reshape(client: Client, job: str, gpus: int) -> None:
    """Request another GPU count, again while the job has not shown yet that it resumes."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.reshape(job, gpus)
            return
        except CoordinatorRefused as error:
            if error.status != 409 or time.monotonic() > deadline:
                raise RunFailed(str(error)) from None
            time.sleep(0.1)


def _overheads(client: Client, job_type: str) -> View:
    """Return the overheads that this run measured, once the coordinator has stored them."""
    deadline = time.monotonic() + 60
    while True:
        rows = [r for r in client.profiles("overheads") if (r["job_type"], r["origin"]) == (job_type, "measured")]
        if rows and {"k8s_init", "k8s_term", "proc_init"} <= set(rows[0].get("measured", ())):
            return rows[0]
        if time.monotonic() > deadline:
            raise RunFailed("no overheads were measured")
        time.sleep(0.2)


def _speeds(client: Client, job_type: str) -> dict[int, float]:
    """Return seconds per iteration by GPU count: measured by this run, else the emulated pace."""
    rows = [r for r in client.profiles("speed_profiles") if (r["job_type"], r["gpu_type"]) == (job_type, GPU_TYPE)]
    rows.sort(key=lambda r: r["origin"] == "measured")
    return {int(r["num_gpus"]): float(r["seconds_per_iteration"]) for r in rows}


@contextlib.contextmanager
def system(folder: Path, policy: str, show: Callable[[View, float], None]) -> Iterator[DemoSystem]:
    """Run `reshape up` as a process; at the end, also after an error, stop it and all its jobs."""
    locks = folder / "gpu-locks"
    options = ["--gpus", f"{GPUS}x{GPU_TYPE}", "--policy", policy]
    with running(folder, options, ENVIRONMENT | {"RESHAPE_GPU_LOCKS": str(locks)}) as client:
        yield DemoSystem(client, locks, show)
