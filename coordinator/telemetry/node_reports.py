"""Keeps the newest report of each node agent in memory: when it came, the use it measured, the inventory to write.

Only times that this process observed itself count: after a restart every agent has a few heartbeats to report
again. Thread-safe. A report costs no round trip; the loop's thread writes what has changed (`service.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from coordinator.errors import Conflict
from coordinator.model.tables import NodeChanges, NodeRow
from coordinator.ports import Clock
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from coordinator.telemetry.measured.other_load import OtherLoad
from sidecar.protocol import NodeGpu, NodeJobs, NodeReport

GONE_S = 86_400.0  # silence after which a node is forgotten
AWAY_BEATS = 4  # reports that may be missed before a node counts as silent
BOOTS = 16  # boots of a node that are remembered, so that a captured report of one of these is refused


class NodeReports:
    def __init__(self, clock: Clock, heartbeat_s: float) -> None:
        self._clock, self._heartbeat_s = clock, heartbeat_s
        self.others = OtherLoad(clock)
        self._lock = threading.Lock()
        self._began = clock.now()
        self._heard: dict[str, float] = {}
        self._seqs: dict[str, dict[str, int]] = {}  # by node: its boots, the present one last, and their newest number
        self._reports: dict[str, NodeReport] = {}
        self._written: dict[str, object] = {}

    def begin(self) -> None:
        """Start to lead: silence counts from now, and each inventory is written again, as others may write."""
        with self._lock:
            self._began = self._clock.now()
            self._written.clear()

    def keep_report(self, name: str, report: NodeReport) -> bool:
        """Keep a report; True if its inventory is not the one last written. `Conflict` if a newer one is known."""
        with self._lock:
            boots = self._seqs.setdefault(name, {})
            if report.seq <= boots.get(report.boot, -1) or report.boot in list(boots)[:-1]:
                raise Conflict(f"Node {name} has reported something newer; report again.")
            boots[report.boot] = report.seq
            for old in list(boots)[:-BOOTS]:
                del boots[old]
            self._heard[name], self._reports[name] = self._clock.now(), report
            return self._written.get(name) != _content(report)

    def changed(self) -> dict[str, NodeReport]:
        """The newest report of each node whose inventory is not the one last written."""
        with self._lock:
            return {name: r for name, r in self._reports.items() if self._written.get(name) != _content(r)}

    def stored(self, docs: Mapping[str, NodeRow]) -> None:
        """Take these for all nodes of the store: one whose row was deleted by hand is written again."""
        with self._lock:
            for name in self._written.keys() - docs.keys():
                del self._written[name]

    def written(self, name: str, report: NodeReport) -> None:
        with self._lock:
            self._written[name] = _content(report)

    def silent(self, name: str) -> bool:
        """True if its agent has missed more reports than it may."""
        return self._silent_s(name) > AWAY_BEATS * self._heartbeat_s

    def _silent_s(self, name: str) -> float:
        return self._clock.now() - max(self._heard.get(name, self._began), self._began)

    def permits_at(self, name: str) -> str:
        """Return where the node's agent takes calls about what pods may open; empty if that is not known now."""
        report = None if self.silent(name) else self._reports.get(name)
        return "" if report is None else report.permits

    def gone(self, docs: Mapping[str, NodeRow]) -> list[str]:
        """Names of the nodes whose agent has been silent for `GONE_S`."""
        return [name for name, doc in docs.items() if doc.get("agent") and self._silent_s(name) > GONE_S]

    def forget_node(self, name: str) -> None:
        """Drop all that is kept of a node; if it reports again, it is a new one."""
        with self._lock:
            for kept in (self._heard, self._seqs, self._reports, self._written):
                kept.pop(name, None)
        self.others.forget_node(name)

    def as_heard(self, docs: Mapping[str, NodeRow]) -> dict[str, NodeRow]:
        """The same documents of nodes, with `heard: False` where the agent is silent; nodes without agent never are.

        Adds the use that the newest report measured, and that of others; it is not stored, as it changes often.
        """
        heard = {name: {**doc, **self._reported(name)} if doc.get("agent") else doc for name, doc in docs.items()}
        return self.others.added(heard)

    def _reported(self, name: str) -> NodeChanges:
        if self.silent(name):
            return {"heard": False}
        report = self._reports.get(name)
        return {} if report is None else {"cpu_use": report.cpu_use, "memory_use": report.memory_use}

    def jobs_of(self, name: str) -> NodeJobs | None:
        """The jobs that the node's agent reports; None while it is silent."""
        report = None if self.silent(name) else self._reports.get(name)
        return None if report is None else report.jobs


def _content(report: NodeReport) -> object:
    """The inventory: the fields that are stored."""
    return report.gpus, report.cores, report.memory


def found_node(name: str, report: NodeReport) -> FoundNode:
    """A node as it is written into the store."""
    gpus = [
        FoundGpu(
            g.gpu_id, g.gpu_type, g.memory_total, g.emulated, problem=_problem(g), others=g.others, holder=g.holder
        )
        for g in report.gpus
    ]
    return FoundNode(name, tuple(gpus), report.cores, float(report.memory))


def _problem(gpu: NodeGpu) -> str:
    return "" if gpu.healthy else gpu.problem or "it does not work"
