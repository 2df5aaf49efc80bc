"""The reconciler looks at a job when there is news of it or time is up, not at all jobs in each cycle of the loop."""

from __future__ import annotations

from coordinator.model import states as s
from coordinator.service import LOOK_S
from coordinator.telemetry.reports import FRESH_BEATS
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World


def settled() -> tuple[World, list[str]]:
    """Three jobs that train, and the names of those that are looked at from now on."""
    world, looked = World(), list[str]()
    for job in ("one", "two", "three"):
        world.submit(job, [1], Behaviour(iterations=40_000))
    world.run(lambda w: set(w.states().values()) == {s.RUNNING})
    world.pass_time(2 * SHORT.heartbeat_s)
    reconcile = world.c.reconciler.reconcile

    def watched(job_id: str):  # type: ignore[no-untyped-def]
        looked.append(job_id)
        return reconcile(job_id)

    world.c.reconciler.reconcile = watched  # type: ignore[method-assign]
    return world, looked


def test_a_cycle_without_news_looks_at_no_job_that_trains() -> None:
    world, looked = settled()
    for _ in range(5):
        world.turn()
    assert looked == []


def test_a_document_that_a_user_changed_has_its_job_looked_at_and_no_other() -> None:
    world, looked = settled()
    world.users.update("jobs", "two", {}, {"x_note": "mine"})
    world.turn()
    assert set(looked) == {"two"}


def test_a_gpu_that_was_changed_by_hand_has_its_job_looked_at() -> None:
    world, looked = settled()
    gpu = world.job("two").gpu_ids[0]
    world.users.update("gpus", gpu, {}, {"state": s.FAULTY})
    world.turn()
    assert set(looked) == {"two"}


def test_a_job_whose_sidecar_falls_silent_is_looked_at_when_its_report_is_overdue() -> None:
    world, looked = settled()
    silent_s = FRESH_BEATS * SHORT.heartbeat_s
    world.clock.time += silent_s + 0.1
    world.turn()
    assert set(looked) == {"one", "two", "three"}
    del looked[:]
    world.clock.time += SHORT.poll_s
    world.turn()
    assert set(looked) == {"one", "two", "three"}, "and again at each poll, as the platform may know more"


def test_a_job_that_waits_for_nothing_and_reports_is_looked_at_once_a_minute() -> None:
    world, looked = settled()
    world.pass_time(LOOK_S - SHORT.poll_s - 3)
    assert looked == []
    world.pass_time(SHORT.poll_s + 3)
    assert sorted(looked) == ["one", "three", "two"]
