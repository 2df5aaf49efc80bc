"""Binds a decision to concrete GPUs: the fields of the job from which the reconciler carries it out. Pure.

The loop writes them under compare-and-set on the job as it was at the decision. `Conflict` if the cache no longer holds
what the decision relied on; then the decision is dropped, and the next cycle decides again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptive_scheduler.decision import Finish, Move, Operation, Requeue, Reshape, Start, workers_of
from adaptive_scheduler.policies.evictions import ASKED_BACK, DRAIN
from adaptive_scheduler.snapshot import Node, Worker
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import UNLIMITED, Doc, GpuRecord, JobRecord
from coordinator.model.resumption import freezable, rigid
from coordinator.model.tables import JobChanges


@dataclass(frozen=True)
class BindingContext:
    """State that a decision is bound to: `seen` and `nodes` as at the decision, `jobs` and `gpus` as they are now."""

    seen: Mapping[str, JobRecord]
    nodes: Mapping[str, Node]
    jobs: Mapping[str, JobRecord]
    gpus: Mapping[str, GpuRecord]
    wall: float
    how: str  # method of a reshape: `in place` or `relaunch`


def bind(decision: Operation, context: BindingContext) -> JobChanges:
    """The fields to write. `Conflict` if its GPUs are gone. Removes a CPU limit, so that saving is not slowed down."""
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
            freeze = {"freeze": True} if freezable(job) and decision.explanation.algorithm != ASKED_BACK else {}
            return _stopped("requeue", job, yields_to=list(decision.yields_to), **freeze)
        case Finish():
            return _stopped("finish", job)


def _start(decision: Start, job: JobRecord, context: BindingContext) -> JobChanges:
    """Concrete GPUs: idle ones first, then the victims' last ones; a victim keeps its first ones."""
    to = [g for worker in workers_of(decision) for g in idle_gpus(worker, context, job.pool)]
    gifts = list[Doc]()
    for giver in decision.victims:
        victim = context.seen[giver.job]
        keeps = victim.gpu_ids[: giver.num_gpus]
        to += victim.gpu_ids[len(keeps) :][: decision.num_gpus - len(to)]
        gifts.append({"job": victim.raw_id, "generation": victim.generation, "keeps": list(keeps)})
    reshape: Doc = {"kind": "start", "from": [], "victims": gifts}
    return {
        "state": s.INITIALIZING,
        "node": decision.node,
        "gpu_ids": to,
        "num_gpus": len(to),
        "launch": job.launch if job.frozen else job.next_launch,
        "yields_to": None,
        "reshape": {**reshape, "to": to},
    }


def _reshape(decision: Reshape, job: JobRecord, context: BindingContext) -> JobChanges:
    """Keep the job's first GPUs on each host, opportunistic and faulty ones last.

    Adds idle ones there and on further hosts.
    """
    if job.gpus_per_pod:
        to = _of_gang(decision, job, context)
        return {"state": s.ADJUSTING, "reshape": {"kind": "reshape", "from": list(job.gpu_ids), "to": to, "for": None}}
    to = []
    for worker in workers_of(decision):
        has = [g for g in job.gpu_ids if g in context.gpus and context.gpus[g].node == worker.node]
        keeps = sorted(has, key=lambda g: (context.gpus[g].faulty, context.gpus[g].opportunistic))[: worker.num_gpus]
        to += keeps + idle_gpus(Worker(worker.node, worker.num_gpus - len(keeps)), context, job.pool)
    return {"state": s.ADJUSTING, "reshape": {"kind": "reshape", "from": list(job.gpu_ids), "to": to, "for": None}}


def _of_gang(decision: Reshape, job: JobRecord, context: BindingContext) -> list[str]:
    """Append GPUs or keep the first pods: pods that stay keep their index (Volcano's replicas)."""
    to = list(job.gpu_ids[: decision.num_gpus])
    for worker in workers_of(decision):
        has = sum(context.gpus[g].node == worker.node for g in to if g in context.gpus)
        to += idle_gpus(Worker(worker.node, worker.num_gpus - has), context, job.pool) if worker.num_gpus > has else []
    return to


def _move(decision: Move, job: JobRecord, context: BindingContext) -> JobChanges:
    """Sequence D of 1.3: always another launch. A job trained on CPU has one move of each kind (SpeCon).

    Leaving a drained node uses up neither.
    """
    free_of_charge = not job.uses_cpu or decision.explanation.algorithm == DRAIN
    spends = {} if free_of_charge else {"rebalanced": True} if decision.rebalance else {"migrated_ts": context.wall}
    to = idle_gpus(Worker(decision.node, decision.num_gpus), context, job.pool)
    reshape: Doc = {
        "kind": "move",
        "from": list(job.gpu_ids),
        "to": to,
        "from_node": job.node,
        "node": decision.node,
        "spends": spends,
        "how": "relaunch",
    }
    if job.doc.get("origin") == "volcano":  # Volcano recreates the pod of a user's Volcano Job once it is gone
        return {"state": s.ADJUSTING, "reshape": reshape}
    reshape |= {"launch": job.next_launch, "from_launch": job.launch}
    return {"state": s.ADJUSTING, "reshape": reshape, "newest_launch": job.next_launch}


def _stopped(kind: str, job: JobRecord, **more: object) -> JobChanges:
    reshape = {"kind": kind, "from": list(job.gpu_ids), "to": [], "how": "in place", **more}
    return {"state": s.ADJUSTING, "reshape": reshape}


def idle_gpus(worker: Worker, context: BindingContext, pool: str = "") -> list[str]:
    """Return at most `worker.num_gpus` idle GPUs of a node for jobs of this pool.

    Without those that an operation names but has not claimed yet.
    """
    node = context.nodes.get(worker.node)
    here = [context.gpus[g.id] for g in node.gpus if g.id in context.gpus] if node is not None else []
    free = [g for g in here if (g.node, g.state, g.pool) == (worker.node, s.IDLE, pool or None)]
    if free:  # else no need to look at all jobs
        promised = {g for job in context.jobs.values() if job.operation for g in job.operation.to}
        free = [g for g in free if g.id not in promised]
    free.sort(key=lambda g: (g.opportunistic, g.doc.get("index") or 0, g.id))
    return [g.id for g in free][: worker.num_gpus]
