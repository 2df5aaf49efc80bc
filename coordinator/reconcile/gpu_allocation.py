"""Allocates GPUs: the steps of an operation that claim, free and occupy them, each under compare-and-set.

Promises: a GPU that may be in use is never marked idle, and no GPU belongs to two jobs. Pure; called by `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.model import states as s
from coordinator.model.events import VictimBooked
from coordinator.model.records import GpuRecord, JobRecord, PromisedGift
from coordinator.model.resumption import stays_unasked
from coordinator.model.tables import GpuChanges, JobChanges
from coordinator.reconcile.actions import Step, Wait, WriteGpu, WriteJob
from coordinator.reconcile.observed_state import POLL_S, ObservedState, reshape_method
from coordinator.reconcile.transitions import restart, undo


def claim(w: ObservedState) -> Step | None:
    for gpu_id in sorted(w.op.to):
        gpu = w.gpus.get(gpu_id)
        if gpu is not None and gpu.job == w.job.id and (gpu.held_by == w.job.id or not gpu.faulty):
            continue
        if gpu is None or gpu.faulty:
            return undo(w, f"GPU {gpu_id} is no longer there")
        if gpu.state == s.IDLE and gpu.job is None:
            return _claim_idle(w, gpu_id)
        if gpu.job is not None and gpu.job in w.op.victims:
            return _claim_from_victim(w, gpu_id, w.op.victims[gpu.job])
        return undo(w, f"GPU {gpu_id} was given to job {gpu.job} meanwhile")
    return None


def _claim_idle(w: ObservedState, gpu_id: str) -> Step:
    """A newcomer reserves it; a running job takes it at once, which saves a write and is just as exclusive."""
    held = None if w.op.kind == "start" else w.job.raw_id
    state = s.RESERVED if w.op.kind == "start" else s.IN_USE
    changes: GpuChanges = {"state": state, "job_id": w.job.raw_id, "held_by": held, "generation": w.op.generation}
    return WriteGpu("claim", gpu_id, {"state": s.IDLE, "job_id": None}, changes)


def _claim_from_victim(w: ObservedState, gpu_id: str, gift: PromisedGift) -> Step:
    victim = w.jobs.get(gift.victim)
    if victim is None or victim.operation is None:
        if victim is None or victim.state != s.RUNNING or victim.cancel:
            return Wait(POLL_S, "the victim is ending by itself; its GPUs come free")
        if victim.generation != gift.generation:
            return undo(w, f"job {victim.id} changed meanwhile")
        if stays_unasked(victim):
            return undo(w, f"job {victim.id} must not be stopped any more")
        return _book_victim(w, victim, gift)
    if victim.operation.newcomer != w.job.id:
        return undo(w, f"job {victim.id} is being changed for another reason")
    changes: GpuChanges = {
        "state": s.RESERVED,
        "job_id": w.job.raw_id,
        "held_by": victim.raw_id,
        "generation": w.op.generation,
    }
    return WriteGpu("claim", gpu_id, {"job_id": victim.raw_id, "state": s.IN_USE}, changes)


def _book_victim(w: ObservedState, victim: JobRecord, gift: PromisedGift) -> Step:
    keeps = list(gift.keeps)
    reshape = {
        "kind": "reshape",
        "from": list(victim.gpu_ids),
        "to": keeps,
        "generation": victim.generation + 1,
        "for": w.job.raw_id,
        "decision": w.op.decision,
        "how": reshape_method(victim, w.config),
        "at": w.wall,
    }
    message = f"goes from {len(victim.gpu_ids)} to {len(keeps)} GPUs so that job {w.job.id} can start"
    changes: JobChanges = {"state": s.ADJUSTING, "reshape": reshape, "message": message}
    return WriteJob("book victim", changes, VictimBooked(len(keeps), w.job.raw_id), victim.id)


def take_back(w: ObservedState) -> Step | None:
    """Take back GPUs promised to a newcomer and not released yet, before the operation is undone."""
    for gpu_id in w.job.gpu_ids:
        gpu = w.gpus.get(gpu_id)
        if gpu is not None and gpu.held_by == w.job.id and gpu.job != w.job.id:
            expect: GpuChanges = {"job_id": gpu.doc.get("job_id"), "held_by": gpu.doc.get("held_by")}
            state = s.FAULTY if gpu.faulty else s.IN_USE
            return WriteGpu("take back", gpu_id, expect, {"state": state, "job_id": w.job.raw_id})
    return None


def free(w: ObservedState) -> Step | None:
    """Release the job's GPUs beyond `gpu_ids`; also repairs rows that a crash left behind.

    Its newcomer takes over those that were promised to it, which saves a write.
    """
    keep = frozenset(w.job.gpu_ids) | (frozenset(w.op.to) if w.job.operation else set())
    return next(releases(w, keep | {gpu.id for gpu in w.gpus.values() if has_given_up(w.job, w.jobs, gpu)}), None)


def has_given_up(victim: JobRecord, jobs: Mapping[str, JobRecord], gpu: GpuRecord) -> bool:
    """True if the victim's document says that it trains on without this GPU, and its newcomer is to take it over.

    It was granted fewer GPUs since the newcomer's decision, which happens only once the trainer of before has ended.
    A newcomer whose launch needs its GPUs from the beginning waits until the row says that they are free.
    """
    newcomer = jobs.get(str(gpu.job))
    op = newcomer.operation if newcomer else None
    gift = op.victims.get(victim.id) if op else None
    if newcomer is None or newcomer.recreated or op is None or gift is None:
        return False
    since = isinstance(gift.generation, int) and victim.generation > gift.generation
    return since and gpu.held_by == victim.id and gpu.id in op.to and gpu.id not in victim.gpu_ids


def still_used(w: ObservedState, gpu: GpuRecord) -> bool:
    """True if another job may still train on a GPU that is promised to this one."""
    if gpu.held_by in (None, w.job.id):
        return False
    victim = w.jobs.get(str(gpu.held_by))
    return victim is None or not has_given_up(victim, w.jobs, gpu)


def releases(w: ObservedState, keep: frozenset[str] = frozenset()) -> Iterator[Step]:
    me = w.job.id
    for gpu in sorted(w.gpus.values(), key=lambda g: g.id):
        if gpu.id in keep or me not in (gpu.job, gpu.held_by):
            continue
        if gpu.job != me:  # reserved for a waiting newcomer
            yield WriteGpu(
                "free",
                gpu.id,
                {"held_by": gpu.doc.get("held_by"), "job_id": gpu.doc.get("job_id")},
                {"held_by": None, "unleased": None},
            )
        elif gpu.held_by not in (None, me):  # was promised to this job, but its holder trains on
            back: GpuChanges = {"state": s.FAULTY if gpu.faulty else s.IN_USE, "job_id": gpu.doc.get("held_by")}
            yield WriteGpu("free", gpu.id, {"job_id": gpu.doc.get("job_id"), "held_by": gpu.doc.get("held_by")}, back)
        else:
            state = s.FAULTY if gpu.faulty else s.IDLE
            free: GpuChanges = {
                "state": state,
                "job_id": None,
                "worker_id": None,
                "held_by": None,
                "unleased": None,
            }
            yield WriteGpu("free", gpu.id, {"job_id": gpu.doc.get("job_id")}, free)


def occupy(w: ObservedState) -> Step | None:
    """Mark GPUs as held by this job before a trainer starts on them: one that may be in use is never idle.

    Each says, too, whether its trainer has a lease: that must be known even if the job's document is deleted.
    A newcomer may have reserved one in the moment in which the operation that promised it was undone.
    """
    if step := take_back(w):
        return step
    unleased: GpuChanges = {"unleased": True if w.job.unleased else None}
    for index, gpu_id in enumerate(w.job.gpu_ids):
        gpu = w.gpus.get(gpu_id)
        if gpu is None or gpu.job != w.job.id or (gpu.faulty and gpu.held_by != w.job.id):
            return restart(w, f"GPU {gpu_id} was lost")
        expect: GpuChanges = {"job_id": w.job.raw_id, "held_by": gpu.doc.get("held_by")}
        if gpu.held_by == w.job.id and gpu.state in (s.IN_USE, s.FAULTY):
            if (gpu.doc.get("unleased") is True) == w.job.unleased:
                continue
            return WriteGpu("occupy", gpu_id, expect, unleased)
        if still_used(w, gpu):
            return Wait(POLL_S, f"GPU {gpu_id} is still in use")
        changes: GpuChanges = {"state": s.IN_USE, "held_by": w.job.raw_id, "worker_id": index, **unleased}
        return WriteGpu("occupy", gpu_id, expect, changes)
    return None
