"""A GPU is freed only by the job that has it, also by a coordinator whose cache is out of date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.ports import Doc
from coordinator.reconcile.actions import WriteGpu
from coordinator.reconcile.gpu_allocation import releases
from coordinator.scheduling.garbage_collection import GarbageCollector
from coordinator.stores.cache import Cache
from tests.fakes.store import MemoryStore
from tests.unit.coordinator.situations import gpu, job, world


class _Stale:
    """A cache that read the table of GPUs before another process changed it."""

    def __init__(self, doc: Doc) -> None:
        self.store = MemoryStore()
        self.store.put("gpus", {"version": 1, "node": "n", **doc})
        self.cache = Cache(self.store)
        self.cache.refresh()

    def free(self, of: str) -> Mapping[str, Any] | None:
        """The GPU in the store after job `of` has freed it by this cache."""
        (record,) = self.cache.gpus().values()
        (step,) = releases(world(job(s.COMPLETED, name=of), None, [record]))
        assert isinstance(step, WriteGpu) and step.name == "free"
        self.cache.write_gpu(record, step.expect, step.changes)
        return self.store.get("gpus", "a")


OWNERS = [
    {"state": s.IN_USE, "job_id": "one", "held_by": "one"},  # its own
    {"state": s.RESERVED, "job_id": "two", "held_by": "one"},  # promised to a newcomer
    {"state": s.RESERVED, "job_id": "one", "held_by": "two"},  # promised to it, and held by its victim
]


@pytest.mark.parametrize("owners", OWNERS)
def test_a_gpu_that_was_given_to_another_job_meanwhile_is_not_freed(owners: Doc) -> None:
    stale = _Stale({"_id": "a", **owners})
    other = {"state": s.IN_USE, "job_id": "three", "held_by": "three", "version": 2}
    stale.store.put("gpus", {"_id": "a", "node": "n", **other})
    with pytest.raises(Conflict):
        stale.free("one")
    kept = stale.store.get("gpus", "a")
    assert kept is not None and {field: kept[field] for field in other} == other


@pytest.mark.parametrize("owners", OWNERS)
def test_a_gpu_that_is_still_its_own_is_freed(owners: Doc) -> None:
    after = _Stale({"_id": "a", **owners}).free("one")
    assert after is not None and "one" not in (after["job_id"], after["held_by"])


def test_the_filter_of_every_freeing_names_the_job() -> None:
    cache = [gpu("a", "one", "one"), gpu("b", "two", "one"), gpu("c", "one", "two")]
    steps = list(releases(world(job(s.COMPLETED, name="one"), None, cache)))
    assert [step.expect.get("job_id") for step in steps if isinstance(step, WriteGpu)] == ["one", "two", "one"]


def test_the_gpu_of_a_missing_job_is_waited_for_anew_by_whoever_begins_to_act() -> None:
    """Another coordinator may have renewed its lease until then."""
    there = _Stale({"_id": "a", "state": s.IN_USE, "job_id": "gone", "held_by": "gone", "generation": 1})
    collector = GarbageCollector(there.cache, 100.0, nothing_runs=lambda _job: False)
    collector.collect(0.0)
    collector.begin()
    collector.collect(101.0)
    assert [gpu.held_by for gpu in there.cache.gpus().values()] == ["gone"]
    collector.collect(202.0)
    assert [gpu.state for gpu in there.cache.gpus().values()] == [s.IDLE]
