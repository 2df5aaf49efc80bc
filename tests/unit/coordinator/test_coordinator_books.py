"""Reading again after a lost race brings into the books only what belongs there. The rest: `test_books.py`."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.books import Books
from coordinator.core.records import JobRecord
from coordinator.errors import Conflict, Transient
from coordinator.ports import Doc
from tests.fakes.store import MemoryStore

JOB: Doc = {"_id": "one", "job_id": "one", "uid": "u", "closed": False, "version": 3, "state": "running"}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.insert("jobs", JOB)
    store.insert("gpus", {"_id": "g", "state": "idle", "job_id": None, "version": 1})
    return store


@pytest.fixture
def books(store: MemoryStore) -> Books:
    books = Books(store)
    books.refresh()
    return books


def test_a_job_that_another_coordinator_closed_does_not_come_back(store: MemoryStore, books: Books) -> None:
    job = books.jobs()["one"]
    store.update("jobs", "one", {}, {"state": "completed", "closed": True})
    with pytest.raises(Conflict):
        books.write_job(job, {"state": "adjusting"}, "op")
    assert books.jobs() == {}
    books.refresh()
    assert books.jobs() == {}


def test_a_document_that_intake_has_not_let_in_stays_out_even_if_a_race_for_it_was_lost(
    store: MemoryStore, books: Books
) -> None:
    store.insert("jobs", {"_id": "new", "state": "submitted"})
    (new,) = books.refresh()
    store.update("jobs", "new", {}, {"note": "edited"})
    with pytest.raises(Conflict):
        books.write_job(new, {"state": "cancelled", "closed": True}, "cancel")
    assert list(books.jobs()) == ["one"]
    assert [job.id for job in books.refresh()] == ["new"], "and intake still gets to see it"


def test_a_deletion_is_first_a_lost_race_and_then_a_cancellation(store: MemoryStore, books: Books) -> None:
    store.delete("jobs", "one")
    with pytest.raises(Conflict):
        books.write_job(books.jobs()["one"], {"state": "adjusting"}, "op")
    books.refresh()
    assert books.jobs()["one"].cancel
    assert books.write_job(books.jobs()["one"], {"state": "cancelled"}, "cancelled").state == "cancelled"


def test_a_job_that_is_closed_while_the_store_is_being_read_stays_away(store: MemoryStore) -> None:
    class Slow(MemoryStore):
        def list(self, table: str, where: Any = None) -> list[Doc]:
            found = super().list(table, where)
            if table == "gpus" and (job := books.job("one")):
                books.write_job(job, {"state": "completed", "closed": True}, "close")
            return found

    slow = Slow()
    slow._tables = store._tables
    books = Books(slow)
    books.refresh()
    books.refresh()  # closes it in the middle: the listing of open jobs still has it
    assert books.jobs() == {}


def test_a_gpu_that_a_reading_found_as_it_was_before_our_claim_stays_claimed(store: MemoryStore) -> None:
    class Slow(MemoryStore):
        def list(self, table: str, where: Any = None) -> list[Doc]:
            found = super().list(table, where)
            if table == "gpus" and (gpu := books.gpus().get("g")):
                books.write_gpu(gpu, {"state": "idle"}, {"state": "reserved", "job_id": "one"})
            return found

    slow = Slow()
    slow._tables = store._tables
    books = Books(slow)
    books.refresh()
    books.refresh()
    assert (books.gpus()["g"].state, books.gpus()["g"].job) == ("reserved", "one")


def test_when_even_reading_fails_the_books_stay_as_they_were(store: MemoryStore, books: Books) -> None:
    job = books.jobs()["one"]
    store.down = True
    with pytest.raises(Transient):
        books.write_job(job, {"state": "adjusting"}, "op")
    assert books.jobs()["one"] is job
    store.down = False
    assert books.write_job(job, {"state": "adjusting"}, "op").state == "adjusting"


def test_writes_are_told_apart_even_if_they_say_the_same(store: MemoryStore, books: Books) -> None:
    ops = set()
    for _ in range(3):
        ops.add(books.write_job(JobRecord(books.jobs()["one"].doc), {"state": "running"}, "op").doc["last_op"])
    assert len(ops) == 3
