"""A store that was emptied or is an older one is brought in line with what runs; nothing that runs notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.model import states as s
from coordinator.ports import Doc, Evidence, LivingLaunch
from coordinator.recovery.rebuild import Rebuilt, rebuild
from coordinator.stores.rules import are_lost
from sidecar.protocol import ShimStatus, command_id
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import GPU_TYPE, JOB_TYPE, NODE, SHORT, World

TABLES = ("jobs", "gpus", "nodes", "decisions", "events", "heartbeats", "terms", "speed_profiles", "overheads")
BOOKS = ("state", "generation", "launch", "gpu_ids", "num_gpus", "node", "uid", "reshape")


def copy_of(store: MemoryStore) -> dict[str, list[Doc]]:
    return {table: store.list(table) for table in TABLES}


def put_back(store: MemoryStore, rows: dict[str, list[Doc]] | None = None) -> None:
    """Empty the store, as its users can, and fill it with an earlier copy."""
    for table in TABLES:
        store.remove(table, [row["_id"] for row in store.list(table)])
        for row in (rows or {}).get(table, []):
            store.put(table, row)


def books(world: World) -> dict[str, Any]:
    jobs = {j["job_id"]: {name: j.get(name) for name in BOOKS} for j in world.users.list("jobs")}
    gpus = {g["_id"]: (g["state"], g["job_id"], g["held_by"]) for g in world.users.list("gpus")}
    return {"jobs": jobs, "gpus": gpus}


class ReadWhole(MemoryStore):
    """As at a first reading, it does not know which rows have changed."""

    def changed(self, tables: Sequence[str], since: int | None) -> tuple[int, None]:
        return 0, None


def three(store: MemoryStore | None = None) -> World:
    """Three jobs share four GPUs; the first one gave some of its own."""
    world = World(store=store)
    world.submit("one", [1, 2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    for name in ("two", "three"):
        world.submit(name, [1], Behaviour(iterations=4_000))
        world.run(lambda w, name=name: w.states()[name] == s.RUNNING and w.states()["one"] == s.RUNNING)  # type: ignore[misc]
    return world


def restart(world: World) -> None:
    """Another coordinator begins, as `reshape up` does."""
    world.boot()
    world.c.elector.try_to_lead()
    world.c._first = lambda: world._fill(4, ())
    world.c.recover()


def effects(world: World) -> tuple[int, int]:
    return world.machines.effects, sum(world.machines.executed.values())


def test_after_a_wipe_the_books_are_as_before_and_no_training_is_touched() -> None:
    world = three()
    before, done = books(world), effects(world)
    put_back(world.users)
    restart(world)
    assert books(world) == before
    world.pass_time(60)
    assert books(world) == before and effects(world) == done and world.broken() == []


def test_a_wipe_while_the_coordinator_acts_is_no_deletion() -> None:
    world = three()
    before, done = books(world), effects(world)
    world.c._first = lambda: world._fill(4, ())
    put_back(world.users)
    world.pass_time(30)
    assert books(world) == before and effects(world) == done and world.broken() == []


def test_of_an_older_copy_that_was_written_to_all_is_read_also_what_is_older_than_the_last_reading() -> None:
    """The number of its last change says nothing then: it counted other changes."""
    world = three()
    world.submit("waits", [8])
    world.pass_time(3)
    tables, changes = deepcopy(world.users._tables), dict(world.users._changes)
    world.api.operator.cancel("waits")
    world.users.update("speed_profiles", "mnist|1", {}, {"seconds_per_iteration": 3.0})
    world.run(lambda w: w.states()["waits"] == s.CANCELLED and "waits" not in w.c.cache.jobs())
    world.pass_time(world.config.term_s)
    for ours, copied in ((world.users._tables, tables), (world.users._changes, changes)):
        ours.clear()
        ours.update(copied)  # type: ignore[arg-type]
    for number in range(100):
        world.users.put("observations", {"_id": f"o{number}", "origin": "imported"})
    world.pass_time(3)
    speed = world.c.loop.profiles.speed(JOB_TYPE, GPU_TYPE, 1)
    assert world.c.cache.jobs().keys() == {"one", "two", "three", "waits"}
    assert speed is not None and speed.seconds < 2 and world.broken() == []


@pytest.mark.parametrize("kind", [MemoryStore, ReadWhole])
@pytest.mark.parametrize("table", ["jobs", "gpus"])
def test_a_table_that_is_dropped_while_the_coordinator_acts_is_no_deletion(
    table: str, kind: Callable[[], MemoryStore]
) -> None:
    world = three(kind())
    before, done = books(world), effects(world)
    world.users.remove(table, [row["_id"] for row in world.users.list(table)])
    world.pass_time(30)
    assert books(world) == before and effects(world) == done and world.broken() == []


def test_a_table_of_jobs_that_was_dropped_while_no_coordinator_acted_is_rebuilt() -> None:
    world = three()
    before, done = books(world), effects(world)
    world.users.remove("jobs", [row["_id"] for row in world.users.list("jobs")])
    restart(world)
    world.pass_time(30)
    assert books(world) == before and effects(world) == done and world.broken() == []


@pytest.mark.parametrize(
    ("deleted", "known", "lost"),
    [
        (1, 1, False),
        (1, 10_000, False),
        (2, 2, True),
        (2, 3, True),
        (2, 5, False),
        (10, 10_000, False),
        (11, 10_000, True),
    ],
)
def test_documents_that_go_at_once_are_lost_if_they_are_many_or_half_of_all(
    deleted: int, known: int, lost: bool
) -> None:
    assert are_lost(deleted, known) is lost


@pytest.mark.parametrize("kind", [MemoryStore, ReadWhole])
def test_of_several_jobs_one_whose_document_is_deleted_is_cancelled_and_no_other(
    kind: Callable[[], MemoryStore],
) -> None:
    world = three(kind())
    world.users.delete("jobs", "two")
    world.run(lambda w: set(w.states()) == {"one", "three"} and not w.machines.launches["two", 1].alive)
    world.users.delete("jobs", "three")
    world.run(lambda w: set(w.states()) == {"one"} and not w.machines.launches["three", 1].alive)
    assert world.machines.launches["one", 1].trains and world.broken() == []


def test_with_an_older_copy_what_runs_is_followed() -> None:
    world = World.training([1, 2, 4])
    old = copy_of(world.users)
    world.submit("two", [1], Behaviour(iterations=4_000))
    world.run(lambda w: set(w.states().values()) == {s.RUNNING} and len(w.states()) == 2)
    before, done = books(world), effects(world)
    put_back(world.users, old)
    restart(world)
    assert books(world)["jobs"] == before["jobs"]
    world.pass_time(60)
    assert books(world) == before and effects(world) == done and world.broken() == []


def test_with_an_older_copy_and_no_other_one_the_shims_alone_say_what_runs() -> None:
    world = World.training([1, 2, 4])
    old = copy_of(world.users)
    world.submit("two", [1], Behaviour(iterations=4_000))
    world.run(lambda w: set(w.states().values()) == {s.RUNNING} and len(w.states()) == 2)
    world.machines.end_trainer("two", 0)
    world.run(lambda w: w.states() == {"two": s.COMPLETED, "one": s.RUNNING} and len(w.job("one").gpu_ids) == 4)
    before, done = books(world)["jobs"]["one"], effects(world)
    put_back(world.users, old)
    world.machines.records.clear()
    restart(world)
    now = books(world)["jobs"]["one"]
    assert now == before and now["generation"] > 1
    world.pass_time(60)
    assert books(world)["jobs"]["one"] == before and effects(world) == done and world.broken() == []


def test_a_training_without_lease_that_the_copy_does_not_know_gets_none() -> None:
    world = World()
    world.submit("one", [4], Behaviour(iterations=20_000), elastic=None)
    world.run(lambda w: w.job("one").launch > 0)
    old = copy_of(world.users)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    put_back(world.users, old)
    world.machines.records.clear()
    restart(world)
    world.tick()
    world.machines.of("one").partitioned = True
    world.submit("two", [4], Behaviour(iterations=10))
    world.pass_time(5 * SHORT.wait_out_s)
    assert world.machines.launches["one", 1].trains and world.states() == {"one": s.RUNNING, "two": s.SUBMITTED}
    assert world.machines.violations == []


def test_the_last_report_of_a_launch_that_was_waited_out_claims_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster only reports say what runs."""
    world = World.training([4])
    monkeypatch.setattr(world.machines, "recall", lambda jobs: Evidence())
    world.machines.of("one").partitioned = True
    world.api.operator.suspend("one")
    world.pass_time(2 * SHORT.wait_out_s)
    world.submit("two", [4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["two"] == s.RUNNING)
    world.c._first = lambda: world._fill(4, ())
    put_back(world.users)
    world.tick(world.config.term_s / 2)
    assert world.states() == {"one": s.SUBMITTED, "two": s.RUNNING}
    assert not any(job.get("contradiction") for job in world.users.list("jobs"))


def test_a_job_that_ended_after_the_copy_was_made_is_not_trained_again() -> None:
    world = World.training([1])
    old = copy_of(world.users)
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest())
    done = effects(world)
    put_back(world.users, old)
    restart(world)
    world.run(lambda w: w.at_rest())
    assert world.states() == {"one": s.COMPLETED}
    assert [gpu[0] for gpu in books(world)["gpus"].values()] == [s.IDLE] * 4, "what the copy said of it is released"
    assert sum(world.machines.executed.values()) == done[1]


def test_a_document_that_was_deleted_while_no_coordinator_acted_stays_deleted() -> None:
    world = three()
    world.users.delete("jobs", "two")
    restart(world)
    assert sorted(world.states()) == ["one", "three"]


def test_a_store_that_lost_nothing_is_not_written_to() -> None:
    world = three()
    before = copy_of(world.users)
    found = rebuild(
        before["jobs"], before["gpus"], world.machines.records.values(), world.machines.recall(()).living, 0
    )
    assert found == Rebuilt()


def test_on_one_machine_a_store_that_is_away_for_an_hour_fails_nothing() -> None:
    world = World(config=replace(SHORT, fences=False, many_pods=False))
    for name in ("one", "two"):
        world.submit(name, [1, 2], Behaviour(iterations=100_000))
    world.run(lambda w: set(w.states().values()) == {s.RUNNING})
    world.pass_time(60)
    before, done = books(world), effects(world)
    world.store.down = True
    for _ in range(60):
        world.tick(60)
    assert effects(world) == done and world.machines.violations == []
    world.store.down = False
    world.pass_time(60)
    assert books(world) == before and effects(world) == done and world.broken() == []


# two truths


def running(job: str, uid: str, gpus: list[str], generation: int = 1, launch: int = 1) -> LivingLaunch:
    start = command_id(job, generation, "start")
    return LivingLaunch(
        job, uid, launch, ShimStatus(trainer="running", generation=generation, gpu_ids=gpus, command_id=start)
    )


def document(job: str, uid: str, gpus: list[str], version: int = 5, **more: Any) -> Doc:
    return {
        "_id": uid, "job_id": job, "uid": uid, "state": s.RUNNING, "closed": False, "version": version, "launch": 1,
        "generation": 1, "gpu_ids": gpus, "num_gpus": len(gpus), "optional_num_gpus": [1, 2], "reshape": None, **more,
    }  # fmt: skip


def row(gpu: str, **more: Any) -> Doc:
    free = {"state": s.IDLE, "job_id": None, "held_by": None}
    return {"_id": gpu, "node": NODE, "gpu_type": GPU_TYPE, "version": 1, **free, **more}


def test_two_trainings_on_one_gpu_are_both_set_aside_and_neither_is_stopped() -> None:
    docs = [document("a", "ua", ["g1"]), document("b", "ub", ["g1", "g2"])]
    found = rebuild([], [row("g1"), row("g2")], docs, [running("a", "ua", ["g1"]), running("b", "ub", ["g1", "g2"])], 0)
    marks = {doc["job_id"]: doc["contradiction"] for doc in found.jobs}
    assert "job b trains on GPU g1, too" in marks["a"] and "reshape store settle NAME" in marks["b"]
    assert {doc["state"] for doc in found.jobs} == {s.RUNNING}
    assert found.gpus["g1"]["held_by"] == "a" and found.gpus["g2"]["held_by"] == "b"
    alone = rebuild(found.jobs, [row("g1"), row("g2")], (), [running("b", "ub", ["g1", "g2"])], 0)
    assert {doc["job_id"]: doc["contradiction"] for doc in alone.jobs} == {"a": None, "b": None}


def test_a_gpu_on_which_a_training_without_any_document_runs_is_given_to_nobody_until_it_ends() -> None:
    found = rebuild([], [row("g1")], (), [running("a", "ua", ["g1"])], 0)
    assert found.jobs == () and found.gpus["g1"]["state"] == s.FAULTY
    later = rebuild([], [row("g1", **found.gpus["g1"])], (), (), 0)
    assert later.gpus["g1"]["state"] == s.IDLE


def test_of_two_open_documents_of_one_name_that_which_runs_stays() -> None:
    stored = [document("a", "old", ["g1"], submit_ts=1.0)]
    found = rebuild(stored, [row("g1", job_id="a", held_by="a", state=s.IN_USE), row("g2")],
                    [document("a", "new", ["g2"])], [running("a", "new", ["g2"])], 0)  # fmt: skip
    states = {doc["uid"]: (doc["state"], doc["closed"]) for doc in found.jobs}
    assert states == {"old": (s.FAILED, True), "new": (s.RUNNING, False)}
    assert found.gpus["g2"]["held_by"] == "a"
    lost = rebuild(stored, [row("g1")], [document("a", "new", ["g2"])], [running("a", "new", ["g2"])], 0)
    assert {doc["uid"]: doc["state"] for doc in lost.jobs} == {"old": s.FAILED, "new": s.RUNNING}


GPUS = ["g1", "g2", "g3", "g4"]


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[Doc], list[Doc], list[Doc], list[LivingLaunch]]:
    """Any mixture of stored documents, copies, rows and launches of up to four jobs."""
    stored, kept, living = [], [], []
    held: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        gpus, generation = draw(st.lists(st.sampled_from(GPUS), unique=True)), draw(st.integers(0, 4))
        for where in (stored, kept):
            if draw(st.booleans()):
                state = draw(st.sampled_from([s.RUNNING, s.SUBMITTED, s.ADJUSTING, s.RESTARTING, s.COMPLETED]))
                mine = draw(st.lists(st.sampled_from(GPUS), unique=True)) if state in s.LAUNCHED else []
                versions = {"version": draw(st.integers(1, 9)), "generation": draw(st.integers(0, generation))}
                where.append(document(name, f"u{name}", mine, state=state, **versions))
        if draw(st.booleans()):
            trainer = draw(st.sampled_from(["none", "running", "stopping", "exited"]))
            verb = draw(st.sampled_from(["start", "stop"]))
            shim = ShimStatus(
                trainer=trainer, generation=generation, gpu_ids=gpus, command_id=command_id(name, generation, verb)
            )
            living.append(LivingLaunch(name, f"u{name}", draw(st.integers(1, 2)), draw(st.sampled_from([shim, None]))))
        held |= dict.fromkeys(draw(st.lists(st.sampled_from(GPUS), unique=True)), name)
    rows = [row(g, **({"state": s.IN_USE, "job_id": held[g], "held_by": held[g]} if g in held else {})) for g in GPUS]
    return stored, rows, kept, living


def after(rows: list[Doc], key: str, found: Any) -> dict[str, Doc]:
    now = {str(one[key]): one for one in rows}
    return now | {str(one[key]): one for one in found}


@given(anything())
def test_whatever_is_left_no_gpu_in_use_is_free_and_once_more_changes_nothing(
    world: tuple[list[Doc], list[Doc], list[Doc], list[LivingLaunch]],
) -> None:
    stored, rows, kept, living = world
    found = rebuild(stored, rows, kept, living, 0)
    jobs = after(stored, "_id", found.jobs)
    gpus = after(rows, "_id", [{**next(r for r in rows if r["_id"] == g), **c} for g, c in found.gpus.items()])
    users: dict[str, set[str]] = {}
    for one in living:
        for gpu in one.shim.gpu_ids if one.shim and one.shim.trainer in ("running", "stopping") else ():
            users.setdefault(gpu, set()).add(one.job_id)
    for gpu, names in users.items():
        assert gpus[gpu]["state"] != s.IDLE, "a GPU that is used is given to nobody"
        known = {j["job_id"] for j in jobs.values() if not j["closed"] and j["state"] not in s.ENDED} & names
        if len(known) == 1:
            assert gpus[gpu]["held_by"] in names or gpus[gpu]["state"] == s.FAULTY
        if len(known) > 1:
            marked = {j["job_id"] for j in jobs.values() if j.get("contradiction")}
            assert known <= marked, "both wait for a human"
    assert not any(doc["state"] in s.ENDED and doc not in stored for doc in found.jobs if doc not in kept and not any(
        doc["uid"] == k["uid"] and k["state"] in s.ENDED for k in kept)), "nothing is ended for it"  # fmt: skip
    again = rebuild(list(jobs.values()), list(gpus.values()), kept, living, 0)
    assert again.jobs == () and not again.gpus, "it has come to rest"


def test_a_waiting_job_that_a_coordinator_has_in_memory_is_not_lost_with_the_store() -> None:
    world = three()
    old = copy_of(world.users)
    world.pass_time(20)  # the term is renewed meanwhile
    world.submit("waits", [8], Behaviour(iterations=10))
    world.run(lambda w: w.job("waits").accepted)
    world.c._first = lambda: world._fill(4, ())
    before = books(world)
    put_back(world.users, old)
    world.pass_time(30)
    assert books(world) == before
