"""Grows, shrinks and recovers a gang, a job of several pods.

Promises: new pods come up while the others train, and if they fail, the gang keeps its size; pods are removed only
after the grant, when nothing trains in them; pods that stay are not touched. Requests to the platform are not
persisted: they are repeated after a restart, which changes nothing. Pure; called by `lifecycle` only.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.model.gang import GangFailure
from coordinator.reconcile.actions import RequestLaunch, Step, Wait
from coordinator.reconcile.observed_state import POLL_S, ComingLaunch, ObservedState
from coordinator.reconcile.permanent_failures import is_permanent
from coordinator.reconcile.transitions import fail_permanently, rest_fields, restart, retry, undo


def pods_ready(w: ObservedState, growth: ComingLaunch) -> Step | None:
    """Wait until each new pod has reported; request them first if that was not done."""
    if w.seen is None:
        return Wait(POLL_S, "its sidecars have not reported yet")
    if growth.node_unavailable:
        return _keep_size(w, "a node that it was to grow to does not answer, or takes no new pods")
    if growth.failure is not None:
        return _keep_size(w, f"a pod that it was to grow by failed: {growth.failure}")
    if growth.lost:
        return _keep_size(w, "a pod that it was to grow by ended before it was needed")
    if growth.up:
        return None
    if not growth.asked:
        return RequestLaunch(gpu_ids=w.op.to)
    if w.waited_s > w.config.init_timeout_s:
        return _keep_size(w, growth.unplaced or f"no pod to grow by came up within {w.config.init_timeout_s:.0f} s")
    return Wait(POLL_S, "the pods that it grows by come up")


def _keep_size(w: ObservedState, why: str) -> Step:
    """Undo the growth, and do not try again at once; no progress is lost."""
    step = undo(w, why)
    return replace(step, changes=step.changes | rest_fields(w, w.config.init_timeout_s / 10))


def scale_pods(w: ObservedState) -> Step | None:
    """Remove surplus pods, also those of a failed growth."""
    return RequestLaunch() if w.job.gpus_per_pod and w.pods_asked != w.job.members else None


def recover_gang(w: ObservedState, broken: GangFailure) -> Step:
    """Stop the whole gang and restart it from the last checkpoint. A lost pod or node does not count as a retry."""
    if broken.own and w.silent_pods:
        # After the loss of a node the other trainers fail at once, long before the node is known to be lost.
        return Wait(POLL_S, f"{broken.why}, and pod {min(w.silent_pods)} is not heard of")
    if not broken.own:
        return restart(w, f"{broken.why}, so the whole gang was stopped")
    if is_permanent(w):
        return fail_permanently(w, broken.why)
    return retry(w, broken.why, broken.ran_s)
