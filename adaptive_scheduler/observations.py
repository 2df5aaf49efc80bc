"""How long finished tasks took, and what they had asked for: the tables P and P_GPU of seed 003.

Called by the deadline policy through the snapshot. Built by the coordinator from its `observations`, by
the simulator from a trace. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Resource = Literal["gpus", "cores", "memory"]
RESOURCES: tuple[Resource, ...] = ("gpus", "cores", "memory")  # ties go to the first (D1)


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished task: what each replica asked for, and completion minus start in seconds (D11)."""

    cores: float
    memory: float  # bytes
    gpus: float
    execution_s: float


@dataclass(frozen=True)
class Observations:
    """All finished tasks that are known. Rows that cannot be true (no time spent) are not kept (D11)."""

    rows: tuple[Observation, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Observation]) -> Observations:
        return cls(tuple(row for row in rows if row.execution_s > 0))

    @cached_property
    def times(self) -> Mapping[tuple[bool, Resource], tuple[tuple[float, tuple[float, ...]], ...]]:
        """By (whether with GPUs, resource): ascending (amount asked for, ascending execution times)."""
        tables: dict[tuple[bool, Resource], dict[float, list[float]]] = {}
        for row in self.rows:
            for resource in RESOURCES:
                column = tables.setdefault((row.gpus > 0, resource), {})
                column.setdefault(getattr(row, resource), []).append(row.execution_s)
        return {
            key: tuple((amount, tuple(sorted(times))) for amount, times in sorted(column.items()))
            for key, column in tables.items()
        }
