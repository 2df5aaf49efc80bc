"""Counts what queues are guaranteed of single GPU types, and what queues and their users have of each.

Such a guarantee is a pool of its own: nobody takes what a queue has within it, and a job that waits for it gets GPUs of
the type from whoever has some beyond a guarantee. Called by `standing.py` and `rights.py`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from adaptive_scheduler.index import Ints
from adaptive_scheduler.rights.covered import CoveredGpus
from adaptive_scheduler.rights.owners import JobColumns
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

ANY_TYPE = -1.0
OTHER_TYPE = -2.0


class TypeGuarantees:
    """The guarantees of one decision, with what is held as it is made."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        owners: Sequence[JobOwner],
        columns: JobColumns,
        values: Mapping[str, float],
        covered: CoveredGpus,
    ) -> None:
        """`owners`: by their numbers in `columns`. `values`: standard GPUs by GPU type."""
        self.gpu_types = guaranteed_types(snapshot)
        self._covered = covered
        self._values = values
        self._held: Counter[tuple[JobOwner | str, str]] = Counter()
        self._due: Counter[tuple[str, str]] = Counter()
        if not self.gpu_types:
            return
        at, asked = snapshot.rows(_type_row, self.gpu_types, snapshot.gpu_types).reshape(-1, 2).T
        on_gpus = columns.owner >= 0
        best = max(values.values(), default=1.0)
        for number, gpu_type in enumerate(self.gpu_types):
            has = on_gpus & (at == number)
            for owner, count in _by_owner(owners, columns.owner[has], columns.gpus[has]):
                self.count_gpus(owner, gpu_type, count)
            may_have = on_gpus & ((asked == number) | (asked == ANY_TYPE))
            value = np.where(asked == ANY_TYPE, best, values.get(gpu_type, 1.0))
            wanted = (columns.demand / value)[may_have]
            for owner, count in _by_owner(owners, columns.owner[may_have], wanted):
                self._due[owner.queue, gpu_type] += count
        for queue, gpu_type in self._due:
            most = snapshot.shares.queue(queue).guaranteed_types.get(gpu_type, 0)
            self._due[queue, gpu_type] = min(self._due[queue, gpu_type], most)

    def __bool__(self) -> bool:
        return bool(self.gpu_types)

    def count_gpus(self, owner: JobOwner, gpu_type: str, more: int) -> None:
        """Count GPUs that an owner gets, or gives up (negative)."""
        if gpu_type in self.gpu_types:
            self._held[owner, gpu_type] += more
            self._held[owner.queue, gpu_type] += more

    def guaranteed_units(self, queue: str) -> float:
        """Return the standard GPUs that a queue is guaranteed by type, and that its jobs could use."""
        return sum(self._due[queue, name] * self._values.get(name, 1.0) for name in self.gpu_types)

    def held_by_queue(self, gpu_type: str) -> Mapping[str, float]:
        """Return the GPUs of a type that each queue has."""
        return {
            name: float(count)
            for (name, of_type), count in self._held.items()
            if of_type == gpu_type and not isinstance(name, JobOwner)
        }

    def missing(self, queue: str, gpu_type: str) -> int:
        """Return how many GPUs of a type a queue has less than it is guaranteed; negative for what is beyond."""
        return self._due[queue, gpu_type] - self._beside_reserved(queue, gpu_type)

    def units_beyond(self, queue: str, gpu_type: str) -> float:
        """Return the standard GPUs of a type that a queue has beyond its guarantee of that type."""
        return max(0, -self.missing(queue, gpu_type)) * self._values.get(gpu_type, 1.0)

    def units_of(self, owner: JobOwner, gpu_type: str) -> float:
        """Return the standard GPUs of a type that an owner has."""
        return self._beside_reserved(owner, gpu_type) * self._values.get(gpu_type, 1.0)

    def _beside_reserved(self, name: JobOwner | str, gpu_type: str) -> int:
        held = self._held[name, gpu_type]
        return held - self._covered.gpus_of(name, gpu_type) if self._covered else held

    def type_numbers(self, snapshot: ClusterSnapshot) -> Ints:
        """Return by job the place of its GPUs' type in `gpu_types`; -1 for others, and without GPUs."""
        rows = snapshot.rows(_type_row, self.gpu_types, snapshot.gpu_types).reshape(-1, 2)
        return rows[:, 0].astype("intp")


def guaranteed_types(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """Return the GPU types of which some queue is guaranteed a number."""
    return tuple(sorted({name for queue in snapshot.shares.queues.values() for name in queue.guaranteed_types}))


def _type_row(job: Job, gpu_types: Sequence[str], type_of_node: Mapping[str, str]) -> tuple[float, float]:
    """Return the place of the type that a job has, and of the only one that it may have."""
    has = type_of_node.get(job.node or "")
    asked = job.gpu_type
    at = gpu_types.index(has) if has in gpu_types else ANY_TYPE
    only = gpu_types.index(asked) if asked in gpu_types else OTHER_TYPE
    return at, ANY_TYPE if asked is None else only


def _by_owner(owners: Sequence[JobOwner], numbers: Ints, counts: Sequence[float]) -> list[tuple[JobOwner, int]]:
    sums = np.bincount(numbers, counts)
    return [(owners[number], round(float(sums[number]))) for number in np.flatnonzero(sums).tolist()]
