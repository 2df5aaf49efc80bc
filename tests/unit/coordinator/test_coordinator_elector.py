"""Who holds the term is a process that really lives, told apart even in containers. The rest: `test_elector.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Transient
from coordinator.stores.elector import Elector, Holder
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock

T = 15.0
ME = Holder.of_process(os.getpid())


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine, which lives until its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    yield process
    process.kill()
    process.communicate()


def test_a_living_holder_is_waited_for_and_a_dead_one_on_this_machine_is_not(
    other: subprocess.Popen[bytes],
) -> None:
    store, clock = MemoryStore(), FakeClock()
    assert Elector(store, clock, T, Holder.of_process(other.pid)).try_to_lead()
    mine = Elector(store, clock, T, ME)
    assert not mine.try_to_lead()
    other.kill()
    other.wait()
    assert mine.try_to_lead()
    assert mine.holder() == f"process {os.getpid()}"


def test_a_holder_in_another_container_of_this_machine_is_not_taken_for_dead() -> None:
    """Process numbers mean nothing there: each container may have a process 1, or none of that number here."""
    store, clock = MemoryStore(), FakeClock()
    assert str(Path("/proc/self/ns/pid").readlink()) in ME.machine
    container = replace(ME, machine=ME.machine.replace("pid:", "pid:9"), pid=2**22 + 1)
    assert Elector(store, clock, T, container).try_to_lead()
    mine = Elector(store, clock, T, ME)
    assert not mine.try_to_lead()
    clock.time += T * (1 + CLOCK_DRIFT)
    assert not mine.try_to_lead()
    clock.time += 0.1
    assert mine.try_to_lead()


@pytest.mark.parametrize("strange", [{}, {"machine": ME.machine}, {"machine": ME.machine, "pid": "x", "started": "1"}])
def test_a_strange_document_does_not_keep_the_term_for_ever(strange: dict[str, str]) -> None:
    store, clock = MemoryStore(), FakeClock()
    store.insert("terms", {"_id": "coordinator", "version": 1, **strange})
    mine = Elector(store, clock, T, ME)
    mine.try_to_lead()
    clock.time += T * (1 + CLOCK_DRIFT) + 0.1
    assert mine.try_to_lead()


@pytest.mark.parametrize("hiccup", ["before", "after"])
def test_a_renewal_of_unknown_outcome_is_found_out_by_reading(hiccup: str) -> None:
    store, clock = MemoryStore(), FakeClock()
    mine = Elector(store, clock, T, ME)
    store.hiccups.append(hiccup)  # type: ignore[arg-type]
    with pytest.raises(Transient):
        mine.try_to_lead()
    assert not mine.leads, "not before it is known"
    assert mine.try_to_lead()
    assert mine.leads
