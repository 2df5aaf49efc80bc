"""Schedules without elasticity: the baseline of the elastic policy (`algorithms.md` 1.10).

Called by the engine when SideCar scheduling is not among `Settings.systems`. Pure."""

from __future__ import annotations

from adaptive_scheduler.candidates import fixed_count, gpus, infeasibility, nodes_for
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Explanation, Hold, Reshape, Start
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

DEFAULT = "default"


def schedule_incoming(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, table: CostTable | None = None
) -> Start | Hold:
    """Start the job with its fixed count on the node with most idle GPUs, or let it wait; later jobs may pass (G17).
    The count is `candidates.fixed_count`, so that no job waits for ever."""
    if why := infeasibility(snapshot, job):
        return Hold(job.id, Explanation(DEFAULT, why))
    count = fixed_count(snapshot, job)
    most_idle = min(nodes_for(snapshot, job), key=lambda node: (-node.idle, node.name))
    if most_idle.idle < count:
        sentence = (
            f"{job.id} waits: its fixed count is {gpus(count)} and {most_idle.idle} are idle on node "
            f"{most_idle.name}; the default policy takes none from running jobs."
        )
        return Hold(job.id, Explanation(DEFAULT, sentence))
    sentence = f"{job.id} starts on {gpus(count)} of {most_idle.name}, its fixed count."
    return Start(job.id, most_idle.name, count, Explanation(DEFAULT, sentence))


def schedule_running(
    snapshot: ClusterSnapshot, now: float, settings: Settings, table: CostTable | None = None
) -> Reshape | None:
    """Return None: a job keeps its count until it ends."""
    return None
