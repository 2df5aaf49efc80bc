"""Sums up what a task used while it trained, from heartbeats or from counters (Slaml, D15). Pure.

Keeps a few numbers per task, however long it runs. Called by `observation_profiler.py`, which puts the result into the
task's row in `observations`, beside what the task had requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.model.records import Doc
from sidecar.protocol import Heartbeat

IO = ("block_io", "network_io")  # of a report, in bytes per second
SILENCE_S = 600.0  # longer intervals between two heartbeats are not counted

Sample = tuple[float, float]  # when, in seconds since 1970, and how much


@dataclass(frozen=True)
class Series:
    """Samples of one metric, in order of time."""

    labels: Mapping[str, str]
    samples: Sequence[Sample]


@dataclass
class Member:
    """Use of one pod of a task, by its heartbeats."""

    heard_at: float | None = None  # the last heartbeat while a trainer ran; None: none runs
    pid: int | None = None
    seconds: float = 0.0  # over which the use of cores is known
    core_s: float = 0.0
    busy_s: float = 0.0  # GPU-seconds
    most_cores: float = 0.0
    most_memory: float = 0.0
    moved: dict[str, float] = field(default_factory=dict)  # bytes, by `IO`; without what its pod cannot tell

    def heard(self, beat: Heartbeat, now: float) -> None:
        """Add a heartbeat. Cores count from a trainer's second one on: each reports the use since the one before."""
        running = beat.shim.trainer == "running"
        same = running and self.pid == beat.shim.trainer_pid and self.heard_at is not None
        lasted = max(0.0, now - self.heard_at) if same and self.heard_at is not None else 0.0
        self.heard_at, self.pid = (now, beat.shim.trainer_pid) if running else (None, None)
        if not running:
            return
        self.most_memory = max(self.most_memory, float(beat.usage.memory or 0))
        if beat.usage.cpu_cores is None or not 0 < lasted <= SILENCE_S:
            return
        self.seconds += lasted
        self.core_s += lasted * beat.usage.cpu_cores
        self.busy_s += lasted * math.fsum(gpu.utilisation or 0.0 for gpu in beat.gpus)
        self.most_cores = max(self.most_cores, beat.usage.cpu_cores)
        for resource in IO:
            if (rate := getattr(beat.usage, resource)) is not None:
                self.moved[resource] = self.moved.get(resource, 0.0) + lasted * rate


@dataclass
class Account:
    """Use of all pods of one task."""

    members: dict[int, Member] = field(default_factory=dict)

    def heard(self, beat: Heartbeat, now: float) -> None:
        self.members.setdefault(beat.member, Member()).heard(beat, now)

    def used(self) -> Doc:
        """Mean and peak use of all pods together, as fields of the row; empty if nothing is known."""
        seconds = max((one.seconds for one in self.members.values()), default=0.0)
        if not seconds:
            return {}
        each = self.members.values()
        told = [resource for resource in IO if any(resource in one.moved for one in each)]
        return {
            "used_cores": math.fsum(one.core_s for one in each) / seconds,
            "used_cores_peak": math.fsum(one.most_cores for one in each),
            "used_memory": math.fsum(one.most_memory for one in each),
            "used_gpus": math.fsum(one.busy_s for one in each) / seconds,
            **{f"used_{r}": math.fsum(one.moved[r] for one in each if r in one.moved) / seconds for r in told},
            "used_s": seconds,
            "used_from": "heartbeats",
        }


def from_counters(cpu: Iterable[Series], memory: Iterable[Series]) -> Doc:
    """The same fields from counters of CPU seconds and from bytes in use, by container.

    Empty unless some counter has two samples. A container that was restarted is another series.
    """
    counted = [each.samples for each in cpu if len(each.samples) > 1]
    rates = [(last[1] - first[1]) / (last[0] - first[0]) for run in counted for first, last in pairwise(run)]
    if not rates or min(rates) < 0:
        return {}
    seconds = max(run[-1][0] for run in counted) - min(run[0][0] for run in counted)
    found: Doc = {
        "used_cores": math.fsum(run[-1][1] - run[0][1] for run in counted) / seconds,
        "used_cores_peak": sum(max((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(run)) for run in counted),
        "used_s": seconds,
        "used_from": "prometheus",
    }
    most = _most(memory)
    return {**found, "used_memory": most} if most else found


def _most(memory: Iterable[Series]) -> float:
    """The sum over all containers of the largest value of each."""
    found: dict[tuple[str, str], float] = {}
    for each in memory:
        key = each.labels.get("pod", ""), each.labels.get("container", "")
        found[key] = max([found.get(key, 0.0), *(value for _, value in each.samples)])
    return math.fsum(found.values())


def last(series: Iterable[Series], pick: Callable[[Iterable[float]], float] = max) -> float | None:
    """`pick` of the last value of each series; None if there is none."""
    values = [each.samples[-1][1] for each in series if each.samples]
    return pick(values) if values else None
