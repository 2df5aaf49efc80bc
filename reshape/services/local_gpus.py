"""Watches the real GPUs of the machine on which `reshape up` runs, as a node agent does on a cluster.

Promise: a GPU that can no longer be read, or of which the driver reports an error, is faulty at the coordinator within
a heartbeat and given to no job; if the driver hangs, this machine counts as silent and starts nothing new. So is one
that somebody else uses, by NVML or by its lock (`sidecar/gpu_locks.py`), until that has ended; if a training of ours is
on it, it trains on and both are shown. Called by `up`, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from coordinator.model.records import USED_BY
from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.node_reports import NodeReports
from sidecar import gpu_locks
from sidecar.protocol import NodeGpu, NodeReport
from sidecar.resources.agent import NvmlInventory
from sidecar.resources.gpus import Footprint, NvmlProbe

MOST_NAMED = 3
OURS, FOREIGN = "ours", "foreign"

log = logging.getLogger(__name__)


class LocalInventory:
    """The GPUs of this machine, with the processes on them that are not of the trainings in this state folder."""

    def __init__(
        self,
        state: Path,
        look: Callable[[], list[NodeGpu]] | None = None,
        probe: NvmlProbe | None = None,
    ) -> None:
        self._jobs, self._look, self._probe = state / "jobs", look or NvmlInventory(), probe or NvmlProbe()
        self._told: dict[str, str] = {}

    def __call__(self) -> list[NodeGpu]:
        gpus = self._look()
        footprints, ours = self._probe.footprints([gpu.gpu_id for gpu in gpus]), self._shims()
        found = [self._judged(gpu, footprints.get(gpu.gpu_id), ours) for gpu in gpus]
        for gpu in found:
            others = gpu.others or (gpu.problem if gpu.problem.startswith(USED_BY) else "")
            if others and others != self._told.get(gpu.gpu_id):
                log.warning("GPU %s: %s", gpu.gpu_id, others)
            self._told[gpu.gpu_id] = others
        return found

    def _judged(self, gpu: NodeGpu, footprint: Footprint | None, ours: frozenset[int]) -> NodeGpu:
        holder = gpu_locks.holder(gpu.gpu_id)
        kinds = {pid: _kind(pid, ours) for pid in (footprint.pids if footprint else ())}
        mine = (holder is not None and holder in ours) or OURS in kinds.values()
        held = footprint.held if footprint else {}
        sizes = {pid: f" with {held[pid] / 2**30:.1f} GiB" if pid in held else "" for pid in kinds}
        users = [gpu_locks.described(pid) + sizes[pid] for pid in sorted(kinds) if kinds[pid] == FOREIGN]
        if holder is not None and not mine and not users:
            users = [gpu_locks.described(holder)]
        if not users:
            return gpu
        others = ", ".join(users[:MOST_NAMED]) + (f" and {len(users) - MOST_NAMED} more" * (len(users) > MOST_NAMED))
        if mine or not gpu.healthy:
            return msgspec.structs.replace(gpu, others=f"also {USED_BY}{others}")
        return msgspec.structs.replace(gpu, healthy=False, problem=f"{USED_BY}{others}; free once that has ended")

    def _shims(self) -> frozenset[int]:
        """Return the shims of this state folder: whatever a training starts has one among its ancestors."""
        found = set()
        for file in self._jobs.glob("*-l*/shim.pid"):
            with contextlib.suppress(OSError, ValueError):
                found.add(int(file.read_text()))
        return frozenset(found)


def _kind(pid: int, ours: frozenset[int]) -> str:
    """Return whether one of these is among the ancestors of a process; empty if it cannot be seen from here."""
    kind = ""
    while pid > 1:
        if pid in ours:
            return OURS
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended, or is in another container
            break
        kind = FOREIGN
    return kind


def with_problems(node: FoundNode, gpus: Sequence[NodeGpu]) -> FoundNode:
    """Return the node with what is wrong with its GPUs now."""
    problems = {gpu.gpu_id: gpu.problem for gpu in gpus}
    found = tuple(replace(gpu, problem=problems.get(gpu.gpu_id, "")) for gpu in node.gpus)
    return replace(node, gpus=found)


def watch_gpus(
    node: FoundNode,
    reports: NodeReports,
    changed: Callable[[], None],
    heartbeat_s: float,
    end: threading.Event,
    look: Callable[[], list[NodeGpu]],
) -> None:
    """Report the inventory of `node` until `end`. `changed` is called when it is not the one that was written last.

    An error, such as a want of descriptors, costs one report: without any this machine would count as silent for good.
    """
    seq, told = 0, ""
    while not end.is_set():
        seq += 1
        try:
            report = NodeReport(boot="", seq=seq, gpus=look(), cores=node.cores, memory=int(node.memory))
            if reports.keep_report(node.name, report):
                changed()
            told = ""
        except Exception as fault:
            if repr(fault) != told:
                told = repr(fault)
                log.exception("the GPUs of this machine could not be looked at; tried again")
        end.wait(heartbeat_s)
