"""What to do next about one launch: a pure function of its document and of what the cluster shows.

Level-triggered: it never asks what happened, only how things stand, so a launcher that was killed anywhere goes
on by looking. First it says what has become known (`WriteLaunch`), then what to do about what is wanted. Two kinds:

    record   we make its Volcano Job and Secret ourselves, by a playbook (a job document inserted by a user)
    volcano  a user's Volcano Job makes the pod; we only give it the Secret that it waits for, or take it away

Called by `service.py`, in one thread, with one view per launch and turn. Launches of gangs are judged in `gangs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.cluster.controllers.volcano_job_document import FINISHED, HALTED, phase
from launcher.cluster.pods.pod_state import Pod
from launcher.names import is_secret_of_pod

Doc = dict[str, Any]


@dataclass(frozen=True)
class WriteLaunch:
    """Write into the launch's document."""

    changes: Doc


@dataclass(frozen=True)
class PlayLaunch:
    """Play launch.yml."""


@dataclass(frozen=True)
class PlayRemove:
    """Play remove.yml."""


@dataclass(frozen=True)
class Admit:
    """Write down that this pod is the launch, then give it the Secret that it waits for."""

    pod: Pod
    member: int | None = None  # of a gang: which one


@dataclass(frozen=True)
class Scale:
    """Give its Volcano Job so many pods, of which so many have to be there at once."""

    replicas: int
    least: int


@dataclass(frozen=True)
class DeletePod:
    """Its Volcano Job makes another one."""

    pod: Pod


@dataclass(frozen=True)
class DeleteLaunch:
    """Nothing of it is left, and nobody will ask: delete its Secret and its document."""


Step = WriteLaunch | PlayLaunch | PlayRemove | Admit | Scale | DeletePod | DeleteLaunch


@dataclass(frozen=True)
class Seat:
    """What one pod of a gang is to have."""

    node: str | None  # None: nobody knows where these GPUs are
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True)
class LaunchState:
    """One launch, as things stand."""

    record: Doc
    pods: tuple[Pod, ...]  # of this launch; of a Volcano Job of a user: all of its pods
    job: Doc | None  # the Volcano Job
    busy: bool = False  # a playbook of this launch is under way
    over: bool = False  # the job is closed, or has gone on to another launch
    ended: bool = False  # the job is completed, failed or cancelled
    patient: bool = False  # then its pod still has time to end by itself
    refused: str | None = None  # why Volcano could not make a pod
    seats: tuple[Seat, ...] = ()  # of a gang: what each of its pods is to have

    @property
    def wanted(self) -> bool:
        """Nobody wants what its job has left behind, even if it was asked for late."""
        return self.record.get("wanted") == "launch" and not self.over

    @property
    def known(self) -> Mapping[str, Any]:
        """The pod that was written down; of a gang the first one there is."""
        return self.record.get("pod") or next(filter(None, self.record.get("pods") or ()), {})

    @property
    def gone(self) -> bool:
        return bool(self.record.get("gone"))

    @property
    def node(self) -> str | None:
        """Where the coordinator wants it."""
        return (self.record.get("doc") or {}).get("node")

    @property
    def leaving(self) -> bool:
        """Whether its Volcano Job is gone or going."""
        return self.job is None or "deletionTimestamp" in self.job["metadata"]


def steps(view: LaunchState) -> Iterator[Step]:
    """In this order. Those that act come last, and only one of them."""
    volcano = is_theirs(view)
    mine = [pod for pod in view.pods if not volcano or pod.uid == view.known.get("uid")]
    found = _found(view, mine)
    if found:
        yield WriteLaunch(found)
    view = replace(view, record={**view.record, **found})
    if not view.wanted:
        yield from away_from_theirs(view, mine) if volcano else _away(view, mine)
    elif not view.gone and view.record.get("failure") is None:
        yield from _from_volcano(view, mine) if volcano else _launch(view)


def is_theirs(view: LaunchState) -> bool:
    """Whether a user's Volcano Job makes its pods."""
    return view.record.get("origin") == "volcano"


def _found(view: LaunchState, mine: list[Pod]) -> Doc:
    """What has become known of its pod, and what follows from it."""
    changes: Doc = {}
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
    """What keeps it from being begun, though nothing is wrong with it."""
    pods = [pod for pod in view.pods if not pod.leaving]
    if not pods and (why := not_let_in(view)):
        return why
    return next((why for pod in pods if (why := pod.unplaced)), None)


def not_let_in(view: LaunchState) -> str | None:
    """What to say where there is no pod yet."""
    if view.job is None or phase(view.job) != "Pending":
        return None
    return f"Volcano has not let its Volcano Job into queue {(view.job.get('spec') or {}).get('queue')} yet"


def _accounted(view: LaunchState, mine: list[Pod]) -> bool:
    """Whether what was seen before is among what is seen now, or had ended."""
    known = view.known
    return not known or bool(known.get("ended")) or known.get("uid") in {pod.uid for pod in mine}


def _failure(view: LaunchState, newest: Pod | None) -> str | None:
    if newest is not None and (why := newest.trouble):
        return why
    if not is_theirs(view) and not view.record.get("applied"):
        return None
    if newest is not None and not newest.leaving and not newest.ended:
        return None
    if newest is None and view.refused:
        return f"Volcano cannot make its pod: {view.refused}"
    if view.leaving:
        return "its Volcano Job was deleted"
    now = phase(view.job or {})
    return f"its Volcano Job is {now}, so no pod comes up" if now in FINISHED | HALTED else None


# a launch of our own


def _launch(view: LaunchState) -> Iterator[Step]:
    if not view.record.get("applied"):
        yield PlayLaunch()


def _away(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    if view.gone:  # a finished Volcano Job stays for its time, so that its user can look at it
        yield from _tidied(view)
    elif view.patient and any(pod.alive for pod in mine):
        return
    elif view.busy or not view.leaving:
        yield PlayRemove()
    elif view.job is None and not mine and not view.known:
        yield WriteLaunch({"gone": True})  # it never had a pod
    elif view.job is None and not mine and view.over:
        yield DeleteLaunch()  # nobody saw how its pod ended, and nobody waits for that any more


def _tidied(view: LaunchState) -> Iterator[Step]:
    finished = phase(view.job or {}) in FINISHED or view.known.get("ended")  # then Volcano ends its job by itself
    if not view.leaving and not finished:
        yield PlayRemove()
    elif view.over and not view.busy:
        yield DeleteLaunch()


# the pod of a user's Volcano Job


def _from_volcano(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    """Of its pods that are there to stay the first one becomes the launch, if it fits what was decided."""
    if view.known:
        if not view.record.get("applied"):  # its Secret may not have been written
            yield from (Admit(pod) for pod in mine if pod.alive)
        return
    for pod in view.pods:
        # A pod may claim anything: what it waits for is made for it, and no other Secret is written over.
        if not pod.alive or pod.launch is None or not is_secret_of_pod(pod.name, pod.launch):
            continue
        if not _fits(pod, view):
            yield DeletePod(pod)  # made when something else was meant
        elif pod.node is not None and view.node in (None, pod.node):
            yield Admit(pod)
        elif pod.node is not None:
            yield DeletePod(pod)  # made by Volcano when nothing was decided; the next one goes where it is
        return


def _fits(pod: Pod, view: LaunchState) -> bool:
    """Whether it may go where it is meant to be, with the GPUs that it is meant to have."""
    doc = view.record.get("doc") or {}
    if pod.pinned is not None and view.node not in (None, pod.pinned):
        return False
    return doc.get("devices") != "recreate" or pod.holds([str(gpu) for gpu in doc.get("gpu_ids") or ()])


def away_from_theirs(view: LaunchState, mine: list[Pod]) -> Iterator[Step]:
    if view.gone:
        if view.over:
            yield DeleteLaunch()
    elif not view.known:
        yield WriteLaunch({"gone": True})  # no pod ever had its Secret
    elif not mine and view.over:
        yield DeleteLaunch()  # nobody saw how its pod ended, and nobody waits for that any more
    elif not view.ended:  # otherwise Volcano is asked to end the whole job (`doors.py`)
        for pod in mine:
            if not pod.leaving and not pod.finished:
                yield DeletePod(pod)
