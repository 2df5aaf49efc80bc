"""Keeps how many cores and how much memory of each node are used by what is not ours, as it was measured.

Promises that decisions do not swing with a load that does: it is averaged over about a minute and told in steps, and a
step is left only after most of the way to the next one. A measurement that is not renewed stops counting. Cores count
up to half of a node, since the kernel shares them out: beside others that want them all, trainings still get about
half. Filled by `reshape/services/machine_load.py` and by `measured_use.py`; read by `node_reports.py`. Thread-safe.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coordinator.model.records import number
from coordinator.model.tables import NodeChanges, NodeRow, plain
from coordinator.ports import Clock

Source = Literal["requests", "processes", "prometheus"]

MEAN_S = 60.0  # time constant of the average: a minute of compiling hardly counts, ten minutes do
FRESH_S = 60.0  # a measurement that is older does not count
LEAST_CORES, LEAST_BYTES = 0.5, 512.0 * 2**20  # least steps
PART = 16  # a step is at least this part of the load, since a larger load swings by more
LEAVES = 0.8  # of a step, by which the average must differ from what is told
MOST = 0.5  # of the cores of a node
WORDS = {"processes": "other processes use", "prometheus": "others use, as Prometheus measured,"}


class HeldByOthers(NamedTuple):
    """What jobs cannot have of a node: what pods of others request and the kubelet keeps, or use if that is more."""

    cores: float = 0.0
    memory: float = 0.0  # bytes
    source: Source = "requests"
    used_cores: float = 0.0  # of these, what is used without being requested: it comes back when the load falls
    used_memory: float = 0.0
    lent_cores: float = 0.0  # requested, and not seen in use: the kernel lends them to whoever computes

    @property
    def sentence(self) -> str:
        """What is used, as the end of a sentence on a node that is too full; empty if nothing was measured."""
        if self.source == "requests":
            return ""
        return f" ({WORDS[self.source]} {self.cores:.3g} of its cores and {self.memory / 2**30:.1f} GiB)"


@dataclass
class _Load:
    """One resource of one node."""

    step: float
    mean: float
    told: float = 0.0

    def add_sample(self, used: float, weight: float) -> None:
        self.mean += weight * (used - self.mean)
        step = max(self.step, self.mean / PART)
        if abs(self.mean - self.told) > LEAVES * step:
            self.told = round(self.mean / step) * step


@dataclass
class _Kept:
    cores: _Load
    memory: _Load
    at: float
    source: Source
    use: NodeChanges  # shares of the whole node


class OtherLoad:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def add_measurement(
        self, node: str, cores: float, memory: float, source: Source, use: NodeChanges | None = None
    ) -> None:
        """Add a measurement: the cores and bytes that others use. `use`: R(w, t) of the node, where no agent tells."""
        now = self._clock.now()
        with self._lock:
            kept = self._kept.get(node)
            if kept is None:
                kept = self._kept[node] = _Kept(
                    _Load(LEAST_CORES, cores), _Load(LEAST_BYTES, memory), -math.inf, source, {}
                )
            weight = 1.0 - math.exp((kept.at - now) / MEAN_S)
            kept.cores.add_sample(cores, weight)
            kept.memory.add_sample(memory, weight)
            kept.at, kept.source, kept.use = now, source, use or {}

    def forget_node(self, node: str) -> None:
        with self._lock:
            self._kept.pop(node, None)

    def added(self, docs: dict[str, NodeRow]) -> dict[str, NodeRow]:
        """The documents of nodes, each with what was measured of it lately; costs as much as was measured."""
        with self._lock:
            since = self._clock.now() - FRESH_S
            fresh = {node: kept for node, kept in self._kept.items() if kept.at >= since and node in docs}
            return docs | {node: _with(docs[node], kept) for node, kept in fresh.items()} if fresh else docs


def _with(doc: NodeRow, kept: _Kept) -> NodeRow:
    seen = {"cores": kept.cores.told, "memory": kept.memory.told, "from": kept.source}
    return plain(doc) | {"used_by_others": seen} | plain(kept.use)


def held_by_others(doc: NodeRow) -> HeldByOthers:
    """What others hold of a node, of a document as `OtherLoad.added` returns it."""
    asked, seen = _amounts(doc.get("others")), _amounts(doc.get("used_by_others"))
    seen = min(seen[0], MOST * (number(doc.get("cores")) or 0.0)), seen[1]
    cores, memory = (max(0.0, used - wanted) for used, wanted in zip(seen, asked, strict=True))
    source: Source = doc["used_by_others"]["from"] if cores or memory else "requests"
    lent_cores = max(0.0, asked[0] - seen[0])
    return HeldByOthers(asked[0] + cores, asked[1] + memory, source, cores, memory, lent_cores)


def _amounts(given: object) -> tuple[float, float]:
    found = given if isinstance(given, dict) else {}
    return number(found.get("cores")) or 0.0, number(found.get("memory")) or 0.0
