"""What happens next to one job: a pure function of what is written and what was last seen.

Level-triggered: it never asks which event came, only how things stand. So a lost, repeated or late
message costs time, never correctness, and a coordinator that was killed anywhere goes on by reading.

The journal of `reliability.md` section 3 in one table, for every kind of operation alike:

    1 claim      the GPUs of `to` that are not mine (a victim's too: reserved, still held by it)
    2 ready      a newcomer is launched and initialized; a victim waits for its newcomer
    3 stop       SIGTERM, save, exit. No return once the shim has obeyed
    4 grant      generation, GPUs and checkpoint are written down
    5 free       the GPUs I no longer have
    6 start      first marked as held by me, then told to the sidecar
    7 running    on the first step

A move has its launch removed in 3, and another one asked for between 5 and 6. Two kinds end at 3: with a
requeue the job is back in the queue, with a finish it is completed.

Before 3 any failure undoes; after it everything rolls forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coordinator.core import states as s
from coordinator.core.outcomes import (
    again,
    completed,
    end,
    ended_by_itself,
    finished,
    from_nothing,
    launch_failed,
    launch_late,
    progress,
    reached,
    restart,
    undo,
    unsaved,
    yielded,
)
from coordinator.core.records import JobRecord
from coordinator.core.stages import gap_s
from coordinator.core.steps import Launch, Remove, Start, Step, Stop, Wait, WriteGpu, WriteJob
from coordinator.core.world import POLL_S, REMOVING_S, World, how_of, starts_early
from sidecar.protocol import command_id


def next_step(w: World) -> Step:
    """The one next thing to do for this job."""
    if w.job.state in s.ENDED:
        return _close(w)
    if w.job.cancel:
        return _cancel(w)
    if w.job.operation is None:
        return _keep(w)
    return _operate(w)


def _operate(w: World) -> Step:
    """The seven steps. Each part answers None once it has nothing left to do."""
    if finished(w):
        return completed(w)
    if w.shim.generation > w.op.generation:
        reshape = {**w.op.doc, "generation": w.shim.generation + 1}
        return WriteJob("renumber", {"reshape": reshape}, {"type": "renumbered"})
    if w.op.kind in ("requeue", "finish"):
        return _stop(w) or _gives_way(w)
    if w.job.generation < w.op.generation:
        return _claim(w) or _ready(w) or _stop(w) or _grant(w)
    return _free(w) or _launched(w) or _occupy(w) or _start(w) or _running(w)


# 1 claim


def _claim(w: World) -> Step | None:
    for gpu_id in sorted(w.op.to):
        gpu = w.gpus.get(gpu_id)
        if gpu is not None and gpu.job == w.job.id and (gpu.held_by == w.job.id or not gpu.faulty):
            continue
        if gpu is None or gpu.faulty:
            return undo(w, f"GPU {gpu_id} is no longer there")
        if gpu.state == s.IDLE and gpu.job is None:
            return _claim_idle(w, gpu_id)
        if w.op.kind == "start" and gpu.job is not None and gpu.job == w.op.peer:
            return _claim_from_victim(w, gpu_id)
        return undo(w, f"GPU {gpu_id} was given to job {gpu.job} meanwhile")
    return None


def _claim_idle(w: World, gpu_id: str) -> Step:
    """A newcomer reserves; a running job takes at once: one write fewer, and just as exclusive."""
    held = None if w.op.kind == "start" else w.job.raw_id
    state = s.RESERVED if w.op.kind == "start" else s.IN_USE
    changes = {"state": state, "job_id": w.job.raw_id, "held_by": held, "generation": w.op.generation}
    return WriteGpu("claim", gpu_id, {"state": s.IDLE, "job_id": None}, changes)


def _claim_from_victim(w: World, gpu_id: str) -> Step:
    victim = w.jobs.get(str(w.op.peer))
    if victim is None or victim.operation is None:
        if victim is None or victim.state != s.RUNNING or victim.cancel:
            return Wait(POLL_S, "the victim is ending by itself; its GPUs come free")
        if victim.generation != w.op.doc.get("victim_generation"):
            return undo(w, f"job {victim.id} changed meanwhile")
        return _book_victim(w, victim)
    if victim.operation.peer != w.job.id:
        return undo(w, f"job {victim.id} is being changed for another reason")
    changes = {"state": s.RESERVED, "job_id": w.job.raw_id, "held_by": victim.raw_id, "generation": w.op.generation}
    return WriteGpu("claim", gpu_id, {"job_id": victim.raw_id, "state": s.IN_USE}, changes)


def _book_victim(w: World, victim: JobRecord) -> Step:
    keeps = [str(g) for g in w.op.doc.get("victim_keeps") or ()]
    reshape = {
        "kind": "reshape", "from": list(victim.gpu_ids), "to": keeps, "generation": victim.generation + 1,
        "for": w.job.raw_id, "decision": w.op.decision, "how": how_of(victim, w.config), "at": w.wall,
    }  # fmt: skip
    message = f"goes from {len(victim.gpu_ids)} to {len(keeps)} GPUs so that job {w.job.id} can start"
    changes = {"state": s.ADJUSTING, "reshape": reshape, "message": message}
    return WriteJob("book victim", changes, {"type": "adjusting", "to": len(keeps), "for": w.job.raw_id}, victim.id)


# 2 ready


def _ready(w: World) -> Step | None:
    if w.op.kind == "start":
        return _initialized(w)
    if w.op.kind == "restart" and w.wall < w.job.retry_ts:
        return Wait(w.job.retry_ts - w.wall, "pause before starting again")
    stopped = w.shim.generation >= w.op.generation or w.remove_asked
    if w.op.kind == "reshape" and w.op.peer is not None and not stopped:
        return _newcomer_ready(w)
    return None


def _initialized(w: World) -> Step | None:
    waits = [g for g in w.op.to if w.gpus[g].held_by not in (None, w.job.id)]
    if waits and not starts_early(w.job, w.config):
        return Wait(POLL_S, "its GPUs are still in use")
    if step := _launched(w):
        return step
    if w.job.state == s.INITIALIZING:
        return WriteJob("initialized", {"state": s.INITIALIZED, "up": w.job.launch}, {"type": "initialized"})
    return Wait(POLL_S, "its GPUs are still in use") if waits else None


def _newcomer_ready(w: World) -> Step | None:
    newcomer = w.jobs.get(str(w.op.peer))
    op = newcomer.operation if newcomer else None
    if newcomer is None or newcomer.cancel or op is None or op.kind != "start" or op.peer != w.job.id:
        return _take_back(w) or undo(w, f"job {w.op.peer} no longer needs its GPUs")
    if any(w.gpus[g].job != newcomer.id for g in op.to):
        return Wait(POLL_S, "the newcomer is still claiming its GPUs")
    if newcomer.state == s.INITIALIZING and starts_early(newcomer, w.config):
        return Wait(POLL_S, f"job {newcomer.id} is still initializing")
    return None


def _take_back(w: World) -> Step | None:
    """What was promised and not let go is mine again, before I run on without an operation that says so."""
    for gpu_id in w.job.gpu_ids:
        gpu = w.gpus.get(gpu_id)
        if gpu is not None and gpu.held_by == w.job.id and gpu.job != w.job.id:
            expect = {"job_id": gpu.doc["job_id"], "held_by": gpu.doc["held_by"]}
            state = s.FAULTY if gpu.faulty else s.IN_USE
            return WriteGpu("take back", gpu_id, expect, {"state": state, "job_id": w.job.raw_id})
    return None


def _launched(w: World) -> Step | None:
    """Wait until the sidecar of the present launch reports, asking for the launch if nobody has."""
    if w.seen is not None:
        return _died(w) if w.lost else Wait(POLL_S, "its launch is ending") if w.shim.ending else None
    if w.away:
        return undo(w, f"node {w.job.node} does not answer")
    if w.launch_failure is not None:
        return launch_failed(w, w.launch_failure)
    if not w.launch_asked:
        return Launch()
    if w.waited_s > w.config.init_timeout_s:
        return launch_late(w)
    return Wait(POLL_S, "initializing")


def _died(w: World) -> Step:
    """The launch had reported and is gone before it trained: nobody is left who would obey a start."""
    why = "its processes ended before it trained"
    if w.shim.ending:  # somebody ended it, such as an eviction: no fault of the job
        return undo(w, why) if w.op.kind == "start" else restart(w, why)
    return launch_failed(w, why) if w.op.kind == "start" else again(w, why)


# 3 stop


def _stop(w: World) -> Step | None:
    if w.op.kind == "start":
        return None
    if w.remove_asked:
        return None if w.lost else Wait(REMOVING_S, "its launch is being removed")
    if w.lost:
        return Remove()  # what a dead shim may have left is ended before there is a new launch
    if w.seen is None:
        return Wait(POLL_S, "its sidecar has not reported yet")
    if w.shim.trainer == "running":
        return Stop(w.op.generation)
    if w.shim.trainer == "stopping":
        return Wait(POLL_S, "saving")
    return Remove() if w.op.how == "relaunch" else None


def _gives_way(w: World) -> Step:
    """Stopped for good, or for now: what it had is let go of as for any job that ended or was undone."""
    if w.op.kind == "requeue":
        return yielded(w)
    if w.lost and w.shim.trainer != "exited":
        return restart(w, "its processes are gone before it had saved; trains on to its target from its checkpoint")
    return reached(w) if w.shim.stop_asked else ended_by_itself(w)


# 4 grant


def _grant(w: World) -> Step:
    op = dict(w.op.doc)
    changes: dict[str, Any] = {"generation": w.op.generation, "gpu_ids": list(w.op.to), "num_gpus": len(w.op.to)}
    changes |= progress(w)
    if w.seen is not None and w.op.kind != "start":
        op["stopped"] = {
            "stop_at": w.shim.stop_at, "exit_at": w.shim.exit_at, "checkpoint_at": w.seen.checkpoint_at,
            "last_step_at": w.seen.progress.last_step_at, "exit_code": w.shim.exit_code,
        }  # fmt: skip
    if w.lost and w.op.kind != "start":
        changes["launch"] = w.job.launch + 1
    if w.op.kind == "move":
        changes |= {"node": w.op.node, **w.op.spends}
    if loss := unsaved(w):
        op["loss"] = loss
    return WriteJob("grant", {**changes, "reshape": op}, {"type": "granted", "gpus": len(w.op.to), "sentence": loss})


# 5 free


def _free(w: World) -> Step | None:
    """Give up what is mine beyond `gpu_ids`. Also mends books that a crash left behind."""
    return next(_releases(w, keep=frozenset(w.job.gpu_ids) | (frozenset(w.op.to) if w.job.operation else set())), None)


def _releases(w: World, keep: frozenset[str] = frozenset()) -> Iterator[Step]:
    me = w.job.id
    for gpu in sorted(w.gpus.values(), key=lambda g: g.id):
        if gpu.id in keep or me not in (gpu.job, gpu.held_by):
            continue
        if gpu.job != me:  # reserved for a newcomer that waits for it
            yield WriteGpu(
                "free", gpu.id, {"held_by": gpu.doc["held_by"], "job_id": gpu.doc["job_id"]}, {"held_by": None}
            )
        elif gpu.held_by not in (None, me):  # was promised to me, but its holder trains on
            back = {"state": s.FAULTY if gpu.faulty else s.IN_USE, "job_id": gpu.doc["held_by"]}
            yield WriteGpu("free", gpu.id, {"job_id": gpu.doc["job_id"], "held_by": gpu.doc["held_by"]}, back)
        else:
            state = s.FAULTY if gpu.faulty else s.IDLE
            free = {"state": state, "job_id": None, "worker_id": None, "held_by": None}
            yield WriteGpu("free", gpu.id, {"job_id": gpu.doc["job_id"]}, free)


# 6 start


def _occupy(w: World) -> Step | None:
    """Mark as held by me before anything is started on it: what may be in use is never called free."""
    for index, gpu_id in enumerate(w.job.gpu_ids):
        gpu = w.gpus.get(gpu_id)
        if gpu is None or gpu.job != w.job.id or (gpu.faulty and gpu.held_by != w.job.id):
            return restart(w, f"GPU {gpu_id} was lost")
        if gpu.held_by == w.job.id and gpu.state in (s.IN_USE, s.FAULTY):
            continue
        if gpu.held_by is not None and gpu.held_by != w.job.id:
            return Wait(POLL_S, f"GPU {gpu_id} is still in use")
        changes = {"state": s.IN_USE, "held_by": w.job.raw_id, "worker_id": index}
        return WriteGpu("occupy", gpu_id, {"job_id": w.job.raw_id, "held_by": gpu.doc.get("held_by")}, changes)
    return None


def _start(w: World) -> Step | None:
    if w.trains and w.shim.generation < w.job.generation:  # by an earlier start whose answer was lost
        return Stop(w.job.generation) if w.shim.trainer == "running" else Wait(POLL_S, "saving")
    if not _started(w):
        return Start(w.job.generation, w.job.gpu_ids, w.checkpoint)
    if w.shim.trainer == "exited":
        return ended_by_itself(w)
    return None


def _started(w: World) -> bool:
    """Whether the shim is known to have obeyed the start of this generation; if not, one may still be on its way."""
    return w.shim.command_id == command_id(w.job.id, w.job.generation, "start")


# 7 running


def _running(w: World) -> Step:
    assert w.seen is not None
    first, spawned = w.seen.progress.first_step_at, w.shim.spawn_at
    stepping = first is not None and spawned is not None and first >= spawned
    if not stepping and w.waited_s < w.config.first_step_timeout_s:
        return Wait(POLL_S, "no step yet")
    message = str(w.op.doc.get("loss") or "trains")
    changes = {"state": s.RUNNING, "reshape": None, "message": message, "up": w.job.launch, **progress(w)}
    changes |= {"fault": None} if w.job.doc.get("fault") else {}
    changes |= from_nothing(w)
    changes |= {field: w.wall for field in ("start_ts", "run_ts") if not w.job.doc.get(field)}
    if w.op.kind == "move":
        changes["moves"] = int(w.job.doc.get("moves") or 0) + 1
    if w.op.kind == "reshape":
        changes["reshapes"] = int(w.job.doc.get("reshapes") or 0) + 1
        changes["reshape_cost_s"] = gap_s(w.op, w.seen)
    return WriteJob("running", changes, {"type": "running", "kind": w.op.kind})


# without an operation


def _keep(w: World) -> Step:
    if w.job.state == s.SUBMITTED:
        return _at_rest(w) or next(_releases(w), None) or _put_down(w) or Wait(None)
    if step := _free(w) or _occupy(w):
        return step
    if w.lost:
        return restart(w, "its processes are gone; it is launched again from its checkpoint")
    if w.seen is None:
        return Wait(POLL_S, "not heard from yet")
    if w.shim.ending and not finished(w):  # it obeys nobody any more
        return Wait(POLL_S, "its launch is ending")
    if w.shim.trainer in ("none", "exited") and w.shim.generation >= w.job.generation:
        return ended_by_itself(w)
    if w.shim.generation < w.job.generation:  # a shim that was started afresh
        return _start(w) or Wait(None)
    return Wait(None)


def _at_rest(w: World) -> Step | None:
    """Before GPUs are given up: make sure that nothing trains on them, and that nothing can begin to."""
    if w.trains:
        return _stop_for_good(w)
    if w.lost or all(gpu.held_by != w.job.id for gpu in w.gpus.values()):
        return None
    if not w.at_rest:  # not heard of: whether it lives or not, it is to go
        return Wait(POLL_S, "its launch is being removed") if w.remove_asked else Remove()
    # A start that was sent and not answered is refused once the shim has seen a higher generation.
    return None if _started(w) or w.shim.generation > w.job.generation or w.job.launch == 0 else _stop_for_good(w)


def _put_down(w: World) -> Step | None:
    """Remove what an undone or ended launch left; `down` names the last one that is gone."""
    if w.job.launch == 0 or w.job.doc.get("down") == w.job.launch:
        return None
    if not w.remove_asked:
        return Remove()  # even of one that seems gone: it may be on its way up
    if not w.lost:
        return Wait(REMOVING_S, "its launch is being removed")
    return WriteJob("put down", {"down": w.job.launch, **progress(w)}, {"type": "removed"})


def _cancel(w: World) -> Step:
    if w.trains:
        return _stop_for_good(w)
    if w.seen is None and not w.lost and w.job.doc.get("up") == w.job.launch:  # one that is still coming may fail
        return Wait(POLL_S, "its sidecar has not reported yet")
    return end(w, s.CANCELLED, "cancelled by the user")


def _stop_for_good(w: World) -> Step:
    if w.shim.trainer == "stopping":
        return Wait(POLL_S, "saving")
    highest = max(w.job.generation, w.op.generation if w.job.operation else 0, w.shim.generation)
    return Stop(highest + 1)


def _close(w: World) -> Step:
    """An ended job: nothing runs, no GPU is booked, no launch is left."""
    if w.job.doc.get("closed"):
        return Wait(None)
    if step := _at_rest(w) or next(_releases(w), None) or _put_down(w):
        return step
    return WriteJob("close", {"closed": True}, {"type": "closed"})
