"""What is special in the life of a gang, a job of several pods: how it grows, shrinks and falls apart.

Promises: pods that it grows by come up while the others train, and where they do not, it goes on as it was; pods that
it shrinks by are let go of only after the grant, when nothing trains in them; pods that stay are not touched. What the
platform was asked for is not written down: after a restart it is asked again, which changes nothing. Pure; called by
`lifecycle` only.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.model.gang import BrokenGang
from coordinator.reconcile.actions import RequestLaunch, Step, Wait
from coordinator.reconcile.observed_state import POLL_S, ComingLaunch, ObservedState
from coordinator.reconcile.permanent_failures import hopeless
from coordinator.reconcile.transitions import again, for_good, restart, undo


def pods_ready(w: ObservedState, growth: ComingLaunch) -> Step | None:
    """Wait until each pod that it is to grow by has reported, asking for them if nobody has."""
    if w.seen is None:
        return Wait(POLL_S, "its sidecars have not reported yet")
    if growth.away:
        return _stays(w, "a node that it was to grow to does not answer, or takes no new pods")
    if growth.failure is not None:
        return _stays(w, f"a pod that it was to grow by failed: {growth.failure}")
    if growth.lost:
        return _stays(w, "a pod that it was to grow by ended before it was needed")
    if growth.up:
        return None
    if not growth.asked:
        return RequestLaunch(gpu_ids=w.op.to)
    if w.waited_s > w.config.init_timeout_s:
        return _stays(w, growth.unplaced or f"no pod to grow by came up within {w.config.init_timeout_s:.0f} s")
    return Wait(POLL_S, "the pods that it grows by come up")


def _stays(w: ObservedState, why: str) -> Step:
    """It has lost nothing, and does not try again at once."""
    step = undo(w, why)
    return replace(step, changes={**step.changes, "retry_ts": w.wall + w.config.init_timeout_s / 10})


def scaled(w: ObservedState) -> Step | None:
    """Pods that are no longer wanted go, also those of a growth that came to nothing."""
    return RequestLaunch() if w.job.gpus_per_pod and w.pods_asked != w.job.members else None


def fell_apart(w: ObservedState, broken: BrokenGang) -> Step:
    """All of it is stopped, and goes on from the last checkpoint. A lost pod or node is no fault of the job."""
    if broken.own and w.unheard:  # with a lost node the other trainers fail at once, long before it is known to be lost
        return Wait(POLL_S, f"{broken.why}, and pod {min(w.unheard)} is not heard of")
    if not broken.own:
        return restart(w, f"{broken.why}, so the whole gang was stopped")
    if hopeless(w):
        return for_good(w, broken.why)
    return again(w, broken.why, broken.ran_s)
