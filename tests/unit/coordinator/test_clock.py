"""Durations are read from a clock that nobody can set; a wall clock that is set disturbs no training."""

from __future__ import annotations

import time

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


def test_time_is_read_from_the_clock_that_nobody_can_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 7.0}.get(clock, 5.0))
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert (SystemClock().now(), SystemClock().wall()) == (7.0, 5.0)


@pytest.mark.parametrize("by", [86_400.0, -86_400.0])
def test_a_clock_on_the_wall_that_is_set_disturbs_no_training(by: float) -> None:
    w = World()
    w.submit("one", [1, 2], Behaviour(iterations=600))
    w.run(lambda w: w.job("one").state == s.RUNNING)
    before, wall = w.job("one"), w.clock.wall
    w.clock.wall = lambda: wall() + by  # type: ignore[method-assign]
    for _ in range(60):
        w.tick()
        assert w.broken() == [] and w.c.elector.leads
    after = w.job("one")
    assert (after.state, after.generation, after.launch) == (s.RUNNING, before.generation, before.launch), w.story()
