"""A reading that makes a job ask for a move is answered by the turn that takes it, not at the next poll (SpeCon)."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from adaptive_scheduler.settings import Settings, SpeCon
from coordinator.adapters.clock import SystemClock
from coordinator.errors import Transient
from coordinator.model import states as s
from coordinator.service import MIN_PAUSE_S, Coordinator
from coordinator.stores.bootstrap import FoundNode
from coordinator.stores.elector import Elector, Holder
from tests.fakes.shims import Behaviour, Machines
from tests.fakes.store import MemoryStore
from tests.fakes.world import MASTER, SHORT, FakeClock, World
from tests.patience import patient

TURNS, WITHIN_S = 5, patient(20.0)


def one_on_cpu(interval_s: float) -> World:
    settings = Settings(systems=("specon",), specon=SpeCon(interval_s=interval_s))
    world = World(settings=settings, nodes=(FoundNode("c", cores=2.0),))
    world.submit("one", [0], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 30)
    return world


def test_the_loop_rests_until_the_next_reading_and_no_longer() -> None:
    world = one_on_cpu(interval_s=3.0)
    world.c._turn()
    rest_s = world.c._pause_s()
    assert MIN_PAUSE_S <= rest_s <= 3.0 < SHORT.poll_s
    world.c.telemetry.progress.begin()
    world.clock.time += rest_s
    assert world.c._pause_s() == MIN_PAUSE_S, "a reading is due"


def test_readings_that_are_always_due_leave_as_much_time_as_the_last_turn_took() -> None:
    world = one_on_cpu(interval_s=0.01)
    tick = world.c.loop.tick

    def long(read: bool = True) -> None:
        tick(read)
        world.clock.time += 1.5

    world.c.loop.tick = long  # type: ignore[method-assign]
    world.c._turn()
    assert world.c._pause_s() == 1.5


def test_a_store_that_does_not_answer_is_not_pressed_though_readings_are_due() -> None:
    world = one_on_cpu(interval_s=3.0)
    world.clock.time += 100

    def fails(read: bool = True) -> None:
        raise Transient("away")

    world.c.loop.tick = fails  # type: ignore[method-assign]
    world.c._turn()
    assert world.c._pause_s() == min(SHORT.poll_s, SHORT.term_s / 3)


def test_a_store_that_lost_rows_is_recovered_at_once_but_not_pressed_where_it_takes_no_write() -> None:
    world = World.training([1, 2])
    world.clock.time += 100

    def finds_a_loss(read: bool = True) -> None:
        world.c.elector.rewound = True
        raise Transient("the store was emptied")

    def fails() -> None:
        raise Transient("the disk is full")

    world.c.loop.tick, world.c.recover = finds_a_loss, fails  # type: ignore[method-assign]
    woken = []
    for _ in range(4):
        world.c.wake.clear()
        world.c._turn()
        woken.append(world.c.wake.is_set())
    assert woken == [True, False, False, False] and world.c._pause_s() == min(SHORT.poll_s, SHORT.term_s / 3)


def test_a_coordinator_that_runs_turns_at_each_reading_though_its_poll_is_far() -> None:
    store, clock, config = MemoryStore(), SystemClock(), replace(SHORT, term_s=600.0, poll_s=600.0)
    elector = Elector(store, clock, config.term_s, Holder.of_process(os.getpid()))
    machines = Machines(FakeClock(), 1.0, 1.0)
    settings = Settings(systems=("specon",), specon=SpeCon(interval_s=0.05))
    coordinator = Coordinator(store, machines, machines, clock, config, settings, MASTER, elector, "test")
    turned, enough = list[bool](), threading.Event()
    tick = coordinator.loop.tick

    def counted(read: bool = True) -> None:
        tick(read)
        turned.append(read)
        if len(turned) >= TURNS:
            enough.set()

    coordinator.loop.tick = counted  # type: ignore[method-assign]
    job = {"_id": "one", "job_id": "one", "state": s.SUBMITTED, "command": ["x"], "optional_num_gpus": [0]}
    store.insert("jobs", {**job, "job_type": "t", "iterations": 5})
    coordinator.start()
    try:
        assert enough.wait(WITHIN_S)
        assert not all(turned), "what only a reading calls for costs no look at the store"
    finally:
        coordinator.stop()
