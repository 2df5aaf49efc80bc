"""What the store keeps of the past, on every store: bounded, and nothing that is still needed goes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import Keep
from coordinator.events.event_log import EventLog
from coordinator.ports import Doc, Store
from coordinator.stores import retention
from coordinator.stores.sqlite import SqliteStore
from tests.fakes.world import FakeClock

DAY = 86400.0
NOW = 400 * DAY
KEEP = Keep(jobs=3, jobs_s=30 * DAY, decisions=4, events=10, events_s=2 * DAY, observations=2)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "NEWEST_EVENTS", 5)
    monkeypatch.setattr(retention, "PART", 4)
    monkeypatch.setattr(retention, "OF_EACH_JOB", 2)


def ended(store: Store, job: str, days: float, **more: Any) -> None:
    doc = {"job_id": job, "uid": f"u-{job}", "state": "completed", "closed": True, "finish_ts": NOW - days * DAY}
    store.insert("jobs", {"_id": job, **doc, **more})


def decided(store: Store, key: str, days: float, *jobs: str) -> None:
    store.insert("decisions", {"_id": key, "job_id": jobs[0], "jobs": list(jobs), "at": NOW - days * DAY})


def left(store: Store, table: str = "jobs") -> list[Any]:
    return [row["_id"] for row in store.list(table)]


def is_open(store: Store, job: str, **more: Any) -> None:
    store.insert("jobs", {"_id": job, "job_id": job, "uid": f"u-{job}", "state": "running", "closed": False, **more})


def test_ended_jobs_go_by_age_and_by_number_and_never_within_the_hour(store: Store) -> None:
    for job, days in {"old": 31.0, "a": 4.0, "b": 3.0, "c": 2.0, "d": 0.01, "e": 0.02, "f": 0.03}.items():
        ended(store, job, days)
    found = retention.prune(store, KEEP, NOW)
    assert (found.jobs, left(store)) == (4, ["d", "e", "f"])
    ended(store, "g", 0.0)
    assert (retention.prune(store, KEEP, NOW).jobs, left(store)) == (0, ["d", "e", "f", "g"])


def test_reservations_that_are_over_go_after_an_hour_if_the_clock_can_be_trusted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, days in {"a": 31.0, "b": 2.0, "just over": 0.01, "to come": -5.0}.items():
        store.insert("reservations", {"_id": name, "from_ts": NOW - 40 * DAY, "until_ts": NOW - days * DAY})
    assert retention.prune(store, KEEP, NOW, ages=False).reservations == 0
    monkeypatch.setattr(retention, "OVER", 2)
    assert (retention.prune(store, KEEP, NOW, ages=False).reservations, left(store, "reservations")[0]) == (1, "b")
    assert retention.prune(store, KEEP, NOW).reservations == 1
    assert left(store, "reservations") == ["just over", "to come"]


@pytest.mark.parametrize("body", ['{"_id": 1, "type": "x", "at": 1.0}', "[]"])
def test_reading_events_ends_whatever_a_row_says_of_its_number(tmp_path: Path, body: str) -> None:
    store = SqliteStore(str(tmp_path / "store.sqlite"))
    store.append_events([{"_id": number, "type": "x", "at": NOW - 3 * DAY} for number in range(1, 10)])
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as by_hand, by_hand:
        by_hand.execute("UPDATE documents SET body = ? WHERE name = 'events' AND key IN (1, 2, 3, 4, 9)", (body,))
    assert [event["_id"] for event in store.events_after(0)] == list(range(1, 10)), "else what follows has no end"
    log, at = EventLog(store, FakeClock()), 0
    while page := log.after(at, 1):
        at = page[-1]["_id"]
    assert at >= 8
    assert retention.prune(store, KEEP, NOW).events == 4
    assert [event["_id"] for event in store.events_after(0)] == list(range(5, 10))


def test_a_job_stays_for_an_hour_where_less_is_to_be_kept(store: Store) -> None:
    ended(store, "half an hour ago", 0.02)
    ended(store, "two hours ago", 0.08)
    retention.prune(store, replace(KEEP, jobs_s=60.0), NOW)
    assert left(store) == ["half an hour ago"]


def test_what_has_not_ended_or_was_never_let_in_stays(store: Store) -> None:
    is_open(store, "runs", submit_ts=1.0)
    store.insert("jobs", {"_id": "new", "state": "submitted"})
    store.insert("jobs", {"_id": "bad", "state": "submitted", "problems": ["no command"]})
    assert (retention.prune(store, KEEP, NOW).jobs, left(store)) == (0, ["bad", "new", "runs"])


def refused(store: Store, key: str, days: float | None, **more: Any) -> None:
    times = {} if days is None else {"submit_ts": NOW - days * DAY}
    store.insert(
        "jobs", {"_id": key, "job_id": "bad", "state": "submitted", "problems": ["no command"], **times, **more}
    )


def test_documents_that_were_refused_go_by_age_and_by_number_beside_the_job_whose_name_they_have(store: Store) -> None:
    is_open(store, "bad", submit_ts=1.0)
    for key, days in {"old": 31.0, "a": 4.0, "b": 3.0, "c": 2.0, "now": 0.01}.items():
        refused(store, key, days, depends_on=["needed"])  # once it is mended, it waits for that
    ended(store, "needed", 31.0)
    decided(store, "of-bad", 31.0, "bad")
    assert retention.prune(store, KEEP, NOW).jobs == 2
    assert (left(store), left(store, "decisions")) == (["b", "bad", "c", "needed", "now"], ["of-bad"])


def test_a_document_that_was_refused_before_its_time_was_written_goes_by_number_only(store: Store) -> None:
    for key in ("a", "b", "c", "d"):
        refused(store, key, None)
    assert retention.prune(store, KEEP, NOW).jobs == 1


def test_a_job_that_others_wait_for_a_slaml_counts_or_a_volcano_job_may_remake_stays(store: Store) -> None:
    for job in ("needed", "of-slaml", "of-gone-slaml", "x", "y", "z"):
        slaml = {"slaml": {"uid": "s1" if job == "of-slaml" else "s2"}} if "slaml" in job else {}
        ended(store, job, 31.0 if job in ("needed", "of-slaml", "of-gone-slaml") else 1.0, **slaml)
    ended(store, "volcano", 2.0, origin="volcano")
    is_open(store, "waits", depends_on=["needed"])
    store.insert("slamls", {"_id": "s1"})
    retention.prune(store, KEEP, NOW)
    assert left(store) == ["needed", "of-slaml", "volcano", "waits", "x", "y", "z"]


def test_decisions_go_with_their_job_by_age_and_by_number_but_an_open_jobs_newest_stay(store: Store) -> None:
    ended(store, "gone", 31.0)
    ended(store, "kept", 1.0, sized_by="of-kept")
    decided(store, "of-kept", 50.0, "kept")
    is_open(store, "runs", reshape={"kind": "reshape", "generation": 2, "to": [], "decision": "named"})
    decided(store, "of-gone", 31.0, "gone")
    decided(store, "of-gone-lately", 1.0, "gone")
    decided(store, "of-both", 1.0, "gone", "kept")
    for number, days in enumerate((40.0, 39.0, 38.0)):
        decided(store, f"runs-{number}", days, "runs")
    decided(store, "named", 50.0, "runs")
    decided(store, "slaml.default.x", 1.0, "slaml.default.x")
    retention.prune(store, KEEP, NOW)
    assert left(store, "decisions") == ["named", "of-both", "of-kept", "runs-1", "runs-2", "slaml.default.x"]
    for number in range(6):
        decided(store, f"kept-{number}", 0.5 - number / 100, "kept")
    retention.prune(store, KEEP, NOW)
    assert left(store, "decisions") == ["kept-2", "kept-3", "kept-4", "kept-5", "named", "of-kept", "runs-1", "runs-2"]


def test_events_go_from_the_oldest_and_the_numbers_go_on(store: Store) -> None:
    store.append_events([{"_id": n, "type": "x", "at": NOW - 60.0} for n in range(1, 31)])
    assert retention.prune(store, KEEP, NOW).events == 20
    assert [event["_id"] for event in store.events_after(0)] == list(range(21, 31))
    assert retention.prune(store, KEEP, NOW + 3 * DAY).events == 5, "all are too old, and the newest stay"
    assert (store.last_event(), len(store.events_after(0))) == (30, 5)


def test_of_the_newest_completed_jobs_it_is_kept_what_was_predicted_of_them(store: Store) -> None:
    for number in range(retention.PREDICTIONS + 2):
        store.insert("predictions", {"_id": f"{number:04}", "at": NOW + number, "outcomes": []})
    assert retention.prune(store, KEEP, NOW).predictions == 2
    assert left(store, "predictions")[0] == "0002"


def test_observations_are_kept_up_to_a_number_and_imported_ones_without_a_time_always(store: Store) -> None:
    for key, at in {"a": 3.0, "b": 1.0, "c": 2.0}.items():
        store.insert("observations", {"_id": key, "at": at, "execution_s": 1.0})
    store.insert("observations", {"_id": "mine", "execution_s": 1.0})
    assert retention.prune(store, KEEP, NOW).observations == 2
    assert left(store, "observations") == ["a", "mine"]


def test_a_row_that_was_changed_since_it_was_looked_at_stays(store: Store) -> None:
    ended(store, "a", 31.0)
    rows: list[Doc] = list(store.scan("jobs", ("closed",)))
    store.put("jobs", {"_id": "a", "job_id": "a", "state": "submitted"})
    assert store.remove("jobs", [row["_id"] for row in rows], {"closed": True}) == 0
    assert left(store) == ["a"]


def test_a_job_that_was_opened_again_while_a_pass_looked_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(store, "a", 31.0)
    scan = store.scan

    def scan_after_a_change(table: str, fields: Sequence[str]) -> Iterator[Doc]:
        if table == "decisions":
            store.put("jobs", {"_id": "a", "job_id": "a", "state": "submitted"})
        return scan(table, fields)

    monkeypatch.setattr(store, "scan", scan_after_a_change)
    assert retention.prune(store, KEEP, NOW).jobs == 0
    assert left(store) == ["a"]


def test_a_scan_has_the_named_fields_of_every_row_as_they_are(store: Store) -> None:
    rows: list[Doc] = [{"_id": f"k{n:05}", "flag": n % 2 == 0, "list": [n, None], "half": n / 2} for n in range(1_200)]
    for row in rows[:3]:
        store.insert("jobs", {**row, "more": "x" * 100})
    store.insert("jobs", {"_id": "none"})
    assert list(store.scan("jobs", ("flag", "list", "half"))) == [*rows[:3], {"_id": "none"}]
    for begin in range(0, len(rows), 200):  # more than one part of a scan
        store.append_events([{**rows[n], "_id": n} for n in range(begin, begin + 200)])
    assert [row["flag"] for row in store.scan("events", ("flag",))] == [row["flag"] for row in rows]


class SetClock(FakeClock):
    """One of which the wall clock can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.base = NOW

    def wall(self) -> float:
        return self.base + self.time


def watched(clock: SetClock, store: Store, boot: str = "one", seconds: float = DAY + 1) -> retention.ClockWatch:
    """A new process that looks, and looks again after so many seconds."""
    watch = retention.ClockWatch(clock, store, boot)
    watch.look()
    clock.time += seconds
    watch.look()
    return watch


def pruned(clock: SetClock, store: Store, boot: str = "one") -> int:
    """Return how many jobs a new process removes at once."""
    watch = retention.ClockWatch(clock, store, boot)
    watch.look()
    return retention.prune(store, KEEP, clock.wall(), watch.steady()).jobs


def test_ages_count_once_the_clocks_have_gone_together_for_a_day_whichever_processes_looked(store: Store) -> None:
    clock = SetClock()
    assert not retention.ClockWatch(clock, store, "one").steady()
    assert not watched(clock, store, seconds=DAY / 2).steady()
    assert watched(clock, store, seconds=DAY / 2 + 1).steady()
    clock.time = 5.0  # the machine was booted again
    clock.base += DAY * 1.7
    assert retention.ClockWatch(clock, store, "two").steady()
    ended(store, "a", 31.0)
    assert pruned(clock, store, "two") == 1


def test_nothing_goes_by_age_for_a_day_after_the_clock_was_set(store: Store) -> None:
    ended(store, "a", 0.5)
    clock = SetClock()
    watch = watched(clock, store)
    assert watch.steady()
    clock.base += 31 * DAY
    clock.time += 3600
    watch.look()
    assert retention.prune(store, KEEP, clock.wall(), watch.steady()).jobs == 0
    clock.time += DAY + 1  # nobody has set it back
    watch.look()
    assert retention.prune(store, KEEP, clock.wall(), watch.steady()).jobs == 1


@pytest.mark.parametrize("boot", ["one", "two"])
@pytest.mark.parametrize("days", [31, -31])
def test_a_start_after_the_clock_was_set_believes_no_times_that_were_written_by_it(
    store: Store, boot: str, days: float
) -> None:
    """A job that has ended meanwhile is no witness: the clock which is to be judged has dated it."""
    clock = SetClock()
    watched(clock, store)
    ended(store, "before", 0.5)
    clock.base += days * DAY
    ended(store, "meanwhile", -days)
    assert pruned(clock, store, boot) == 0
    clock.base -= days * DAY
    assert pruned(clock, store, boot) == 0
    assert left(store) == ["before", "meanwhile"]


@pytest.mark.parametrize("boots", [False, True])
def test_a_job_that_ended_while_the_clock_was_years_back_is_not_old_once_that_is_set_right(
    store: Store, boots: bool
) -> None:
    """As on a machine without a battery, until it finds a time server."""
    clock = SetClock()
    watched(clock, store)
    clock.base -= 300 * DAY
    if boots:
        clock.time = 5.0
    boot = "two" if boots else "one"
    watched(clock, store, boot, seconds=600.0)
    store.insert(
        "jobs",
        {
            "_id": "a",
            "job_id": "a",
            "uid": "u-a",
            "state": "completed",
            "closed": True,
            "finish_ts": clock.wall(),
        },
    )
    ended(store, "b", 50.0)
    clock.base += 300 * DAY
    for _ in range(3):
        watch = watched(clock, store, boot)
        assert watch.steady()
        retention.prune(store, KEEP, clock.wall(), watch.steady(), watch.doubted())
        assert left(store) == ["a"], "the other one is old"


@pytest.mark.parametrize("odd", [None, 5, [3], [[1.0]], [["a", 2.0]], [[1.0, None]], {"a": 1}])
def test_odd_spans_of_a_clock_are_none(store: Store, odd: Any) -> None:
    clock = SetClock()
    watch = watched(clock, store)
    store.update("terms", retention.CLOCK, {}, {"doubted": odd, "began": "x"})
    assert watch.doubted() == []
    watch.look()
    assert (store.get("terms", retention.CLOCK) or {})["doubted"] == []


@pytest.mark.parametrize("damaged", [{"wall": None}, {"now": "x"}, {"beside_s": float(2**70)}, {"boot": 3}])
def test_a_damaged_record_of_the_clocks_is_no_evidence(store: Store, damaged: Doc) -> None:
    clock = SetClock()
    watched(clock, store)
    clock.base += 31 * DAY
    store.update("terms", retention.CLOCK, {}, damaged)
    assert not retention.ClockWatch(clock, store, "one").steady()
