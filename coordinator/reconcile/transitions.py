"""State transitions that end an operation or a job: the fields to write, and the sentence with the reason.

Pure; called by `lifecycle` and `gang_scaling`.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.model import requirements, time_limit
from coordinator.model import states as s
from coordinator.model.events import (
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobRestarting,
    JobYielded,
    OperationUndone,
)
from coordinator.model.gang import describe_exit, lived_s
from coordinator.model.last_words import quoted
from coordinator.model.progress import last_measurement
from coordinator.model.records import UNLIMITED, JobRecord
from coordinator.model.resumption import NOT_TWICE, describe_hold, resumability_shown
from coordinator.model.tables import JobChanges
from coordinator.reconcile.actions import Step, WriteJob
from coordinator.reconcile.observed_state import ObservedState
from coordinator.reconcile.permanent_failures import is_permanent
from sidecar.protocol import Heartbeat

ENDS = {s.COMPLETED: JobCompleted, s.FAILED: JobFailed, s.CANCELLED: JobCancelled}
TAKEN_BEATS = 2.0  # after which it is known which GPUs others of the machine use
NOT_REMADE = "its pod cannot be made anew"
LONG_RUN_S = 600.0  # a trainer that ran so long was healthy: its crash counts as the first


def finished(w: ObservedState) -> bool:
    """True if the training is done: exit code 0, unless it was asked to stop and may have iterations left.

    A script may save on SIGTERM and exit with 0. A finished one that is restarted just ends again.
    """
    if w.lost or w.lost_pods or w.shim.trainer != "exited" or w.shim.exit_code != 0:
        return False
    if w.seen is None:
        return True
    total = w.job.iterations or w.seen.progress.total_iterations
    if not w.shim.stop_asked:
        return not _left_unresumed(w, w.seen, total)
    return total is not None and w.seen.progress.iterations >= total


def _left_unresumed(w: ObservedState, seen: Heartbeat, total: int | None) -> bool:
    """Return whether its command ended before it came to the unfinished training that its hook had saved.

    A script that finds its own lock, left by a kill, says that it runs already, and exits with 0.
    """
    began = w.job.generation > 1 and w.job.doc.get("resumes") == "hook" and not (seen.hook or seen.withdrawn)
    done = max(w.job.iterations_done, seen.progress.iterations)
    return began and w.has_checkpoint and not _stepped(w) and total is not None and 0 < done < total


def ended_by_itself(w: ObservedState) -> Step:
    """The trainer ended without a stop command, or its lease expired."""
    if finished(w):
        return completed(w)
    if w.shim.taken:
        return requeue(w, w.shim.taken, pause_s=TAKEN_BEATS * w.config.heartbeat_s)
    if w.shim.fenced:
        return restart(w, "was out of the coordinator's reach longer than its lease and was stopped")
    if w.shim.stop_asked or w.shim.trainer == "none":
        return restart(w, "had been stopped")
    why = describe_exit(w.shim, w.exit_place)
    if is_permanent(w):
        return fail_permanently(w, why)
    return retry(w, why, lived_s(w.shim))


def save_failure(w: ObservedState) -> str:
    """A sentence if a trainer that was asked to stop did not exit as one that has saved; else empty.

    A trainer that saved on SIGTERM exits with 0 or with one of the job's `reshape_exit_codes`.
    """
    code = w.shim.exit_code
    if w.lost or not w.shim.stop_asked or code is None or code == 0 or code in w.job.reshape_exit_codes:
        return ""
    how = describe_exit(w.shim, w.exit_place)
    return f"it did not save when it was asked to stop ({how}); {resume_point(w)}"


def not_frozen(w: ObservedState, why: str) -> WriteJob:
    """Let a training that the driver does not freeze train on; it is not asked again unless its user asks."""
    step = undo(w, why)
    changes: JobChanges = {**step.changes, "unfrozen": {"generation": w.job.generation, "why": why}}
    return WriteJob(step.name, changes, step.event)


def not_thawed(w: ObservedState) -> WriteJob:
    """Let a frozen training wait on; after some tries until its user resumes it. Nothing of it is lost."""
    why = f"it could not be thawed: {w.shim.unfrozen or 'it is not known why'}"
    if w.job.retries < w.config.retries:
        return requeue(w, f"{why}; tries again", w.job.retries + 1)
    step = requeue(w, why)
    changes: JobChanges = {**step.changes, "held": why, "suspended": True, "retries": 0}
    changes["message"] = sentence = describe_hold(JobRecord({**w.job.doc, **changes}))
    return WriteJob("hold", changes, JobHeld(sentence))


def frozen_ended(w: ObservedState) -> WriteJob:
    """Fail a job whose frozen training has ended: there is nothing from which it could go on."""
    gone = "its frozen process is gone, with all that it had not saved"
    return failed(w, gone if w.lost else describe_exit(w.shim, w.exit_place))


def retry(w: ObservedState, why: str, ran_s: float = 0.0) -> Step:
    """Restart and count a retry; given up after the last one."""
    idle = w.job.iterations_done > 0 and not _stepped(w)  # a long life without a step shows no health
    tries = 0 if ran_s > LONG_RUN_S and not idle else w.job.retries
    if tries >= w.config.retries:
        return give_up(w, why, f"{why}; gave up after {tries + 1} tries")
    return restart(w, why, tries + 1)


def fail_permanently(w: ObservedState, why: str) -> Step:
    """Give up without a retry, because `is_permanent` holds."""
    said = why if w.shim.exit_note else f"{why}; not tried again, as it would only end so again"
    return give_up(w, why, said)


def give_up(w: ObservedState, why: str, failure: str) -> WriteJob:
    """Fail a job with the sentence `failure`; one that has trained before and does not start again is held instead.

    Its work is in its checkpoint, and what keeps it from starting may be mended: an output folder that must not exist,
    data that were moved, a line of its script.
    """
    return hold(w, why) if w.has_trained and not _stepped(w) and not w.must_not_rerun else failed(w, failure)


def _stepped(w: ObservedState) -> bool:
    """True if the present generation was seen to train: by a step, or by a checkpoint of its own."""
    if w.seen is None:
        return False
    first, spawned, saved = w.seen.progress.first_step_at, w.shim.spawn_at, w.seen.checkpoint
    stepped = first is not None and spawned is not None and first >= spawned
    return stepped or (saved is not None and saved.generation == w.shim.generation > 0)


def hold(w: ObservedState, why: str) -> WriteJob:
    """Let a job that does not start again wait until its user resumes it, with its checkpoint and without GPUs.

    One whose checkpoints lie in its pod keeps pod and GPUs, since the checkpoints would go with them. So does one whose
    pod cannot be made anew, and one whose newest checkpoint is in memory only, until its disk has room for that.
    """
    unwritten = w.seen is not None and w.seen.unwritten
    kept = w.checkpoints_in_pod or w.job.keeps_pod or unwritten
    stays = kept and w.shim.trainer == "exited" and not w.lost
    step = restart(w, why) if stays else requeue(w, why)
    if step.changes["state"] == s.FAILED:
        return step
    changes: JobChanges = {**step.changes, "held": why, "retries": 0}
    if changes["state"] == s.SUBMITTED:
        changes["suspended"] = True
    changes["message"] = sentence = describe_hold(JobRecord({**w.job.doc, **changes}), unwritten)
    return WriteJob("hold", changes, JobHeld(sentence))


def restart(w: ObservedState, why: str, retries: int | None = None) -> WriteJob:
    """Begin a restart on the same GPUs, under the next generation; never of what must not run twice."""
    if w.must_not_rerun:
        return failed(w, f"{why}; {NOT_TWICE}")
    if w.job.is_bare_pod and w.lost:
        return failed(w, f"{w.launch_failure or why}; {NOT_REMADE}")
    why = f"{why}; {resume_point(w)}"
    generation = max(w.job.generation, w.op.generation if w.job.operation else 0, w.shim.generation) + 1
    have = _still_mine(w)
    if len(have) not in w.job.optional or ((w.lost or w.lost_pods) and w.node_unavailable):
        return requeue(w, why)
    count = w.job.retries if retries is None else retries
    pause = 0.0 if retries is None else w.config.retry_s * 2 ** (count - 1)
    reshape = {"kind": "restart", "from": list(w.job.gpu_ids), "to": have, "generation": generation, "at": w.wall}
    if w.job.gpus_per_pod and (w.lost_pods or list(w.job.gpu_ids[: len(have)]) != have):
        reshape["how"] = "relaunch"  # a pod is not replaced, and those behind a lost one cannot move up
    if w.job.operation and w.op.forced:
        reshape["forced"] = True
    changes: JobChanges = {
        "state": s.RESTARTING,
        "reshape": reshape,
        "message": why,
        "retries": count,
        **rest_fields(w, pause),
        **UNLIMITED,
        **progress_fields(w),
    }
    return WriteJob("restart", changes, JobRestarting(why))


def rest_fields(w: ObservedState, seconds: float) -> JobChanges:
    """Return the fields by which a job is not tried again for so long, whatever the wall clock does meanwhile."""
    until = w.wall + seconds
    return {"retry_ts": until, "retry_mark": w.at.mark(until)}


def resume_point(w: ObservedState) -> str:
    """A phrase that says where the restarted training goes on, as far as known."""
    if w.has_checkpoint:
        return "goes on from its checkpoint"
    said = w.job.doc.get("elastic") is True and w.job.doc.get("resumes") is None
    return "starts again, as its record says that it resumes" if said else "begins again from the start"


def _still_mine(w: ObservedState) -> list[str]:
    """The GPUs that it still has; of a gang those of complete pods."""
    mine = {gpu.id for gpu in w.gpus.values() if gpu.job == w.job.id and not gpu.faulty}
    if w.job.gpus_per_pod is None:
        return [g for g in w.job.gpu_ids if g in mine]
    return [g for part in w.job.parts(w.job.gpu_ids) if mine.issuperset(part) for g in part]


def undo(w: ObservedState, why: str, retries: int | None = None) -> WriteJob:
    """Return to the state before the operation; only while the shim has not obeyed a stop."""
    if w.op.kind in ("reshape", "move", "requeue") and w.job.generation < w.op.generation:
        message = (
            f"stays on {w.job.node}: {why}" if w.op.kind == "move" else f"keeps its {len(w.job.gpu_ids)} GPUs: {why}"
        )
        changes: JobChanges = {"state": s.RUNNING, "reshape": None, "message": message}
        if w.op.kind == "move":  # not again at once
            changes |= rest_fields(w, w.config.init_timeout_s / 10)
        return WriteJob("undo", changes, OperationUndone(why))
    if w.op.kind == "restart" and w.job.generation < w.op.generation:
        return requeue(w, why)
    return requeue(w, why, retries)


def requeue(w: ObservedState, why: str, retries: int | None = None, pause_s: float = 0.0) -> WriteJob:
    """Return to the queue after a fault; `retries` if it was the job's own, which counts as a retry."""
    if w.must_not_rerun:
        return failed(w, f"{why}; {NOT_TWICE}")
    if w.job.is_bare_pod and w.job.launch > 0 and w.job.doc.get("up") == w.job.launch:  # the queue would take its pod
        return failed(w, f"{why}; {NOT_REMADE}")
    count = w.job.retries if retries is None else retries
    pause = pause_s if retries is None else w.config.retry_s * 2 ** (count - 1)
    changes: JobChanges = {**_queued(w, why), "retries": count, **rest_fields(w, pause)}
    if not _loss_undetermined(w):
        changes["stopped_by_us"] = None  # a fault ended it
    return WriteJob("undo", changes, OperationUndone(why))


def launch_timed_out(w: ObservedState) -> Step:
    """A launch timed out: fail it, unless there was no place for it."""
    if w.unplaced is not None:
        return launch_unplaced(w, w.unplaced)
    return launch_failed(w, f"its sidecar did not report within {w.config.init_timeout_s:.0f} s")


def launch_unplaced(w: ObservedState, why: str) -> Step:
    """Queue again a launch that had no place, such as on a full node or disk; that does not count as a retry."""
    return requeue(w, f"could not be launched, tries again: {why}", pause_s=w.config.init_timeout_s / 10)


def unstartable(w: ObservedState) -> Step | None:
    """Fail a job whose command cannot start, before a victim is touched; one that has trained before is retried."""
    why = quoted(w.seen.unfit, 500) if w.seen else ""
    if not why:
        return None
    return launch_failed(w, why) if w.has_trained else failed(w, f"cannot start: {why}")


def launch_failed(w: ObservedState, why: str) -> Step:
    """Return to the queue, or fail after the last retry; a victim that still trains has lost nothing."""
    if w.must_not_rerun:
        return failed(w, f"{why}; {NOT_TWICE}")
    if w.job.is_bare_pod:
        return failed(w, f"could not be launched: {why}; {NOT_REMADE}")
    retries, first = w.job.retries + 1, str(w.job.doc.get("fault") or why)
    if retries > w.config.retries:  # after the first try Volcano may say only that its job has failed
        said = f"could not be launched: {why}" + (f"; the first time: {first}" if first != why else "")
        return give_up(w, said, said)
    step = undo(w, f"could not be launched ({why}); tries again", retries)
    return replace(step, changes={**step.changes, "fault": first}) if step.changes["state"] == s.SUBMITTED else step


def _queued(w: ObservedState, why: str) -> JobChanges:
    """Fields of a queued job: the checkpoint stays, GPUs and launch are given up."""
    return {
        "state": s.SUBMITTED,
        "reshape": None,
        "num_gpus": 0,
        "gpu_ids": None,
        "node": None,
        "message": why,
        "queued_ts": w.wall,
        **_trained_fields(w),
        **_members(w),
        **UNLIMITED,
        **progress_fields(w),
        "frozen": {"launch": w.job.launch, "node": w.job.frozen or w.job.node} if w.frozen else None,
    }


def _trained_fields(w: ObservedState) -> JobChanges:
    """Fields that say for how long it has trained, and that it does not now.

    One that ended before it was seen to train has trained for as long as its process lived.
    """
    ran_s = w.job.ran_s(w.at)
    of_before = w.job.operation is None or w.job.runs_since is not None or w.shim.generation != w.job.generation
    if not of_before and w.shim.spawn_at is not None:
        ran_s += max(0.0, lived_s(w.shim))
    return {"ran_s": ran_s, "run_ts": None, "run_mark": None}


def _members(w: ObservedState) -> JobChanges:
    """The number of a gang's pods: each must be known to be at rest before its GPUs are released."""
    return {"members": w.job.members} if w.job.gpus_per_pod else {}


def yielded(w: ObservedState) -> Step:
    """Return to the queue because another job is more urgent (Slaml, D7), or an operator suspended it.

    Its trainer has ended.
    """
    why = save_failure(w) or str(w.job.doc.get("message") or "")
    if w.job.is_bare_pod:
        return failed(w, f"{why}; {NOT_REMADE}")
    more_urgent = list(w.op.yields_to)
    changes = _queued(w, why) | {"preempts": w.job.preempts + bool(more_urgent), "yields_to": more_urgent}
    changes["stopped_by_us"] = None if w.frozen or w.broken_off else w.op.generation
    return WriteJob("yielded", changes, JobYielded(why))


def target_reached(w: ObservedState) -> Step:
    """Complete a job whose evaluation value has reached its target, whatever the exit code of the stop."""
    return end(w, s.COMPLETED, save_failure(w) or str(w.job.doc.get("message") or ""))


def completed(w: ObservedState) -> Step:
    total = w.job.iterations
    done = max(w.job.iterations_done, w.seen.progress.iterations if w.seen else 0)
    short = total is not None and 0 < done < total
    words = f"ended by itself after {done} of {total} iterations" if short else "completed"
    return end(w, s.COMPLETED, words + _missed_target(w))


def cancelled(w: ObservedState) -> Step:
    """End a job that was cancelled; one at its time limit that has done all its iterations meanwhile is completed."""
    if w.job.doc.get("timed_out") is not True:
        return end(w, s.CANCELLED, w.job.cancel_reason)
    return completed(w) if finished(w) else end(w, s.CANCELLED, time_limit.describe_end(w.job, w.seen))


def _missed_target(w: ObservedState) -> str:
    """A phrase that says that its target was not reached, and why; a misspelt metric name is a common reason."""
    target, (value, name) = requirements.target(w.job.doc), last_measurement(w.job, w.seen)
    if target is None or target.reached(value, name):
        return ""
    if value is not None and target.means(name):
        return f"; its target was not reached: {name} is {value:g}, not {target.value:g}"
    wanted = target.name or ("a Top-5 accuracy" if target.top5 else "one that can reach it")
    return f"; its target was never measured: the training printed {name or 'no measure'}, not {wanted}"


def failed(w: ObservedState, why: str) -> WriteJob:
    return end(w, s.FAILED, why)


def _loss_undetermined(w: ObservedState) -> bool:
    """True if the coordinator stopped it, and no output since then could show a loss.

    Without any report it was a fault that ended it together with its coordinator, as a reboot does: what it loses by
    that cannot be told apart from a loss by the stop.
    """
    if w.seen is None or w.copy_lost:
        return False
    ours = w.job.doc.get("stopped_by_us")
    lost = w.seen.lost
    return isinstance(ours, int) and (lost is None or lost.generation < ours)


def grant_fields(w: ObservedState) -> JobChanges:
    """Fields of a grant that say who stopped the training, to attribute a loss that shows later.

    Of a start for which no victim had to wait also those of `initialized`, which saves a write.
    """
    op = w.op
    if op.kind in ("reshape", "move"):
        grew = op.kind == "reshape" and len(op.to) > len(op.origin)
        by_us: JobChanges = {"forced": None} if op.forced else {}
        by_us |= {"stopped_by_us": None if op.forced or w.broken_off else op.generation}
        before = w.job.doc.get("grew_from")
        still = before if isinstance(before, int) and before < len(op.to) else None  # it gave back only a part
        return by_us | {"grew_from": len(op.origin) if grew else still}
    if op.kind == "restart":
        return {"stopped_by_us": op.generation if _loss_undetermined(w) else None}
    return {"grew_from": None, **(initialized_fields(w) if w.job.state == s.INITIALIZING else {})}


def initialized_fields(w: ObservedState) -> JobChanges:
    """Fields that say that the sidecar of its launch has reported."""
    return {"state": s.INITIALIZED, "up": w.job.launch}


def end(w: ObservedState, state: str, message: str) -> WriteJob:
    changes: JobChanges = {
        "state": state,
        "reshape": None,
        "num_gpus": 0,
        "gpu_ids": None,
        "message": message,
        "finish_ts": w.wall,
        **_trained_fields(w),
        **_members(w),
        **UNLIMITED,
        **progress_fields(w),
        "frozen": None,
        "late_s": _late_s(w),
    }
    return WriteJob(state, changes, ENDS[state](message))


def _late_s(w: ObservedState) -> float | None:
    """Return by how many seconds it misses its deadline, 0 if it does not; None where only the wall clock tells."""
    target_s = requirements.seconds(w.job.doc.get("sla"))
    since = w.job.submitted(w.at)
    return None if target_s is None or since is None else max(0.0, w.now - since - target_s)


def checkpoint_loss(w: ObservedState) -> JobChanges:
    """Fields of a job whose checkpoints were lost with its last pod; empty if it has them."""
    if w.seen is None or w.seen.checkpoint is not None or not w.checkpoint_lost:
        return {}
    why = "its checkpoints were lost with its pod, so it trains from the beginning; give it a checkpoint_claim"
    return {"checkpoint": None, "iters_done": w.seen.progress.iterations, "message": why}


def progress_fields(w: ObservedState) -> JobChanges:
    """Fields of the training's progress, to be written together with a change of state."""
    if w.seen is None:
        return {}
    p, found = w.seen.progress, w.seen.checkpoint
    known: JobChanges = {"iters_done": max(w.job.iterations_done, p.iterations), "epochs_done": p.epochs}
    if p.value is not None:
        known |= {"value": p.value, "value_name": p.value_name}
    known |= resumability_shown(w.job, w.seen)
    if found is not None:
        what = {"name": found.name, "step": found.step, "generation": found.generation}
        known["checkpoint"] = {**what, "launch": w.seen.launch}
    return known
