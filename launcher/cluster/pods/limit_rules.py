"""The CPU limit of a pod: what FlowCon (seed 001) wants of it, judged against what Kubernetes lets a pod become. Pure.

Promises: a pod keeps its class (`qosClass`) and its containers are never restarted; only the CPU of the container that
trains is named, so its memory can never be lowered; what it had before the first limit is written down before that is
set, and given back once the limit is over, whoever asks then. A pod that cannot be limited so is said to be, once.
Carried out by `resizing.py`, with one view per launch and turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from coordinator.model.records import JobRecord
from launcher.cluster.pods.pod_state import Pod

Doc = dict[str, Any]

LEAST_LIMIT = 10  # thousandths of a core: the kubelet raises a quota that is lower
LEAST_REQUEST = 1  # of a container that asks for none: else Kubernetes takes its limit for its request
UNITS: Mapping[str, str | int] = {
    "n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15",
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
GUARANTEED, BURSTABLE, BEST_EFFORT = "Guaranteed", "Burstable", "BestEffort"
NO_CLASS = "its pod asks for neither CPU nor memory, and with a limit it would change its class: give it `resources`"
NO_WEIGHT = "its pod is of class Guaranteed, whose requests are its limits: it can be limited by quota only"
RESTARTS = "its container is restarted when its CPU changes (resizePolicy)"
WHOLE_POD = "its resources are given to the pod as a whole, and such a pod cannot be resized"


class Cpu(NamedTuple):
    """Of one container, in thousandths of a core; None: not written."""

    requests: int | None
    limits: int | None


@dataclass(frozen=True)
class Remember:
    """Write down in the launch's document what the container had; None: nothing is held any more."""

    held: Doc | None


@dataclass(frozen=True)
class Resize:
    container: str
    cpu: Cpu

    @property
    def patch(self) -> Doc:
        """For the subresource `resize` of the pod."""
        cpu = {kind: {"cpu": f"{value}m"} for kind, value in self.cpu._asdict().items() if value is not None}
        return {"spec": {"containers": [{"name": self.container, "resources": cpu}]}}


@dataclass(frozen=True)
class Unlimitable:
    """Nothing more is tried on this launch."""

    why: str


@dataclass(frozen=True)
class Late:
    """The kubelet has not done it yet, and says why."""

    why: str


Step = Remember | Resize | Unlimitable | Late


@dataclass(frozen=True)
class PodLimits:
    """One launch and its pod, as things stand."""

    record: Mapping[str, Any]
    job: JobRecord
    pod: Pod
    node_cores: float  # what a container that had no limit is given back
    wall: float

    @property
    def wanted(self) -> float | None:
        """Cores; None once the limit has passed its end, whoever set it, and on a launch that is yet to train."""
        other = self.job.unlimitable is not None or self.record.get("launch") != self.job.launch
        return None if other else self.job.limit_left(self.wall)[0]

    @property
    def held(self) -> Cpu | None:
        """What its container had before it was limited."""
        held = self.record.get("held")
        if not isinstance(held, dict) or held.get("uid") != self.pod.uid:
            return None
        return Cpu(held.get("requests"), held.get("limits"))


def steps(view: PodLimits) -> Iterator[Step]:
    """In this order; what has been done already is not asked for again."""
    spec = view.pod.trainer
    present, held, wanted = cpu_of(spec), view.held, view.wanted
    if wanted is None:
        yield from _released(view, present, held)
        return
    had = held or present
    target = _limited(view, had, wanted)
    if isinstance(target, str):
        yield Unlimitable(target)
    elif target != present:
        if held is None:
            yield Remember({"uid": view.pod.uid, **had._asdict()})
        yield Resize(str(spec.get("name")), target)
    elif said := pending(view.pod):
        reason, why = said
        yield Unlimitable(f"node {view.pod.node} cannot do it: {why}") if reason == "Infeasible" else Late(why)


def _released(view: PodLimits, present: Cpu, held: Cpu | None) -> Iterator[Step]:
    """Back to what it had. No limit and no request can be taken away again: then all cores, and the least."""
    if held is None:
        return
    whole = round(view.node_cores * 1000)
    requests = _given_back(held.requests, present.requests, LEAST_REQUEST)
    target = Cpu(requests, _given_back(held.limits, present.limits, whole))
    if target != present:
        yield Resize(str(view.pod.trainer.get("name")), target)
    elif said := pending(view.pod):
        yield Late(said[1])
    else:
        yield Remember(None)


def _given_back(had: int | None, present: int | None, otherwise: int) -> int | None:
    return had if had is not None or present is None else otherwise


def _limited(view: PodLimits, had: Cpu, cores: float) -> Cpu | str:
    """What its container is to have, or why it cannot be limited."""
    spec, name, now = view.pod.spec, view.pod.trainer.get("name"), view.pod.qos_class
    policies = view.pod.trainer.get("resizePolicy") or []
    if any(p.get("resourceName") == "cpu" and p.get("restartPolicy") != "NotRequired" for p in policies):
        return RESTARTS
    if any((spec.get("resources") or {}).get(kind) for kind in ("limits", "requests")):
        return WHOLE_POD
    if now == BEST_EFFORT:
        return NO_CLASS
    by_weight = view.job.limit_by == "weight"
    if by_weight and now == GUARANTEED:
        return NO_WEIGHT
    most = max(LEAST_LIMIT, round(cores * 1000))
    target = _by_weight(had, most) if by_weight else _by_quota(had, most, now)
    if class_of(spec, name, target) == GUARANTEED != now and target.requests is not None:
        target = target._replace(requests=target.requests - 1)
    after = class_of(spec, name, target)
    return target if after == now else f"its pod would change its class from {now} to {after}"


def _by_quota(had: Cpu, most: int, now: str) -> Cpu:
    limits = most if had.limits is None else min(most, had.limits)
    if now == GUARANTEED:
        return Cpu(limits, limits)
    return Cpu(LEAST_REQUEST if had.requests is None else min(had.requests, limits), limits)


def _by_weight(had: Cpu, most: int) -> Cpu:
    """A request is the container's weight among all that compute on the node."""
    return Cpu(most if had.limits is None else min(most, had.limits), had.limits)


def pending(pod: Pod) -> tuple[str, str] | None:
    """Why its kubelet has not resized it as asked: (reason, sentence)."""
    for condition in pod.status.get("conditions") or []:
        kind, reason = condition.get("type"), str(condition.get("reason") or "")
        waits = kind == "PodResizePending" or (kind == "PodResizeInProgress" and reason == "Error")
        if waits and condition.get("status") == "True":
            return reason, str(condition.get("message") or reason)
    return None


# what Kubernetes makes of resources


def cpu_of(container: Mapping[str, Any]) -> Cpu:
    """What is written in it; a request that is not written is its limit."""
    resources = container.get("resources") or {}
    values = (amount((resources.get(kind) or {}).get("cpu")) for kind in ("requests", "limits"))
    requests, limits = (None if value is None else round(value * 1000) for value in values)
    return Cpu(limits if requests is None else requests, limits)


def class_of(spec: Mapping[str, Any], name: object, cpu: Cpu) -> str:
    """The class of a pod in which the container of that name has this much CPU."""
    totals: dict[str, dict[str, Decimal]] = {"requests": {}, "limits": {}}
    whole = True
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        parts = _parts(container, cpu if container.get("name") == name else None)
        whole = whole and {"cpu", "memory"} <= parts["limits"].keys()
        for kind, amounts in parts.items():
            for resource, value in amounts.items():
                totals[kind][resource] = totals[kind].get(resource, Decimal(0)) + value
    if not totals["requests"] and not totals["limits"]:
        return BEST_EFFORT
    return GUARANTEED if whole and totals["requests"] == totals["limits"] else BURSTABLE


def _parts(container: Mapping[str, Any], cpu: Cpu | None) -> dict[str, dict[str, Decimal]]:
    """Its CPU and memory above nothing, by `requests` and `limits`."""
    resources, found = container.get("resources") or {}, {}
    for kind in ("requests", "limits"):
        given = resources.get(kind) or {}
        amounts = {name: amount(given.get(name)) for name in ("cpu", "memory")}
        if cpu is not None:
            value = getattr(cpu, kind)
            amounts["cpu"] = None if value is None else Decimal(value) / 1000
        found[kind] = {name: value for name, value in amounts.items() if value}
    return found


def amount(text: object) -> Decimal | None:
    """A quantity such as 500m, 1.5 or 2Gi; None where there is none."""
    digits = str(text).rstrip("numkMGTPi")
    try:
        return None if text is None else Decimal(digits) * Decimal(UNITS[str(text)[len(digits) :]])
    except (InvalidOperation, KeyError):
        return None
