"""Computes the next step of one job: a pure function of its documents and the last observations.

Level-triggered: it depends on the observed state, not on events. So a lost, repeated or late message costs time, never
correctness, and a coordinator that was killed anywhere resumes by reading.

The journal of `reliability.md` section 3, for every kind of operation:

    1 claim      the GPUs of `to` that the job does not have (its victims', too: reserved, still held by them)
    2 ready      a newcomer is launched and initialized; a victim waits for its newcomer, a move for its next launch,
                 a reshape in place shortly for the interpreter that begins to wait for the next start
    3 stop       SIGTERM, save, exit: waited for, unless somebody agreed to a loss. No return once the shim has obeyed
    4 grant      generation, GPUs and checkpoint are persisted
    5 free       the GPUs that the job no longer has; a newcomer takes those over that were promised to it
    6 start      GPUs are marked as held, then the sidecar is commanded
    7 running    on the first step

A move leaves its launch after 4. Where the next launch needs the first one gone, and with a reshape by relaunch, it is
removed in 3, and the next one requested between 5 and 6. Two kinds end at 3: a requeue puts the job back in the queue,
a finish completes it.

Before 3 any failure undoes the operation; after it everything rolls forward.
"""

from __future__ import annotations

from coordinator.events.stages import gap_s
from coordinator.model import states as s
from coordinator.model.events import (
    JobClosed,
    JobInitialized,
    JobRunning,
    LaunchRemoved,
    OperationRenumbered,
    ResourcesGranted,
)
from coordinator.model.records import JobRecord
from coordinator.model.resumption import resumes, rigidity_reason, stays_unasked
from coordinator.model.tables import JobChanges
from coordinator.reconcile.actions import RequestLaunch, RequestRemoval, StartTrainer, Step, StopTrainer, Wait, WriteJob
from coordinator.reconcile.gang_scaling import pods_ready, recover_gang, scale_pods
from coordinator.reconcile.gpu_allocation import claim, free, occupy, releases, still_used, take_back
from coordinator.reconcile.observed_state import POLL_S, REMOVING_S, ComingLaunch, ObservedState, initializes_early
from coordinator.reconcile.transitions import (
    cancelled,
    checkpoint_loss,
    completed,
    ended_by_itself,
    finished,
    frozen_ended,
    grant_fields,
    hold,
    initialized_fields,
    launch_failed,
    launch_timed_out,
    launch_unplaced,
    not_frozen,
    not_thawed,
    progress_fields,
    requeue,
    restart,
    retry,
    save_failure,
    target_reached,
    undo,
    unstartable,
    yielded,
)
from sidecar.protocol import command_id


def next_step(w: ObservedState) -> Step:
    """The next step for this job."""
    step = _next(w)
    return _abandon_newcomer(w, step) or step


def _abandon_newcomer(w: ObservedState, step: Step) -> Step | None:
    """Remove an abandoned new launch before the write that forgets it: no document would name it after a crash."""
    coming = w.job.coming
    if coming is None or w.newcomer is None or not isinstance(step, WriteJob) or step.job:
        return None
    after = JobRecord({**w.job.doc, **step.changes})
    still = after.launch == coming.launch or (after.coming is not None and after.coming.launch == coming.launch)
    asked = w.newcomer.removed is not None
    return None if still or asked else RequestRemoval(coming.launch, step.event.reason or step.name)


def _next(w: ObservedState) -> Step:
    if w.job.state in s.ENDED:
        return _close(w)
    if w.job.cancel:
        return _cancel(w)
    if w.job.operation is None:
        return _without_operation(w)
    return _operate(w)


def _operate(w: ObservedState) -> Step:
    """The seven steps. Each part returns None once it has nothing left to do."""
    if finished(w):
        return completed(w)
    if w.shim.generation > w.op.generation:
        reshape = {**w.op.doc, "generation": w.shim.generation + 1}
        return WriteJob("renumber", {"reshape": reshape}, OperationRenumbered())
    if w.op.kind == "requeue" and not w.op.freezes and w.runs and w.job.edited and w.shim.generation < w.op.generation:
        return undo(w, rigidity_reason(w.job))
    if w.op.kind in ("requeue", "finish"):
        return _stop(w) or _conclude_stop(w)
    if w.job.generation < w.op.generation:
        return claim(w) or _ready(w) or _warmed(w) or _stop(w) or _pause(w) or _grant(w)
    return free(w) or _leave_old_launch(w) or _launched(w) or scale_pods(w) or occupy(w) or _start(w) or _running(w)


# 2 ready


def _ready(w: ObservedState) -> Step | None:
    if w.op.kind == "start":
        return _initialized(w)
    stopped = w.shim.generation >= w.op.generation or w.remove_asked
    if w.op.kind in ("reshape", "move") and not (stopped or w.lost or w.op.forced) and stays_unasked(w.job, w.seen):
        return take_back(w) or undo(w, rigidity_reason(w.job, w.seen))
    if w.op.newcomer is not None and not stopped:
        return _newcomer_ready(w)
    if w.op.kind in ("reshape", "move") and w.gang_failure and not stopped:
        return undo(w, w.gang_failure.why)
    if w.growth is not None and not (stopped or w.lost):
        return pods_ready(w, w.growth)
    if w.newcomer is not None and not (stopped or w.lost):
        return _next_launch_ready(w, w.newcomer)
    return None


def _next_launch_ready(w: ObservedState, newcomer: ComingLaunch) -> Step | None:
    """Wait for the new launch of a move. The job trains on meanwhile, so any failure undoes the move without loss."""
    if w.seen is None:
        return Wait(POLL_S, "its sidecar has not reported yet")  # perhaps it has stopped already
    if newcomer.removed is not None:
        return undo(w, newcomer.removed)
    if newcomer.node_unavailable:
        return undo(w, f"node {w.op.node} does not answer, or takes no new pods")
    if newcomer.failure is not None:
        return undo(w, f"its launch on node {w.op.node} failed: {newcomer.failure}")
    if newcomer.lost:
        return undo(w, f"its launch on node {w.op.node} ended before it was needed")
    if newcomer.up:
        return None
    if not newcomer.asked:
        return RequestLaunch(newcomer=True)
    if w.waited_s > w.config.init_timeout_s:
        why = newcomer.unplaced or f"its sidecar did not report within {w.config.init_timeout_s:.0f} s"
        return undo(w, f"its launch on node {w.op.node} did not come up: {why}")
    return Wait(POLL_S, f"its launch on node {w.op.node} comes up")


def _initialized(w: ObservedState) -> Step | None:
    waits = any(still_used(w, w.gpus[g]) for g in w.op.to)
    if waits and not initializes_early(w.job, w.config):
        return Wait(POLL_S, "its GPUs are still in use")
    if step := _launched(w) or unstartable(w):
        return step
    if waits and w.job.state == s.INITIALIZING:
        return WriteJob("initialized", initialized_fields(w), JobInitialized())
    return Wait(POLL_S, "its GPUs are still in use") if waits else None


def _newcomer_ready(w: ObservedState) -> Step | None:
    newcomer = w.jobs.get(str(w.op.newcomer))
    op = newcomer.operation if newcomer else None
    if newcomer is None or newcomer.cancel or op is None or w.job.id not in op.victims:
        return take_back(w) or undo(w, f"job {w.op.newcomer} no longer needs its GPUs")
    if any(w.gpus[g].job != newcomer.id for g in op.to):
        return Wait(POLL_S, "the newcomer is still claiming its GPUs")
    if newcomer.state == s.INITIALIZING and initializes_early(newcomer, w.config):
        return Wait(POLL_S, f"job {newcomer.id} is still initializing")
    if w.peer_seen and w.peer_seen.shim.waits == "begins" and w.waited_s < w.config.init_timeout_s:
        return Wait(POLL_S, f"job {newcomer.id} does its imports before it gets GPUs")
    return None


def _launched(w: ObservedState) -> Step | None:
    """Wait until the sidecar of the present launch reports; request the launch first if that was not done."""
    if w.lost and w.seen is not None:
        return _launch_died(w)
    if w.lost_pods and not w.trains:  # else it is stopped first
        return launch_failed(w, w.launch_failure) if w.launch_failure and w.op.kind == "start" else _launch_died(w)
    if w.seen is not None:
        return Wait(POLL_S, "its launch is ending") if w.shim.ending else None
    if w.node_unavailable:
        return undo(w, f"node {w.job.node} does not answer, or takes no new pods")
    if w.launch_failure is not None:
        return launch_failed(w, w.launch_failure) if w.unplaced is None else launch_unplaced(w, w.unplaced)
    if not w.launch_asked:
        return RequestLaunch()
    if w.waited_s > w.config.init_timeout_s:
        return launch_timed_out(w)
    return Wait(POLL_S, "initializing")


def _launch_died(w: ObservedState) -> Step:
    """The launch had reported and is gone before it trained: no sidecar is left to command."""
    why = "its processes ended before it trained"
    if w.shim.ending or any(w.pods[k].shim.ending for k in w.lost_pods & w.pods.keys()):
        # It was ended from outside, such as by an eviction: not the job's fault.
        return undo(w, why) if w.op.kind == "start" else restart(w, why)
    return launch_failed(w, why) if w.op.kind == "start" else retry(w, why)


def _warmed(w: ObservedState) -> Step | None:
    """Let the job train on while an interpreter for its next start does its imports: it then stands still for less."""
    here = w.reshapes_in_place and w.shim.generation < w.op.generation
    return Wait(POLL_S, "an interpreter for its next start does its imports") if here and w.warming else None


# 3 stop


def _stop(w: ObservedState) -> Step | None:
    if w.op.kind == "start":
        return None
    if w.remove_asked:
        return None if w.lost else Wait(REMOVING_S, "its launch is being removed")
    if w.lost:
        return RequestRemoval()  # end leftovers of a dead shim before a new launch
    if w.seen is None:
        return Wait(POLL_S, "its sidecar has not reported yet")
    if w.runs and w.op.freezes:
        return _freeze(w)
    if w.runs:  # pods of a gang share a disk, and no memory
        in_place = w.reshapes_in_place and w.job.gpus_per_pod is None
        next_gpus = w.op.to if in_place else ()
        return StopTrainer(w.op.generation, in_place, wait=not w.op.forced, gpu_ids=next_gpus)
    if w.trains:
        return Wait(POLL_S, "saving")
    relaunch = w.op.how == "relaunch" or (w.lost_pods and w.op.kind not in ("requeue", "finish"))
    return RequestRemoval() if relaunch and w.op.launch is None else None


def _freeze(w: ObservedState) -> Step:
    """Have the driver freeze the trainer; one that it does not freeze trains on."""
    if w.shim.unfrozen_by == w.freeze_id:
        return not_frozen(w, w.shim.unfrozen)
    if not w.shim.freezes:
        return not_frozen(w, "its shim freezes trainings on a machine's own GPUs only")
    return StopTrainer(w.op.generation, freeze=True)


def _pause(w: ObservedState) -> Step | None:
    if w.op.kind == "restart" and w.job.held:
        return _rest_held(w)
    # Its GPUs wait with it, so a clock that was set back must not make it longer: `waited_s` cannot be set.
    longest_s = w.config.retry_s * 2 ** max(0, w.job.retries - 1)
    rest_s = w.job.rest_s(w.at)
    if w.op.kind == "restart" and rest_s > 0 and w.waited_s < longest_s:
        return Wait(min(rest_s, longest_s - w.waited_s), "pause before starting again")
    return None


def _rest_held(w: ObservedState) -> Step:
    """Wait for the user of a held job that kept its launch; one that kept it for a copy in memory gives it back."""
    keeps_launch = w.checkpoints_in_pod or w.job.keeps_pod
    if keeps_launch or w.lost or w.seen is None or w.seen.unwritten or w.shim.trainer != "exited":
        return Wait(None, "it is held until its user resumes it")
    return hold(w, str(w.job.held))


def _conclude_stop(w: ObservedState) -> Step:
    """Conclude a requeue or finish after the stop; GPUs are released as for any ended or undone job."""
    if w.op.kind == "requeue" and w.op.freezes and not w.frozen:
        return restart(w, "its processes are gone") if w.lost else ended_by_itself(w)
    if w.op.kind == "requeue":
        return yielded(w)
    if w.lost and w.shim.trainer != "exited":
        return restart(w, "its processes are gone before it had saved, short of its target")
    return target_reached(w) if w.shim.stop_asked else ended_by_itself(w)


# 4 grant


def _grant(w: ObservedState) -> Step:
    op = dict(w.op.doc)
    changes: JobChanges = {"generation": w.op.generation, "gpu_ids": list(w.op.to), "num_gpus": len(w.op.to)}
    changes |= progress_fields(w) | grant_fields(w)
    if w.seen is not None and w.op.kind != "start" and w.op.launch != w.job.launch:
        op["stopped"] = {
            "stop_at": w.shim.stop_at,
            "exit_at": w.shim.exit_at,
            "checkpoint_at": w.seen.checkpoint_at,
            "last_step_at": w.seen.progress.last_step_at,
            "exit_code": w.shim.exit_code,
            "unwritten": w.seen.unwritten,
        }
    if w.job.coming is not None and w.newcomer is not None and w.newcomer.removed is None:
        changes["launch"] = w.job.coming.launch
    elif w.job.coming is not None or (w.lost and w.op.kind != "start"):
        changes["launch"] = w.job.next_launch
    endless = w.job.unleased and "launch" not in changes  # a shim of an older version never takes a shorter lease
    changes["unleased"] = True if endless or not resumes(w.job, w.seen) else None
    if w.op.kind == "move":
        changes |= {"node": w.op.node, **w.op.spends}
    elif w.job.gpus_per_pod:
        changes |= {"node": w.gpus[w.op.to[0]].node}
    if loss := save_failure(w):
        op["loss"] = loss
    granted, earlier = ResourcesGranted(len(w.op.to), loss), JobInitialized() if "up" in changes else None
    return WriteJob("grant", {**changes, "reshape": op}, granted, earlier=earlier)


def _leave_old_launch(w: ObservedState) -> Step | None:
    """Remove the launch that a move left. If a crash forgets it, its sidecar ends at its next, unknown heartbeat."""
    return RequestRemoval(w.op.leaves) if w.op.leaves is not None and not w.old_launch_removed else None


# 6 start


def _start(w: ObservedState) -> Step | None:
    waits = [shim for shim in w.shims if shim.command_id != w.start_id] if w.trains else []
    if any(shim.trainer == "running" and shim.generation < w.job.generation for shim in waits):
        return StopTrainer(w.job.generation)  # started by an earlier command whose answer was lost
    if any(shim.trainer == "stopping" for shim in waits):
        return Wait(POLL_S, "saving")
    if w.gang_failure:
        return recover_gang(w, w.gang_failure)
    if not _started(w):
        return StartTrainer(w.job.generation, w.job.gpu_ids, w.checkpoint)
    if w.frozen:
        return not_thawed(w)
    if w.shim.trainer == "exited":
        return ended_by_itself(w)
    return None


def _started(w: ObservedState) -> bool:
    """True if the shim has obeyed the start of this generation; if not, one may still be in flight."""
    return w.shim.command_id == w.start_id


# 7 running


def _running(w: ObservedState) -> Step:
    assert w.seen is not None
    first, spawned = w.seen.progress.first_step_at, w.shim.spawn_at
    stepping = first is not None and spawned is not None and first >= spawned
    if w.job.frozen and w.shim.trainer != "running":
        return Wait(POLL_S, "it is being thawed")
    if not stepping and w.waited_s < w.config.first_step_timeout_s:
        return Wait(POLL_S, "no step yet")
    message = str(w.op.doc.get("loss") or "trains")
    changes: JobChanges = {
        "state": s.RUNNING,
        "reshape": None,
        "message": message,
        "up": w.job.launch,
        **progress_fields(w),
        "sized_by": w.op.decision or w.job.doc.get("sized_by"),
    }
    changes |= {"fault": None} if w.job.doc.get("fault") else {}
    changes |= {"frozen": None} if w.job.frozen else {}
    changes |= checkpoint_loss(w)
    since = w.wall if stepping else w.wall - w.waited_s  # one that tells no step trains since it was started
    changes |= {field: since for field in ("start_ts", "run_ts") if not w.job.doc.get(field)}
    changes |= {"run_mark": w.at.mark(since)} if "run_ts" in changes else {}
    if w.op.kind == "move":
        changes["moves"] = int(w.job.doc.get("moves") or 0) + 1
    if w.op.kind == "reshape":
        changes["reshapes"] = int(w.job.doc.get("reshapes") or 0) + 1
        changes |= {"reshape_cost_s": gap_s(w.op, w.seen), "reshaped_by": w.op.decision}
    return WriteJob("running", changes, JobRunning())


# without an operation


def _without_operation(w: ObservedState) -> Step:
    if w.job.state == s.SUBMITTED and w.job.frozen:
        return _rest_frozen(w)
    if w.job.state == s.SUBMITTED:
        return _ensure_at_rest(w) or next(releases(w), None) or _remove_launch(w) or Wait(None)
    if step := free(w) or occupy(w):
        return step
    if w.lost:
        return restart(w, "its processes are gone")
    if w.seen is None:
        return Wait(POLL_S, "not heard from yet")
    if w.shim.ending and not finished(w):  # it obeys no commands any more
        return Wait(POLL_S, "its launch is ending")
    if (why := w.gang_failure or w.stall) and not finished(w):
        return recover_gang(w, why)
    if w.frozen:  # the store has lost the newest steps
        return requeue(w, "it is frozen in memory")
    if w.shim.trainer in ("none", "exited") and w.shim.generation >= w.job.generation:
        return ended_by_itself(w)
    if w.shim.generation < w.job.generation:  # a restarted shim
        return _start(w) or Wait(None)
    return scale_pods(w) or Wait(POLL_S if w.partly_ended else None)


def _rest_frozen(w: ObservedState) -> Step:
    """Keep the launch of a frozen training; its GPU was given back before the freeze was told."""
    if w.lost or (w.seen is not None and w.shim.trainer in ("none", "exited")):
        return frozen_ended(w)
    return next(releases(w), None) or Wait(None)


def _ensure_at_rest(w: ObservedState) -> Step | None:
    """Make sure that nothing trains on the GPUs, or can begin to, before they are released."""
    if w.trains:
        return _stop_for_good(w)
    if w.lost or all(gpu.held_by != w.job.id for gpu in w.gpus.values()):
        return None
    if not w.at_rest:  # silent: remove it, alive or not
        return Wait(POLL_S, "its launch is being removed") if w.remove_asked else RequestRemoval()
    # A start that was sent and not answered is refused once the shim has seen a higher generation.
    refused = all(shim.generation > w.job.generation for shim in w.shims)
    return None if _started(w) or refused or w.job.launch == 0 else _stop_for_good(w)


def _remove_launch(w: ObservedState) -> Step | None:
    """Remove the launch of an undone or ended job; `down` names the last launch that is gone."""
    if w.job.launch == 0 or w.job.doc.get("down") == w.job.launch:
        return None
    if not w.remove_asked:
        return RequestRemoval()  # even if it seems gone: it may still be coming up
    if not w.lost:
        return Wait(REMOVING_S, "its launch is being removed")
    return WriteJob("put down", {"down": w.job.launch, "unleased": None, **progress_fields(w)}, LaunchRemoved())


def _cancel(w: ObservedState) -> Step:
    if w.unreachable and not w.lost:  # unreachable: the platform ends it, which lets it save, too
        return Wait(POLL_S, "its launch is being removed") if w.remove_asked else RequestRemoval()
    if w.trains:
        return _stop_for_good(w)
    # A launch that is still coming up may fail, so there is nothing to wait for.
    if w.seen is None and not w.lost and w.job.doc.get("up") == w.job.launch:
        return Wait(POLL_S, "its sidecar has not reported yet")
    return cancelled(w)


def _stop_for_good(w: ObservedState) -> Step:
    """Stop it without a next start. One that was cancelled is not waited for longer than its grace."""
    hurry = w.job.cancel
    calls_driver = any(shim.freezes and shim.stop_at is None for shim in w.shims)  # freezing or thawing it; it may hang
    if w.trains and not w.runs and not (hurry and (calls_driver or any(shim.patient for shim in w.shims))):
        return Wait(POLL_S, "saving")
    highest = max(w.job.generation, w.op.generation if w.job.operation else 0, w.shim.generation)
    stop = command_id(w.job.id, highest, "stop")  # other pods of a gang may have obeyed it already
    obeyed = [shim for shim in w.shims if shim.command_id == stop and not (hurry and shim.patient)]
    return StopTrainer(highest if obeyed and highest > w.job.generation else highest + 1, wait=not hurry)


def _close(w: ObservedState) -> Step:
    """Close an ended job once nothing runs, no GPU is assigned and no launch is left."""
    if w.job.doc.get("closed"):
        return Wait(None)
    if step := _ensure_at_rest(w) or next(releases(w), None) or _remove_launch(w):
        return step
    return WriteJob("close", {"closed": True, **w.last_course}, JobClosed())
