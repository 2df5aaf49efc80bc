"""Defines the result of a benchmark, and formats it as a table or one JSON object.

Called by `__main__.py` and every benchmark. Numbers are shown as both sides of one run and their ratio: absolute
values depend on the machine, which is printed above them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reshape import __version__
from reshape.output.tables import table

LIBRARIES = ("numpy", "tornado", "msgspec", "pymongo", "nx-27017", "ansible-core", "tensorflow")


class WrongAnswer(Exception):
    """The code to be timed gave a wrong result, which the sentence names; no time is reported then."""


@dataclass(frozen=True)
class Row:
    """Ours beside the other side, in `unit`. `floor`: the ratio that the goal accepts, at most."""

    what: str
    ours: float
    theirs: float
    ratio: float
    unit: str
    floor: float | None = None


@dataclass(frozen=True)
class Table:
    """Further numbers behind the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome. `goals` are ids of the performance goals, `sizes` what was run.

    `wrong`: wrong answers of code whose times are reported all the same; they make the run fail.
    """

    name: str
    goals: str
    title: str
    against: str
    sizes: dict[str, Any]
    rows: list[Row]
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        sizes = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
        rows = [
            [r.what, _value(r.ours, r.unit), _value(r.theirs, r.unit), f"{r.ratio:.2f}", _floor(r)] for r in self.rows
        ]
        parts = [
            f"{self.name} ({self.goals}): {self.title}\n{sizes}\n",
            table(["", "OURS", self.against.upper(), "RATIO", "GOAL'S FLOOR"], rows),
            *(f"\n{t.title}\n{table(t.columns, [list(row) for row in t.rows])}" for t in self.tables),
            *(f"\n{note}" for note in self.notes),
            *(f"\nWrong: {one}" for one in self.wrong),
        ]
        return "\n".join(parts)


def machine() -> dict[str, Any]:
    """Describe the machine and its present load."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    found = {"reshape": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def heading(where: dict[str, Any], what: dict[str, str], emulated: bool = True) -> str:
    busy = f"load {where['load']:.1f}" + (": busy, trust only ratios" if where["load"] > 0.5 else "")
    first = f"{where['cpu']}, {where['cores']} cores, {where['system']}, {busy}" + (
        "; emulated GPUs" if emulated else ""
    )
    return first + "\n" + ", ".join(f"{name} {version}" for name, version in what.items())


def _floor(row: Row) -> str:
    if row.floor is None:
        return "-"
    return f"<= {row.floor:g}" + ("" if row.ratio <= row.floor else "  missed")


def _value(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
