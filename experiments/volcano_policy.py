"""How Volcano places the pods of jobs trained on CPU, without us and beside us (seed 003; `algorithms.md` 4.7).

Without deadlines the queue is Volcano's own: by submission, and a job that does not fit is passed over. With
deadlines the policy that the product runs says who comes first and who gives way, and Volcano places (X12).
All pods of a task start together or none does (gang). Called by `workloads/deadline.py`.
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
"""How well a node suits a job; the largest wins."""

Order = Callable[[ClusterSnapshot], tuple[Job, ...]]


def gang(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """Volcano's default beside the gang plugin (nodeorder, least requested): the node with most room."""
    return (allocatable_on(snapshot, node).cores,)


def binpack(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """The fullest node that still has room."""
    return (-allocatable_on(snapshot, node).cores,)


def task_topology(snapshot: ClusterSnapshot, node: str, job: Job) -> tuple[float, ...]:
    """Tasks that belong together side by side: here those of the same name, which read the same; then most room."""
    name = job.tasks[0].name if job.tasks else ""
    alike = sum(bool(other.tasks) and other.tasks[0].name == name for other in snapshot.on_cpu[node])
    return (alike, allocatable_on(snapshot, node).cores)


PLACEMENTS: dict[str, Score] = {"gang": gang, "binpack": binpack, "task-topology": task_topology}


def by_submission(snapshot: ClusterSnapshot) -> tuple[Job, ...]:
    return snapshot.queue


def by_deadline(snapshot: ClusterSnapshot) -> tuple[Job, ...]:
    """Earliest deadline first; jobs without one last, by submission."""
    return tuple(sorted(snapshot.queue, key=lambda j: (j.sla_s is None, j.submit_s + (j.sla_s or 0.0), j.id)))


def alone(score: Score, order: Order = by_submission, passes: bool = True) -> Planner:
    """Volcano by itself. `passes`: whether a later job may go before one that does not fit."""
    return lambda snapshot, now: tuple(_place(snapshot, order(snapshot), score, passes))


def with_deadlines(score: Score, settings: Settings) -> Planner:
    """Volcano behind the deadline-aware operator."""

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
