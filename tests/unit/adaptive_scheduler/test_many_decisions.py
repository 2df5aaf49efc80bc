"""A tick on a very large cluster decides on as many jobs as there is time for; the others come in the next ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler import engine
from adaptive_scheduler.decision import Hold, Move, Requeue, Reshape, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.shares import QueueShare
from adaptive_scheduler.snapshot import ClusterSnapshot
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.shared_world import NOW, runs, shares, told, waits, world

JOBS = 12


def crowd() -> ClusterSnapshot:
    """Two queues, of which one has more than its share; everything fits."""
    queued = [waits(f"w{i:02}", f"{'ab'[i % 2]}/x", submit_s=9000.0 + i) for i in range(JOBS)]
    jobs = [runs("r", "a/x", 2, (1, 2, 4)), *queued]
    return world({"n": 4, "m": 16}, *jobs, shares=shares(a=(0, 1), b=(0, 1)))


def operations(decisions):
    return [one for one in decisions if isinstance(one, Start | Reshape | Move | Requeue)]


@pytest.fixture
def few(monkeypatch):
    """Time for five decisions."""
    snapshot = crowd()
    monkeypatch.setattr(engine, "MOST_WORK", 5 * (len(snapshot.jobs) + len(snapshot.nodes)))
    return snapshot


def test_what_is_decided_first_is_what_would_be_decided_first_with_all_time(few, monkeypatch):
    first = decide(few, NOW)
    monkeypatch.undo()
    whole = decide(few, NOW)
    starts = [one for one in whole if isinstance(one, Start)]
    assert len(starts) == JOBS
    assert [one.job for one in operations(first)] == [one.job for one in starts[:5]]


def test_every_other_job_is_told_that_it_comes_soon_and_nobody_grows_into_what_it_may_get(few):
    decisions = decide(few, NOW)
    held = [one for one in decisions if isinstance(one, Hold)]
    assert len(held) == JOBS - 5
    assert all("it comes soon" in one.explanation.sentence for one in held)
    assert all(isinstance(one, Start) for one in operations(decisions)), told(few, decisions)


def test_all_start_within_a_few_ticks(few):
    snapshot = few
    ticks = 0
    while snapshot.queue:
        decisions = operations(decide(snapshot, NOW))
        assert decisions
        snapshot = after(snapshot, *decisions)
        settled = (replace(job, busy=False, state="running") if job.busy else job for job in snapshot.jobs)
        snapshot = replace(snapshot, jobs=tuple(settled))
        ticks += 1
    assert ticks <= 4


def test_jobs_that_cannot_start_take_no_turn_of_those_behind_them(few):
    """They cost no decision: all of them are looked at."""
    large = [waits(f"l{i}", "b/x", (32,), submit_s=1.0, priority=9) for i in range(20)]
    snapshot = replace(few, jobs=(*large, *few.jobs))
    assert any(isinstance(one, Start) for one in decide(snapshot, NOW))


def test_a_job_that_a_limit_keeps_waiting_is_not_told_that_it_comes_soon(few):
    full = QueueShare(limit=2)
    last = waits("z", "full/x", submit_s=9999.0)
    fleet = replace(few, jobs=(*few.jobs, runs("f", "full/x", 2, node="m"), last))
    limited = replace(fleet, shares=replace(fleet.shares, queues={**fleet.shares.queues, "full": full}))
    said = {one.job: one.explanation.sentence for one in decide(limited, NOW) if isinstance(one, Hold)}
    assert any("it comes soon" in sentence for sentence in said.values())
    assert said["z"] == "z waits: queue full has 2 of at most 2 GPUs, and it needs 1."
