"""What a Prometheus measured at present is used in deciding: when it counts, and what counts where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from adaptive_scheduler.settings import Settings
from coordinator.adapters.present_use import LaunchedPod
from coordinator.adapters.prometheus import Prometheus
from coordinator.errors import Transient
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import MEASURED_S, MeasuredNow
from coordinator.stores.bootstrap import FoundNode
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.measured.measured_use import PERIOD_S, MeasuredUse
from coordinator.telemetry.measured.other_load import FRESH_S, OtherLoad, held_by_others
from sidecar.protocol import Heartbeat, Progress, ShimStatus, Usage
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock, World
from tests.patience import eventually
from tests.unit.coordinator.test_prometheus import Server, found, server

__all__ = ["server"]
JOB = JobRecord({"_id": "j", "job_id": "j", "uid": "u", "launch": 2, "state": s.RUNNING, "node": "n"})
NODE = {"_id": "n", "cores": 8.0, "memory": 32e9, "agent": True}
SEEN = MeasuredNow({"n": (2.0, 4e9)}, {("u", 2): Usage(cpu_cores=1.5, memory=300, network_io=7.0)})


class Watching:
    def __init__(self) -> None:
        self.asked, self.away, self.answer = 0, False, SEEN

    def now(self, at: float) -> MeasuredNow:
        self.asked += 1
        if self.away:
            raise Transient("away")
        return self.answer

    def used(self, *_: Any) -> dict[str, Any]:
        return {}


class Ground:
    """One job that reports every five seconds, and is measured whenever that is due."""

    def __init__(self) -> None:
        self.clock, self.watching = FakeClock(), Watching()
        self.others = OtherLoad(self.clock)
        self.measured = MeasuredUse(self.clock, self.watching, self.others)
        shim = ShimStatus(trainer="running", trainer_pid=7, generation=1)
        usage = Usage(cpu_cores=1.0, memory=100, block_io=3.0, limit=2.0)
        self.beat = Heartbeat(job_id="j", launch=2, seq=1, url="", sidecar_pid=1, shim=shim, usage=usage)

    def train(self, seconds: float) -> tuple[Usage, str]:
        until = self.clock.time + seconds
        while self.clock.time < until:
            self.clock.time += 5.0
            self.measured.heard(JOB, self.beat)
            try:
                self.measured.look()
            except Transient:
                assert self.watching.away
        beat, used_from = self.measured.told(JOB, self.beat)
        return beat.usage, used_from


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_what_was_measured_of_a_steady_training_counts_and_the_rest_is_as_its_pod_says(ground: Ground) -> None:
    assert ground.train(MEASURED_S - 10)[1] == "heartbeats", "the mean still counts what was before it"
    usage, used_from = ground.train(PERIOD_S + 15)
    assert used_from == "prometheus"
    assert usage == Usage(cpu_cores=1.5, memory=300, block_io=3.0, network_io=7.0, limit=2.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda beat: msgspec.structs.replace(beat, shim=msgspec.structs.replace(beat.shim, trainer_pid=8)),
        lambda beat: msgspec.structs.replace(beat, shim=msgspec.structs.replace(beat.shim, generation=2)),
        lambda beat: msgspec.structs.replace(beat, usage=msgspec.structs.replace(beat.usage, limit=1.0)),
    ],
    ids=["restarted", "reshaped", "limited"],
)
def test_after_a_change_its_own_reports_count_until_the_mean_is_of_what_trains_now(
    ground: Ground, change: Callable[[Heartbeat], Heartbeat]
) -> None:
    assert ground.train(2 * MEASURED_S)[1] == "prometheus"
    ground.beat = change(ground.beat)
    assert ground.train(5.0)[1] == "heartbeats"
    assert ground.train(MEASURED_S - 20)[1] == "heartbeats"
    assert ground.train(2 * PERIOD_S + 20)[1] == "prometheus"


def test_what_is_not_measured_again_counts_no_longer(ground: Ground) -> None:
    assert ground.train(2 * MEASURED_S)[1] == "prometheus"
    ground.watching.away = True
    assert ground.train(FRESH_S - 20)[1] == "prometheus"
    assert ground.train(40.0) == (ground.beat.usage, "heartbeats")
    assert held_by_others(ground.others.added({"n": NODE})["n"]).source == "requests"
    ground.watching.away = False
    assert ground.train(2 * PERIOD_S)[1] == "prometheus"
    assert held_by_others(ground.others.added({"n": NODE})["n"]).cores == 2.0


def test_a_training_that_has_stopped_and_another_launch_are_not_what_was_measured(ground: Ground) -> None:
    ground.train(2 * MEASURED_S)
    stopped = msgspec.structs.replace(ground.beat, shim=msgspec.structs.replace(ground.beat.shim, trainer="exited"))
    assert ground.measured.told(JOB, stopped) == (stopped, "heartbeats")
    moved = msgspec.structs.replace(ground.beat, launch=3)
    assert ground.measured.told(JOB, moved) == (moved, "heartbeats")


def test_it_is_asked_no_more_often_than_it_is_due(ground: Ground) -> None:
    ground.train(10 * PERIOD_S)
    assert ground.watching.asked <= 11


def telling(query: str) -> tuple[int, Any]:
    """A Prometheus that knows a node and a pod."""

    def one(value: float, **labels: str) -> dict[str, Any]:
        return {"metric": labels, "value": [1_000.0, str(value)]}

    pod = {"namespace": "team", "pod": "p"}
    if 'id="/"' in query:
        return 200, found([one(3.5 if "cpu" in query else 6e9, node="n")])
    return 200, found([one(1.5 if "cpu" in query else 2e9, container="trainer", **pod)])


def test_the_thread_asks_and_progress_and_the_snapshot_get_what_it_was_told(server: Server) -> None:
    server.answer = telling
    clock, pods = FakeClock(), [LaunchedPod("u", 2, "team", "p", "n")]
    prometheus = Prometheus(server.url, lambda doc: [], lambda: pods)
    store = MemoryStore()
    telemetry = Telemetry(store, Cache(store, lambda: True), clock, 5.0, Settings(), prometheus)
    telemetry.measured.heard(JOB, beat := trains(1))
    clock.time += MEASURED_S
    stopping = threading.Event()
    thread = threading.Thread(target=telemetry.profiler.run, args=(stopping,))
    thread.start()
    try:
        assert telemetry.keep_heartbeat(JOB, beat) and telemetry.report(JOB)[0] is not None
        eventually(lambda: telemetry.report(JOB)[1] == "prometheus", "it has been asked")
    finally:
        stopping.set()
        thread.join()
    telemetry.learn(JOB, beat)
    seen = telemetry.seen(JOB).beat
    assert seen is not None and seen.usage.cpu_cores == 1.5
    node = telemetry.nodes.as_heard({"n": NODE})["n"]
    assert held_by_others(node).cores == 2.0 and held_by_others(node).source == "prometheus"
    assert held_by_others(node).memory == pytest.approx(4e9, rel=0.1)


def trains(seq: int) -> Heartbeat:
    shim, progress = ShimStatus(trainer="running", trainer_pid=7, generation=1), Progress(seconds_per_iteration=0.5)
    usage = Usage(cpu_cores=1.0, memory=100)
    return Heartbeat(
        job_id="j", launch=2, seq=seq, url="", sidecar_pid=1, shim=shim, usage=usage, progress=progress
    )  # fmt: skip


def test_a_job_says_where_its_use_is_from_and_its_speed_counts_the_cores_that_were_measured() -> None:
    world = World(gpus=0, nodes=[FoundNode("c", cores=4.0, memory=16e9)])
    watching = Watching()
    world.c.telemetry.measured = MeasuredUse(world.clock, watching, world.c.telemetry.nodes.others)
    world.submit("one", [0], Behaviour(iterations=1_000, cores=2.0))
    world.run(lambda world: world.job("one").state == s.RUNNING)
    assert world.api.jobs.job("one")["usage"]["used_from"] == "heartbeats"
    job = world.job("one")
    watching.answer = MeasuredNow({"c": (1.0, 0.0)}, {(job.uid, job.launch): Usage(cpu_cores=3.25)})

    def measured(world: World) -> bool:
        world.c.telemetry.measured.look()
        return bool(world.api.jobs.job("one")["usage"]["used_from"] == "prometheus")

    world.run(measured)
    assert world.api.jobs.job("one")["usage"]["cpu_cores"] == 3.25
    world.run(lambda world: (world.c.loop.present()[0].job["one"].share or 0) > 2.0, limit_s=40.0)
    (node,) = [each for each in world.api.fleet.nodes() if each["node"] == "c"]
    assert (node["others_cores"], node["others_from"]) == (1.0, "prometheus")
