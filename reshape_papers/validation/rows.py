"""Compares one of our figures with the published one. Called by the modules of this package; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One row: `published` and `ours` in the same unit, which the name or the source states.

    `within` is the relative error named in docs/reference/validation.md before the row was run; None: nothing was
    claimed. A row that misses says why in `reason`.
    """

    name: str  # "voda.run_1.afs-l.makespan_s": where from, which case, which policy, which measure
    source: str  # file or table the published figure is from
    published: float
    ours: float
    within: float | None = None
    reason: str = ""

    @property
    def error(self) -> float:
        """Return the signed relative error: positive if ours is larger."""
        return self.ours / self.published - 1.0 if self.published else math.copysign(math.inf, self.ours)

    @property
    def holds(self) -> bool | None:
        """Return True if the error is within the claim; None if nothing was claimed."""
        return None if self.within is None else abs(self.error) <= self.within

    def as_document(self) -> Mapping[str, Any]:
        """Return the row as `-o json` prints it; an infinite error becomes null, as JSON has no such number."""
        error = self.error if math.isfinite(self.error) else None
        return {
            "name": self.name, "source": self.source, "published": self.published, "ours": self.ours,
            "error": error, "within": self.within, "holds": self.holds, "reason": self.reason,
        }  # fmt: skip
