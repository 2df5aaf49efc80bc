"""What to do next about one launch of a gang, a job of several pods: `launching.py` for many. Pure.

Its Volcano Job makes all pods, and each of them waits for a Secret of its own: those that a user's makes just as those
of the one that we made for a record. Pods are told apart by the number at the end of their names, which is their
member's. What is written down of them is `pods` in the launch's document, by member; null where there is none yet:

    {name, namespace, uid, node, ip, phase, ended, secret, applied, left}

`applied`: its Secret is written. `left`: the gang has gone on without it; its entry goes once its pod has ended.
A pod that Volcano makes in place of one that was lost gets no Secret: the coordinator asks for another launch.

`replicas` and `minAvailable` of the Volcano Job follow what is wanted. To grow, `minAvailable` waits until the new
pods have their nodes: Volcano would take a gang that is short of pods as one that has to be scheduled anew.
Called by `service.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from launcher.cluster.controllers.launch import (
    Admit,
    DeleteLaunch,
    DeletePod,
    Doc,
    LaunchState,
    PlayLaunch,
    PlayRemove,
    Scale,
    Seat,
    Step,
    WriteLaunch,
    away_from_theirs,
    is_theirs,
    not_let_in,
)
from launcher.cluster.controllers.volcano_job_document import FINISHED, HALTED, ends_with_a_pod, phase
from launcher.cluster.pods.pod_state import Pod
from launcher.names import is_secret_of_pod, member_of

NO_NODE = "didn't match Pod's node affinity"
ONE_FOR_ALL = "if that node is open, Volcano's scheduler lacks predicateErrorCacheEnable: false, see docs/volcano.md"


def seats(doc: JobRow, nodes: Mapping[str, str]) -> tuple[Seat, ...]:
    """What each pod is to have; none for a job that is no gang. `nodes`: of each GPU."""
    job = JobRecord(dict(doc))
    if job.gpus_per_pod is None:
        return ()
    return tuple(Seat(nodes.get(part[0]) if part else None, part) for part in job.parts(job.gpu_ids))


def known(record: Mapping[str, Any]) -> list[Doc]:
    """All pods that are written down."""
    return [entry for entry in record.get("pods") or () if entry]


def claims(record: Mapping[str, Any]) -> Iterator[str]:
    """The uids of all pods that are its own, of whatever kind of launch."""
    for entry in (record.get("pod"), *known(record)):
        if entry:
            yield str(entry.get("uid"))


def entry_of(pod: Pod, applied: bool) -> Doc:
    return {**pod.record(), "ended": pod.ended, "secret": pod.launch, "applied": applied, "left": False}


def written(record: Mapping[str, Any], member: int, entry: Doc) -> Doc:
    """Changes that write down this pod as that member."""
    pods = list(record.get("pods") or ())
    pods += [None] * (member + 1 - len(pods))
    pods[member] = entry
    return {"pods": pods, "pod": _first(pods)}


def steps(view: LaunchState) -> Iterator[Step]:
    """In this order. Those that act come last."""
    found = _found(view)
    if found:
        yield WriteLaunch(found)
    view = replace(view, record={**view.record, **found})
    if view.wanted:
        if not view.gone and view.record.get("failure") is None:
            yield from _towards(view)
    elif is_theirs(view):
        yield from _from_theirs_away(view)
    else:
        yield from _away(view)


# what has become known


def _found(view: LaunchState) -> Doc:
    changes: Doc = {}
    pods = _entries(view)
    if pods != list(view.record.get("pods") or ()):
        changes["pods"] = pods
    if (first := _first(pods)) != view.record.get("pod"):
        changes["pod"] = first
    there = [entry for entry in pods if entry]
    if not view.gone and there and all(entry["ended"] for entry in there):
        changes["gone"] = True
    if view.wanted and view.record.get("failure") is None and (why := _failure(view, pods)):
        changes["failure"] = why
    if view.wanted and (waits := _unplaced(view, pods)) != view.record.get("unplaced"):
        changes["unplaced"] = waits
    return changes


def _entries(view: LaunchState) -> list[Doc | None]:
    """As things stand now. Of a pod that has left, nothing once it has ended or is not there any more."""
    shown = {pod.uid: pod for pod in view.pods}
    pods: list[Doc | None] = []
    for member, entry in enumerate(view.record.get("pods") or ()):
        pod = shown.get(entry["uid"]) if entry else None
        if entry and pod is not None:
            entry = {**entry, **pod.record(), "ended": bool(entry["ended"] or pod.ended)}
        if entry and view.wanted and not entry["left"]:
            entry = {**entry, "left": member >= len(view.seats) or _elsewhere(entry, view.seats[member])}
        gone = entry is not None and entry["left"] and (pod is None or pod.deleted or entry["ended"])
        pods.append(None if gone else entry)
    while len(pods) > len(view.seats) and pods[-1] is None:
        pods.pop()
    return pods


def _first(pods: Sequence[Doc | None]) -> Doc | None:
    """As the pod of a launch with one pod is written down."""
    fields = ("name", "namespace", "uid", "node", "ip", "phase", "ended")
    return {field: pods[0].get(field) for field in fields} if pods and pods[0] else None


def _elsewhere(entry: Mapping[str, Any], seat: Seat) -> bool:
    """Its member was given up and asked for again on another node before anybody looked here."""
    return seat.node is not None and entry.get("node") not in (None, seat.node)


def _failure(view: LaunchState, pods: Sequence[Doc | None]) -> str | None:
    """The trouble of the first member that has one."""
    for member in range(len(view.seats)):
        entry, pod = _at(pods, member), _pod_of(view, pods, member)
        if pod is not None and not (entry and entry["left"]) and (why := pod.trouble):
            return _named(member, why)
    if not view.record.get("applied") and not is_theirs(view):
        return None
    if any(entry and not entry["ended"] and not entry["left"] for entry in pods):
        return None
    if view.refused and not view.pods:
        return f"Volcano cannot make its pods: {view.refused}"
    if view.leaving:
        return "its Volcano Job was deleted"
    now = phase(view.job or {})
    return f"its Volcano Job is {now}, so no pods come up" if now in FINISHED | HALTED else None


def _unplaced(view: LaunchState, pods: Sequence[Doc | None]) -> str | None:
    if not view.pods and (why := not_let_in(view)):
        return why
    for member in range(len(view.seats)):
        pod = _pod_of(view, pods, member)
        if pod is not None and not pod.leaving and (why := pod.unplaced):
            return _named(member, f"{why} ({ONE_FOR_ALL})" if NO_NODE in why else why)
    return f"Volcano cannot make its pods: {view.refused}" if view.refused else None


def _named(member: int, why: str) -> str:
    return f"pod {member}: {why}"


def _at(pods: Sequence[Doc | None], member: int) -> Doc | None:
    return pods[member] if member < len(pods) else None


def _pod_of(view: LaunchState, pods: Sequence[Doc | None], member: int) -> Pod | None:
    """The one that is written down, else one that may become it."""
    entry = _at(pods, member)
    if entry and not entry["left"]:
        return next((pod for pod in view.pods if pod.uid == entry["uid"]), None)
    return next((pod for pod in _candidates(view) if member_of(pod.name) == member), None) if not entry else None


def _candidates(view: LaunchState) -> list[Pod]:
    """A pod may claim anything: what it waits for is made for it, and no other Secret is written over."""
    taken = {entry["uid"] for entry in known(view.record)}
    free = [pod for pod in view.pods if pod.uid not in taken and not pod.leaving]
    return [pod for pod in free if pod.launch is not None and is_secret_of_pod(pod.name, pod.launch)]


# what is wanted


def _towards(view: LaunchState) -> Iterator[Step]:
    if not is_theirs(view) and not view.record.get("applied"):
        yield PlayLaunch()
        return
    if view.job is None or view.leaving or phase(view.job) in FINISHED | HALTED:
        return
    pods = list(view.record.get("pods") or ())
    if step := _scale(view, pods):
        yield step
    for member, seat in enumerate(view.seats):
        yield from _seated(view, _at(pods, member), member, seat)


def _seated(view: LaunchState, entry: Doc | None, member: int, seat: Seat) -> Iterator[Step]:
    """One member gets its pod, or what its pod waits for."""
    if entry and entry["left"]:
        if pod := next((p for p in view.pods if p.uid == entry["uid"] and not p.leaving), None):
            yield DeletePod(pod)  # Volcano makes another one
        return
    if entry and entry["applied"]:
        return
    for pod in [p for p in view.pods if p.uid == entry["uid"]] if entry else _candidates(view):
        if member_of(pod.name) != member or not pod.alive:
            continue
        if entry is None and not _fits(view, pod, seat):
            yield DeletePod(pod)  # made when something else was meant, or when nobody knew what
        elif pod.node is not None:
            yield Admit(pod, member)
        return


def _fits(view: LaunchState, pod: Pod, seat: Seat) -> bool:
    doc = view.record.get("doc") or {}
    if seat.node is not None and not {pod.pinned, pod.node} <= {None, seat.node}:
        return False
    claim = doc.get("checkpoint_claim")
    if claim is not None and pod.claim != claim:
        return False
    return doc.get("devices") != "recreate" or pod.holds(seat.gpu_ids)


def _scale(view: LaunchState, pods: Sequence[Doc | None]) -> Scale | None:
    """Fewer at once; more at once, too, but they are not counted on before they have their nodes."""
    spec, wanted = (view.job or {}).get("spec") or {}, len(view.seats)
    task = (spec.get("tasks") or [{}])[0]
    now, least = int(task.get("replicas", 1)), int(spec.get("minAvailable") or 0)
    there = sum(1 for member in range(wanted) if (entry := _at(pods, member)) and not entry["left"])
    counted = min(least, wanted) if there < wanted else wanted
    if wanted < now and ends_with_a_pod(view.job or {}):
        return None  # its own policies would end all of it: `doors.py` has said so
    at_least = task.get("minAvailable")
    if (now, least) == (wanted, counted) and at_least in (None, counted):
        return None
    return Scale(wanted, counted)


# what is not wanted


def _mine(view: LaunchState) -> list[Pod]:
    uids = {entry["uid"] for entry in known(view.record)}
    return [pod for pod in view.pods if pod.uid in uids]


def _away(view: LaunchState) -> Iterator[Step]:
    """Of our own. Volcano makes pods that were deleted again and again until its job is: none of ours ends it."""
    mine, stays = _mine(view), not view.leaving and phase(view.job or {}) not in FINISHED
    if view.gone:  # a finished Volcano Job stays for its time, so that its user can look at it
        if stays and not view.patient:
            yield PlayRemove()
        elif not stays and view.over and not view.busy:
            yield DeleteLaunch()
    elif view.patient and any(pod.alive for pod in mine):
        return
    elif view.busy or not view.leaving:
        yield PlayRemove()
    elif view.job is None and not known(view.record):
        yield WriteLaunch({"gone": True})  # none of its pods ever had a Secret
    elif view.job is None and not mine and view.over:
        yield DeleteLaunch()  # nobody saw how its pods ended, and nobody waits for that any more


def _from_theirs_away(view: LaunchState) -> Iterator[Step]:
    if view.gone or view.ended or not known(view.record):
        yield from away_from_theirs(view, _mine(view))
        return
    mine = [pod for pod in _mine(view) if not pod.leaving]
    yield from (DeletePod(pod) for pod in mine)  # also one that has finished: Volcano makes none in its place
    if not mine:
        yield from away_from_theirs(view, _mine(view))
