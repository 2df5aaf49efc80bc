"""What a store holds before anybody wrote to it: shipped profiles that users may change, and this machine's GPUs."""

from __future__ import annotations

import pytest

from adaptive_scheduler.profiles.profiles import Profiles
from coordinator.ports import Doc
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_gpus, register_nodes, seed_profiles, shipped
from tests.fakes.store import MemoryStore

TABLES = ("speed_profiles", "overheads", "accuracy_profiles")

# Seed 004, Tables IV and V (job type 0).
TABLE_IV = {("1080Ti", 1): 0.31, ("1080Ti", 2): 0.23, ("P100", 1): 0.25, ("P100", 2): 0.19,
            ("V100", 1): 0.18, ("V100", 2): 0.14}  # fmt: skip
TABLE_V = {1: 0.008, 5: 0.019, 10: 0.025, 20: 0.032}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def emulated(count: int) -> list[FoundGpu]:
    return [FoundGpu(f"g{n}", "V100", None, True) for n in range(count)]


def gpus(store: MemoryStore) -> dict[str, Doc]:
    return {doc["_id"]: doc for doc in store.list("gpus")}


def test_every_shipped_row_can_be_used_and_says_where_it_comes_from() -> None:
    rows = {table: shipped(table) for table in TABLES}
    assert Profiles.from_rows(*(rows[table] for table in TABLES)).problems == ()
    assert all(row["origin"] for table in TABLES for row in rows[table])
    keys = [(table, row["_id"]) for table in TABLES for row in rows[table]]
    assert len(keys) == len(set(keys))


def test_a_type_without_overheads_of_its_own_is_expected_to_start_as_fast_as_on_one_machine(store: MemoryStore) -> None:
    seed_profiles(store)
    unknown = Profiles.from_rows([], store.list("overheads")).overheads("never seen")
    assert (unknown.k8s_init, unknown.reshape, unknown.finish) == (3.0, pytest.approx(0.7), pytest.approx(2.2))
    assert "one machine" in unknown.origin


def test_the_rows_of_tables_iv_and_v_are_among_them(store: MemoryStore) -> None:
    seed_profiles(store)
    profiles = Profiles.from_rows(*(store.list(table) for table in TABLES))
    for (gpu_type, count), seconds in TABLE_IV.items():
        speed = profiles.speed("0", gpu_type, count)
        assert speed is not None
        assert (speed.seconds, speed.low_confidence) == (seconds, False)
        assert "Table IV" in speed.origin
    assert {point.iterations: point.top5 for point in profiles.accuracy("0")} == TABLE_V


def test_the_examples_have_profiles_so_that_a_demo_has_something_to_decide_with(store: MemoryStore) -> None:
    seed_profiles(store)
    profiles = Profiles.from_rows(*(store.list(table) for table in TABLES))
    for job_type in ("digits-numpy", "digits-keras"):
        speeds = [profiles.speed(job_type, "V100", n) for n in (1, 2, 4)]
        assert [speed.seconds for speed in speeds if speed] == pytest.approx([0.12, 0.12 / 1.7, 0.12 / 2.4], rel=1e-4)
        assert profiles.overheads(job_type).origin == "measured on two CPU cores"


def test_a_row_that_somebody_changed_stays_and_one_that_is_missing_comes_back(store: MemoryStore) -> None:
    seed_profiles(store)
    key, gone = shipped("speed_profiles")[0]["_id"], shipped("overheads")[0]["_id"]
    store.update("speed_profiles", key, {}, {"seconds_per_iteration": 9.0})
    store.delete("overheads", gone)
    before = store.writes
    seed_profiles(store)
    assert (store.get("speed_profiles", key) or {})["seconds_per_iteration"] == 9.0
    assert store.get("overheads", gone) is not None
    assert store.writes == before + 1


def test_a_machines_gpus_are_idle_and_in_their_order(store: MemoryStore) -> None:
    register_gpus(store, "n1", emulated(2))
    assert [(d["gpu_id"], d["index"], d["node"], d["state"], d["job_id"], d["held_by"], d["emulated"])
            for d in store.list("gpus")] == [("g0", 0, "n1", "idle", None, None, True),
                                             ("g1", 1, "n1", "idle", None, None, True)]  # fmt: skip


def test_gpus_that_are_known_keep_their_state(store: MemoryStore) -> None:
    register_gpus(store, "n1", emulated(2))
    store.update("gpus", "g0", {}, {"state": "in use", "job_id": "a", "held_by": "a"})
    before = gpus(store)
    register_gpus(store, "n1", emulated(2))
    assert gpus(store) == before


@pytest.mark.parametrize("state", ["idle", "faulty"])
def test_a_gpu_that_is_gone_and_unused_is_forgotten(store: MemoryStore, state: str) -> None:
    register_gpus(store, "n1", emulated(2))
    store.update("gpus", "g1", {}, {"state": state})
    register_gpus(store, "n1", emulated(1))
    assert list(gpus(store)) == ["g0"]
    register_gpus(store, "n1", emulated(2))
    assert gpus(store)["g1"]["state"] == "idle"


@pytest.mark.parametrize(
    "use",
    [
        {"state": "in use", "job_id": "a", "held_by": "a"},
        {"state": "reserved", "job_id": "a", "held_by": None},
        {"state": "reserved", "job_id": "b", "held_by": "a"},
    ],
)
def test_a_gpu_that_is_gone_though_a_job_has_it_is_faulty_until_the_job_lets_go(store: MemoryStore, use: Doc) -> None:
    register_gpus(store, "n1", emulated(2))
    store.update("gpus", "g1", {}, use)
    register_gpus(store, "n1", emulated(1))
    kept = gpus(store)["g1"]
    assert {f: kept[f] for f in ("state", "job_id", "held_by")} == {**use, "state": "faulty"}


def test_the_nodes_that_are_given_are_all_that_there_are(store: MemoryStore) -> None:
    register_nodes(store, [FoundNode("a", tuple(emulated(2))), FoundNode("c", cores=2.0, memory=8e9)])
    assert [(d["_id"], d["cores"], d["memory"]) for d in store.list("nodes")] == [("a", 0.0, 0.0), ("c", 2.0, 8e9)]
    store.update("gpus", "g1", {}, {"state": "in use", "job_id": "x", "held_by": "x"})
    register_nodes(store, [FoundNode("c", cores=4.0)])
    assert [(d["_id"], d["cores"]) for d in store.list("nodes")] == [("c", 4.0)]
    assert {g: d["state"] for g, d in gpus(store).items()} == {"g1": "faulty"}, "what a job still has stays known"


def test_the_gpus_of_other_machines_are_left_alone(store: MemoryStore) -> None:
    register_gpus(store, "n1", emulated(1))
    register_gpus(store, "n2", [FoundGpu("GPU-7", "H100", 80 << 30, False)])
    assert {g: d["node"] for g, d in gpus(store).items()} == {"g0": "n1", "GPU-7": "n2"}
    assert gpus(store)["GPU-7"]["memory_total"] == 80 << 30


def test_a_machine_with_a_new_name_keeps_its_gpus(store: MemoryStore) -> None:
    """A container's host name changes with each start, and its GPUs do not."""
    register_nodes(store, [FoundNode("old", tuple(emulated(2)))])
    store.update("gpus", "g1", {}, {"state": "in use", "job_id": "x", "held_by": "x"})
    register_nodes(store, [FoundNode("new", tuple(emulated(2)))])
    known = {g: (d["node"], d["state"]) for g, d in gpus(store).items()}
    assert known == {"g0": ("new", "idle"), "g1": ("old", "in use")}, "what a job has goes on under the old name"
    store.update("gpus", "g1", {}, {"state": "idle", "job_id": None, "held_by": None})
    register_nodes(store, [FoundNode("new", tuple(emulated(2)))])
    assert {d["node"] for d in gpus(store).values()} == {"new"}


def test_a_gpu_that_others_use_is_faulty_from_the_beginning_and_well_once_they_are_gone(store: MemoryStore) -> None:
    used = FoundGpu("GPU-1", "V100", None, False, problem="used by process 7 (python) of bob")
    register_nodes(store, [FoundNode("here", (used,))])
    assert (gpus(store)["GPU-1"]["state"], gpus(store)["GPU-1"]["problem"]) == ("faulty", used.problem)
    register_nodes(store, [FoundNode("here", (FoundGpu("GPU-1", "V100", None, False, others="also used by x"),))])
    assert (gpus(store)["GPU-1"]["state"], gpus(store)["GPU-1"]["others"]) == ("idle", "also used by x")
