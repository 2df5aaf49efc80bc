"""What ran teaches: speeds and overheads become rows of origin `measured`, written seldom and never lost."""

from __future__ import annotations

import math

import pytest

from adaptive_scheduler.models.pause import more_s
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from coordinator.errors import Transient
from coordinator.ports import Doc
from coordinator.telemetry.profile_estimator import LEAST_CHANGE, NEW_SHARE, ProfileEstimator
from tests.fakes.store import MemoryStore

KNOWN = {"k8s_init": 80.0, "k8s_term": 50.0, "proc_init": 20.0, "proc_term": 8.0, "ckpt": 4.0}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def profiles() -> Profiles:
    return Profiles.from_rows([], [{"job_type": "t", "origin": "shipped", **KNOWN}])


def row(store: MemoryStore, table: str) -> dict[str, object]:
    (found,) = store.list(table)
    return found


def test_a_measured_speed_is_what_the_next_snapshot_reads(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.speed("t", "V100", 2, 0.5)
    assert store.list("speed_profiles") == []
    estimator.flush()
    speed = Profiles.from_rows(store.list("speed_profiles")).speed("t", "V100", 2)
    assert speed is not None
    assert (speed.seconds, speed.origin) == (0.5, "measured")


def test_a_pause_and_the_state_that_it_was_measured_with_are_learned_together(store: MemoryStore) -> None:
    estimator, unknown = ProfileEstimator(store), Profiles()
    estimator.save("t", unknown, 21.0, 15.7e9)
    estimator.flush()
    saved = Profiles.from_rows([], store.list("overheads"))
    first = saved.overheads("t")
    assert (first.ckpt, first.ckpt_state, first.restart_state) == (21.0, pytest.approx(21.0), 0.0)
    assert more_s(first, 15.7e9, "disk") == pytest.approx(9.7), "its save is measured, a start with it is not"
    estimator.overheads("t", saved, ckpt=20.0, proc_restart=12.0, ckpt_state=21.0, restart_state=9.7)
    estimator.flush()
    known = Profiles.from_rows([], store.list("overheads")).overheads("t")
    assert known.reshape == 20.0 + DEFAULT_OVERHEADS.proc_term + 12.0
    assert more_s(known, 15.7e9, "disk") == pytest.approx(0.0), "the same size again takes as long as measured"


def test_a_save_whose_size_is_told_later_is_not_counted_twice(store: MemoryStore) -> None:
    estimator, unknown = ProfileEstimator(store), Profiles()
    estimator.save("t", unknown, 21.0)  # its checkpoint is not verified yet
    estimator.save("t", unknown, 21.0, 15.7e9)
    estimator.flush()
    first = Profiles.from_rows([], store.list("overheads")).overheads("t")
    assert (first.ckpt, first.ckpt_state) == (21.0, pytest.approx(21.0))
    before = store.writes
    for size in (15.7e9, 15.6e9, 0.0):
        estimator.save("t", unknown, 20.5, size)
    estimator.flush()
    assert store.writes == before, "about the same again is no news"


def test_a_row_of_an_older_version_is_read_and_goes_on_as_before(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.overheads("t", profiles(), ckpt=3.0)
    estimator.flush()
    known = Profiles.from_rows([], store.list("overheads")).overheads("t")
    assert (known.ckpt, known.ckpt_state) == (3.0, None)
    assert more_s(known, 15.7e9, "disk") == 0.0


def test_a_speed_that_hardly_moved_is_not_written_again(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.speed("t", "V100", 2, 0.500)
    estimator.flush()
    before = store.writes
    estimator.speed("t", "V100", 2, 0.505)
    estimator.flush()
    assert store.writes == before
    for _ in range(60):  # it is a running mean: jobs of one type differ a little from each other
        estimator.speed("t", "V100", 2, 0.6)
    estimator.flush()
    assert row(store, "speed_profiles")["seconds_per_iteration"] == pytest.approx(0.6, rel=LEAST_CHANGE)


def test_jobs_of_one_type_that_differ_a_little_do_not_rewrite_their_row_at_every_heartbeat(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    for _ in range(100):
        for seconds in (0.49, 0.50, 0.51):
            estimator.speed("t", "V100", 2, seconds)
        estimator.flush()
    assert store.writes <= 3


def test_a_first_measurement_replaces_what_was_assumed_and_later_ones_are_averaged(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.overheads("t", profiles(), ckpt=1.0, proc_init=None)
    estimator.flush()
    assert {k: row(store, "overheads")[k] for k in KNOWN} == {**KNOWN, "ckpt": 1.0}
    estimator.overheads("t", profiles(), ckpt=2.0)
    estimator.flush()
    assert row(store, "overheads")["ckpt"] == 1.5
    assert row(store, "overheads")["measured"] == ["ckpt"]


def test_the_saves_of_a_training_are_the_prediction_until_a_stop_has_shown_what_it_takes(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.save("t", profiles(), 22.0)
    estimator.flush()
    assert {k: row(store, "overheads")[k] for k in KNOWN} == {**KNOWN, "ckpt": 22.0}
    before = store.writes
    estimator.save("t", profiles(), 23.0)  # each save differs a little
    estimator.flush()
    assert store.writes == before
    estimator.overheads("t", profiles(), ckpt=2.0)
    estimator.save("t", profiles(), 22.0)
    estimator.flush()
    assert row(store, "overheads")["ckpt"] == 2.0


def test_what_was_not_measured_or_cannot_be_true_is_not_written(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.overheads("t", profiles(), ckpt=None, proc_init=-1.0)
    estimator.flush()
    assert store.list("overheads") == []


def test_the_curve_of_a_finished_job_is_what_the_next_of_its_type_is_predicted_by(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.curve("t", [(10.0, 0.1), (100.0, 0.4), (1000.0, 0.8)])
    estimator.flush()
    estimator.curve("t", [(1010.0, 0.7)])
    estimator.flush()
    points = Profiles.from_rows([], [], store.list("accuracy_profiles")).accuracy("t")
    assert [(p.iterations, p.top5, p.origin) for p in points] == [
        (10, 0.1, "measured"), (100, 0.4, "measured"), (1010, 0.7, "measured"),
    ]  # fmt: skip


def test_however_many_curves_are_learned_the_table_stays_small(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    for start in range(1, 8):
        estimator.curve("t", [(float(k), 0.5) for k in range(start, 100_000, 97)])
    estimator.flush()
    assert len(store.list("accuracy_profiles")) <= 4 * 17 + 1


def test_what_could_not_be_written_is_written_later(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.speed("t", "V100", 2, 0.5)
    store.hiccups.append("before")
    with pytest.raises(Transient):
        estimator.flush()
    estimator.flush()
    assert row(store, "speed_profiles")["num_gpus"] == 2


def test_two_threads_that_write_at_once_do_not_trip_over_a_finished_job(store: MemoryStore) -> None:
    """`stop` writes too, though the thread that usually does may still wait for the store."""

    class Slow(MemoryStore):
        def put(self, table: str, doc: Doc) -> None:
            super().put(table, doc)
            slow.put = super().put  # type: ignore[method-assign]
            estimator.flush()

    slow = Slow()
    estimator = ProfileEstimator(slow)
    estimator.observed({"_id": "u", "cores": 1.0, "execution_s": 5.0})
    estimator.flush()
    assert [row["_id"] for row in slow.list("observations")] == ["u"]


def test_rows_that_others_put_into_the_table_count_once_and_are_marked(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    store.put("observations", {"_id": "mine", "cores": 1, "execution_s": 60})
    store.put("observations", {"_id": "of no use", "cores": 1, "execution_s": -1})
    assert estimator.observations().rows == ()
    estimator.take_foreign()
    (known,) = estimator.observations().rows
    assert known.execution_s == 60
    assert [row["origin"] for row in store.list("observations")] == ["imported", "imported"]
    estimator.take_foreign()
    assert estimator.observations().rows == (known,)


def test_of_a_task_of_which_more_has_become_known_one_row_counts(store: MemoryStore) -> None:
    estimator = ProfileEstimator(store)
    estimator.observed({"_id": "u", "cores": 1.0, "execution_s": 5.0})
    estimator.observed({"_id": "u", "cores": 1.0, "execution_s": 5.0, "used_cores": 0.5})
    estimator.flush()
    assert len(estimator.observations().rows) == 1
    assert row(store, "observations")["used_cores"] == 0.5
    assert len(ProfileEstimator(store).observations().rows) == 1


def test_only_the_newest_tasks_are_kept_in_memory(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.telemetry.profile_estimator.MOST_OBSERVED", 2)
    store.put("observations", {"_id": "a", "at": 3.0, "execution_s": 3})
    store.put("observations", {"_id": "b", "at": 1.0, "execution_s": 1})
    estimator = ProfileEstimator(store)
    estimator.observed({"_id": "c", "at": 4.0, "execution_s": 4.0})
    assert [row.execution_s for row in estimator.observations().rows] == [3, 4]


NONSENSE = [0.0, -1.0, math.inf, math.nan, 1e300]


@pytest.mark.parametrize("seconds", NONSENSE)
def test_a_speed_that_cannot_be_true_is_never_learned(seconds: float) -> None:
    store = MemoryStore()
    estimator = ProfileEstimator(store)
    for given in (seconds, seconds, 0.5, seconds):
        estimator.speed("t", "V100", 2, given)
    estimator.flush()
    assert [row["seconds_per_iteration"] for row in store.list("speed_profiles")] == [0.5]


@pytest.mark.parametrize("seconds", [s for s in NONSENSE if s != 0])
def test_an_overhead_that_cannot_be_true_is_never_learned(seconds: float) -> None:
    store = MemoryStore()
    estimator = ProfileEstimator(store)
    estimator.overheads("t", Profiles(), ckpt=seconds, proc_term=0.0)
    estimator.flush()
    (row,) = store.list("overheads")
    assert (row["ckpt"], row["proc_term"], row["measured"]) == (DEFAULT_OVERHEADS.ckpt, 0.0, ["proc_term"])
    assert Profiles.from_rows([], [row]).problems == ()


def test_speeds_of_other_types_gpus_and_counts_are_rows_of_their_own() -> None:
    store = MemoryStore()
    estimator = ProfileEstimator(store)
    for key in (("t", "V100", 1), ("t", "V100", 2), ("t", "P100", 1), ("u", "V100", 1)):
        estimator.speed(*key, 0.5)
    estimator.flush()
    assert {row["_id"] for row in store.list("speed_profiles")} == {
        "t|V100|1|measured", "t|V100|2|measured", "t|P100|1|measured", "u|V100|1|measured",
    }  # fmt: skip


def test_small_changes_add_up_until_they_are_written() -> None:
    """The comparison is with what was written, not with the last report: a slow drift is not missed."""
    store = MemoryStore()
    estimator = ProfileEstimator(store)
    for step in range(100):
        estimator.speed("t", "V100", 1, min(1.0 + step * LEAST_CHANGE / 4, 1.25))
    estimator.flush()
    assert store.list("speed_profiles")[0]["seconds_per_iteration"] == pytest.approx(1.25, rel=2 * LEAST_CHANGE)


def test_a_change_that_comes_while_its_row_is_being_written_is_written_the_next_time() -> None:
    class Slow(MemoryStore):
        def put(self, table: str, doc: dict[str, object]) -> None:
            if not self.writes:
                estimator.speed("t", "V100", 1, 2.0)
            super().put(table, doc)

    store = Slow()
    estimator = ProfileEstimator(store)
    estimator.speed("t", "V100", 1, 1.0)
    estimator.flush()
    estimator.flush()
    (row,) = store.list("speed_profiles")
    assert row["seconds_per_iteration"] > 1.05


def test_later_overheads_move_what_is_known_by_their_share_each() -> None:
    store = MemoryStore()
    estimator, expected = ProfileEstimator(store), 4.0
    for seconds in (4.0, 2.0, 3.0):
        estimator.overheads("t", Profiles(), proc_init=seconds)
        expected += NEW_SHARE * (seconds - expected)
    estimator.flush()
    (row,) = store.list("overheads")
    assert row["proc_init"] == expected
    assert (row["origin"], row["_id"]) == ("measured", "t|measured")
