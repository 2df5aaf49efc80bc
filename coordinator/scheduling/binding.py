"""What a decision writes into a job: its intent, from which the journal carries it out. Pure.

Called by the loop under compare-and-set on the job as it was when it was decided. `Lost` where the books no
longer hold what the decision counted on; then it is dropped, and the next turn decides again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptive_scheduler.decision import Finish, Move, Operation, Requeue, Reshape, Start, workers_of
from adaptive_scheduler.snapshot import Worker
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import UNLIMITED, Doc, GpuRecord, JobRecord
from coordinator.model.resumption import rigid
from coordinator.model.tables import JobChanges


@dataclass(frozen=True)
class BindingContext:
    """What the intent is written on: the jobs as they were when it was decided, all others and GPUs as they are."""

    seen: Mapping[str, JobRecord]
    jobs: Mapping[str, JobRecord]
    gpus: Mapping[str, GpuRecord]
    wall: float
    how: str  # of a reshape: `in place` or `relaunch`


def bind(decision: Operation, context: BindingContext) -> JobChanges:
    """The fields to write. `Conflict` if its GPUs are no longer there. Who is about to stop saves without a limit."""
    job = context.seen[decision.job]
    changes = _changes(decision, job, context) | UNLIMITED
    if not isinstance(decision, Requeue | Finish) and len(changes["reshape"]["to"]) != decision.num_gpus:
        raise Conflict(f"its {decision.num_gpus} GPUs are no longer there")
    if isinstance(decision, Reshape | Move) and job.forced and rigid(job):
        changes["reshape"]["forced"] = True
    common = {"how": context.how, "at": context.wall, "generation": job.generation + 1}
    changes["reshape"] = {**common, **changes["reshape"]}
    return changes


def _changes(decision: Operation, job: JobRecord, context: BindingContext) -> JobChanges:
    match decision:
        case Start():
            return _start(decision, job, context)
        case Reshape():
            return _reshape(decision, job, context)
        case Move():
            return _move(decision, job, context)
        case Requeue():
            return _stopped("requeue", job, yields_to=list(decision.yields_to))
        case Finish():
            return _stopped("finish", job)


def _start(decision: Start, job: JobRecord, context: BindingContext) -> JobChanges:
    """Concrete GPUs: idle ones first, then the last of the victim's; it keeps its first ones."""
    to = [g for worker in workers_of(decision) for g in idle_gpus(worker, context)]
    reshape: Doc = {"kind": "start", "from": [], "victim": None}
    if decision.victim is not None:
        victim = context.seen[decision.victim]
        keeps = victim.gpu_ids[: decision.victim_num_gpus]
        to += victim.gpu_ids[len(keeps) :][: decision.num_gpus - len(to)]
        reshape |= {"victim": victim.raw_id, "victim_generation": victim.generation, "victim_keeps": list(keeps)}
    return {
        "state": s.INITIALIZING, "node": decision.node, "gpu_ids": to, "num_gpus": len(to), "launch": job.next_launch,
        "yields_to": None, "reshape": {**reshape, "to": to},
    }  # fmt: skip


def _reshape(decision: Reshape, job: JobRecord, context: BindingContext) -> JobChanges:
    """It keeps its first GPUs on each host, and gets idle ones there and on further hosts."""
    if job.gpus_per_pod:
        to = _of_gang(decision, job, context)
        return {"state": s.ADJUSTING, "reshape": {"kind": "reshape", "from": list(job.gpu_ids), "to": to, "for": None}}
    to = []
    for worker in workers_of(decision):
        keeps = [g for g in job.gpu_ids if g in context.gpus and context.gpus[g].node == worker.node][: worker.num_gpus]
        to += keeps + idle_gpus(Worker(worker.node, worker.num_gpus - len(keeps)), context)
    return {"state": s.ADJUSTING, "reshape": {"kind": "reshape", "from": list(job.gpu_ids), "to": to, "for": None}}


def _of_gang(decision: Reshape, job: JobRecord, context: BindingContext) -> list[str]:
    """All that it has and more behind it, or its first pods: those that stay keep their places (Volcano's replicas)."""
    to = list(job.gpu_ids[: decision.num_gpus])
    for worker in workers_of(decision):
        has = sum(context.gpus[g].node == worker.node for g in to if g in context.gpus)
        to += idle_gpus(Worker(worker.node, worker.num_gpus - has), context) if worker.num_gpus > has else []
    return to


def _move(decision: Move, job: JobRecord, context: BindingContext) -> JobChanges:
    """Sequence D of 1.3: always another launch. A job trained on CPU has one such chance of each kind (seed 000)."""
    spends = {} if not job.uses_cpu else {"rebalanced": True} if decision.rebalance else {"migrated_ts": context.wall}
    reshape: Doc = {
        "kind": "move", "from": list(job.gpu_ids), "to": idle_gpus(Worker(decision.node, decision.num_gpus), context),
        "from_node": job.node, "node": decision.node, "spends": spends, "how": "relaunch",
    }  # fmt: skip
    if job.doc.get("origin") == "volcano":  # the pod of a user's Volcano Job is made again once it is gone
        return {"state": s.ADJUSTING, "reshape": reshape}
    reshape |= {"launch": job.next_launch, "from_launch": job.launch}
    return {"state": s.ADJUSTING, "reshape": reshape, "newest_launch": job.next_launch}


def _stopped(kind: str, job: JobRecord, **more: object) -> JobChanges:
    reshape = {"kind": kind, "from": list(job.gpu_ids), "to": [], "how": "in place", **more}
    return {"state": s.ADJUSTING, "reshape": reshape}


def idle_gpus(worker: Worker, context: BindingContext) -> list[str]:
    """At most so many idle GPUs of a node, none that an intent names though it is not claimed yet."""
    booked = {g for job in context.jobs.values() if job.operation for g in job.operation.to}
    free = [g for g in context.gpus.values() if (g.node, g.state) == (worker.node, s.IDLE) and g.id not in booked]
    return [g.id for g in sorted(free, key=lambda g: (g.doc.get("index", 0), g.id))][: worker.num_gpus]
