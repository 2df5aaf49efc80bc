"""Work in the background rests while heartbeats come, and only then."""

from __future__ import annotations

import time

import pytest

from coordinator.giving_way import REST_S, WORK_S, GiveWay


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rests that were taken, on a clock on which each look takes half of the time of a piece of work."""
    taken, now = list[float](), [100.0]

    def look() -> float:
        now[0] += WORK_S / 2
        return now[0]

    def sleep(seconds: float) -> None:
        taken.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", look)
    monkeypatch.setattr(time, "sleep", sleep)
    return taken


def test_where_nothing_is_heard_nobody_rests(rests: list[float]) -> None:
    give_way = GiveWay(lambda: 0)
    for _ in range(100):
        give_way()
    assert rests == []


def test_while_heartbeats_come_work_rests_four_times_as_long_as_it_works(rests: list[float]) -> None:
    heard = iter(range(1, 1_000))
    give_way = GiveWay(lambda: next(heard))
    for _ in range(100):
        give_way()
    assert 20 <= rests.count(REST_S) <= 50, "not after each piece"


def test_what_comes_meanwhile_from_another_thread_waits_for_the_end_of_the_rest(rests: list[float]) -> None:
    heard = iter(range(1, 1_000))
    give_way = GiveWay(lambda: next(heard))
    give_way._rests_until = time.monotonic() + REST_S
    give_way()
    assert 0 < rests[0] < REST_S
