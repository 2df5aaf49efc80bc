"""What a task used: from heartbeats, from counters. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.telemetry.usage import Account, Series, from_counters, last
from sidecar.protocol import GpuReading, Heartbeat, ShimStatus, Usage


def beat(cores: float | None, memory: int | None = None, pid: int | None = 7, **more: Any) -> Heartbeat:
    shim = ShimStatus(trainer="running" if pid else "exited", trainer_pid=pid)
    usage = Usage(cpu_cores=cores, memory=memory)
    return Heartbeat(job_id="j", launch=1, seq=1, url="", sidecar_pid=1, shim=shim, usage=usage, **more)


def account(*beats: tuple[float, Heartbeat]) -> dict[str, Any]:
    found = Account()
    for now, each in beats:
        found.heard(each, now)
    return found.used()


def test_cores_are_the_mean_over_time_however_unevenly_it_reports() -> None:
    found = account((0, beat(None, 10)), (5, beat(1.0, 30)), (6, beat(3.0, 20)), (11, beat(1.0, 20)))
    assert found["used_cores"] == pytest.approx((5 * 1 + 1 * 3 + 5 * 1) / 11)
    assert (found["used_cores_peak"], found["used_memory"], found["used_s"]) == (3.0, 30.0, 11.0)
    assert found["used_from"] == "heartbeats"


def test_time_in_which_nothing_trained_does_not_count() -> None:
    found = account(
        (0, beat(None)), (5, beat(2.0)), (6, beat(None, pid=None)), (100, beat(None, pid=8)), (105, beat(1.0, pid=8))
    )
    assert (found["used_s"], found["used_cores"]) == (10.0, 1.5)


def test_another_trainer_and_a_long_silence_begin_anew() -> None:
    assert account((0, beat(1.0)), (5, beat(1.0, pid=8))) == {}
    assert account((0, beat(1.0)), (5_000, beat(1.0))) == {}


def test_pods_of_one_task_count_together() -> None:
    half = [GpuReading(gpu_id="g", utilisation=0.5)]
    found = account(
        (0, beat(None, gpus=half)), (0, beat(None, member=1)),
        (10, beat(1.0, 5, gpus=half)), (10, beat(0.5, 7, member=1)),
    )  # fmt: skip
    assert (found["used_cores"], found["used_memory"], found["used_gpus"], found["used_s"]) == (1.5, 12.0, 0.5, 10.0)


def test_what_moved_to_disks_and_over_the_network_is_told_in_the_mean_where_a_pod_knows_it() -> None:
    def moving(member: int, disk: float | None, network: float | None) -> Heartbeat:
        shim, usage = ShimStatus(trainer="running", trainer_pid=7), Usage(1.0, 1, disk, network)
        return Heartbeat(job_id="j", launch=1, seq=1, url="", sidecar_pid=1, shim=shim, usage=usage, member=member)

    found = account((0, moving(0, 9.0, None)), (5, moving(0, 10.0, None)), (20, moving(0, 30.0, None)))
    assert found["used_block_io"] == pytest.approx((5 * 10 + 15 * 30) / 20)
    assert "used_network_io" not in found, "unknown is not 0"
    pods = account(*[(at, moving(member, None, 4.0)) for at in (0, 10) for member in (0, 1)])
    assert (pods["used_network_io"], "used_block_io" in pods) == (8.0, False)


def test_nothing_is_said_of_a_task_that_was_never_heard() -> None:
    assert account() == {}


def test_counters_are_read_between_their_first_and_last_sample() -> None:
    cpu = [Series({}, [(100, 5.0), (110, 15.0), (130, 25.0)])]
    found = from_counters(cpu, [Series({"pod": "p", "container": "c"}, [(100, 3), (110, 9)])])
    assert found == {
        "used_cores": pytest.approx(20 / 30), "used_cores_peak": 1.0, "used_s": 30, "used_from": "prometheus",
        "used_memory": 9.0,
    }  # fmt: skip


def test_a_container_that_was_started_anew_adds_its_time_and_not_its_memory() -> None:
    cpu = [Series({}, [(0, 0.0), (10, 10.0)]), Series({}, [(20, 0.0), (30, 10.0)])]
    same = {"pod": "p", "container": "c"}
    found = from_counters(cpu, [Series(same, [(0, 3)]), Series(same, [(20, 4)]), Series({"pod": "q"}, [(20, 1)])])
    assert (found["used_cores"], found["used_memory"]) == (pytest.approx(20 / 30), 5.0)


@pytest.mark.parametrize("samples", [[], [(1, 1.0)], [(1, 5.0), (2, 1.0)]])
def test_of_counters_that_say_nothing_nothing_is_told(samples: list[tuple[float, float]]) -> None:
    assert from_counters([Series({}, samples)], []) == {}


def test_one_number_is_the_largest_of_those_found() -> None:
    assert last([Series({}, [(1, 2.0)]), Series({}, [(1, 3.0)]), Series({}, [])]) == 3.0
    assert last([]) is None
