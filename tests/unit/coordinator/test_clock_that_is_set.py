"""No jump of the wall clock changes for how long a job has trained or waited, whoever looks and whoever wrote it."""

from __future__ import annotations

import pytest

from coordinator.model import states as s
from coordinator.model.records import JobRecord, Moment
from coordinator.ports import moment_of
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

DAYS_40 = 40 * 86_400.0
AT = Moment(now=500.0, wall=1.7e9, boot="one")


def runs(**more: object) -> JobRecord:
    return JobRecord({"_id": "a", "ran_s": 10.0, **more})


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("ahead_s", [DAYS_40, -DAYS_40])
def test_a_training_has_run_as_long_as_it_has(restarts: bool, ahead_s: float) -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=10_000))
    w.run(lambda w: w.states()["one"] == s.RUNNING)
    began = w.clock.time
    w.pass_time(30.0)
    w.clock.ahead_s = ahead_s
    if restarts:
        w.boot()
    w.pass_time(30.0)
    (seen,) = w.c.loop.present()[0].jobs
    assert abs(seen.running_s - (w.clock.time - began)) < 2.0, "so says what decides"
    w.api.operator.suspend("one")
    w.run(lambda w: w.states()["one"] == s.SUBMITTED)
    assert abs(w.job("one").doc["ran_s"] - (w.clock.time - began)) < 2.0
    assert (w.job("one").doc["run_ts"], w.job("one").doc["run_mark"]) == (None, None)


@pytest.mark.parametrize("ahead_s", [DAYS_40, -DAYS_40])
def test_a_job_has_waited_as_long_as_it_has_also_for_the_next_coordinator(ahead_s: float) -> None:
    w = World(gpus=0)
    w.submit("one", [1])
    w.pass_time(60.0)
    w.clock.ahead_s = ahead_s
    w.boot()
    w.pass_time(5.0)
    (seen,) = w.c.loop.present()[0].jobs
    assert abs(w.clock.time - seen.submit_s - 65.0) < 2.0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("ahead_s", [-3_000.0, -DAYS_40, DAYS_40])
def test_a_job_whose_launch_failed_is_tried_again_after_its_pause(restarts: bool, ahead_s: float) -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=10_000, launch_failures=2))
    w.run(lambda w: w.job("one").doc.get("retries") == 2)
    assert w.job("one").rest_s(moment_of(w.clock)) > 0
    w.clock.ahead_s = ahead_s
    if restarts:
        w.boot()
    w.pass_time(60.0)
    assert w.states()["one"] == s.RUNNING


@pytest.mark.parametrize(("sla", "is_late"), [("500s", False), ("5s", True)])
@pytest.mark.parametrize("ahead_s", [DAYS_40, -DAYS_40])
def test_a_job_that_ends_has_missed_its_deadline_only_if_it_has(ahead_s: float, sla: str, is_late: bool) -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=40), sla=sla)
    submitted = w.clock.time
    w.run(lambda w: w.states()["one"] == s.RUNNING)
    w.clock.ahead_s = ahead_s
    w.run(lambda w: w.states()["one"] == s.COMPLETED)
    late_s = w.clock.time - submitted - 5.0 if is_late else None
    w.clock.ahead_s = 0.0
    told = [event["late_s"] for event in w.c.event_log.after(0, 5_000) if event["type"] == "missed"]
    assert (w.api.jobs.job("one")["late_s"], bool(told)) == (late_s and pytest.approx(late_s, abs=2.0), is_late)
    assert not is_late or told[-1] == w.api.jobs.job("one")["late_s"]


@pytest.mark.parametrize("ahead_s", [DAYS_40, -DAYS_40])
def test_what_is_measured_of_waiting_and_of_whole_jobs_is_the_time_that_they_took(ahead_s: float) -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=40))
    w.tick()
    w.clock.ahead_s = ahead_s
    w.run(lambda w: w.states()["one"] == s.COMPLETED)
    waited_s, took_s = (sum_of(w, name) for name in ("queue_wait", "job_completion"))
    assert 0.0 < waited_s < took_s < 100.0


def sum_of(w: World, name: str) -> float:
    """Return the sum of a histogram of seconds."""
    lines = w.api.status.metrics().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"reshape_{name}_seconds_sum"))


def test_a_time_without_a_mark_is_read_by_the_wall_clock() -> None:
    """As an older version wrote it, or one that was gone back to: the mark that it left is of another time."""
    assert runs(run_ts=AT.wall - 7).ran_s(AT) == 17.0
    for mark in (AT.mark(AT.wall - 99), {**AT.mark(AT.wall - 7), "boot": "another"}, {"ts": AT.wall - 7}, "odd"):
        assert runs(run_ts=AT.wall - 7, run_mark=mark).ran_s(AT) == 17.0
    blind = Moment(AT.now, AT.wall)
    assert runs(run_ts=AT.wall - 7, run_mark=blind.mark(AT.wall - 7)).ran_s(blind) == 17.0, "no boot is like no other"
    assert runs().ran_s(AT) == 10.0


def test_a_mark_counts_whatever_the_wall_clock_says_now() -> None:
    marked = runs(run_ts=AT.wall - 7, run_mark=AT.mark(AT.wall - 7), submit_ts=5.0, submit_mark=AT.mark(5.0))
    later = Moment(AT.now + 3, AT.wall + DAYS_40, "one")
    assert marked.ran_s(later) == 20.0
    assert marked.submitted(later) == AT.from_epoch(5.0)


def test_a_job_of_an_older_version_is_let_into_a_snapshot() -> None:
    old = {"_id": "a", "job_id": "a", "uid": "u", "state": "running", "optional_num_gpus": [1], "job_type": "t"}
    record = JobRecord({**old, "gpu_ids": ["g"], "submit_ts": AT.wall - 60, "run_ts": AT.wall - 50})
    (found,) = SnapshotBuilder().build({"a": record}, {}, {}, SnapshotInputs(), AT).jobs
    assert (found.submit_s, round(found.running_s)) == (AT.now - 60, 50)
