"""The cache: every change is written first; who loses a race, or does not know whether it won, reads again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coordinator.errors import Conflict, Transient
from coordinator.model.records import JobRecord
from coordinator.ports import Doc
from coordinator.stores.cache import Cache
from tests.fakes.store import MemoryStore

JOB: Doc = {"_id": "one", "job_id": "one", "uid": "u", "closed": False, "version": 3, "state": "running", "x_mine": [1]}
GPU: Doc = {"_id": "g", "state": "idle", "job_id": None, "held_by": None, "version": 1}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.insert("jobs", JOB)
    store.insert("gpus", GPU)
    return store


@pytest.fixture
def cache(store: MemoryStore) -> Cache:
    cache = Cache(store)
    cache.refresh()
    return cache


def one(cache: Cache) -> JobRecord:
    job = cache.job("one")
    assert job is not None
    return job


def test_a_change_is_in_the_store_and_in_the_books_and_keeps_the_users_fields(store: MemoryStore, cache: Cache) -> None:
    after = cache.write_job(one(cache), {"state": "adjusting"}, "op")
    assert after.doc == store.get("jobs", "one") == one(cache).doc
    assert (after.state, after.doc["version"], after.doc["x_mine"]) == ("adjusting", 4, [1])


def test_who_looked_at_an_old_version_loses_and_then_sees_the_new_one(store: MemoryStore, cache: Cache) -> None:
    store.update("jobs", "one", {}, {"wanted": 2})
    with pytest.raises(Conflict):
        cache.write_job(one(cache), {"state": "adjusting"}, "op")
    assert one(cache).wanted == 2
    assert cache.write_job(one(cache), {"state": "adjusting"}, "op").wanted == 2


def test_a_write_that_was_applied_though_its_reply_was_lost_is_recognised(store: MemoryStore, cache: Cache) -> None:
    store.hiccups.append("after")
    assert cache.write_job(one(cache), {"state": "adjusting"}, "op").doc["version"] == 4
    store.hiccups.append("after")
    gpu = cache.gpus()["g"]
    assert cache.write_gpu(gpu, {"state": "idle"}, {"state": "reserved", "job_id": "one"}).job == "one"


def test_a_write_that_was_not_applied_is_not_taken_for_one(store: MemoryStore, cache: Cache) -> None:
    store.hiccups.append("before")
    with pytest.raises(Transient):
        cache.write_job(one(cache), {"state": "adjusting"}, "op")
    assert one(cache).doc["version"] == 3


def test_another_coordinators_same_write_is_not_taken_for_ones_own(store: MemoryStore, cache: Cache) -> None:
    rival = Cache(store)
    rival.refresh()
    rival.write_job(one(rival), {"state": "adjusting"}, "op")
    with pytest.raises(Conflict):
        cache.write_job(one(cache), {"state": "adjusting"}, "op")
    rival.write_gpu(rival.gpus()["g"], {"state": "idle"}, {"state": "reserved", "job_id": "one"})
    with pytest.raises(Conflict):
        cache.write_gpu(cache.gpus()["g"], {"state": "idle"}, {"state": "reserved", "job_id": "one"})
    assert cache.gpus()["g"].job == "one"


def test_a_gpu_is_claimed_only_while_it_is_as_expected(store: MemoryStore, cache: Cache) -> None:
    store.update("gpus", "g", {}, {"state": "in use", "job_id": "x", "held_by": "x"})
    with pytest.raises(Conflict):
        cache.write_gpu(cache.gpus()["g"], {"state": "idle", "job_id": None}, {"state": "reserved", "job_id": "one"})
    assert cache.gpus()["g"].held_by == "x"


def test_a_users_edit_that_leaves_the_version_alone_is_seen_at_the_next_reading(
    store: MemoryStore, cache: Cache
) -> None:
    store.put("jobs", {**JOB, "wanted": 4})
    cache.refresh()
    assert one(cache).wanted == 4


def test_a_reading_that_a_write_overtook_does_not_bring_the_old_version_back(store: MemoryStore) -> None:
    class Slow(MemoryStore):
        def list(self, table: str, where: Any = None) -> list[Any]:
            found = super().list(table, where)
            if table == "gpus" and cache.job("one"):
                cache.write_job(one(cache), {"state": "adjusting"}, "op")
            return found

    slow = Slow()
    slow._tables = store._tables
    cache = Cache(slow)
    cache.refresh()
    cache.read_number = None  # reads all
    cache.refresh()
    assert (one(cache).state, one(cache).doc["version"]) == ("adjusting", 4)


def test_a_closed_job_leaves_the_books_and_stays_away(store: MemoryStore, cache: Cache) -> None:
    cache.write_job(one(cache), {"closed": True}, "close")
    assert cache.jobs() == {}
    cache.refresh()
    assert cache.jobs() == {}


def test_a_deleted_document_is_a_cancellation_until_the_job_is_at_rest(store: MemoryStore, cache: Cache) -> None:
    store.delete("jobs", "one")
    cache.refresh()
    assert one(cache).cancel
    cache.write_job(one(cache), {"state": "cancelled"}, "cancelled")
    cache.refresh()
    assert (one(cache).state, one(cache).cancel) == ("cancelled", True)
    assert store.get("jobs", "one") is None
    cache.write_job(one(cache), {"closed": True}, "close")
    cache.refresh()
    assert cache.jobs() == {}


def test_documents_that_intake_has_not_seen_are_told_apart_whatever_they_claim_to_be(
    store: MemoryStore, cache: Cache
) -> None:
    store.insert("jobs", {"_id": "new", "state": "submitted"})
    store.insert("jobs", {"_id": "sly", "state": "submitted", "closed": False})
    store.insert("jobs", {"_id": "old", "closed": True})
    assert [job.id for job in cache.refresh()] == ["new", "sly"]
    assert list(cache.jobs()) == ["one"]


def test_admitting_a_document_that_changed_meanwhile_is_a_conflict(store: MemoryStore, cache: Cache) -> None:
    store.insert("jobs", {"_id": "new", "state": "submitted"})
    (new,) = cache.refresh()
    store.update("jobs", "new", {}, {"message": "changed"})
    with pytest.raises(Conflict):
        cache.admit(new, {"uid": "x", "closed": False})


def test_a_job_that_another_coordinator_closed_was_not_deleted_by_its_user(store: MemoryStore, cache: Cache) -> None:
    rival = Cache(store)
    rival.refresh()
    rival.write_job(one(rival), {"state": "completed", "closed": True}, "close")
    cache.refresh()
    assert cache.jobs() == {}


def test_a_new_document_in_the_place_of_a_deleted_one_is_a_cancellation_too(store: MemoryStore, cache: Cache) -> None:
    store.delete("jobs", "one")
    store.insert("jobs", {"_id": "one", "state": "submitted"})
    cache.refresh()
    assert one(cache).cancel


# what reading again after a lost race brings into the cache


def test_a_job_that_another_coordinator_closed_does_not_come_back(store: MemoryStore, cache: Cache) -> None:
    job = cache.jobs()["one"]
    store.update("jobs", "one", {}, {"state": "completed", "closed": True})
    with pytest.raises(Conflict):
        cache.write_job(job, {"state": "adjusting"}, "op")
    assert cache.jobs() == {}
    cache.refresh()
    assert cache.jobs() == {}


def test_a_document_that_intake_has_not_let_in_stays_out_even_if_a_race_for_it_was_lost(
    store: MemoryStore, cache: Cache
) -> None:
    store.insert("jobs", {"_id": "new", "state": "submitted"})
    (new,) = cache.refresh()
    store.update("jobs", "new", {}, {"x_note": "edited"})
    with pytest.raises(Conflict):
        cache.write_job(new, {"state": "cancelled", "closed": True}, "cancel")
    assert list(cache.jobs()) == ["one"]
    assert [job.id for job in cache.refresh()] == ["new"], "and intake still gets to see it"


def test_a_deletion_is_first_a_lost_race_and_then_a_cancellation(store: MemoryStore, cache: Cache) -> None:
    store.delete("jobs", "one")
    with pytest.raises(Conflict):
        cache.write_job(cache.jobs()["one"], {"state": "adjusting"}, "op")
    cache.refresh()
    assert cache.jobs()["one"].cancel
    assert cache.write_job(cache.jobs()["one"], {"state": "cancelled"}, "cancelled").state == "cancelled"


def test_a_job_that_is_closed_while_the_store_is_being_read_stays_away(store: MemoryStore) -> None:
    class Slow(MemoryStore):
        def list(self, table: str, where: Any = None) -> list[Doc]:
            found = super().list(table, where)
            if table == "gpus" and (job := cache.job("one")):
                cache.write_job(job, {"state": "completed", "closed": True}, "close")
            return found

    slow = Slow()
    slow._tables = store._tables
    cache = Cache(slow)
    cache.refresh()
    cache.read_number = None  # reads all
    cache.refresh()  # closes it in the middle: the listing of open jobs still has it
    assert cache.jobs() == {}


def test_a_gpu_that_a_reading_found_as_it_was_before_our_claim_stays_claimed(store: MemoryStore) -> None:
    class Slow(MemoryStore):
        def list(self, table: str, where: Any = None) -> list[Doc]:
            found = super().list(table, where)
            if table == "gpus" and (gpu := cache.gpus().get("g")):
                cache.write_gpu(gpu, {"state": "idle"}, {"state": "reserved", "job_id": "one"})
            return found

    slow = Slow()
    slow._tables = store._tables
    cache = Cache(slow)
    cache.refresh()
    cache.read_number = None  # reads all
    cache.refresh()
    assert (cache.gpus()["g"].state, cache.gpus()["g"].job) == ("reserved", "one")


def test_when_even_reading_fails_the_books_stay_as_they_were(store: MemoryStore, cache: Cache) -> None:
    job = cache.jobs()["one"]
    store.down = True
    with pytest.raises(Transient):
        cache.write_job(job, {"state": "adjusting"}, "op")
    assert cache.jobs()["one"] is job
    store.down = False
    assert cache.write_job(job, {"state": "adjusting"}, "op").state == "adjusting"


def test_writes_are_told_apart_even_if_they_say_the_same(store: MemoryStore, cache: Cache) -> None:
    ops = set()
    for _ in range(3):
        ops.add(cache.write_job(JobRecord(cache.jobs()["one"].doc), {"state": "running"}, "op").doc["last_op"])
    assert len(ops) == 3


def test_a_map_that_was_read_stays_as_it_was_and_is_copied_again_only_after_a_change(cache: Cache) -> None:
    before = cache.jobs(), cache.gpus()
    assert cache.jobs() is before[0] and cache.gpus() is before[1]
    cache.write_job(one(cache), {"state": "adjusting"}, "op")
    cache.refresh()
    assert before[0]["one"].state == "running" and cache.jobs()["one"].state == "adjusting"
    assert cache.gpus() is before[1], "no GPU has changed"


def test_the_gpus_of_a_job_are_those_that_a_search_through_all_finds(store: MemoryStore, cache: Cache) -> None:
    rng, users = random.Random(7), [None, "one", "two", "three"]
    for number in range(6):
        store.insert("gpus", {**GPU, "_id": f"g{number}"})
    for _ in range(300):
        if rng.random() < 0.2:
            store.update(
                "gpus", f"g{rng.randrange(6)}", {}, {"job_id": rng.choice(users), "held_by": rng.choice(users)}
            )
            cache.refresh()
        else:
            gpu = rng.choice(list(cache.gpus().values()))
            cache.write_gpu(gpu, {}, {"job_id": rng.choice(users), "held_by": rng.choice(users)})
        for user in ("one", "two", "three"):
            wanted = {i for i, gpu in cache.gpus().items() if user in (gpu.job, gpu.held_by)}
            assert set(cache.gpus_of(JobRecord({"_id": user, "job_id": user}))) == wanted


def test_a_job_counts_as_changed_once_for_each_change_of_its_document_or_of_a_gpu(
    store: MemoryStore, cache: Cache
) -> None:
    assert cache.take_changed() == {"one"} and cache.take_changed() == set()
    cache.refresh()
    assert cache.take_changed() == set(), "read again, and the same"
    store.update("jobs", "one", {}, {"wanted": 2})
    cache.refresh()
    assert cache.take_changed() == {"one"}
    cache.write_gpu(cache.gpus()["g"], {}, {"held_by": "one"})
    assert cache.take_changed() == {"one"}
    cache.write_gpu(cache.gpus()["g"], {}, {"held_by": None})
    assert cache.take_changed() == {"one"}, "it lost the GPU"
