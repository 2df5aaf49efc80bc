"""Looks up execution times of finished tasks by their requests: the tables P and P_GPU of Slaml.

Built by the coordinator from its `observations` and by the simulator from a trace; read by the deadline policy. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Resource = Literal["gpus", "cores", "memory"]
RESOURCES: tuple[Resource, ...] = ("gpus", "cores", "memory")  # ties go to the first (D1)


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished task: the requests of each replica, and completion minus start in seconds (D11)."""

    cores: float
    memory: float  # bytes
    gpus: float
    execution_s: float


class ExpectedExecution(NamedTuple):
    """Expected remaining seconds, and whether they rest on weak evidence."""

    seconds: float
    low_confidence: bool = False


@dataclass(frozen=True)
class Observations:
    """All known finished tasks; rows without execution time are dropped (D11)."""

    rows: tuple[Observation, ...] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Observation]) -> Observations:
        return cls(tuple(row for row in rows if row.execution_s > 0))

    @cached_property
    def times(self) -> Mapping[tuple[bool, Resource], tuple[tuple[float, tuple[float, ...]], ...]]:
        """By (uses GPUs, resource): ascending (requested amount, ascending execution times)."""
        tables: dict[tuple[bool, Resource], dict[float, list[float]]] = {}
        for row in self.rows:
            for resource in RESOURCES:
                column = tables.setdefault((row.gpus > 0, resource), {})
                column.setdefault(getattr(row, resource), []).append(row.execution_s)
        return {
            key: tuple((amount, tuple(sorted(times))) for amount, times in sorted(column.items()))
            for key, column in tables.items()
        }

    def lookup(
        self, on_gpus: bool, resource: Resource, amount: float, share: float, ran_s: float = 0.0
    ) -> ExpectedExecution | None:
        """Return the remaining time of a task with this request that has run `ran_s`; None without any similar task.
        Uses rows of the same or next higher amount; beyond all, those of the largest, with low confidence (D4).
        `share`: the percentile, 0..1."""
        column = self.times.get((on_gpus, resource), ())
        if not column:
            return None
        row = bisect_left(column, amount, key=lambda entry: entry[0])
        left = still_left(column[min(row, len(column) - 1)][1], share, ran_s)
        return left._replace(low_confidence=left.low_confidence or row == len(column))


def still_left(times: Sequence[float], share: float, ran_s: float) -> ExpectedExecution:
    """Return what is left by those ascending execution times that exceed `ran_s`. A task longer than all of them is
    assumed to run as long again (as `prediction.assumed_s`)."""
    longer = times[bisect_right(times, ran_s) :]
    return (
        ExpectedExecution(percentile(longer, share) - ran_s)
        if longer
        else ExpectedExecution(ran_s, low_confidence=True)
    )


def percentile(times: Sequence[float], share: float) -> float:
    """Return the smallest observed value that at least this share of the ascending values do not exceed."""
    rank = math.ceil(share * len(times) - 1e-9)  # 0.7 of 10 is 7 in spite of rounding
    return times[max(rank, 1) - 1]
