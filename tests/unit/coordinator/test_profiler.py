"""Each task that finished is a row of `observations`: what it asked for, what it used, how long it trained."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from coordinator.errors import Transient
from coordinator.model.records import JobRecord
from coordinator.ports import MeasuredNow
from coordinator.telemetry.measured.measured_use import MeasuredUse
from coordinator.telemetry.measured.other_load import OtherLoad
from coordinator.telemetry.observation_profiler import ObservationProfiler, observation
from coordinator.telemetry.profile_estimator import ProfileEstimator
from sidecar.protocol import Heartbeat, ShimStatus, Usage
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock
from tests.patience import patient

Doc = dict[str, Any]


def job(**more: Any) -> JobRecord:
    doc = {"_id": "a", "job_id": 7, "uid": "u", "node": "n", "ran_s": 60.0, "finish_ts": 1_000.0}
    return JobRecord({**doc, "resources": {"cores": 2, "memory": 100}, **more})


def heard(profiler: ObservationProfiler, clock: FakeClock, cores: float) -> None:
    shim, usage = ShimStatus(trainer="running", trainer_pid=1), Usage(cpu_cores=cores, memory=50)
    for _ in range(2):
        beat = Heartbeat(job_id="7", launch=1, seq=1, url="", sidecar_pid=1, shim=shim, usage=usage)
        profiler.heard(job(), beat)
        clock.time += 5


def profiling(estimator: ProfileEstimator, clock: FakeClock, seen: Watching | None = None) -> ObservationProfiler:
    return ObservationProfiler(estimator, clock, seen, MeasuredUse(clock, seen, OtherLoad(clock)))


class Watching:
    """A Prometheus that knows `answer` of everything, or is away."""

    def __init__(self, answer: Doc | Exception) -> None:
        self.answer, self.asked = answer, list[tuple[float, float]]()
        self.done = threading.Event()

    def now(self, at: float) -> MeasuredNow:
        return MeasuredNow({}, {})

    def used(self, doc: Doc, since: float, until: float) -> Doc:
        self.asked.append((since, until))
        self.done.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_row_holds_what_was_asked_for_and_what_was_used() -> None:
    clock, store = FakeClock(), MemoryStore()
    estimator = ProfileEstimator(store)
    profiler = profiling(estimator, clock)
    heard(profiler, clock, 1.5)
    profiler.finished(job())
    (known,) = estimator.observations().rows
    assert (known.cores, known.memory, known.gpus, known.execution_s) == (2.0, 100.0, 0.0, 60.0)
    estimator.flush()
    (row,) = store.list("observations")
    assert (row["_id"], row["job_id"], row["node"], row["task"]) == ("u", 7, "n", "job")
    assert (row["used_cores"], row["used_memory"], row["used_from"]) == (1.5, 50.0, "heartbeats")


def test_jobs_that_say_nothing_of_how_long_such_a_task_takes_add_no_row() -> None:
    tasks = [{"name": "one", "cores": 1}, {"name": "two", "cores": 4}]
    for nothing in (job(ran_s=0.0), job(ran_s=None), job(resources=None), job(resources=None, tasks=tasks)):
        assert observation(nothing, {}) is None


def test_a_replica_of_a_slaml_counts_for_its_own_task_though_others_follow() -> None:
    tasks = [{"name": "one", "cores": 1}, {"name": "two", "cores": 4}]
    row = observation(job(resources=None, tasks=tasks, slaml={"name": "mnist"}), {}) or {}
    assert (row["task"], row["cores"], row["execution_s"]) == ("one", 1.0, 60.0)


@pytest.mark.parametrize(
    ("answer", "cores", "source"),
    [
        ({"used_cores": 0.7, "used_from": "prometheus", "node_load": 2.0}, 0.7, "prometheus"),
        ({}, 1.5, "heartbeats"),
        (Transient("away"), 1.5, "heartbeats"),
        (ValueError("odd"), 1.5, "heartbeats"),
    ],
)
def test_prometheus_betters_a_row_that_is_known_already(answer: Any, cores: float, source: str) -> None:
    clock, store, watching, stopping = FakeClock(), MemoryStore(), Watching(answer), threading.Event()
    estimator = ProfileEstimator(store)
    profiler = profiling(estimator, clock, watching)
    heard(profiler, clock, 1.5)
    profiler.finished(job())
    assert len(estimator.observations().rows) == 1  # nobody waited
    thread = threading.Thread(target=profiler.run, args=(stopping,))
    thread.start()
    assert watching.done.wait(patient(10))
    stopping.set()
    thread.join()
    estimator.flush()
    (row,) = store.list("observations")
    assert (row["used_cores"], row["used_from"], row["execution_s"]) == (cores, source, 60.0)
    assert watching.asked == [(940.0, 1_000.0)]


def test_a_job_that_failed_leaves_nothing_behind() -> None:
    clock = FakeClock()
    profiler = profiling(ProfileEstimator(MemoryStore()), clock)
    heard(profiler, clock, 1.0)
    profiler.forget_job(job())
    assert profiler._accounts == {}
