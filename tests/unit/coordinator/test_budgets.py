"""Budgets of GPU-hours: what counts, what happens when one is used up, and when the next period begins."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from adaptive_scheduler.engine import decide
from adaptive_scheduler.shares import GpuBudget, JobOwner, QueueShare, Shares, UserShare
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.scheduling.budget_use import BudgetUse, begin_of, sentence, state_of
from coordinator.scheduling.shares_file import parse
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.adaptive_scheduler.shared_world import NOW, runs, told, waits, world

SHARES = Shares(
    {"vision": QueueShare(budget=GpuBudget(10.0)), "nlp": QueueShare()},
    {"ada": UserShare(budget=GpuBudget(4.0, "week"))},
)
DAY = "%Y-%m-%d %H:%M"


def at(text: str) -> float:
    return time.mktime(time.strptime(text, DAY))


def decided(snapshot, spent):
    return told(snapshot, decide(replace(snapshot, spent=spent), NOW))


def test_jobs_of_a_queue_that_has_used_its_budget_up_neither_start_nor_grow_and_the_others_do() -> None:
    jobs = [runs("r", "vision/bob", 1, (1, 2)), waits("p", "vision/bob"), waits("q", "nlp/cy", (1,))]
    snapshot = world(4, *jobs, shares=SHARES)
    assert decided(snapshot, {"queue vision": 10.0}) == ["q starts 1"]
    assert decided(snapshot, {"queue vision": 9.9}) == ["p starts 1", "q starts 1", "r 1->2"]
    (held,) = [one for one in decide(replace(snapshot, spent={"queue vision": 10.3}), NOW) if one.job == "p"]
    assert held.explanation.sentence == (
        "p waits: queue vision has used 10.3 of its 10 GPU-hours of this month. It starts in the next one, or with a "
        "larger budget."
    )


def test_a_users_budget_counts_in_all_queues_and_binds_one_user_alone() -> None:
    alone = world(4, waits("p", "nlp/ada", (1, 2)), shares=SHARES)
    assert decided(alone, {"user ada": 4.0}) == []
    assert decided(alone, {"user ada": 3.9}) == ["p starts 2"]
    grows = world(4, runs("r", "nlp/ada", 1, (1, 2)), shares=SHARES)
    assert decided(grows, {"user ada": 5.0}) == []
    asked = world(4, runs("r", "nlp/ada", 1, (1, 2), wanted=2), shares=SHARES)
    assert decided(asked, {"user ada": 5.0}) == []
    assert decided(asked, {"user ada": 0.0}) == ["r 1->2"]


def test_what_runs_is_neither_shrunk_nor_stopped_for_a_budget() -> None:
    snapshot = world(4, runs("r", "vision/bob", 4, (1, 2, 4)), shares=SHARES)
    assert decided(snapshot, {"queue vision": 99.0}) == []


@pytest.mark.parametrize(
    ("period", "now", "begin"),
    [
        ("week", "2026-05-31 23:59", "2026-05-25 00:00"),
        ("week", "2026-06-01 00:00", "2026-06-01 00:00"),
        ("month", "2026-05-31 23:59", "2026-05-01 00:00"),
        ("month", "2026-06-01 00:00", "2026-06-01 00:00"),
    ],
)
def test_a_week_begins_on_monday_and_a_month_on_its_first_day(period, now, begin) -> None:
    assert begin_of(period, at(now)) == at(begin)


def test_only_the_use_of_the_present_period_counts_also_after_the_clock_was_set() -> None:
    hours = [
        {"hour": at(when) // 3600, "queue": queue, "user": user, "gpu_s": 3600.0 * gpu_h}
        for when, queue, user, gpu_h in (
            ("2026-05-20 10:00", "vision", "ada", 3.0),
            ("2026-05-27 10:00", "nlp", "ada", 1.0),
            ("2026-05-28 10:00", "vision", "bob", 2.0),
        )
    ]
    use = BudgetUse(lambda since: [row for row in hours if row["hour"] * 3600 >= since])
    assert use.look(SHARES, at("2026-05-28 11:00")) == {"queue vision": 5.0, "user ada": 1.0}
    use.add(JobOwner("nlp", "ada"), 1800.0, at("2026-05-28 11:00"))
    assert use.look(SHARES, at("2026-05-28 11:30")) == {"queue vision": 5.0, "user ada": 1.5}
    assert use.look(SHARES, at("2026-06-01 00:00")) == {"queue vision": 0.0, "user ada": 0.0}
    assert use.look(SHARES, at("2026-05-28 11:31"))["queue vision"] == 5.0
    assert use.look(Shares(), at("2026-05-28 11:31")) == {}


@pytest.mark.parametrize("now", ["2026-05-31 23:00", "2026-06-02 10:00", "2026-12-28 10:00", "2027-01-31 10:00"])
def test_what_was_counted_while_the_clock_was_ahead_counts_in_no_period_but_its_own(now: str) -> None:
    """A machine that starts years ahead would have used every budget up until then."""
    ahead = {"hour": at("2036-05-28 10:00") // 3600, "queue": "vision", "user": "ada", "gpu_s": 3600.0 * 50}
    use = BudgetUse(lambda since: [ahead])
    assert use.look(SHARES, at(now)) == {"queue vision": 0.0, "user ada": 0.0}
    assert use.look(SHARES, at("2036-05-28 11:00")) == {"queue vision": 50.0, "user ada": 50.0}


def test_what_is_used_is_said_as_exactly_as_in_the_tables() -> None:
    """A warning must not look as if all were used up."""
    said = sentence("queue vision", GpuBudget(0.2), 0.176)
    assert said == "queue vision has used 0.18 of its 0.2 GPU-hours of this month."


def test_people_are_warned_at_a_part_of_it_once(caplog: pytest.LogCaptureFixture) -> None:
    budget = GpuBudget(10.0, warn_at=0.5)
    assert [state_of(budget, used) for used in (4.9, 5.0, 10.0)] == ["ok", "warning", "used up"]
    assert sentence("queue vision", budget, 5.0) == "queue vision has used 5.0 of its 10 GPU-hours of this month."
    use = BudgetUse(lambda since: [{"queue": "vision", "user": "bob", "gpu_s": 8.5 * 3600}])
    for _ in range(3):
        use.look(SHARES, at("2026-05-28 11:00"))
    assert [record.getMessage() for record in caplog.records] == [
        "queue vision has used 8.5 of its 10 GPU-hours of this month."
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("queues: {a: {budget: {gpu_hours: -1}}}", "Queue a: budget.gpu_hours must be a number from 0"),
        ("queues: {a: {budget: 5}}", "Queue a: budget must be settings"),
        ("users: {a: {budget: {gpu_hours: 5, per: year}}}", "User a: budget.per must be month or week"),
        ("users: {a: {budget: {per: week}}}", "User a: budget needs the setting gpu_hours"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(Rejected, match=why):
        parse(text)


def test_a_budget_is_counted_as_it_is_used_and_lasts_over_a_restart(tmp_path: Path) -> None:
    """Two GPUs are used for a while; then the budget is up, and the next job waits with that reason."""
    (tmp_path / "shares.yaml").write_text("queues: {vision: {limit: 2, budget: {gpu_hours: 0.05, per: week}}}")
    w = World(config=replace(SHORT, shares=str(tmp_path / "shares.yaml")))
    w.submit("one", [2], Behaviour(iterations=100_000), owner="ada", queue="vision")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    w.pass_time(100)
    assert w.api.rights.shares()["budgets"][0]["state"] == "used up", "what is used counts at once"
    w.c.loop.accounts.flush()
    w.boot()
    w.pass_time(20)
    (budget,) = w.api.rights.shares()["budgets"]
    assert (budget["state"], budget["used_gpu_hours"] >= 0.05) == ("used up", True)
    assert w.states() == {"one": s.RUNNING}, "what runs keeps training"
    w.api.operator.cancel("one")
    w.run(lambda w: w.states()["one"] == s.CANCELLED)
    w.submit("two", [1], Behaviour(iterations=100), owner="ada", queue="vision")
    w.pass_time(20)
    message = w.job("two").doc["message"]
    assert "queue vision has used 0.07 of its 0.05 GPU-hours of this week" in message
    (view,) = [one for one in w.api.jobs.list_jobs(include_ended=False) if one["job_id"] == "two"]
    assert view.get("start_in_s") is None, "idle GPUs start nothing for it"
    (tmp_path / "shares.yaml").write_text("queues: {vision: {limit: 2, budget: {gpu_hours: 5, per: week}}}")
    w.run(lambda w: w.states()["two"] == s.RUNNING)


def test_a_budget_that_is_used_up_before_any_job_is_there_stops_no_decision() -> None:
    spent = Shares({"vision": QueueShare(budget=GpuBudget(10.0))})
    found = replace(world(2), shares=spent, spent={"queue vision": 10.0})
    assert decide(found, NOW) == ()
