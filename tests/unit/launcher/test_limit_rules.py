"""What a pod may be limited to and what it is given back, judged on Pod objects by the API server's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.model.records import JobRecord, Moment
from launcher.cluster.pods.limit_rules import (
    NO_CLASS,
    NO_WEIGHT,
    RESTARTS,
    WHOLE_POD,
    PodLimits,
    ResizeContainer,
    ResizePending,
    SaveOriginalCpu,
    Step,
    Unlimitable,
    amount,
    class_of,
    cpu_of,
    steps,
)
from launcher.cluster.pods.pod_state import Pod
from tests.unit.launcher.test_pods import RUNNING, pod

Doc = dict[str, Any]

WALL = 1000.0
BESIDE: Doc = {"name": "beside", "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}
HAD = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
WHOLE = {"cpu": "1", "memory": "1Gi"}


def of_class(
    resources: Doc | None, beside: Doc | None = BESIDE, conditions: list[Doc] | None = None, **spec: Any
) -> Pod:
    """A pod that runs, of the class that Kubernetes gives it."""
    trainer = {"name": "trainer", **({"resources": resources} if resources else {}), **spec.pop("trainer", {})}
    doc = pod(RUNNING, **spec)
    doc["spec"]["containers"] = [trainer, *([beside] if beside else [])]
    doc["status"] |= {"qosClass": class_of(doc["spec"], "trainer", cpu_of(trainer)), "conditions": conditions or []}
    return Pod(doc)


def whole_pod() -> Pod:
    seen = of_class(HAD)
    return Pod({**seen.doc, "spec": {**seen.spec, "resources": {"limits": {"cpu": "4"}}}})


def view(seen: Pod, cores: float | None, lasts_s: float = 60.0, held: Doc | None = None, **job: Any) -> PodLimits:
    doc = {"_id": "j", "launch": 1, "cpu_limit": cores, "limit_ts": WALL + lasts_s, **job}
    return PodLimits({"launch": 1, "held": held}, JobRecord(doc), seen, 8.0, Moment(5.0, WALL))


def resized(seen: Pod, cores: float, **job: Any) -> Step:
    """What follows from a first limit, after what it had was written down."""
    found = list(steps(view(seen, cores, **job)))
    if isinstance(found[0], SaveOriginalCpu):
        assert found[0].held == {"uid": "u", **cpu_of(seen.trainer)._asdict()}
        return found[1]
    (only,) = found
    return only


def after(seen: Pod, step: ResizeContainer) -> Pod:
    """The pod as the API server has it then, if its rules allow that."""
    (change,) = step.patch["spec"]["containers"]
    spec = {**seen.spec, "containers": [_merged(c, change) for c in seen.spec["containers"]]}
    for old, new in zip(seen.spec["containers"], spec["containers"], strict=True):
        for kind in ("requests", "limits"):
            before, now = ((each.get("resources") or {}).get(kind, {}) for each in (old, new))
            assert before.keys() <= now.keys(), "resources cannot be removed"
            assert before.get("memory") == now.get("memory")
        requests, limits = (amount(new.get("resources", {}).get(k, {}).get("cpu")) for k in ("requests", "limits"))
        assert requests is None or limits is None or requests <= limits
    return Pod({**seen.doc, "spec": spec})


def _merged(container: Doc, change: Doc) -> Doc:
    if container["name"] != change["name"]:
        return container
    had = container.get("resources", {})
    resources = {kind: {**had.get(kind, {}), **change["resources"].get(kind, {})} for kind in ("requests", "limits")}
    return {**container, "resources": {kind: found for kind, found in resources.items() if found}}


@pytest.mark.parametrize(
    ("resources", "beside", "cores", "cpu"),
    [
        (HAD, BESIDE, 1.0, (500, 1000)),
        (HAD, BESIDE, 0.25, (250, 250)),  # its request must not be above its limit
        (HAD, BESIDE, 0.001, (10, 10)),
        (None, BESIDE, 0.5, (1, 500)),  # a request of its own, lest its limit became its request
        ({"requests": {"cpu": "2"}}, BESIDE, 0.5, (500, 500)),
        ({"limits": {"memory": "1Gi"}}, BESIDE, 0.5, (1, 500)),
        ({"limits": WHOLE, "requests": WHOLE}, None, 0.5, (500, 500)),  # Guaranteed: both together
        ({"limits": {**WHOLE, "cpu": "2"}, "requests": WHOLE}, None, 1.0, (999, 1000)),  # it must not become that
    ],
)
def test_a_limit_is_set_by_quota(resources: Doc | None, beside: Doc | None, cores: float, cpu: tuple[int, int]) -> None:
    seen = of_class(resources, beside)
    step = resized(seen, cores)
    assert isinstance(step, ResizeContainer) and step.cpu == cpu
    now = after(seen, step)
    assert class_of(now.spec, "trainer", cpu_of(now.trainer)) == seen.qos_class


def test_a_limit_above_its_own_changes_nothing() -> None:
    assert list(steps(view(of_class(HAD), 4.0))) == []


def test_a_limit_that_is_set_is_not_set_again() -> None:
    seen = of_class(HAD)
    step = resized(seen, 0.5)
    assert isinstance(step, ResizeContainer)
    held = {"uid": "u", "requests": 500, "limits": 2000}
    assert list(steps(view(after(seen, step), 0.5, held=held))) == []
    (again,) = steps(view(after(seen, step), 1.0, held=held))
    assert isinstance(again, ResizeContainer) and again.cpu == (500, 1000), "measured against what it had at first"


@pytest.mark.parametrize(
    ("resources", "back"),
    [(HAD, (500, 2000)), (None, (1, 8000)), ({"requests": {"cpu": "300m"}}, (300, 8000))],
)
@pytest.mark.parametrize("by", ["quota", "weight"])
def test_it_is_given_back_what_it_had_and_then_nothing_is_remembered(
    resources: Doc | None, back: tuple[int, int], by: str
) -> None:
    seen = of_class(resources)
    remembered, step = steps(view(seen, 0.25, limit_by=by))
    assert isinstance(remembered, SaveOriginalCpu) and isinstance(step, ResizeContainer)
    limited, held = after(seen, step), remembered.held
    if by == "weight" and resources != HAD:
        back = (back[0], None)  # type: ignore[assignment]
    (release,) = steps(view(limited, None, held=held))
    assert isinstance(release, ResizeContainer) and release.cpu == back
    assert list(steps(view(after(limited, release), None, held=held))) == [SaveOriginalCpu(None)]
    assert list(steps(view(after(limited, release), None))) == []


@pytest.mark.parametrize(
    "over", [{"lasts_s": 0.0}, {"lasts_s": -500.0}, {"launch": 2}, {"unlimitable": {"launch": 1, "why": "x"}}]
)
def test_a_limit_that_is_over_is_lifted_whoever_set_it(over: Doc) -> None:
    """Its end has passed; it is of another launch; it was found that this one cannot be limited."""
    held = {"uid": "u", "requests": 500, "limits": 2000}
    limited = of_class({"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "250m", "memory": "2Gi"}})
    (step,) = steps(view(limited, 0.25, held=held, **over))
    assert isinstance(step, ResizeContainer) and step.cpu == (500, 2000)


def test_what_another_pod_had_is_none_of_this_ones() -> None:
    held = {"uid": "another", "requests": 500, "limits": 2000}
    assert list(steps(view(of_class(None), None, held=held))) == []


@pytest.mark.parametrize(
    ("seen", "by", "why"),
    [
        (of_class(None, None), "quota", NO_CLASS),
        (of_class(None, None), "weight", NO_CLASS),
        (of_class({"limits": WHOLE, "requests": WHOLE}, None), "weight", NO_WEIGHT),
        (whole_pod(), "quota", WHOLE_POD),
        (
            of_class(HAD, trainer={"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
            "quota",
            RESTARTS,
        ),
    ],
)
def test_a_pod_that_cannot_be_limited_is_said_to_be(seen: Pod, by: str, why: str) -> None:
    assert list(steps(view(seen, 0.5, limit_by=by))) == [Unlimitable(why)]


def test_a_container_that_restarts_only_for_memory_is_limited() -> None:
    policies = [
        {"resourceName": name, "restartPolicy": p} for name, p in (("cpu", "NotRequired"), ("memory", "Restart"))
    ]
    assert isinstance(resized(of_class(HAD, trainer={"resizePolicy": policies}), 0.5), ResizeContainer)


@pytest.mark.parametrize(("asked", "cpu"), [(0.25, (250, 2000)), (1.5, (1500, 2000)), (3.0, (2000, 2000))])
def test_a_limit_by_weight_is_its_request(asked: float, cpu: tuple[int, int]) -> None:
    step = resized(of_class(HAD), asked, limit_by="weight")
    assert isinstance(step, ResizeContainer) and step.cpu == cpu


PENDING = {"type": "PodResizePending", "status": "True", "message": "no room"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({**PENDING, "reason": "Deferred"}, ResizePending("no room")),
        ({**PENDING, "reason": "Infeasible"}, Unlimitable("node node-a cannot do it: no room")),
        ({"type": "PodResizeInProgress", "status": "True"}, None),
        (
            {"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": "runc"},
            ResizePending("runc"),
        ),
    ],
)
def test_what_the_kubelet_says_is_heard(condition: Doc, expected: Step | None) -> None:
    limited = of_class({**HAD, "limits": {"cpu": "500m", "memory": "2Gi"}}, conditions=[condition])
    held = {"uid": "u", "requests": 500, "limits": 2000}
    assert list(steps(view(limited, 0.5, held=held))) == ([expected] if expected else [])


def test_a_release_that_waits_is_still_remembered() -> None:
    seen = of_class(HAD, conditions=[{**PENDING, "reason": "Deferred"}])
    assert list(steps(view(seen, None, held={"uid": "u", "requests": 500, "limits": 2000}))) == [
        ResizePending("no room")
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("500m", 0.5), ("2", 2), (2, 2), ("0.5", 0.5), ("1Gi", 2**30), ("1e3", 1000), ("100u", 1e-4), (None, None)],
        *[("24683820Ki", 24683820 * 2**10), ("2k", 2000), ("1Ei", 2**60), ("1E", 1e18), ("1K", None), ("odd", None)],
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: object, value: float | None) -> None:
    found = amount(text)
    assert (None if found is None else float(found)) == value


MAYBE = st.one_of(st.none(), st.integers(1, 4000))


@given(
    requests=MAYBE, limits=MAYBE, memory=MAYBE, memory_limit=MAYBE, beside=st.booleans(),
    cores=st.floats(0.001, 7.9), by=st.sampled_from(["quota", "weight"]),
)  # fmt: skip
def test_whatever_a_pod_asks_for_the_api_server_takes_its_limit_and_its_class_stays(
    requests: int | None, limits: int | None, memory: int | None, memory_limit: int | None, beside: bool,
    cores: float, by: str,
) -> None:  # fmt: skip
    """And it ends where it was, or with all cores where it had no limit."""
    requests, memory = _fits(requests, limits), _fits(memory, memory_limit)
    resources = {
        "requests": _given(cpu=_m(requests), memory=_m(memory)),
        "limits": _given(cpu=_m(limits), memory=_m(memory_limit)),
    }
    seen = of_class(resources, BESIDE if beside else None)
    found = list(steps(view(seen, cores, limit_by=by)))
    if not found or isinstance(found[0], Unlimitable):
        assert found == [] or seen.qos_class == "BestEffort" or by == "weight"
        return
    remembered, step = found
    assert isinstance(remembered, SaveOriginalCpu) and isinstance(step, ResizeContainer)
    now = after(seen, step)
    assert _class(now.spec) == _class(seen.spec) == seen.qos_class
    (release,) = steps(view(now, None, held=remembered.held))
    assert isinstance(release, ResizeContainer)
    again = after(now, release)
    assert _class(again.spec) == seen.qos_class
    back = cpu_of(again.trainer)
    assert (limits is None and back.limits in (None, 8000)) or back.limits == limits
    assert (requests is None and limits is None and back.requests == 1) or back.requests == cpu_of(
        seen.trainer
    ).requests


def _fits(request: int | None, limit: int | None) -> int | None:
    """As the API server has it: no request above its limit, one that is not written is the limit."""
    return limit if request is None or limit is None else min(request, limit)


def _m(value: int | None) -> str | None:
    return None if value is None else f"{value}m"


def _given(**amounts: str | None) -> Doc:
    return {name: value for name, value in amounts.items() if value is not None}


def _class(spec: Mapping[str, Any]) -> str:
    """By the words of Kubernetes' documentation, on amounts that are all written alike."""
    each = [one.get("resources", {}) for one in spec["containers"]]
    if not any(one.get(kind) for one in each for kind in ("requests", "limits")):
        return "BestEffort"
    alike = all(
        name in one.get("limits", {}) and one["limits"][name] == one.get("requests", {}).get(name)
        for one in each
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if alike else "Burstable"
