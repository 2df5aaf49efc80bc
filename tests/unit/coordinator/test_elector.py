"""One acting coordinator, by compare-and-set and locally observed time only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Transient
from coordinator.ports import Doc
from coordinator.stores.elector import TERM, Elector, Holder
from tests.e2e.up import wait_for
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock

T = 15.0
ME = Holder.of_process(os.getpid())
ELSEWHERE = Holder("another machine", 1, "5")


def elector(store: MemoryStore, clock: FakeClock, who: Holder) -> Elector:
    return Elector(store, clock, T, who)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_one_leads_and_the_second_one_does_not(store: MemoryStore, clock: FakeClock) -> None:
    first, second = elector(store, clock, ELSEWHERE), elector(store, clock, ME)
    assert first.try_to_lead()
    assert not second.try_to_lead()
    assert (first.leads, second.leads) == (True, False)


def test_who_renews_stays_although_somebody_waits(store: MemoryStore, clock: FakeClock) -> None:
    first, second = elector(store, clock, ELSEWHERE), elector(store, clock, ME)
    for _ in range(20):
        clock.time += T / 3
        assert first.try_to_lead()
        assert not second.try_to_lead()


def test_a_fresh_term_is_not_written_again(store: MemoryStore, clock: FakeClock) -> None:
    first = elector(store, clock, ME)
    first.try_to_lead()
    before = store.writes
    clock.time += T / 3 - 0.1
    assert first.try_to_lead()
    assert store.writes == before


def test_who_cannot_renew_for_a_term_stops_acting(store: MemoryStore, clock: FakeClock) -> None:
    first = elector(store, clock, ME)
    first.try_to_lead()
    store.down = True
    clock.time += T - 0.1
    with pytest.raises(Transient):
        first.try_to_lead()
    assert first.leads
    clock.time += 0.1
    assert not first.leads


def test_a_frozen_holder_is_succeeded_after_its_term_was_seen_unchanged_long_enough(
    store: MemoryStore, clock: FakeClock
) -> None:
    first, second = elector(store, clock, ELSEWHERE), elector(store, clock, ME)
    first.try_to_lead()
    clock.time += 100 * T  # how old it is counts for nothing: nobody watched
    assert not second.try_to_lead()
    clock.time += T * (1 + CLOCK_DRIFT) - 0.1
    assert not second.try_to_lead()
    clock.time += 0.2
    assert not first.leads
    assert second.try_to_lead()
    assert not first.try_to_lead()


def test_a_holder_on_this_machine_whose_process_is_gone_is_succeeded_at_once(
    store: MemoryStore, clock: FakeClock
) -> None:
    earlier = replace(ME, started=str(int(ME.started) - 1))  # the number was given to another process since
    assert elector(store, clock, earlier).try_to_lead()
    assert elector(store, clock, ME).try_to_lead()


def test_a_holder_with_the_same_number_on_another_machine_is_not_taken_for_dead(
    store: MemoryStore, clock: FakeClock
) -> None:
    assert elector(store, clock, replace(ME, machine="another", started="0")).try_to_lead()
    assert not elector(store, clock, ME).try_to_lead()


def test_who_resigns_is_succeeded_at_once(store: MemoryStore, clock: FakeClock) -> None:
    first, second = elector(store, clock, ELSEWHERE), elector(store, clock, ME)
    first.try_to_lead()
    first.resign()
    assert not first.leads
    assert second.try_to_lead()
    assert second.holder() == f"process {ME.pid}"


def test_who_does_not_lead_resigns_nothing(store: MemoryStore, clock: FakeClock) -> None:
    first, second = elector(store, clock, ELSEWHERE), elector(store, clock, ME)
    first.try_to_lead()
    second.resign()
    assert not second.try_to_lead()


def test_of_two_who_see_the_same_vacancy_one_wins(store: MemoryStore, clock: FakeClock) -> None:
    elector(store, clock, ELSEWHERE).try_to_lead()
    elector(store, clock, ELSEWHERE).resign()
    other = elector(store, clock, replace(ELSEWHERE, pid=2))

    class Racing(MemoryStore):
        def update(self, *given: object, **more: object) -> dict[str, object]:
            assert other.try_to_lead()
            return store.update(*given, **more)  # type: ignore[arg-type]

    racing = Racing()
    racing._tables = store._tables
    assert not elector(racing, clock, ME).try_to_lead()
    assert (store.get("terms", TERM) or {})["pid"] == 2


# the holder is a process that really lives, told apart even in containers


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


def test_a_holder_that_has_ended_is_dead_at_once_though_nobody_has_collected_it() -> None:
    store, clock = MemoryStore(), FakeClock()
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert Elector(store, clock, 15.0, Holder.of_process(process.pid)).try_to_lead()
        mine = Elector(store, clock, 15.0, Holder.of_process(os.getpid()))
        assert not mine.try_to_lead()
        process.kill()
        stat = Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", what="it is a zombie")
        assert mine.try_to_lead()
    finally:
        process.kill()
        process.communicate()


# a term runs from when it was asked for


class _SlowStore(MemoryStore):
    """One whose answers take their time."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self._clock, self.seconds = clock, seconds

    def insert(self, table: str, doc: Doc) -> None:
        super().insert(table, doc)
        self._clock.time += self.seconds

    def update(self, table: str, key: Any, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        doc = super().update(table, key, expect, changes)
        self._clock.time += self.seconds
        return doc


@pytest.mark.parametrize("renews", [False, True])
def test_a_term_ends_t_after_it_was_asked_for_however_late_the_answer_came(renews: bool) -> None:
    clock = FakeClock()
    store = _SlowStore(clock, 0.0)
    first = Elector(store, clock, 15.0, Holder("another machine", 1, "5"))
    if renews:
        assert first.try_to_lead()
        clock.time += 6.0
    store.seconds, asked_at = 10.0, clock.now()
    assert first.try_to_lead() and first.leads
    clock.time = asked_at + 14.9
    assert first.leads
    clock.time = asked_at + 15.1
    assert not first.leads, "another one may act from now on"
