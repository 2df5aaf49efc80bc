"""Decides the next steps of a launch of a gang, a job of several pods; `launch.py` does for one pod. Pure.

Its Volcano Job, a user's or ours, makes all pods, and each of them waits for a Secret of its own. The number at the end
of a pod's name is its member. The launch's document records them as `pods`, by member; null where there is none yet:

    {name, namespace, uid, node, ip, phase, ended, secret, applied, left}

`applied`: its Secret is written. `left`: the gang has gone on without it; its entry goes once its pod has ended.
A pod that Volcano makes in place of one that was lost gets no Secret: the coordinator asks for another launch.

`replicas` and `minAvailable` of the Volcano Job follow what is wanted. To grow, `minAvailable` waits until the new
pods have their nodes: Volcano would schedule a gang that is short of pods anew. Called by `launch_service.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow, LaunchChanges, LaunchRow
from launcher.cluster.controllers.launch import (
    AdoptPod,
    DeleteLaunch,
    DeletePod,
    Doc,
    LaunchState,
    PlayLaunch,
    PlayRemove,
    PodBinding,
    ScaleVolcanoJob,
    Step,
    WriteLaunch,
    is_user_job,
    release_user_pods,
    stays_a_while,
    waits_for_queue,
)
from launcher.cluster.controllers.volcano_job_document import FINISHED, HALTED, ends_with_a_pod, phase
from launcher.cluster.pods.pod_state import Pod
from launcher.names import member_of

NO_NODE = "didn't match Pod's node affinity"
ONE_FOR_ALL = "if that node is open, Volcano's scheduler lacks predicateErrorCacheEnable: false, see docs/volcano.md"


def pod_bindings(doc: JobRow, nodes: Mapping[str, str]) -> tuple[PodBinding, ...]:
    """Return node and GPUs of each pod; none for a job that is no gang. `nodes`: the node of each GPU."""
    job = JobRecord(dict(doc))
    if job.gpus_per_pod is None:
        return ()
    return tuple(PodBinding(nodes.get(part[0]) if part else None, part) for part in job.parts(job.gpu_ids))


def recorded_pods(record: LaunchRow) -> list[Doc]:
    """Return the entries of all recorded pods."""
    return [entry for entry in record.get("pods") or () if entry]


def recorded_uids(record: LaunchRow) -> Iterator[str]:
    """Yield the uids of all recorded pods of a launch, gang or not."""
    for entry in (record.get("pod"), *recorded_pods(record)):
        if entry:
            yield str(entry.get("uid"))


def pod_entry(pod: Pod, applied: bool) -> Doc:
    return {**pod.record(), "ended": pod.ended, "secret": pod.launch, "applied": applied, "left": False}


def with_pod(record: LaunchRow, member: int, entry: Doc) -> LaunchChanges:
    """Return the changes that record this pod as that member."""
    pods = list(record.get("pods") or ())
    pods += [None] * (member + 1 - len(pods))
    pods[member] = entry
    return {"pods": pods, "pod": _first(pods)}


def adopted(step: AdoptPod, record: LaunchRow, applied: bool) -> LaunchChanges:
    """Return the changes that record a pod, of a gang or not, before its Secret is applied and after."""
    if step.member is not None:
        changes = with_pod(record, step.member, pod_entry(step.pod, applied))
    else:
        changes = {"pod": {**step.pod.record(), "ended": False}, "secret": step.pod.launch}
    return {**changes, "applied": True} if applied else changes


def steps(view: LaunchState) -> Iterator[Step]:
    """Yield the steps in order: first what to record, then what to do."""
    found = _found(view)
    if found:
        yield WriteLaunch(found)
    view = replace(view, record={**view.record, **found})
    if view.wanted:
        if not view.gone and view.record.get("failure") is None:
            yield from _towards(view)
    elif is_user_job(view):
        yield from _from_theirs_away(view)
    else:
        yield from _away(view)


# what to record


def _found(view: LaunchState) -> LaunchChanges:
    changes: LaunchChanges = {}
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
    """Return the entries as observed now, without left pods that have ended or vanished."""
    observed = {pod.uid: pod for pod in view.pods}
    pods: list[Doc | None] = []
    for member, entry in enumerate(view.record.get("pods") or ()):
        pod = observed.get(entry["uid"]) if entry else None
        if entry and pod is not None:
            entry = {**entry, **pod.record(), "ended": bool(entry["ended"] or pod.ended)}
        if entry and view.wanted and not entry["left"]:
            entry = {**entry, "left": member >= len(view.bindings) or _elsewhere(entry, view.bindings[member])}
        gone = entry is not None and entry["left"] and (pod is None or pod.deleted or entry["ended"])
        pods.append(None if gone else entry)
    while len(pods) > len(view.bindings) and pods[-1] is None:
        pods.pop()
    return pods


def _first(pods: Sequence[Doc | None]) -> Doc | None:
    """Return the first pod in the form in which a launch of one pod records its pod."""
    fields = ("name", "namespace", "uid", "node", "ip", "phase", "ended")
    return {field: pods[0].get(field) for field in fields} if pods and pods[0] else None


def _elsewhere(entry: Mapping[str, Any], binding: PodBinding) -> bool:
    """True if the member was released and bound to another node between two turns."""
    return binding.node is not None and entry.get("node") not in (None, binding.node)


def _failure(view: LaunchState, pods: Sequence[Doc | None]) -> str | None:
    """Return why the launch failed: the trouble of the first member that has one, or of its Volcano Job."""
    for member in range(len(view.bindings)):
        entry, pod = _at(pods, member), _pod_of(view, pods, member)
        if pod is not None and not (entry and entry["left"]) and (why := pod.trouble):
            return _named(member, why)
    if not view.record.get("applied") and not is_user_job(view):
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
    if not view.pods and (why := waits_for_queue(view)):
        return why
    for member in range(len(view.bindings)):
        pod = _pod_of(view, pods, member)
        if pod is not None and not pod.leaving and (why := pod.unplaced):
            return _named(member, f"{why} ({ONE_FOR_ALL})" if NO_NODE in why else why)
    return f"Volcano cannot make its pods: {view.refused}" if view.refused else None


def _named(member: int, why: str) -> str:
    return f"pod {member}: {why}"


def _at(pods: Sequence[Doc | None], member: int) -> Doc | None:
    return pods[member] if member < len(pods) else None


def _pod_of(view: LaunchState, pods: Sequence[Doc | None], member: int) -> Pod | None:
    """Return the recorded pod of a member, else a candidate for it."""
    entry = _at(pods, member)
    if entry and not entry["left"]:
        return next((pod for pod in view.pods if pod.uid == entry["uid"]), None)
    return next((pod for pod in _candidates(view) if member_of(pod.name) == member), None) if not entry else None


def _candidates(view: LaunchState) -> list[Pod]:
    """Return pods that may be adopted: their annotation names their own Secret, so no other one is overwritten."""
    taken = {entry["uid"] for entry in recorded_pods(view.record)}
    return [pod for pod in view.pods if pod.uid not in taken and not pod.leaving and pod.has_own_secret]


# what is wanted


def _towards(view: LaunchState) -> Iterator[Step]:
    if not is_user_job(view) and not view.record.get("applied"):
        yield PlayLaunch()
        return
    if view.job is None or view.leaving or phase(view.job) in FINISHED | HALTED:
        return
    pods = list(view.record.get("pods") or ())
    if step := _scale(view, pods):
        yield step
    for member, binding in enumerate(view.bindings):
        yield from _bind_member(view, _at(pods, member), member, binding)


def _bind_member(view: LaunchState, entry: Doc | None, member: int, binding: PodBinding) -> Iterator[Step]:
    """Yield what brings one member its pod, or the Secret that its pod waits for."""
    if entry and entry["left"]:
        if pod := next((p for p in view.pods if p.uid == entry["uid"] and not p.leaving), None):
            yield DeletePod(pod)  # Volcano makes another one
        return
    if entry and entry["applied"]:
        return
    for pod in [p for p in view.pods if p.uid == entry["uid"]] if entry else _candidates(view):
        if member_of(pod.name) != member or not pod.alive:
            continue
        if entry is None and not _fits(view, pod, binding):
            yield DeletePod(pod)  # made for another decision, or before there was one
        elif pod.node is not None:
            yield AdoptPod(pod, member)
        return


def _fits(view: LaunchState, pod: Pod, binding: PodBinding) -> bool:
    doc = view.record.get("doc") or {}
    if binding.node is not None and not {pod.pinned, pod.node} <= {None, binding.node}:
        return False
    claim = doc.get("checkpoint_claim")
    if claim is not None and pod.claim != claim:
        return False
    return doc.get("devices") != "recreate" or pod.holds(binding.gpu_ids)


def _scale(view: LaunchState, pods: Sequence[Doc | None]) -> ScaleVolcanoJob | None:
    """Return new counts of pods. `minAvailable` grows only once the new pods have their nodes."""
    spec, wanted = (view.job or {}).get("spec") or {}, len(view.bindings)
    task = (spec.get("tasks") or [{}])[0]
    now, least = int(task.get("replicas", 1)), int(spec.get("minAvailable") or 0)
    there = sum(1 for member in range(wanted) if (entry := _at(pods, member)) and not entry["left"])
    counted = min(least, wanted) if there < wanted else wanted
    if wanted < now and ends_with_a_pod(view.job or {}):
        return None  # its own policies would end all of it; `volcano_job.py` writes an Event about it
    at_least = task.get("minAvailable")
    if (now, least) == (wanted, counted) and at_least in (None, counted):
        return None
    return ScaleVolcanoJob(wanted, counted)


# what is not wanted


def _mine(view: LaunchState) -> list[Pod]:
    uids = {entry["uid"] for entry in recorded_pods(view.record)}
    return [pod for pod in view.pods if pod.uid in uids]


def _away(view: LaunchState) -> Iterator[Step]:
    """Yield what removes a launch of ours: its Volcano Job, since Volcano remakes pods that are only deleted."""
    mine = _mine(view)
    there = not view.leaving and not stays_a_while(view)
    if view.gone:
        if there and not view.patient:
            yield PlayRemove()
        elif not there and view.over and not view.busy:
            yield DeleteLaunch()
    elif view.patient and any(pod.alive for pod in mine):
        return
    elif view.busy or not view.leaving:
        yield PlayRemove()
    elif view.job is None and not recorded_pods(view.record):
        yield WriteLaunch({"gone": True})  # none of its pods ever had a Secret
    elif view.job is None and not mine and view.over:
        yield DeleteLaunch()  # how its pods ended is unknown, and no longer needed


def _from_theirs_away(view: LaunchState) -> Iterator[Step]:
    if view.gone or view.ended or not recorded_pods(view.record):
        yield from release_user_pods(view, _mine(view))
        return
    mine = [pod for pod in _mine(view) if not pod.leaving]
    yield from (DeletePod(pod) for pod in mine)  # also one that has finished: Volcano makes none in its place
    if not mine:
        yield from release_user_pods(view, _mine(view))
