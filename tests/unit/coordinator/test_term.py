"""The term of a coordinator that really runs: kept through a long turn of its loop, given up by one that hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from adaptive_scheduler.settings import Settings
from coordinator.adapters.clock import SystemClock
from coordinator.service import Coordinator
from coordinator.stores.elector import TERM, Elector, Holder
from tests.fakes.shims import Machines
from tests.fakes.store import MemoryStore
from tests.fakes.world import MASTER, SHORT, FakeClock
from tests.patience import eventually, patient

WITHIN_S = patient(20.0)


@pytest.fixture
def busy() -> Iterator[tuple[Coordinator, MemoryStore]]:
    """One whose loop is in the middle of a turn that does not end before the test."""
    store, clock, config = MemoryStore(), SystemClock(), replace(SHORT, term_s=0.5, poll_s=0.1)
    elector = Elector(store, clock, config.term_s, Holder.of_process(os.getpid()))
    machines = Machines(FakeClock(), 1.0, 1.0)
    coordinator = Coordinator(store, machines, machines, clock, config, Settings(), MASTER, elector, "test")
    inside, over = threading.Event(), threading.Event()

    def long(read: bool = True) -> None:
        inside.set()
        over.wait(WITHIN_S)

    coordinator.loop.tick = long  # type: ignore[method-assign]
    coordinator.start()
    try:
        assert inside.wait(WITHIN_S)
        yield coordinator, store
    finally:
        over.set()
        coordinator.stop()


def renewals(store: MemoryStore) -> int:
    doc = store.get("terms", TERM)
    assert doc is not None
    return int(doc["version"])


def test_the_term_is_renewed_while_a_turn_takes_longer_than_it(busy: tuple[Coordinator, MemoryStore]) -> None:
    coordinator, store = busy
    before = renewals(store)
    eventually(lambda: renewals(store) >= before + 5)
    assert not coordinator.succeeded.is_set()


def test_one_that_hangs_lets_another_begin(busy: tuple[Coordinator, MemoryStore]) -> None:
    coordinator, _ = busy
    coordinator._turned_at = float("-inf")
    eventually(lambda: not coordinator.elector.leads)
