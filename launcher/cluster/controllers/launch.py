"""Decides the next steps of one launch: a pure function of its document and of the observed cluster.

Level-triggered: it reads the present state, not what happened, so a launcher that was killed anywhere resumes. First
comes what to record (`WriteLaunch`), then what brings the launch to its wanted state. Two kinds:

    record   we make its Volcano Job and Secret ourselves, by a playbook (a job document inserted by a user);
             without Volcano its batch Job
    volcano  a user's Volcano Job makes the pod; we only give it the Secret that it waits for, or delete it. Likewise
             a user's batch Job, which is suspended in place of that, and a bare pod, which nobody makes anew

Called by `launch_service.py`, in one thread, with one view per launch and turn. `gang_launch.py` decides for gangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coordinator.model.tables import LaunchChanges, LaunchRow
from launcher.cluster.controllers.one_pod_jobs import described, kind_of
from launcher.cluster.controllers.volcano_job_document import FINISHED, HALTED, phase
from launcher.cluster.pods.pod_state import Pod

Doc = dict[str, Any]


@dataclass(frozen=True)
class WriteLaunch:
    """Write these changes into the launch's document."""

    changes: LaunchChanges


@dataclass(frozen=True)
class PlayLaunch:
    """Run the playbook launch.yml."""


@dataclass(frozen=True)
class PlayRemove:
    """Run the playbook remove.yml."""


@dataclass(frozen=True)
class AdoptPod:
    """Record this pod as the launch's, then apply the Secret that it waits for."""

    pod: Pod
    member: int | None = None  # of a gang


@dataclass(frozen=True)
class ScaleVolcanoJob:
    """Set `replicas` and `minAvailable` of the Volcano Job."""

    replicas: int
    least: int


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod; its Volcano Job makes another one."""

    pod: Pod


@dataclass(frozen=True)
class OpenGate:
    """Let the pod of a batch Job, or a bare pod, be scheduled, on the decided node only."""

    pod: Pod


@dataclass(frozen=True)
class SuspendJob:
    """Suspend a batch Job, which deletes its pod without counting it as failed, or let it go on."""

    suspend: bool


@dataclass(frozen=True)
class DeleteLaunch:
    """Delete the Secret and the document of a launch of which nothing is left."""


Step = (
    WriteLaunch
    | PlayLaunch
    | PlayRemove
    | AdoptPod
    | ScaleVolcanoJob
    | DeletePod
    | OpenGate
    | SuspendJob
    | DeleteLaunch
)


@dataclass(frozen=True)
class PodBinding:
    """The node and the GPUs that one pod of a gang shall have."""

    node: str | None  # None: the node of these GPUs is not known
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True)
class LaunchState:
    """One launch: its document, and its observed pods and Volcano Job."""

    record: LaunchRow
    pods: tuple[Pod, ...]  # of this launch; of a Volcano Job of a user: all of its pods
    job: Doc | None  # the Volcano Job
    busy: bool = False  # a playbook of this launch is under way
    over: bool = False  # the job is closed, or has gone on to another launch
    ended: bool = False  # the job is completed, failed or cancelled
    patient: bool = False  # whether its pod still has time to end by itself
    refused: str | None = None  # why Volcano could not make a pod
    bindings: tuple[PodBinding, ...] = ()  # of a gang, one for each pod
    made_as: str = "Volcano Job"  # what makes the pods of a record, in words

    @property
    def wanted(self) -> bool:
        """True if the launch shall run: it was requested, and its job has not gone on without it."""
        return self.record.get("wanted") == "launch" and not self.over

    @property
    def known(self) -> Mapping[str, Any]:
        """The recorded pod; of a gang the first one."""
        return self.record.get("pod") or next(filter(None, self.record.get("pods") or ()), {})

    @property
    def gone(self) -> bool:
        return bool(self.record.get("gone"))

    @property
    def moved(self) -> bool:
        """True if the job has left this launch to train elsewhere."""
        return bool(self.record.get("moved"))

    @property
    def node(self) -> str | None:
        """The node that the coordinator decided on."""
        return (self.record.get("doc") or {}).get("node")

    @property
    def leaving(self) -> bool:
        """True if its Volcano Job is deleted or being deleted."""
        return self.job is None or "deletionTimestamp" in self.job["metadata"]


def steps(view: LaunchState) -> Iterator[Step]:
    """Yield the steps in order: first what to record, then at most one that acts."""
    volcano = is_user_job(view)
    mine = [pod for pod in view.pods if not volcano or pod.uid == view.known.get("uid")]
    found = _found(view, mine)
    if found:
        yield WriteLaunch(found)
    view = replace(view, record={**view.record, **found})
    if not view.wanted:
        yield from release_user_pods(view, mine) if volcano else _away(view, mine)
    elif not view.gone and view.record.get("failure") is None:
        yield from _from_volcano(view, mine) if volcano else _launch(view)


def is_user_job(view: LaunchState) -> bool:
    """True if a user's Volcano Job makes its pods."""
    return bool(view.record.get("origin") == "volcano")


def _found(view: LaunchState, mine: list[Pod]) -> LaunchChanges:
    """Return the changes to record: its pod, its end, its failure, why it is not placed."""
    changes: LaunchChanges = {}
    newest = max(mine, key=lambda pod: (pod.alive, str(pod.meta.get("creationTimestamp"))), default=None)
    if newest is not None and (record := {**newest.record(), "ended": newest.ended}) != view.known:
        changes["pod"] = record
    if not view.gone and mine and all(pod.ended for pod in mine) and _accounted(view, mine):
        changes["gone"] = True
    if view.wanted and view.record.get("failure") is None and (why := _failure(view, newest)):
        changes["failure"] = why
    if view.wanted and (waits := _unplaced(view)) != view.record.get("unplaced"):
        changes["unplaced"] = waits
    return changes


def _unplaced(view: LaunchState) -> str | None:
    """Return why its pod is not scheduled yet, though nothing has failed."""
    pods = [pod for pod in view.pods if not pod.leaving]
    if not pods and (why := waits_for_queue(view)):
        return why
    return next((why for pod in pods if (why := pod.unplaced)), None)


def waits_for_queue(view: LaunchState) -> str | None:
    """Return the sentence about a Volcano Job that Volcano has not admitted to its queue yet, else None."""
    if view.job is None or phase(view.job) != "Pending":
        return None
    return f"Volcano has not let its Volcano Job into queue {(view.job.get('spec') or {}).get('queue')} yet"


def _accounted(view: LaunchState, mine: list[Pod]) -> bool:
    """True if the recorded pod is still observed, or had ended."""
    known = view.known
    return not known or bool(known.get("ended")) or known.get("uid") in {pod.uid for pod in mine}


def _failure(view: LaunchState, newest: Pod | None) -> str | None:
    if newest is not None and (why := newest.trouble):
        return why
    if not is_user_job(view) and not view.record.get("applied"):
        return None
    if newest is not None and not newest.leaving and not newest.ended:
        return None
    if newest is None and view.refused:
        by = "Volcano" if view.made_as == "Volcano Job" else "Kubernetes"
        return f"{by} cannot make its pod: {view.refused}"
    origin = (view.record.get("doc") or {}).get("volcano")
    what = described(origin) if origin else view.made_as
    if view.leaving:
        return f"its {what} was deleted"
    now = phase(view.job or {})
    if kind_of(view.job or {}) is not None and now in HALTED:
        return f"its {what} is suspended, so no pod comes up"
    return f"its {what} is {now}, so no pod comes up" if now in FINISHED | HALTED else None


# a launch of our own


def _launch(view: LaunchState) -> Iterator[Step]:
    if not view.record.get("applied"):
        yield PlayLaunch()


def _away(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    if view.gone:
        yield from _tidied(view)
    elif view.patient and any(pod.alive for pod in mine):
        return
    elif view.busy or not view.leaving:
        yield PlayRemove()
    elif view.job is None and not mine and not view.known:
        yield WriteLaunch({"gone": True})  # it never had a pod
    elif view.job is None and not mine and view.over:
        yield DeleteLaunch()  # how its pod ended is unknown, and no longer needed


def _tidied(view: LaunchState) -> Iterator[Step]:
    ends_by_itself = view.known.get("ended") and not view.moved  # Volcano ends its job then
    if not view.leaving and not ends_by_itself and not stays_a_while(view):
        yield PlayRemove()
    elif view.over and not view.busy:
        yield DeleteLaunch()


def stays_a_while(view: LaunchState) -> bool:
    """True if its finished Volcano Job stays for its time, so that its user can look at it.

    What a job left by moving has nothing to tell: it was stopped there, and trains elsewhere.
    """
    return phase(view.job or {}) in FINISHED and not view.moved


# the pod of a user's Volcano Job


def _from_volcano(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    """Yield the adoption of the first living pod that fits the decision; one that does not fit is deleted."""
    if view.known:
        if not view.record.get("applied"):  # its Secret may not have been written
            yield from (AdoptPod(pod) for pod in mine if pod.alive)
        return
    if _is_suspended(view):
        yield SuspendJob(False)
        return
    for pod in view.pods:
        if not pod.alive or not pod.has_own_secret:
            continue
        if not _fits(pod, view):
            yield _without_pod(view, pod)  # made for another decision
        elif pod.waits_for_node:
            yield OpenGate(pod)
        elif pod.node is not None and view.node in (None, pod.node):
            yield AdoptPod(pod)
        elif pod.node is not None:
            yield _without_pod(view, pod)  # placed by Volcano before the decision; the next goes to the decided node
        return


def _is_suspended(view: LaunchState) -> bool:
    """True if we have suspended its batch Job; one that its user has suspended is halted."""
    if view.job is None or kind_of(view.job) is None or phase(view.job) in HALTED:
        return False
    return bool(view.job["spec"].get("suspend"))


def _without_pod(view: LaunchState, pod: Pod) -> Step:
    """Return what takes a pod away that its user's object makes anew."""
    origin = (view.record.get("doc") or {}).get("volcano") or {}
    if view.job is not None and kind_of(view.job) is not None and not origin.get("keeps_pod"):
        return SuspendJob(True)
    return DeletePod(pod)


def _fits(pod: Pod, view: LaunchState) -> bool:
    """True if the pod may run on the decided node, with the decided GPUs."""
    doc = view.record.get("doc") or {}
    if pod.pinned is not None and view.node not in (None, pod.pinned):
        return False
    return doc.get("devices") != "recreate" or pod.holds([str(gpu) for gpu in doc.get("gpu_ids") or ()])


def release_user_pods(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    """Yield what ends the pods of a user's Volcano Job and then forgets the launch."""
    if view.gone:
        if view.over:
            yield DeleteLaunch()
    elif not view.known:
        yield WriteLaunch({"gone": True})  # no pod ever had its Secret
    elif not mine and view.over:
        yield DeleteLaunch()  # how its pod ended is unknown, and no longer needed
    elif not view.ended:  # otherwise `volcano_job.py` asks Volcano to end the whole job
        for pod in mine:
            if not pod.leaving and not pod.finished:
                yield _without_pod(view, pod)
