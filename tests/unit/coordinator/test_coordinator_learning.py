"""What a sidecar says may be nonsense: it is not learned, and learning goes on. The rest: `test_learning.py`."""

from __future__ import annotations

import math

import pytest

from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from coordinator.telemetry.profile_estimator import LEAST_CHANGE, NEW_SHARE, ProfileEstimator
from tests.fakes.store import MemoryStore

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
