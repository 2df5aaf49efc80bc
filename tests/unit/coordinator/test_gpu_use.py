"""What GPUs did in the last 24 hours: held by jobs and measured as busy, by quarters of an hour, across restarts."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import ReshapeError
from coordinator.model.records import JobRecord
from coordinator.telemetry.gpu_use import FLUSH_S, QUARTER_S, SHOWN, SILENCE_S, SLOTS, TABLE, GpuUse, parts_of_time
from sidecar.protocol import GpuReading, Heartbeat, ShimStatus
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock, World

NODES = {"a0": "a", "a1": "a", "b0": "b"}


class Watch:
    """A coordinator's view of three GPUs, which another one takes up after `boot`."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.clock.ahead_s = QUARTER_S - self.clock.wall() % QUARTER_S  # a quarter of an hour begins now
        self.boot()

    def boot(self) -> None:
        self.use = GpuUse(self.store, self.clock, NODES.get)
        self.use.begin()

    def hear(self, passed_s: float, busy: dict[str, float | None], pid: int | None = 7, uid: str = "u") -> None:
        self.clock.time += passed_s
        shim = ShimStatus(trainer="running" if pid else "exited", trainer_pid=pid)
        gpus = [GpuReading(gpu_id=gpu, utilisation=share) for gpu, share in busy.items()]
        beat = Heartbeat(job_id="j", launch=1, seq=1, url="", sidecar_pid=1, shim=shim, gpus=gpus)
        self.use.add_heartbeat(JobRecord({"_id": "j", "job_id": "j", "uid": uid, "gpu_ids": [*NODES]}), beat)

    def hold(self, passed_s: float, held: float, there: int = 3) -> None:
        self.clock.time += passed_s
        self.use.count_held(passed_s, self.clock.wall(), held, there)

    def day(self) -> dict[str, Any]:
        self.clock.time += 60.0  # what was shown before is over
        return self.use.day()

    def sums(self) -> dict[str, float]:
        quarters = self.day()["quarters"]
        return {name: sum(one[name] for one in quarters) for name in ("there_s", "held_s", "measured_s", "busy_s")}


def test_how_busy_gpus_were_is_their_mean_over_the_time_that_they_were_measured_by_node() -> None:
    watch = Watch()
    watch.hear(0.0, {"a0": 0.9, "b0": 0.5})
    watch.hear(10.0, {"a0": 0.9, "b0": 0.5})
    watch.hear(30.0, {"a0": 0.1, "a1": 1.0})
    assert watch.day()["nodes"] == {"a": (pytest.approx(70.0), pytest.approx(42.0)), "b": (10.0, 5.0)}
    assert watch.sums()["busy_s"] == pytest.approx(47.0)


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"passed_s": 5.0, "busy": {"a0": None}}, "its sidecar cannot tell"),
        ({"passed_s": 5.0, "busy": {"a0": float("nan")}}, "a number that is none"),
        ({"passed_s": 5.0, "busy": {"other": 1.0}}, "a GPU that the job does not have"),
        ({"passed_s": 5.0, "busy": {"a0": 1.0}, "pid": 8}, "another trainer"),
        ({"passed_s": 5.0, "busy": {"a0": 1.0}, "pid": None}, "it has ended"),
        ({"passed_s": 5.0, "busy": {"a0": 1.0}, "uid": "v"}, "another job"),
        ({"passed_s": SILENCE_S + 1, "busy": {"a0": 1.0}}, "a long silence"),
    ],
)
def test_what_was_not_measured_is_in_no_sum(second: dict[str, Any], what: str) -> None:
    watch = Watch()
    watch.hear(0.0, {"a0": 1.0})
    watch.hear(**second)
    assert watch.day()["nodes"] == {}, what


def test_a_reading_beyond_what_can_be_counts_as_much_as_can_be() -> None:
    watch = Watch()
    watch.hear(0.0, {"a0": 1.0, "b0": 1.0})
    watch.hear(10.0, {"a0": 70.0, "b0": -3.0})
    assert watch.day()["nodes"] == {"a": (10.0, 10.0), "b": (10.0, 0.0)}


def test_what_was_held_lies_in_the_quarters_in_which_it_was() -> None:
    watch = Watch()
    watch.hold(QUARTER_S + 300.0, 2.0)
    first, second = watch.day()["quarters"][-2:]
    assert (first["there_s"], first["held_s"]) == (3 * QUARTER_S, 2 * QUARTER_S)
    assert (second["there_s"], second["held_s"]) == (900.0, 600.0)
    assert second["begin"] - first["begin"] == QUARTER_S


def test_it_survives_a_restart_and_no_time_without_a_coordinator_is_filled_in() -> None:
    watch = Watch()
    watch.hold(100.0, 2.0)
    watch.hear(0.0, {"a0": 0.5})
    watch.hear(10.0, {"a0": 0.5})
    watch.use.flush()
    watch.boot()
    watch.clock.time += 200.0
    watch.hold(0.0, 1.0)
    watch.hear(0.0, {"a0": 0.5})
    watch.hear(10.0, {"a0": 1.0, "b0": 1.0})
    watch.use.flush_if_due()
    assert watch.sums() == {"there_s": 300.0, "held_s": 200.0, "measured_s": 30.0, "busy_s": 25.0}
    assert watch.day()["nodes"] == {"a": (20.0, 15.0), "b": (10.0, 10.0)}
    watch.use.flush()
    watch.boot()
    watch.use.flush()
    assert watch.sums()["busy_s"] == 25.0, "what was added up is what is stored"


def test_it_is_written_every_few_minutes_and_not_at_all_where_nothing_was_counted() -> None:
    watch = Watch()
    watch.use.flush_if_due()
    assert watch.store.list(TABLE) == []
    watch.hold(10.0, 1.0)
    watch.use.flush_if_due()
    assert watch.store.list(TABLE) == []
    watch.clock.time += FLUSH_S
    watch.use.flush_if_due()
    assert len(watch.store.list(TABLE)) == 1


def test_the_table_never_grows_whatever_the_clock_is_set_to() -> None:
    watch = Watch()
    for number in range(3 * SLOTS):
        watch.hold(QUARTER_S, 1.0)
        watch.clock.ahead_s += 40 * 86_400.0 * (number % 7 - 3)
        watch.use.flush()
        watch.day()
    assert len(watch.store.list(TABLE)) <= SLOTS
    assert len(watch.use._quarters) <= SLOTS + 1


def test_after_a_day_a_quarter_is_shown_no_longer() -> None:
    watch = Watch()
    watch.hold(QUARTER_S, 3.0)
    watch.hold(QUARTER_S * (SHOWN - 2), 0.0)
    assert watch.sums()["held_s"] == 3 * QUARTER_S
    watch.hold(QUARTER_S * 2, 0.0)
    assert watch.sums()["held_s"] == 0.0


def test_what_a_store_did_not_take_is_written_later() -> None:
    watch = Watch()
    watch.use.flush()
    watch.hold(10.0, 1.0)
    watch.store.down = True
    with pytest.raises(ReshapeError):
        watch.use.flush()
    watch.store.down = False
    watch.use.flush()
    assert [row["held_s"] for row in watch.store.list(TABLE)] == [10.0]


@pytest.mark.parametrize(
    "change",
    [
        {"quarter": "x"},
        {"nodes": ["a", "b"]},
        {"busy_s": [float("1e400")]},
        {"held_s": -1.0},
        {"nodes": None},
    ],
)
def test_a_row_that_somebody_has_changed_is_passed_over(change: dict[str, Any]) -> None:
    watch = Watch()
    watch.hold(10.0, 1.0)
    watch.hear(0.0, {"a0": 0.5})
    watch.hear(10.0, {"a0": 0.5})
    watch.use.flush()
    (row,) = watch.store.list(TABLE)
    watch.boot()
    watch.use._store = Rows([row | change])  # type: ignore[assignment]
    watch.use.flush()
    assert watch.sums()["held_s"] == 0.0


class Rows(list[dict[str, Any]]):
    """A store that holds these."""

    def list(self, _: str) -> Any:
        return self


def test_the_parts_of_a_time_are_as_long_as_it_is() -> None:
    assert [*parts_of_time(1000.0, 2800.0, 900.0)] == [(1, 800.0), (2, 900.0), (3, 100.0)]
    assert [*parts_of_time(5.0, 5.0, 900.0)] == []


def test_a_coordinator_counts_what_its_jobs_hold_and_what_their_sidecars_measure() -> None:
    world = World(gpus=4)
    world.submit("one", [2], Behaviour(iterations=5_000, busy=0.25))
    world.pass_time(120.0)
    day = world.api.fleet.gpu_use()
    sums = {name: sum(one[name] for one in day["quarters"]) for name in ("there_s", "held_s")}
    assert sums["there_s"] == pytest.approx(4 * 119.0, abs=8.0)
    assert sums["held_s"] == pytest.approx(2 * 119.0, abs=16.0)
    measured_s, busy_s = day["nodes"]["n1"]
    assert measured_s == pytest.approx(2 * 112.0, abs=20.0)
    assert busy_s == pytest.approx(measured_s / 4)
