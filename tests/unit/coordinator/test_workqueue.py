"""The queue of keys: nothing is missed, nothing is done twice at once. Its clock is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator import workqueue
from coordinator.workqueue import BACKOFF_MAX_S, BACKOFF_S, WorkQueue


class Hand:
    """A clock for `workqueue`, and a queue that says at once when nothing is due."""

    def __init__(self) -> None:
        self.now, self.queue = 100.0, WorkQueue()

    def monotonic(self) -> float:
        return self.now

    def take(self) -> str | None:
        """The next key, or None where `next` would wait."""
        self.queue._changed.wait = lambda seconds=None: self.queue.close()  # type: ignore[method-assign]
        key = self.queue.next()
        self.queue._closed = False
        return key


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    hand = Hand()
    monkeypatch.setattr(workqueue, "time", hand)
    return hand


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
