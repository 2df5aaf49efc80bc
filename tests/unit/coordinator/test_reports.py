"""Heartbeats: the newest of the present launch counts; repeated, late and old ones change nothing."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.telemetry.reports import FRESH_BEATS, Reports
from sidecar.protocol import Heartbeat, ShimStatus
from tests.fakes.world import FakeClock
from tests.unit.coordinator.situations import job, seen

JOB = job("running", "a")
BEAT_S = 5.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reports(clock: FakeClock) -> Reports:
    return Reports(clock, BEAT_S)


def beat(seq: int, launch: int = 1, pid: int = 3, **more: object) -> Heartbeat:
    return msgspec.structs.replace(seen(**more), seq=seq, launch=launch, sidecar_pid=pid)  # type: ignore[arg-type]


def test_the_first_report_calls_for_action_and_one_that_says_the_same_does_not(reports: Reports) -> None:
    assert reports.keep_heartbeat(JOB, beat(1))
    assert not reports.keep_heartbeat(JOB, beat(2, steps=11))
    found = reports.newest_of_job(JOB)
    assert found is not None
    assert (found.seq, found.progress.iterations) == (2, 11)


@pytest.mark.parametrize("late", [beat(4), beat(5), beat(9, generation=1), beat(9, launch=0)])
def test_late_repeated_and_old_reports_change_nothing(reports: Reports, late: Heartbeat) -> None:
    reports.keep_heartbeat(JOB, beat(5, generation=2))
    kept = reports.newest_of_job(JOB)
    assert not reports.keep_heartbeat(JOB, late)
    assert reports.newest_of_job(JOB) is kept


def test_a_restarted_sidecar_numbers_on_and_the_one_before_is_not_believed_any_more(reports: Reports) -> None:
    reports.keep_heartbeat(JOB, beat(500))
    assert reports.keep_heartbeat(JOB, beat(700, pid=4))
    assert not reports.keep_heartbeat(JOB, beat(501))
    assert (reports.newest_of_job(JOB) or beat(0)).sidecar_pid == 4


def test_the_next_launch_begins_with_generation_0_and_replaces_the_one_before(reports: Reports) -> None:
    reports.keep_heartbeat(JOB, beat(5, generation=7))
    second = job("running", "a", launch=2)
    assert reports.newest_of_job(second) is None
    assert reports.keep_heartbeat(second, beat(1, launch=2, trainer="none", generation=0))
    assert reports.newest_of_job(second) is not None
    assert reports.newest_of_job(JOB) is None


@pytest.mark.parametrize(
    "change", [{"trainer": "exited"}, {"generation": 2}, {"verb": "stop"}, {"trainer_pid": 9}, {"steps": 0}]
)
def test_what_somebody_may_be_waiting_for_is_news(reports: Reports, change: dict[str, object]) -> None:
    reports.keep_heartbeat(JOB, beat(1))
    assert reports.keep_heartbeat(JOB, beat(2, **change))


def test_the_answer_to_a_command_is_newer_than_the_last_report(reports: Reports, clock: FakeClock) -> None:
    reports.learn(JOB, ShimStatus(generation=9), clock.now())
    assert reports.newest_of_job(JOB) is None
    reports.keep_heartbeat(JOB, beat(1))
    reports.learn(JOB, ShimStatus(generation=2, trainer="stopping"), clock.now())
    assert (reports.newest_of_job(JOB) or beat(0)).shim.trainer == "stopping"
    assert not reports.keep_heartbeat(JOB, beat(2, generation=1)), "it was sent before the command was obeyed"


def test_but_not_newer_than_a_report_that_already_knows_of_the_command(reports: Reports, clock: FakeClock) -> None:
    sent_at = clock.now()
    clock.time += 1
    reports.keep_heartbeat(JOB, beat(2, trainer="exited", generation=2, verb="stop"))
    reports.learn(JOB, ShimStatus(generation=2, trainer="stopping", command_id="one:2:stop"), sent_at)
    assert (reports.newest_of_job(JOB) or beat(0)).shim.trainer == "exited"


def test_silence_is_counted_from_the_last_report_and_at_most_from_the_own_start(
    reports: Reports, clock: FakeClock
) -> None:
    clock.time += 7
    assert reports.silent_s(JOB) == 7
    assert not reports.fresh(JOB)
    reports.keep_heartbeat(JOB, beat(1))
    clock.time += FRESH_BEATS * BEAT_S - 0.1
    assert reports.fresh(JOB)
    reports.keep_heartbeat(JOB, beat(1))
    clock.time += 0.1
    assert not reports.fresh(JOB), "a repeated report renews nothing"
    assert reports.silent_s(job("running", "a", launch=2)) == clock.time - 1_000


def test_a_forgotten_job_is_as_new(reports: Reports) -> None:
    reports.keep_heartbeat(JOB, beat(5))
    reports.forget_job("one")
    assert reports.all() == []
    assert reports.keep_heartbeat(JOB, beat(1))


def test_after_another_coordinator_may_have_acted_nothing_heard_before_counts(
    reports: Reports, clock: FakeClock
) -> None:
    reports.keep_heartbeat(JOB, beat(1))
    clock.time += 100.0
    reports.begin()
    assert reports.newest_of_job(JOB) is None
    assert reports.silent_s(JOB) == 0.0


def test_a_pod_that_lived_on_over_a_restart_of_its_machine_is_heard_and_what_it_said_before_is_old(
    reports: Reports,
) -> None:
    def on(boot: str, seq: int) -> Heartbeat:
        return msgspec.structs.replace(beat(seq), boot=boot)

    assert reports.keep_heartbeat(JOB, on("one", 9_000_000))
    reports.keep_heartbeat(JOB, on("two", 40))  # its uptime began anew
    assert (reports.newest_of_job(JOB) or beat(0)).seq == 40
    for late in (on("one", 9_000_001), on("two", 40)):
        reports.keep_heartbeat(JOB, late)
        assert (reports.newest_of_job(JOB) or beat(0)).boot == "two"
    reports.forget_job(JOB.id)
    assert reports._left == {}


# the pods of a gang

GANG = job("running", "a", "b", gpus_per_pod=1)


def pod(member: int, seq: int = 1, uid: str = "", **more: object) -> Heartbeat:
    return msgspec.structs.replace(beat(seq, **more), member=member, boot=f"machine/{uid or member}")  # type: ignore[arg-type]


def test_a_gang_has_reported_once_each_of_its_pods_has(reports: Reports) -> None:
    assert reports.keep_heartbeat(GANG, pod(0))
    assert reports.newest_of_job(GANG) is None
    assert reports.keep_heartbeat(GANG, pod(1))
    assert (reports.newest_of_job(GANG) or beat(0)).shim.trainer == "running"
    reports.learn(GANG, ShimStatus(generation=2, trainer="stopping"), 0.0, 1)
    assert (reports.newest_of_job(GANG) or beat(0)).shim.trainer == "stopping"
    assert reports.pods(GANG)[0].shim.trainer == "running"


def test_a_gang_is_fresh_while_each_pod_is_and_silent_once_all_are(reports: Reports, clock: FakeClock) -> None:
    reports.keep_heartbeat(GANG, pod(0))
    reports.keep_heartbeat(GANG, pod(1))
    assert reports.fresh(GANG)
    clock.time += 100.0
    reports.keep_heartbeat(GANG, pod(1, seq=2))
    assert not reports.fresh(GANG)
    assert (reports.silent_s(GANG), reports.silent_s(GANG, 0)) == (0.0, 100.0)


def test_a_pod_that_is_not_wanted_any_more_is_never_believed_again_but_another_one_of_its_number_is(
    reports: Reports,
) -> None:
    grown = job("running", "a", "b", "c", gpus_per_pod=1)
    for k in range(3):
        reports.keep_heartbeat(grown, pod(k))
    reports.keep_only(GANG, 2)
    assert not reports.keep_heartbeat(grown, pod(2, seq=9))
    assert reports.newest_of_job(grown) is None
    assert reports.keep_heartbeat(grown, pod(2, uid="new", trainer="none", generation=0))
    assert (reports.newest_of_job(grown) or beat(0)).shim.trainer == "stopping", "it does not train yet, the others do"


def test_nor_is_one_that_nobody_who_remembers_has_sent_away(reports: Reports) -> None:
    assert not reports.keep_heartbeat(GANG, pod(2))
    assert not reports.keep_heartbeat(job("running", "a", "b", "c", gpus_per_pod=1), pod(2, seq=2))
    op = {"kind": "reshape", "to": ["a", "b", "c", "d"], "generation": 2}
    assert reports.keep_heartbeat(job("adjusting", "a", "b", op=op, gpus_per_pod=1), pod(3))
