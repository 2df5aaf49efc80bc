"""When two coordinators numbered events at once, readers get everybody's, each once. The rest: `test_journal.py`."""

from __future__ import annotations

import threading

import pytest

from coordinator.errors import Transient
from coordinator.events.event_log import EventLog
from coordinator.ports import Doc
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock


def event_log(store: MemoryStore, *events: str) -> EventLog:
    book = EventLog(store, FakeClock())
    for event in events:
        book.append({"type": event})
    return book


def told(events: list[Doc]) -> list[tuple[int, str]]:
    return [(e["_id"], e["type"]) for e in events]


def test_what_another_coordinator_wrote_between_is_read_too() -> None:
    store = MemoryStore()
    ours = event_log(store, "ours 1")
    ours.flush()
    theirs = event_log(store, "theirs 1", "theirs 2")
    ours.append({"type": "ours 2"})
    theirs.flush()
    ours.flush()
    expected = [(1, "ours 1"), (2, "theirs 1"), (3, "theirs 2"), (4, "ours 2")]
    assert told(ours.after(0, 10)) == expected
    assert told(ours.after(1, 10)) == expected[1:]
    assert told(ours.after(1, 2)) == expected[1:3]
    ours.flush()
    ours.append({"type": "ours 3"})
    assert told(ours.after(0, 4)) == expected
    assert told(ours.after(0, 10)) == [*expected, (5, "ours 3")]
    ours.flush()
    assert told(list(store.events_after(0))) == [*expected, (5, "ours 3")]


def test_a_batch_written_in_part_before_another_coordinator_began_is_neither_lost_nor_doubled() -> None:
    store = MemoryStore()
    ours = event_log(store, "a", "b", "c")
    store.hiccups.extend(["", "after"])  # a and b are written, but nobody says so
    with pytest.raises(Transient):
        ours.flush()
    theirs = event_log(store, "theirs")
    theirs.flush()
    for _ in range(3):
        ours.flush()
    assert told(list(store.events_after(0))) == [(1, "a"), (2, "b"), (3, "theirs"), (4, "c")]
    assert told(ours.after(0, 10)) == told(list(store.events_after(0)))


def test_what_was_handed_out_does_not_change_when_numbers_are_given_up() -> None:
    store = MemoryStore()
    ours, theirs = event_log(store, "ours"), event_log(store, "theirs")
    handed_out = ours.after(0, 10)
    theirs.flush()
    ours.flush()
    assert told(handed_out) == [(1, "ours")]
    assert ours.last() == 2


def test_every_thread_is_told_its_own_number() -> None:
    book, numbers, begin = event_log(MemoryStore()), list[int](), threading.Barrier(4)

    def append() -> None:
        begin.wait()
        own = [book.append({"type": "x"}) for _ in range(200)]
        numbers.extend(own)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(numbers) == list(range(1, 801))
    assert [e["_id"] for e in book.after(0, 1_000)] == list(range(1, 801))
