"""Models how Volcano places pods of CPU jobs, without and with the deadline policy (Slaml; `algorithms.md` 4.7).

Without deadlines, jobs queue by submission, and jobs that do not fit are skipped, as in Volcano. With deadlines, the
deadline policy orders the queue and requeues jobs, and Volcano places them (X12). All pods of a task start together
(gang). Called by `workloads/deadline_workloads.py` and `traces/trace.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from adaptive_scheduler.decision import Decision, Explanation, Start
from adaptive_scheduler.models.allocatable import allocatable_on, has_capacity_for
from adaptive_scheduler.policies import deadline
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after
from simulator.scenario import Planner

Score = Callable[[ClusterSnapshot, str, Job], tuple[float, ...]]
"""Score of a node for a job; the largest wins."""

Order = Callable[[ClusterSnapshot], tuple[Job, ...]]


def gang(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """Score by most free cores: Volcano's default beside the gang plugin (nodeorder, least requested)."""
    return (allocatable_on(snapshot, node).cores,)


def binpack(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """Score by fewest free cores."""
    return (-allocatable_on(snapshot, node).cores,)


def task_topology(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """Score by tasks of the same name on the node, then by most free cores."""
    name = job.tasks[0].name if job.tasks else ""
    alike = sum(bool(other.tasks) and other.tasks[0].name == name for other in snapshot.on_cpu[node])
    return (alike, allocatable_on(snapshot, node).cores)


PLACEMENTS: dict[str, Score] = {"gang": gang, "binpack": binpack, "task-topology": task_topology}


def by_submission(snapshot: ClusterSnapshot) -> tuple[Job, ...]:
    return snapshot.queue


def by_deadline(snapshot: ClusterSnapshot) -> tuple[Job, ...]:
    """Return the queue by deadline; jobs without one come last, by submission."""
    return tuple(sorted(snapshot.queue, key=lambda j: (j.sla_s is None, j.submit_s + (j.sla_s or 0.0), j.id)))


def alone(score: Score, order: Order = by_submission, passes: bool = True) -> Planner:
    """Return Volcano's planner alone. `passes`: whether a later job may overtake one that does not fit."""
    return lambda snapshot, now: tuple(_place(snapshot, order(snapshot), score, passes))


def with_deadlines(score: Score, settings: Settings) -> Planner:
    """Return Volcano's planner with the deadline policy in front."""

    def plan(snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        yields = deadline.schedule_overdue(snapshot, now, settings)
        world = after(snapshot, *yields)
        return (*yields, *_place(world, deadline.in_order(world, now, settings), score))

    return plan


def _place(snapshot: ClusterSnapshot, queue: tuple[Job, ...], score: Score, passes: bool = True) -> list[Decision]:
    decisions: list[Decision] = []
    for job in queue:
        open_nodes = sorted(node.name for node in snapshot.nodes if has_capacity_for(snapshot, node.name, job))
        if open_nodes:
            best = max(open_nodes, key=lambda node: score(snapshot, node, job))
            decisions.append(Start(job.id, best, 0, Explanation("volcano", f"{job.id} starts on {best}.")))
            snapshot = after(snapshot, decisions[-1])
        elif not passes:
            break
    return decisions
