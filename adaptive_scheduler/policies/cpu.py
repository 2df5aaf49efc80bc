"""Which node a job trained on CPU starts on. SpeCon moves it later; Volcano's own choice stands (X12).

Called by the engine.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Explanation, Hold, Start
from adaptive_scheduler.prediction import RemainingTimes
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

CPU = "cpu"


def schedule_incoming(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, times: RemainingTimes | None = None
) -> Start | Hold:
    """The node it is pinned to, else of those with room the one with fewest jobs trained on CPU."""
    fits = [n for n in snapshot.nodes if n.schedulable and has_room(snapshot, n.name, job)]
    if not fits:
        return Hold(job.id, Explanation(CPU, f"{job.id} waits: no node has room for it."))
    best = min(fits, key=lambda n: (len(snapshot.on_cpu[n.name]), n.cpu_use, n.name))
    return Start(job.id, best.name, 0, Explanation(CPU, f"{job.id} starts on {best.name}."))


def has_room(snapshot: ClusterSnapshot, node: str, job: Job) -> bool:
    raise NotImplementedError
