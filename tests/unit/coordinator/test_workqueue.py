"""The queue of keys: nothing is missed, nothing is done twice at once, by a clock moved by hand and by real threads."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from coordinator.workqueue import BACKOFF_MAX_S, BACKOFF_S, WorkQueue
from tests.patience import patient

FRESH_S = 10.0


class Hand:
    """A queue on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now, self.heard_at = 100.0, 0.0
        self.queue = WorkQueue(lambda: self.now, lambda key: self.heard_at + FRESH_S - self.now)

    def take(self) -> str | None:
        return self.queue.take_key()


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_keys_come_in_order_and_a_key_added_twice_comes_once(hand: Hand) -> None:
    for key in ("a", "b", "a"):
        hand.queue.add(key)
    assert [hand.take(), hand.take(), hand.take()] == ["a", "b", None]


def test_a_key_that_is_being_worked_on_has_no_second_consumer_and_comes_back_afterwards(hand: Hand) -> None:
    hand.queue.add("a")
    assert hand.take() == "a"
    hand.queue.add("a")
    hand.queue.add("a")
    assert hand.take() is None
    hand.queue.done("a")
    assert [hand.take(), hand.take()] == ["a", None]


def test_a_key_that_nobody_added_meanwhile_does_not_come_back(hand: Hand) -> None:
    hand.queue.add("a")
    hand.take()
    hand.queue.done("a")
    assert hand.take() is None


def test_a_key_that_is_watched_is_put_off_while_it_is_heard_from_but_not_for_ever(hand: Hand) -> None:
    hand.heard_at = hand.now
    hand.queue.watch("a", FRESH_S, 60.0)
    for _ in range(5):
        hand.now += FRESH_S
        hand.heard_at = hand.now - 1.0
        assert hand.take() is None
    hand.now += FRESH_S
    hand.heard_at = hand.now
    assert [hand.take(), hand.take()] == ["a", None], "after a minute"


def test_a_key_that_is_watched_comes_as_soon_as_it_is_silent(hand: Hand) -> None:
    hand.heard_at = hand.now
    hand.queue.watch("a", FRESH_S, 60.0)
    hand.now, hand.heard_at = hand.now + 5.0, hand.now + 4.0
    assert hand.take() is None
    hand.now = hand.heard_at + FRESH_S - 0.1
    assert hand.take() is None
    hand.now += 0.2
    assert hand.take() == "a"


def test_a_delay_of_a_key_that_is_watched_is_put_off_no_more(hand: Hand) -> None:
    hand.heard_at = hand.now
    hand.queue.watch("a", FRESH_S, 60.0)
    hand.queue.add("a", 20.0)
    hand.now += FRESH_S
    hand.heard_at = hand.now
    assert [hand.take(), hand.take()] == ["a", None]


def test_a_delayed_key_comes_when_it_is_due_and_not_before(hand: Hand) -> None:
    hand.queue.add("later", 5.0)
    hand.queue.add("sooner", 2.0)
    assert hand.take() is None
    hand.now += 2.0
    assert [hand.take(), hand.take()] == ["sooner", None]
    hand.now += 3.0
    assert hand.take() == "later"


def test_a_key_may_be_added_now_although_it_is_also_due_later(hand: Hand) -> None:
    hand.queue.add("a", 5.0)
    hand.queue.add("a")
    assert hand.take() == "a"
    hand.now += 5.0
    assert hand.take() is None  # being worked on
    hand.queue.done("a")
    assert hand.take() == "a"


def test_failures_in_a_row_double_the_pause_up_to_a_limit_and_a_success_forgives_them(hand: Hand) -> None:
    pauses = [hand.queue.retry("a") for _ in range(10)]
    assert pauses[:3] == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S]
    assert pauses[-1] == BACKOFF_MAX_S
    hand.queue.forgive("a")
    assert hand.queue.retry("a") == BACKOFF_S
    assert hand.queue.retry("b") == BACKOFF_S


def test_a_closed_queue_lets_everybody_go(hand: Hand) -> None:
    hand.queue.add("a")
    hand.queue.close()
    assert hand.queue.next() is None


# between real threads

LIMIT_S = patient(10.0)  # for what takes milliseconds


def consumers(queue: WorkQueue, count: int, work: object) -> list[threading.Thread]:
    def consume() -> None:
        while (key := queue.next()) is not None:
            work(key)  # type: ignore[operator]
            queue.done(key)

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)


def test_two_keys_are_worked_on_at_once_but_never_one_key_twice() -> None:
    queue, together = WorkQueue(), threading.Barrier(2, timeout=LIMIT_S)
    lock, inside, overlaps, met = threading.Lock(), Counter[str](), list[str](), threading.Event()

    def work(key: str) -> None:
        with lock:
            inside[key] += 1
            overlaps.extend([key] * (inside[key] > 1))
        if not met.is_set():
            together.wait()  # passes only if another key is being worked on at this moment
            met.set()
        if len(done) < 200:
            queue.add(key)
        else:
            queue.close()
        with lock:
            done.append(key)
            inside[key] -= 1

    done: list[str] = []
    queue.add("a")
    queue.add("b")
    join(consumers(queue, 4, work))
    assert met.is_set()
    assert overlaps == []


def test_the_last_change_before_somebody_stops_adding_is_always_looked_at() -> None:
    queue, newest, seen, finished = WorkQueue(), Counter[str](), Counter[str](), threading.Event()
    last = 300

    def work(key: str) -> None:
        seen[key] = newest[key]  # one consumer per key: nobody else writes this entry
        if min(seen["a"], seen["b"]) == last:
            finished.set()

    threads = consumers(queue, 3, work)
    for n in range(1, last + 1):
        for key in ("a", "b"):
            newest[key] = n
            queue.add(key)
    assert finished.wait(LIMIT_S), f"{dict(seen)} of {last}"
    queue.close()
    join(threads)


def test_a_consumer_that_waits_is_woken_by_a_key_that_becomes_due() -> None:
    queue, found = WorkQueue(), list[str]()
    threads = consumers(queue, 1, lambda key: (found.append(key), queue.close()))
    queue.add("later", 0.01)
    join(threads)
    assert found == ["later"]


def test_closing_frees_everybody_who_waits() -> None:
    queue = WorkQueue()
    threads = consumers(queue, 4, lambda key: None)
    queue.add("soon", 0.005)
    queue.add("in an hour", 3600.0)
    queue.close()
    join(threads)


def test_a_key_that_waits_is_due_once_however_often_it_was_looked_at() -> None:
    """Each look of a waiting job asks for the next one; extra looks must not each begin a chain of their own."""
    queue = WorkQueue()
    for _ in range(50):
        queue.add("a")
        assert queue.next() == "a"
        queue.add("a", 3600.0)
        queue.done("a")
    assert len(queue._later) == 1


def test_an_earlier_look_replaces_a_later_one() -> None:
    queue = WorkQueue()
    queue.add("a", 3600.0)
    queue.add("a", 0.001)
    assert queue.next() == "a"
    queue.done("a")
    queue.add("a", 7200.0)
    assert queue._due["a"] > time.monotonic() + 3600.0
