"""A coordinator that begins waits for the term and the leases of the one before it, and no longer.

In one thread on a clock moved by hand; on real processes in `tests/faults/test_second_coordinator.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.stores.elector import Elector, Holder
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

ELSEWHERE = Holder("another machine", 7, "5")


class Waiting(threading.Event):
    """The coordinator's pause, in which the world's time passes instead of ours."""

    def __init__(self, world: World, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._world, self._meanwhile = world, meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._world.clock.time += timeout or 0.0
        self._meanwhile()
        return False


def succeed(world: World, meanwhile: Callable[[], object] = lambda: None) -> float:
    """A new coordinator process begins as `start` does; the seconds that it waited for the term."""
    world.boot()
    world.c._stopping = Waiting(world, meanwhile)
    began = world.clock.time
    world.c._take_the_term()
    return world.clock.time - began


def test_the_term_of_one_that_vanished_elsewhere_is_waited_out_and_then_acted_upon() -> None:
    world = World()
    assert Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE).try_to_lead()
    waited = succeed(world)
    assert SHORT.term_s * (1 + CLOCK_DRIFT) < waited < SHORT.term_s * (1 + CLOCK_DRIFT) + 1
    world.submit("one", [4], Behaviour(iterations=5))
    world.run(lambda w: w.states() == {"one": s.COMPLETED}, 60)


def test_a_living_one_elsewhere_is_waited_for_no_longer_and_named_in_the_refusal() -> None:
    world = World()
    other = Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE)
    assert other.try_to_lead()
    began = world.clock.time
    with pytest.raises(Rejected) as refusal:
        succeed(world, other.try_to_lead)
    assert str(refusal.value) == "Another coordinator (process 7) acts on this store; stop it first."
    assert world.clock.time - began < 2 * SHORT.term_s
    assert (other.leads, world.c.elector.leads) == (True, False)


def test_leases_that_another_one_renewed_until_its_end_are_waited_out_from_there() -> None:
    """While the successor waited, its predecessor may still have answered heartbeats."""
    world = World.training([4])
    world.machines.of("one").partitioned = True
    other = Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE)
    world.c.elector.resign()
    other.try_to_lead()
    succeed(world)
    leads_since = world.clock.time
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert world.clock.time - leads_since > SHORT.wait_out_s
