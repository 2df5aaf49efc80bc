"""Simulates the monitors of jobs trained on CPU.

Promises to measure what the coordinator measures, at the same times: growth at every interval (SpeCon), growth
efficiency at each node's own interval and whenever a job joins or leaves (FlowCon, Algorithm 2). Runs only for enabled
systems. Called by `cluster.py`.
"""

from __future__ import annotations

from functools import partial

from adaptive_scheduler.policies.flowcon import FlowConInterval, Pool
from adaptive_scheduler.profiles import growth
from adaptive_scheduler.profiles.growth import EvaluationReading
from simulator.cpu_nodes import CpuNodes
from simulator.event_queue import Event
from simulator.scene import RunContext
from simulator.state import SimulatedJob


class CpuMonitors:
    """Monitors of all nodes; they run only while a job trains on CPU."""

    def __init__(self, scene: RunContext, cpu: CpuNodes) -> None:
        self._scene = scene
        self._cpu = cpu
        self._settings = scene.settings
        self._growth = _Usage()
        self._efficiency = _Usage()
        self._tick: Event | None = None
        self._core_s = dict.fromkeys(cpu.on, 0.0)  # of each node, at the last tick
        self._tick_s = 0.0
        self._pace = {node: FlowConInterval() for node in cpu.on}
        self._due: dict[str, Event] = {}
        self.cpu_use = dict.fromkeys(cpu.on, 0.0)  # R(w, t): share of the cores in use, last interval (S18)

    def changed(self, node: str) -> None:
        """Note that a job joined or left this node."""
        if "specon" in self._settings.systems and self._tick is None:
            self._tick_later()
        if "flowcon" in self._settings.systems:
            self._look(node)

    # SpeCon

    def _tick_later(self) -> None:
        interval_s = self._settings.specon.interval_s
        self._tick = self._scene.event_queue.at((self._scene.now // interval_s + 1) * interval_s, self._look_at_all)

    def _look_at_all(self) -> None:
        now, self._tick = self._scene.now, None
        for node, jobs in self._cpu.on.items():
            core_s = self._cpu.core_s_by(node, now)
            self.cpu_use[node] = (core_s - self._core_s[node]) / (self._cpu.cores[node] * (now - self._tick_s))
            self._core_s[node] = core_s
            for job in jobs:
                job.growth = growth.categorise(
                    job.growth, self._growth.reading(job, now), self._settings.specon, job.migrated_s is not None
                )
        self._tick_s = now
        if any(self._cpu.on.values()):
            self._tick_later()
            self._scene.ask()

    # FlowCon

    def _look(self, node: str) -> None:
        """Measure all jobs of a node if due, and schedule the next measurement."""
        now, jobs = self._scene.now, self._cpu.on[node]
        pool: Pool = frozenset((job.given.id, job.generation) for job in jobs)
        if not self._pace[node].is_due(now, pool):
            return
        for job in jobs:
            job.efficiency = growth.measure(job.efficiency, self._efficiency.reading(job, now), self._settings.flowcon)
        pace = self._pace[node].stepped(now, pool, [job.efficiency for job in jobs], self._settings.flowcon)
        self._pace[node] = pace
        if node in self._due:
            self._due.pop(node).called_off = True
        if jobs:
            self._due[node] = self._scene.event_queue.at(pace.due_s, partial(self._look, node))
        self._scene.ask()


class _Usage:
    """Readings of one monitor at its last measurement, from which the mean use since then follows."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def reading(self, job: SimulatedJob, now: float) -> EvaluationReading:
        """Return the present reading: the value after the last complete iteration, or of the untrained model."""
        used, done = job.used_by(now), job.done_by(now)
        since, before = self._last.get(job.given.id, (job.began_s or 0.0, 0.0))
        self._last[job.given.id] = (now, used)
        curve = job.given.cpu.curve if job.given.cpu is not None else None
        evaluations = int(done + _ROUNDING)
        return EvaluationReading(
            at_s=now,
            value=curve(evaluations / job.given.iterations) if curve is not None else None,
            evaluations=evaluations,
            iterations=done,
            generation=job.generation,
            usage={"cpu": (used - before) / (now - since)} if now > since else {},
            limits=job.limits,
        )


_ROUNDING = 1e-9
"""Tolerance in iterations, so that rounding does not hide an iteration that has just ended."""
