"""Checks rows of the profile tables that users import, and finds rows that describe the same thing. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaptive_scheduler.profiles.observations import RESOURCES
from adaptive_scheduler.profiles.profiles import Profiles
from coordinator.errors import Rejected
from coordinator.ports import PROFILE_TABLES
from coordinator.telemetry.profile_estimator import OBSERVATIONS

View = dict[str, Any]

OF_A_TYPE = ("job_type", "gpu_type", "num_gpus", "iterations")  # key of a row, except of finished tasks
OF_A_TASK = ("job_id", "at", "cores", "memory", "gpus", "execution_s")


def table(name: str) -> str:
    """The same name; `Rejected` with status 404 if there is no such profile table."""
    if name not in PROFILE_TABLES:
        raise Rejected(f"There is no profile table {name!r}; there are {', '.join(PROFILE_TABLES)}.", 404)
    return name


def row_problems(table: str, rows: Sequence[View]) -> list[str]:
    """Reasons why these rows cannot be imported, each once; empty if they can."""
    if odd := [number for number, row in enumerate(rows, 1) if not isinstance(row, dict)]:
        return [f"row {odd[0]} is not an object"]
    of: dict[str, Sequence[View]] = {t: rows if t == table else () for t in PROFILE_TABLES}
    read = Profiles.from_rows(of["speed_profiles"], of["overheads"], of["accuracy_profiles"])
    first: dict[str, str] = {}
    others: Counter[str] = Counter()
    for problem in read.problems:
        row, _, why = problem.partition(": ")
        if why in first:
            others[why] += 1
        first.setdefault(why, row)
    if table == OBSERVATIONS:
        bad = [f"row {number}: {why}" for number, row in enumerate(rows, 1) if (why := observation_problem(row))]
        return bad or _unstorable(rows)
    found = [f"{row}{f', and so are {others[why]} more' * (why in others)}: {why}" for why, row in first.items()]
    return found or _unstorable(rows)


def _unstorable(rows: Sequence[View]) -> list[str]:
    return [p for number, row in enumerate(rows, 1) for p in _unfit(row, number)]


def _unfit(row: View, number: int) -> Iterator[str]:
    """Fields that no store takes, found before the first row is written, so that all or none are."""
    for field, value in row.items():
        if "." in field or field.startswith("$") or not field.isprintable():
            yield f"row {number} has a field {field!r}: use no dot, no control character and no `$` at its start"
        parts = value if isinstance(value, list) else [value]
        if not all(p is None or isinstance(p, bool) or (isinstance(p, str) and _sound(p)) or _number(p) for p in parts):
            yield f"row {number}: {field} must be valid text, a number below 2**63 or a list of these"


def _sound(text: str) -> bool:
    """True if it can be written as UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _number(value: object) -> bool:
    """True if it is a number that every database can hold."""
    return isinstance(value, int | float) and abs(value) < 2**63


def describes(row: View) -> tuple[str, ...]:
    """The key of a row within its table; its origin comes last."""
    parts = [row.get(f) for f in (OF_A_TASK if "execution_s" in row else OF_A_TYPE) if f in row]
    whole = [int(p) if isinstance(p, float) and p.is_integer() else p for p in parts]
    origin = row.get("origin")
    return (*map(str, whole), origin if isinstance(origin, str) and origin else "imported")


def observation_problem(row: Mapping[str, object]) -> str:
    """Return a sentence on why the row is no valid observation; empty if it is one."""
    for field in (*RESOURCES, "execution_s"):
        value = row.get(field, 0 if field != "execution_s" else None)
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        if not good or (field == "execution_s" and not value):
            above = "above 0 (seconds from its start to its end)" if field == "execution_s" else "of at least 0"
            return f"{field} must be a number {above}"
    return ""
