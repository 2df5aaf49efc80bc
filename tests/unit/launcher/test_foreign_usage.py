"""What pods of others ask for counts against their node; one list, then changes only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.errors import Fatal
from launcher.cluster.api import Expired
from launcher.cluster.pods.foreign_usage import ForeignUsage, PodRequests, foreign_requests
from launcher.names import JOB
from tests.fakes.kube import Kube
from tests.patience import eventually


def asks(cpu: str = "500m", memory: str = "1Gi") -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}}


def pod(phase: str = "Running", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    whole = {"nodeName": "a", "containers": [asks()], **spec}
    return {"spec": whole, "status": {"phase": phase}, "meta": {"labels": labels or {}}}


def put(kube: Kube, name: str, **given: Any) -> None:
    kube.put("Pod", name, **pod(**given))


@pytest.mark.parametrize(
    ("spec", "cores"),
    [
        ({}, 0.5),
        ({"containers": [asks(), asks("1")]}, 1.5),
        ({"containers": [{}]}, 0.0),
        ({"initContainers": [asks("3")]}, 3.0),
        ({"initContainers": [{**asks("250m"), "restartPolicy": "Always"}]}, 0.75),
        ({"initContainers": [{**asks("250m"), "restartPolicy": "Always"}, asks("2")]}, 2.25),
        ({"overhead": {"cpu": "100m"}}, 0.6),
        ({"containers": [asks("many")]}, 0.0),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_of_kubernetes_counts(spec: dict[str, Any], cores: float) -> None:
    found = foreign_requests({"metadata": {"uid": "1"}, **pod(**spec)})
    assert found is not None and found[0] == "a" and found[1].cores == pytest.approx(cores)


@pytest.mark.parametrize("given", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"nodeName": None}])
def test_a_pod_that_has_ended_or_has_no_node_holds_nothing(given: dict[str, Any]) -> None:
    assert foreign_requests({"metadata": {"uid": "1"}, **pod(**given)}) is None


def test_a_pod_of_ours_holds_nothing_here() -> None:
    assert foreign_requests({"metadata": {"uid": "1", "labels": {JOB: "x"}}, **pod()}) is None


@pytest.fixture
def kube() -> Kube:
    made = Kube()
    put(made, "one")
    put(made, "ours", labels={JOB: "x"})
    return made


@pytest.fixture
def others(kube: Kube) -> Iterator[ForeignUsage]:
    made = ForeignUsage(kube)  # type: ignore[arg-type]
    made.start()
    eventually(lambda: made.known and kube._watches)
    yield made
    made.stop()
    put(kube, "last")  # ends its watch


def cores(others: ForeignUsage) -> dict[str, float]:
    return {node: asked for node in "ab" if (asked := others.on_node(node).cores)}


def test_it_follows_pods_that_come_end_and_go(kube: Kube, others: ForeignUsage) -> None:
    assert others.on_node("a") == PodRequests(0.5, 2.0**30)
    put(kube, "two", nodeName="b")
    eventually(lambda: cores(others) == {"a": 0.5, "b": 0.5})
    put(kube, "two", nodeName="b", phase="Succeeded")
    eventually(lambda: cores(others) == {"a": 0.5})
    kube.vanish("Pod", "one")
    eventually(lambda: cores(others) == {})


def test_a_watch_that_fails_or_expires_is_begun_again_from_a_list(kube: Kube, others: ForeignUsage) -> None:
    kube.break_watches(Expired("too old"))
    eventually(lambda: sum(call[0] == "list" for call in kube.calls) == 2 and kube._watches)
    put(kube, "two")
    eventually(lambda: cores(others) == {"a": 1.0})


def test_only_nodes_whose_pods_have_changed_are_told(kube: Kube, others: ForeignUsage) -> None:
    assert others.changed_nodes() == {"a"}
    assert others.changed_nodes() == set()
    put(kube, "two", nodeName="b")
    eventually(lambda: cores(others) == {"a": 0.5, "b": 0.5})
    assert others.changed_nodes() == {"b"}
    put(kube, "two", nodeName="b", labels={"color": "red"})  # what it asks for is the same
    put(kube, "three", nodeName="c")
    eventually(lambda: others.on_node("c").cores)
    assert others.changed_nodes() == {"c"}


def test_pods_that_vanished_between_two_lists_hold_nothing(kube: Kube, others: ForeignUsage) -> None:
    kube.objects.pop(("Pod", "default", "one"))
    put(kube, "two", nodeName="b")
    kube.break_watches(Expired("too old"))
    eventually(lambda: cores(others) == {"b": 0.5})
    assert others.changed_nodes() == {"a", "b"}


def test_a_cluster_that_forbids_to_watch_all_pods_is_told_of_once_and_counts_none(
    kube: Kube, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cluster.pods.foreign_usage.PAUSE_S", 0.01)
    kube.trouble = Fatal("pods is forbidden")
    made = ForeignUsage(kube)  # type: ignore[arg-type]
    made.start()
    eventually(lambda: caplog.records)
    assert not made.known
    kube.trouble = None
    eventually(lambda: made.known)
    assert len(caplog.records) == 1
    made.stop()
    put(kube, "last")
