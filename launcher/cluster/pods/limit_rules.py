"""Decides how a pod's CPU is resized to the limit that FlowCon wants, within what Kubernetes allows. Pure.

Promises: a pod keeps its class (`qosClass`) and its containers are never restarted; only the CPU of the container that
trains is changed, so its memory is never lowered; its original CPU is recorded before the first limit is set, and
restored once the limit is over. A pod that cannot be limited so is reported once. Carried out by `resize.py`, with one
view per launch and turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from coordinator.model.records import JobRecord, Moment
from coordinator.model.tables import LaunchRow
from launcher.cluster.pods.pod_state import Pod

Doc = dict[str, Any]

LEAST_LIMIT = 10  # thousandths of a core: the kubelet raises a quota that is lower
LEAST_REQUEST = 1  # of a container without a request: else Kubernetes takes its limit for its request
UNITS: Mapping[str, str | int] = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
GUARANTEED, BURSTABLE, BEST_EFFORT = "Guaranteed", "Burstable", "BestEffort"
NO_CLASS = "its pod asks for neither CPU nor memory, and with a limit it would change its class: give it `resources`"
NO_WEIGHT = "its pod is of class Guaranteed, whose requests are its limits: it can be limited by quota only"
RESTARTS = "its container is restarted when its CPU changes (resizePolicy)"
WHOLE_POD = "its resources are given to the pod as a whole, and such a pod cannot be resized"


class Cpu(NamedTuple):
    """CPU of one container in thousandths of a core; None: not set."""

    requests: int | None
    limits: int | None


@dataclass(frozen=True)
class SaveOriginalCpu:
    """Record the container's original CPU in the launch's document; None: it is restored."""

    held: Doc | None


@dataclass(frozen=True)
class ResizeContainer:
    """Set the CPU of this container."""

    container: str
    cpu: Cpu

    @property
    def patch(self) -> Doc:
        """The patch for the subresource `resize` of the pod."""
        cpu = {kind: {"cpu": f"{value}m"} for kind, value in self.cpu._asdict().items() if value is not None}
        return {"spec": {"containers": [{"name": self.container, "resources": cpu}]}}


@dataclass(frozen=True)
class Unlimitable:
    """Report that this launch cannot be limited, and stop trying."""

    why: str


@dataclass(frozen=True)
class ResizePending:
    """Report the kubelet's reason why the resize is not in force yet."""

    why: str


Step = SaveOriginalCpu | ResizeContainer | Unlimitable | ResizePending


@dataclass(frozen=True)
class PodLimits:
    """One launch, its job and its pod, as observed."""

    record: LaunchRow
    job: JobRecord
    pod: Pod
    node_cores: float  # the limit that a container without an original one gets back
    at: Moment

    @property
    def wanted(self) -> float | None:
        """Cores; None once the limit has expired, and on a launch that does not train yet."""
        other = self.job.unlimitable is not None or self.record.get("launch") != self.job.launch
        return None if other else self.job.limit_left(self.at)[0]

    @property
    def held(self) -> Cpu | None:
        """The recorded original CPU of its container."""
        held = self.record.get("held")
        if not isinstance(held, dict) or held.get("uid") != self.pod.uid:
            return None
        return Cpu(held.get("requests"), held.get("limits"))


def steps(view: PodLimits) -> Iterator[Step]:
    """Yield the steps in order; none for what is already in force."""
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
            yield SaveOriginalCpu({"uid": view.pod.uid, **had._asdict()})
        yield ResizeContainer(str(spec.get("name")), target)
    elif said := pending(view.pod):
        reason, why = said
        yield Unlimitable(f"node {view.pod.node} cannot do it: {why}") if reason == "Infeasible" else ResizePending(why)


def _released(view: PodLimits, present: Cpu, held: Cpu | None) -> Iterator[Step]:
    """Yield what restores the original CPU. A limit or request cannot be removed: then all cores, and the least."""
    if held is None:
        return
    whole = round(view.node_cores * 1000)
    requests = _given_back(held.requests, present.requests, LEAST_REQUEST)
    target = Cpu(requests, _given_back(held.limits, present.limits, whole))
    if target != present:
        yield ResizeContainer(str(view.pod.trainer.get("name")), target)
    elif said := pending(view.pod):
        yield ResizePending(said[1])
    else:
        yield SaveOriginalCpu(None)


def _given_back(had: int | None, present: int | None, otherwise: int) -> int | None:
    return had if had is not None or present is None else otherwise


def _limited(view: PodLimits, had: Cpu, cores: float) -> Cpu | str:
    """Return the CPU that its container shall have, or why it cannot be limited."""
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
    """Return the CPU for a limit by weight: a request is the container's weight among all on the node."""
    return Cpu(most if had.limits is None else min(most, had.limits), had.limits)


def pending(pod: Pod) -> tuple[str, str] | None:
    """Return (reason, sentence) of a resize that the kubelet has not carried out, else None."""
    for condition in pod.status.get("conditions") or []:
        kind, reason = condition.get("type"), str(condition.get("reason") or "")
        waits = kind == "PodResizePending" or (kind == "PodResizeInProgress" and reason == "Error")
        if waits and condition.get("status") == "True":
            return reason, str(condition.get("message") or reason)
    return None


# how Kubernetes reads resources


def cpu_of(container: Mapping[str, Any]) -> Cpu:
    """Return the container's CPU; a request that is not set is its limit."""
    resources = container.get("resources") or {}
    values = (amount((resources.get(kind) or {}).get("cpu")) for kind in ("requests", "limits"))
    requests, limits = (None if value is None else round(value * 1000) for value in values)
    return Cpu(limits if requests is None else requests, limits)


def class_of(spec: Mapping[str, Any], name: object, cpu: Cpu) -> str:
    """Return the QoS class of the pod if the container of that name had this CPU."""
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
    """Return its CPU and memory that are not 0, by `requests` and `limits`."""
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
    """Return the value of a quantity such as 500m, 1.5 or 2Gi; None if it is missing or unreadable."""
    digits = str(text).rstrip("numkKMGTPEi")
    try:
        return None if text is None else Decimal(digits) * Decimal(UNITS[str(text)[len(digits) :]])
    except (InvalidOperation, KeyError):
        return None
