"""`reshape up` on a store in which another coordinator says that it acts: one that is dead, and one that lives.

Real processes on one SQLite file. That a coordinator was on another machine is played by the name of the machine
in its term, so that nobody here can look whether its process lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ports import Doc, Store
from coordinator.stores.elector import TERM
from coordinator.stores.opening import open_store
from tests.e2e.up import WITHIN_S, Up, digits, running, wait_for
from tests.patience import patient

TERM_S = 2.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.sqlite'}"


@pytest.fixture
def up(tmp_path: Path, url: str) -> Iterator[Up]:
    with running(tmp_path / "state", "2xV100", url, RESHAPE_TERM_S=str(TERM_S)) as up:
        yield up


@pytest.fixture
def store(up: Up, url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


def term(store: Store) -> Doc:
    found = store.get("terms", TERM)
    assert found is not None
    return found


def pid(up: Up) -> int:
    assert up.process is not None
    return up.process.pid


def move_away(store: Store) -> None:
    """From now on nobody here can tell whether the holder's process lives."""
    store.update("terms", TERM, {}, {"machine": "another machine"})


def trains_on(up: Up, job_id: str) -> None:
    steps = len(up.steps(job_id))
    wait_for(lambda: len(up.steps(job_id)) > steps, what=f"{job_id} trains on")


def test_one_that_was_killed_elsewhere_is_succeeded_without_a_word_and_the_training_never_notices(
    up: Up, store: Store
) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    up.kill()
    move_away(store)
    up.start()
    assert f"waiting up to {TERM_S * 1.01 + 1:.0f} s" in up.log
    assert term(store)["pid"] == pid(up)
    assert term(store)["machine"] != "another machine"
    trains_on(up, "one")
    now = wait_for(lambda: j if (j := up.job("one")).get("trainer_pid") else None, what="it is heard of again")
    assert (now["trainer_pid"], now["launch"]) == (was["trainer_pid"], was["launch"])
    up.client.submit(digits("two", 5, [1]))
    up.until("two", "completed")


def test_one_that_was_killed_here_is_succeeded_at_once(up: Up) -> None:
    up.kill()
    up.start()
    assert "acted on this store" not in up.log


def test_while_one_acts_another_one_ends_with_a_sentence_and_the_first_one_goes_on(
    up: Up, store: Store, tmp_path: Path, url: str
) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    before = [store.list(table) for table in ("gpus", "nodes")]
    second = Up(tmp_path / "second", "1xP100", url, RESHAPE_TERM_S=str(TERM_S))
    try:
        with pytest.raises(AssertionError):
            second.start()
        assert second.process is not None
        assert second.process.wait(patient(WITHIN_S)) != 0
        assert f"Another coordinator (process {pid(up)}) acts on this store; stop it first." in second.log
        assert "Traceback" not in second.log
        assert [store.list(table) for table in ("gpus", "nodes")] == before, "what the first one has is still there"
    finally:
        second.clear()
    trains_on(up, "one")
    assert (up.job("one")["trainer_pid"], term(store)["pid"]) == (was["trainer_pid"], pid(up))
    assert up.client.health()["ok"]
