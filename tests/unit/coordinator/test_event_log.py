"""Events: numbered, batched, none twice and none lost while the store comes and goes."""

from __future__ import annotations

import threading

import pytest

from coordinator.errors import Transient
from coordinator.events import event_log as event_log_module
from coordinator.events.event_log import EventLog
from coordinator.ports import Doc
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock


def event_log(store: MemoryStore, *events: str) -> EventLog:
    book = EventLog(store, FakeClock())
    for event in events:
        book.append({"type": event})
    return book


def numbers(events: list[Doc]) -> list[tuple[int, str]]:
    return [(e["_id"], e["type"]) for e in events]


def test_events_are_numbered_in_order_and_written_together() -> None:
    store = MemoryStore()
    book = event_log(store)
    assert [book.append({"type": t}) for t in "abc"] == [1, 2, 3]
    assert store.list("events") == []
    book.flush()
    assert numbers(store.list("events")) == [(1, "a"), (2, "b"), (3, "c")]
    before = store.writes
    book.flush()
    assert store.writes == before


def test_events_go_out_together_once_the_first_is_two_seconds_old() -> None:
    store, clock = MemoryStore(), FakeClock()
    book = EventLog(store, clock)
    assert book.flush_once_old(2.0) == 2.0, "there is none"
    clock.time += 1.5
    book.append({"type": "a"})
    clock.time += 0.5
    assert book.flush_once_old(2.0) == 1.5
    book.append({"type": "b"})
    clock.time += 1.5
    assert (store.writes, book.flush_once_old(2.0)) == (0, 2.0)
    assert numbers(store.list("events")) == [(1, "a"), (2, "b")]
    clock.time += 2.0
    book.append({"type": "c"})
    assert book.flush_once_old(2.0) == 2.0
    assert len(store.list("events")) == 2


def test_after_reads_from_memory_and_from_the_store_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log_module, "KEPT", 3)
    store = MemoryStore()
    book = event_log(store)
    for t in "abcde":
        book.append({"type": t})
        book.flush()
    assert numbers(book.after(3, 10)) == [(4, "d"), (5, "e")]
    assert numbers(book.after(0, 10)) == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    assert numbers(book.after(0, 2)) == [(1, "a"), (2, "b")]
    assert book.after(5, 10) == []
    book.append({"type": "f"})
    assert numbers(book.after(1, 10))[-1] == (6, "f")


def test_the_next_coordinator_numbers_on() -> None:
    store = MemoryStore()
    first = event_log(store)
    first.append({"type": "a"})
    first.flush()
    second = event_log(store)
    assert second.append({"type": "b"}) == 2
    assert numbers(second.after(0, 10)) == [(1, "a"), (2, "b")]
    assert second.last() == 2


def test_what_could_not_be_written_is_written_later() -> None:
    store = MemoryStore()
    book = event_log(store)
    book.append({"type": "a"})
    store.down = True
    with pytest.raises(Transient):
        book.flush()
    book.append({"type": "b"})
    store.down = False
    book.flush()
    assert numbers(store.list("events")) == [(1, "a"), (2, "b")]


def test_a_batch_of_which_only_a_part_was_written_is_completed_without_doubles() -> None:
    store = MemoryStore()
    book = event_log(store)
    for t in "abc":
        book.append({"type": t})
    store.hiccups.extend(["", "after"])
    with pytest.raises(Transient):
        book.flush()
    book.flush()
    book.flush()
    assert [e["type"] for e in store.list("events")] == ["a", "b", "c"]


def test_numbers_that_another_coordinator_took_meanwhile_are_given_up() -> None:
    store = MemoryStore()
    first, second = event_log(store), event_log(store)
    first.append({"type": "theirs"})
    second.append({"type": "ours"})
    first.flush()
    second.flush()
    second.flush()
    assert [e["type"] for e in store.list("events")] == ["theirs", "ours"]


def test_a_listener_hears_of_each_event_until_it_stops() -> None:
    book, heard = event_log(MemoryStore()), []
    stop = book.listen(lambda: heard.append(book.last()))
    book.append({"type": "a"})
    stop()
    stop()
    book.append({"type": "b"})
    assert heard == [1]


def test_while_the_store_is_down_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log_module, "UNWRITTEN_MAX", 10)
    store = MemoryStore()
    book = event_log(store)
    for _ in range(25):
        book.append({"type": "x"})
    book.flush()
    assert [e["_id"] for e in store.list("events")] == list(range(16, 26))


# two coordinators that numbered events at once


def test_what_another_coordinator_wrote_between_is_read_too() -> None:
    store = MemoryStore()
    ours = event_log(store, "ours 1")
    ours.flush()
    theirs = event_log(store, "theirs 1", "theirs 2")
    ours.append({"type": "ours 2"})
    theirs.flush()
    ours.flush()
    expected = [(1, "ours 1"), (2, "theirs 1"), (3, "theirs 2"), (4, "ours 2")]
    assert numbers(ours.after(0, 10)) == expected
    assert numbers(ours.after(1, 10)) == expected[1:]
    assert numbers(ours.after(1, 2)) == expected[1:3]
    ours.flush()
    ours.append({"type": "ours 3"})
    assert numbers(ours.after(0, 4)) == expected
    assert numbers(ours.after(0, 10)) == [*expected, (5, "ours 3")]
    ours.flush()
    assert numbers(list(store.events_after(0))) == [*expected, (5, "ours 3")]


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
    assert numbers(list(store.events_after(0))) == [(1, "a"), (2, "b"), (3, "theirs"), (4, "c")]
    assert numbers(ours.after(0, 10)) == numbers(list(store.events_after(0)))


def test_what_was_handed_out_does_not_change_when_numbers_are_given_up() -> None:
    store = MemoryStore()
    ours, theirs = event_log(store, "ours"), event_log(store, "theirs")
    handed_out = ours.after(0, 10)
    theirs.flush()
    ours.flush()
    assert numbers(handed_out) == [(1, "ours")]
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
