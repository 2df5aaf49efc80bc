"""Reads what a job asks for beside GPU counts: cores and memory, tasks, deadline, target, pods. Pure.

Intake calls `problems` before it accepts a document; `SnapshotBuilder` then reads the fields. Reading never fails:
an invalid value counts as absent. Times are seconds, or texts such as "90s", "15m" and "2h" (D12).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adaptive_scheduler.snapshot import Task
from coordinator.model.records import number, whole
from coordinator.model.tables import JobRow

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([smh]?)")
MAX_CORES = 1e6
MAX_MEMORY = 2.0**60
TOP5 = re.compile(r"value|.*top_?(5|k).*")  # names that trainings print; Keras' default k is 5


@dataclass(frozen=True, slots=True)
class Target:
    """The evaluation value at which the job is completed."""

    value: float
    above: bool = True  # False: a loss, which has to fall to the value
    name: str = ""  # of the metric; empty: any plausible one
    top5: bool = False  # only a Top-5 accuracy, or a plain `value`

    def reached(self, value: float | None, name: str) -> bool:
        """True if the metric is the target's and has reached it."""
        if value is None or not self.means(name):
            return False
        return value >= self.value if self.above else value <= self.value

    def means(self, name: str) -> bool:
        """True if a metric of this name can be the target's: without a name, no loss rises and no accuracy falls."""
        if self.name or self.top5:
            return name == self.name or (self.top5 and bool(TOP5.fullmatch(name)))
        return ("loss" if self.above else "acc") not in name


def seconds(value: object) -> float | None:
    """Parse `90`, `"90s"`, `"15m"` or `"2h"` into seconds; None for anything else and for 0."""
    if isinstance(value, str):
        match = TIME.fullmatch(value)
        value = float(match[1]) * UNITS[match[2]] if match else None
    return number(value) or None


def tasks(doc: JobRow) -> tuple[Task, ...]:
    """The tasks of the job in sequence; a single one if it only has `resources`."""
    given, resources = doc.get("tasks"), doc.get("resources")
    if isinstance(given, list) and given:
        return tuple(_task(one, f"task {n}") for n, one in enumerate(given, 1) if isinstance(one, dict))
    return (_task(resources, "job"),) if isinstance(resources, dict) else ()


def _task(doc: Mapping[str, Any], name: str) -> Task:
    return Task(
        name=str(doc.get("name") or name),
        cores=number(doc.get("cores")) or 0.0,
        memory=number(doc.get("memory")) or 0.0,
        gpus=int(number(doc.get("gpus")) or 0),
        replicas=int(number(doc.get("replicas"), 1) or 1),
    )


def target(doc: JobRow) -> Target | None:
    """`target`, or the paper's `target_top5` (SideCar scheduling, 1.2)."""
    given, top5 = doc.get("target"), number(doc.get("target_top5"))
    if isinstance(given, dict) and (value := number(given.get("value"), -MAX_MEMORY)) is not None:
        return Target(value, given.get("above") is not False, str(given.get("name") or ""))
    return None if top5 is None else Target(top5, top5=True)


def is_top5(name: str, target: Target | None) -> bool:
    """True if a metric of that name is a Top-5 accuracy; a plain `value` only if the target is one."""
    plain = name == "value" and (target is None or not target.top5)
    return bool(TOP5.fullmatch(name)) and not plain and not any(word in name for word in ("err", "loss"))


def problems(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for what is wrong between fields that are each of the right type."""
    if doc.get("tasks") is not None and doc.get("resources") is not None:
        yield "resources and tasks exclude each other: state the needs of each task"
    if doc.get("target") is not None and doc.get("target_top5") is not None:
        yield "target and target_top5 exclude each other: leave one out"
    each, counts = doc.get("gpus_per_pod"), doc.get("optional_num_gpus") or [doc.get("num_gpus")]
    if not whole(each, 1):
        return
    if counts == [0]:
        yield "gpus_per_pod is for jobs of several pods with GPUs; a job trained on CPU has one pod: leave it out"
    elif isinstance(counts, list) and (odd := [n for n in counts if whole(n, 1) and n % each]):
        like = ", ".join(str(each * pods) for pods in (1, 2, 4))
        yield f"optional_num_gpus: pods of {each} GPUs cannot have {odd[0]} together; list multiples such as [{like}]"
