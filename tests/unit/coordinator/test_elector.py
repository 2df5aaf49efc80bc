"""One acting coordinator, by compare-and-set and locally observed time only."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Transient
from coordinator.stores.elector import TERM, Elector, Holder
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
