"""Simulates node failures and repairs.

Promises: while a node is down no process runs on it, its GPUs are faulty, and it is unschedulable and silent, as the
coordinator would record it. Its jobs return to the queue. Called by `cluster.py`.
"""

from __future__ import annotations

import math
from functools import partial

from simulator.cpu_nodes import CpuNodes
from simulator.gpu_jobs import GpuJobs
from simulator.scenario import Outage
from simulator.scene import RunContext


class Outages:
    """Outages of one run; they continue until the last process has ended."""

    def __init__(self, scene: RunContext, gpus: GpuJobs, cpu: CpuNodes) -> None:
        self._scene = scene
        self._gpus = gpus
        self._cpu = cpu
        self._coming = iter(scene.workload.outages)
        self._back_s: dict[str, float] = {}
        self._await_next()

    def is_up(self, node: str) -> bool:
        return node not in self._back_s

    def _await_next(self) -> None:
        """Schedule only the next outage: a drawn sequence may be endless."""
        if (outage := next(self._coming, None)) is not None:
            self._scene.event_queue.at(outage.at_s, partial(self._fail, outage))

    def _fail(self, outage: Outage) -> None:
        self._back_s[outage.node] = max(outage.back_s, self._back_s.get(outage.node, 0.0))
        self._gpus.fails(outage.node)
        self._cpu.fails(outage.node)
        self._scene.event_queue.at(outage.back_s, partial(self._return, outage.node))
        self._scene.ask()
        if not self._scene.is_over or self._gpus.are_held:
            self._await_next()

    def _return(self, node: str) -> None:
        if self._scene.now < self._back_s.get(node, math.inf):
            return
        del self._back_s[node]
        self._gpus.returns(node)
        self._scene.ask()
