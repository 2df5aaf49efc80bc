"""Gives the time model of SpeCon's workloads the speed that trainings of the zoo really lost on a shared node.

`reshape record --beside 4 --into` wrote `measured_contention.json`; each row says how, on which machine and when.
Called by SpeCon's workloads and by `claims.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
MEASURED = (
    "the share of speed lost to each further job on a node: the mean of what trainings of examples/zoo lost to others "
    "of their kind on one core"
)
ROUNDED = 3  # decimals; models differ in the second


@cache
def rows() -> Sequence[Mapping[str, Any]]:
    """Return what was recorded, by model and framework."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


def per_job() -> float:
    """Return the share of speed that a job loses to each further one on its node, 0..1."""
    return round(statistics.fmean(row["contention"] for row in rows()), ROUNDED)
