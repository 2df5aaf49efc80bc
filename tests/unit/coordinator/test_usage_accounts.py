"""Accounts of GPUs: use decays, survives a restart, and is split as rights see it; users of one machine share it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adaptive_scheduler.engine import decide
from adaptive_scheduler.shares import JobOwner, Shares
from coordinator.api.shares_view import usage_view
from coordinator.config import Keep
from coordinator.errors import Rejected
from coordinator.forecasts.live_state import LiveState
from coordinator.model import states as s
from coordinator.scheduling.usage_accounts import UsageAccounts
from coordinator.stores import retention
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import SHORT, FakeClock, World
from tests.unit.adaptive_scheduler.shared_world import queues, runs, waits, world

ADA, BOB = JobOwner("default", "ada"), JobOwner("default", "bob")


class Books:
    """Accounts of a store, and a clock for them."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), FakeClock()
        self.boot()

    def boot(self) -> None:
        self.accounts = UsageAccounts(self.store, self.clock)

    def look(self, snapshot: Any, passed_s: float = 0.0) -> Any:
        self.clock.time += passed_s
        return self.accounts.look(snapshot)

    def told(self, user: str) -> dict[str, Any]:
        return next(row for row in usage_view(self.accounts.rows(0.0)) if row["user"] == user)


def test_what_was_held_counts_until_it_is_let_go() -> None:
    books, both = Books(), world(4, runs("a", "/ada", 2), runs("b", "/bob", 1))
    books.look(both)
    snapshot = books.look(world(4, runs("b", "/bob", 1)), 3600.0)
    assert snapshot.used[ADA] == pytest.approx(2 * 3600, rel=0.02)
    assert books.look(world(4), 3600.0).used[ADA] < snapshot.used[ADA]
    assert books.told("ada")["gpu_hours"] == pytest.approx(2.0)
    assert books.told("bob")["gpu_hours"] == pytest.approx(2.0)


def test_what_was_used_survives_a_restart_and_what_ran_meanwhile_counts() -> None:
    books, one = Books(), world(4, runs("a", "/ada", 2))
    books.look(one)
    books.look(one, 3600.0)
    books.accounts.flush()
    books.boot()
    assert books.look(one, 1800.0).used[ADA] == pytest.approx(3 * 3600, rel=0.05)
    assert books.told("ada")["gpu_hours"] == pytest.approx(2.0), "the accounts of people count what was seen"


def test_a_crash_loses_only_what_was_not_written_yet() -> None:
    books, one = Books(), world(4, runs("a", "/ada", 2))
    books.look(one)
    books.look(one, 3600.0)
    books.accounts.flush_if_due()
    books.look(one, 20.0)
    books.boot()
    books.look(one)
    assert books.told("ada")["gpu_hours"] == pytest.approx(2.0)
    books.look(one, 3600.0)
    assert books.told("ada")["gpu_hours"] == pytest.approx(4.0)


def test_a_job_that_began_in_one_hour_and_ended_in_another_is_in_both() -> None:
    books, one = Books(), world(4, runs("a", "/ada", 1))
    books.look(one)
    books.look(one, 2 * 3600.0)
    hours = [row["gpu_s"] for row in books.accounts.rows(0.0)]
    assert len(hours) == 3 and sum(hours) == pytest.approx(7200)
    since = books.clock.wall() - 3600
    assert len(books.accounts.rows(since)) == 2


def test_what_is_beyond_ones_share_is_borrowed() -> None:
    books = Books()
    snapshot = world(4, runs("a", "/ada", 4, rigid=True), waits("b", "/bob", (2,)))
    books.look(snapshot)
    books.look(snapshot, 3600.0)
    assert books.told("ada")["borrowed_gpu_hours"] == pytest.approx(2.0)
    assert books.told("ada")["own_gpu_hours"] == pytest.approx(2.0)


def test_what_others_have_of_an_unused_guarantee_is_lent() -> None:
    books, given = Books(), Shares(queues(a=(2, 1), b=(0, 1)))
    snapshot = world(4, runs("b", "b/bob", 3), shares=given)
    books.look(snapshot)
    books.look(snapshot, 3600.0)
    (lent,) = [row for row in usage_view(books.accounts.rows(0.0)) if row["queue"] == "a"]
    assert lent["lent_gpu_hours"] == pytest.approx(2.0)


def test_what_is_taken_by_right_of_another_is_told() -> None:
    books = Books()
    snapshot = world(4, runs("a", "/ada", 4, (1, 2, 4)), waits("b", "/bob", (2,)))
    books.look(snapshot)
    books.accounts.decided(snapshot, decide(snapshot, 10_000.0))
    assert (books.told("ada")["reclaimed_gpus"], books.told("ada")["shrinks"]) == (2, 1)


def test_a_standstill_is_charged_to_whom_it_made_room_for_or_else_to_its_own_owner() -> None:
    books = Books()
    books.accounts.count_lost("a", "b", 5.0)  # before the first look nobody is known
    books.look(world(4, runs("a", "/ada", 2), runs("b", "/bob", 2)))
    books.accounts.count_lost("a", "b", 7200.0)
    books.accounts.count_lost("a", None, 3600.0)
    books.accounts.count_lost("a", "gone", 3600.0)
    books.accounts.count_lost("gone", "b", 3600.0)
    assert (books.told("bob")["lost_gpu_hours"], books.told("ada")["lost_gpu_hours"]) == (2.0, 2.0)


def test_a_turn_reads_nothing_of_the_past() -> None:
    books, one = Books(), world(4, runs("a", "/ada", 2))
    books.look(one)
    reads: list[str] = []
    books.store.list = lambda *given, **more: reads.append("list") or []  # type: ignore[method-assign,func-returns-value]
    for _ in range(20):
        books.look(one, 5.0)
    assert reads == []


# in the coordinator


def shared_machine(tmp_path: Path, text: str = "") -> World:
    if text:
        (tmp_path / "shares.yaml").write_text(text)
    return World(config=replace(SHORT, shares=str(tmp_path / "shares.yaml")))


def test_a_second_user_gets_half_of_the_machine_by_one_shrink(tmp_path: Path) -> None:
    w = shared_machine(tmp_path)
    w.submit("hers", [1, 2, 4], Behaviour(iterations=100_000), owner="ada")
    w.run(lambda w: len(w.job("hers").gpu_ids) == 4)
    w.submit("his", [1, 2, 4], Behaviour(iterations=100_000), owner="bob")
    w.run(lambda w: w.states() == {"hers": s.RUNNING, "his": s.RUNNING})
    assert (len(w.job("hers").gpu_ids), len(w.job("his").gpu_ids)) == (2, 2)
    lost = {row["user"]: row["lost_gpu_hours"] for row in usage_view(w.c.loop.accounts.rows(0.0))}
    assert lost["bob"] > 0 == lost["ada"], "her standstill was for his job, so he is charged"
    standstill_s = float(w.job("hers").doc["reshape_cost_s"])
    assert lost["bob"] == pytest.approx(2 * standstill_s / 3600, abs=1e-6), "of the two GPUs that she keeps"


def test_a_rigid_job_of_another_user_is_waited_for_and_the_reason_says_who_has_what(tmp_path: Path) -> None:
    w = shared_machine(tmp_path)
    w.submit("hers", [4], Behaviour(iterations=100_000), owner="ada", elastic=False)
    w.run(lambda w: w.states() == {"hers": s.RUNNING})
    w.submit("his", [4], Behaviour(iterations=100), owner="bob")
    w.pass_time(20)
    assert "bob holds 0 GPUs and is entitled to 2 now" in str(w.job("his").doc["message"])


def test_an_unknown_queue_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    w = shared_machine(tmp_path, "queues: {vision: {users: [ada]}}")
    w.tick()
    w.submit("typo", [1], owner="ada", queue="visoin")
    w.submit("foreign", [1], owner="bob", queue="vision")
    w.tick()
    assert w.job("typo").doc["problems"] == ["queue 'visoin' is unknown; the queues are default, vision"]
    assert w.job("foreign").doc["problems"] == ["user 'bob' may not use queue vision: shares.yaml lets ada use it"]


def test_one_job_too_many_of_a_user_is_refused_until_one_has_ended(tmp_path: Path) -> None:
    w = shared_machine(tmp_path, "queues: {vision: {max_jobs: 2}}")
    w.tick()
    for name in ("one", "two", "three"):
        w.submit(name, [1], Behaviour(iterations=20), owner="ada", queue="vision")
    w.submit("his", [1], Behaviour(iterations=20), owner="bob", queue="vision")
    w.tick()
    refused = [name for name in ("one", "two", "three", "his") if w.job(name).doc.get("problems")]
    assert len(refused) == 1 and refused != ["his"]
    assert w.job(refused[0]).doc["problems"] == [
        "user 'ada' has 2 unfinished jobs in queue vision, and shares.yaml lets one user have 2"
    ]
    w.run(lambda w: list(w.states().values()).count(s.COMPLETED) == 3)
    w.submit("four", [1], Behaviour(iterations=20), owner="ada", queue="vision")
    w.run(lambda w: w.states().get("four") == s.COMPLETED)


def test_a_limit_of_the_file_binds_from_the_next_reading_on(tmp_path: Path) -> None:
    w = shared_machine(tmp_path, "queues: {vision: {limit: 2}}")
    w.submit("one", [1, 2, 4], Behaviour(iterations=3000), owner="ada", queue="vision")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    assert len(w.job("one").gpu_ids) == 2
    (tmp_path / "shares.yaml").write_text("queues: {vision: {limit: 4}}")
    w.run(lambda w: len(w.job("one").gpu_ids) == 4)


def test_no_request_for_a_count_goes_beyond_the_limits_of_its_queue(tmp_path: Path) -> None:
    w = shared_machine(tmp_path, "queues: {vision: {limit: 3, user_limit: 2}}")
    w.submit("hers", [1, 2, 3, 4], Behaviour(iterations=100_000), owner="ada", queue="vision")
    w.submit("his", [1, 2, 3, 4], Behaviour(iterations=100_000), owner="bob", queue="vision")
    w.run(
        lambda w: set(w.states().values()) == {s.RUNNING} and sum(len(w.job(n).gpu_ids) for n in ("hers", "his")) == 3
    )
    more, less = sorted(("hers", "his"), key=lambda name: -len(w.job(name).gpu_ids))
    for name, count, others in ((less, 4, 2), (less, 2, 2), (more, 3, 1)):
        with pytest.raises(Rejected) as refused:
            w.api.operator.request(name, count, None)
        has = f"queue vision has {others} of at most 3 GPUs beside job {name}"
        expected = f"Job {name} cannot have {count} GPUs: {has}. Ask for fewer."
        assert (str(refused.value), refused.value.status) == (expected, 409)
    # Written into the store past the API, or asked for before the limit was lowered, it binds all the same.
    w.store.update("jobs", less, {}, {"wanted": 4})
    w.pass_time(30)
    assert len(w.job(less).gpu_ids) == 1
    assert w.job(less).doc["message"] == (
        f"{less} keeps 1 GPU, although 4 were requested: queue vision has 3 of at most 3 GPUs."
    )
    w.api.operator.request(more, 1, None)
    w.run(lambda w: len(w.job(more).gpu_ids) == 1)
    w.api.operator.request(less, 2, None)
    w.run(lambda w: len(w.job(less).gpu_ids) == 2)


def test_a_job_that_waits_may_not_ask_for_more_than_its_queue_ever_has(tmp_path: Path) -> None:
    w = shared_machine(tmp_path, "queues: {vision: {guaranteed: 2, borrow: false}}")
    w.submit("one", [2], Behaviour(iterations=100_000), owner="ada", queue="vision")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    w.submit("two", [1, 2, 4], Behaviour(iterations=100_000), owner="ada", queue="vision", hold=True)
    w.tick()
    with pytest.raises(Rejected, match="queue vision may not borrow, and has 0 GPUs of the 2 that it is guaranteed"):
        w.api.operator.request("two", 4, None)
    w.api.operator.request("two", 2, None)


def test_a_held_job_waits_without_a_claim_until_it_is_released(tmp_path: Path) -> None:
    """Neither idle GPUs nor those that others hold beyond their share go to it."""
    w = shared_machine(tmp_path)
    w.submit("hers", [1, 2, 4], Behaviour(iterations=100_000), owner="ada")
    w.submit("his", [1, 2, 4], Behaviour(iterations=100_000), owner="bob", hold=True)
    w.run(lambda w: len(w.job("hers").gpu_ids) == 4)
    w.pass_time(60)
    assert (w.states()["his"], len(w.job("hers").gpu_ids)) == (s.SUBMITTED, 4)
    assert w.job("his").doc["message"] == "his was submitted to wait: `reshape release his` lets it start."
    assert [row["user"] for row in w.api.rights.shares()["users"] if row["demand"]] == ["ada"]
    w.api.operator.resume("his")
    assert w.job("his").doc["queued_ts"] == pytest.approx(w.clock.wall())
    w.run(lambda w: w.states() == {"hers": s.RUNNING, "his": s.RUNNING})
    assert (len(w.job("hers").gpu_ids), len(w.job("his").gpu_ids)) == (2, 2)
    w.api.operator.suspend("his")
    w.run(lambda w: w.states()["his"] == s.SUBMITTED and not w.job("his").gpu_ids)
    w.pass_time(30)
    assert w.job("his").doc["message"].startswith("his is suspended by an operator"), "it has trained since"


def test_a_held_job_that_is_run_once_more_is_not_held_again(tmp_path: Path) -> None:
    w = shared_machine(tmp_path)
    w.submit("one", [1], Behaviour(iterations=20), owner="ada", hold=True)
    w.tick()
    w.api.operator.resume("one")
    w.run(lambda w: w.states().get("one") == s.COMPLETED)
    w.run(World.at_rest)
    w.api.submissions.rerun("one")
    w.run(lambda w: sum(job.launch for job in w.c.cache.jobs().values()) == 1)


def test_what_would_happen_is_foreseen_with_the_rights_of_now(tmp_path: Path) -> None:
    """What a client is told to simulate with says who owns what, and who has used what."""
    w = shared_machine(tmp_path, "queues: {vision: {weight: 2}, nlp: {}}")
    w.submit("hers", [1, 2, 4], Behaviour(iterations=100_000), owner="ada", queue="vision")
    w.run(lambda w: w.states() == {"hers": s.RUNNING})
    w.pass_time(30)
    snapshot, _ = w.c.loop.present()
    live = LiveState.read(msgspec.json.decode(msgspec.json.encode(w.api.simulations.snapshot())), snapshot.profiles)
    assert live.snapshot.shares == snapshot.shares
    assert live.snapshot.used.keys() == {JobOwner("vision", "ada")}
    assert live.snapshot.job["hers"].owner == "ada"


def test_accounts_go_once_they_are_too_old_and_what_was_used_lately_stays() -> None:
    books, one = Books(), world(4, runs("a", "/ada", 1))
    books.look(one)
    books.look(one, 2 * 3600.0)
    books.accounts.flush()
    later = books.clock.wall() + 3600.0
    assert retention.prune(books.store, Keep(usage_s=2.5 * 3600.0), later).accounts == 1
    assert retention.prune(books.store, Keep(usage_s=1.0), later, ages=False).accounts == 0
    assert retention.prune(books.store, Keep(usage_s=1.0), later).accounts == 2
    books.boot()
    assert books.look(one).used[ADA] > 3600.0
