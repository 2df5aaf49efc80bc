"""Which nodes take pods, as the API server says, in the documents that agents' reports have made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.stores.sqlite import SqliteStore
from launcher.cluster.controllers.node import LOOK_S, NodeController, reserved, schedulable
from tests.fakes.kube import AWAY, Kube
from tests.patience import eventually
from tests.unit.launcher.test_volcano_job_controller import Time

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Ground:
    def __init__(self, folder: Path) -> None:
        self.kube, self.time, self.store = Kube(), Time(), SqliteStore(str(folder / "store.db"))
        for name, agent in (("a", True), ("b", True), ("here", False)):
            self.store.put("nodes", {"_id": name, "cores": 2.0, "agent": agent, "version": 1})
        self.node("a")
        self.node("b")
        self.nodes = NodeController(self.store, self.kube, self.time)  # type: ignore[arg-type]

    def node(self, name: str, status: dict[str, Any] = READY, **spec: Any) -> None:
        self.kube.put("Node", name, None, spec=spec, status=status)

    def takes(self) -> dict[str, Any]:
        self.nodes.turn()
        return {str(doc["_id"]): doc.get("schedulable") for doc in self.store.list("nodes")}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    made.nodes.start()
    eventually(lambda: made.nodes._informer.in_step)
    yield made
    made.nodes.stop()
    made.store.close()


@pytest.mark.parametrize(
    ("node", "takes"),
    [
        ({"status": READY}, True),
        ({"status": READY, "spec": {"unschedulable": True}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}]}}, False),
        ({}, False),
    ],
)
def test_a_node_takes_pods_while_it_is_ready_and_not_cordoned(node: dict[str, Any], takes: bool) -> None:
    assert schedulable(node) is takes


def test_a_cordon_is_written_and_taken_back_and_no_document_is_touched_without_need(ground: Ground) -> None:
    assert ground.takes() == {"a": None, "b": None, "here": None}, "what is true anyway is not written"
    ground.node("a", unschedulable=True)
    eventually(lambda: ground.takes() == {"a": False, "b": None, "here": None})
    ground.node("a", unschedulable=False)
    eventually(lambda: ground.takes() == {"a": True, "b": None, "here": None})


def test_a_node_that_the_cluster_does_not_show_takes_none(ground: Ground) -> None:
    ground.kube.vanish("Node", "b", None)
    eventually(lambda: ground.takes()["b"] is False)


def test_a_document_that_was_made_late_is_found_within_seconds(ground: Ground) -> None:
    ground.node("c", unschedulable=True)
    eventually(lambda: "c" in {n["metadata"]["name"] for n in ground.nodes._informer.items().values()})
    ground.takes()
    ground.store.put("nodes", {"_id": "c", "agent": True, "version": 1})
    ground.time.at += LOOK_S
    assert ground.takes()["c"] is False


def test_without_the_right_to_watch_nodes_nothing_is_written(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.kube.trouble = AWAY
    ground.node("a", unschedulable=True)
    ground.nodes.start()
    assert ground.takes()["a"] is None
    ground.nodes.stop()


def test_what_pods_of_others_ask_for_is_written_beside_their_node(ground: Ground) -> None:
    asked = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    ground.kube.put("Pod", "p", spec={"nodeName": "a", "containers": [asked]}, status={"phase": "Running"})
    eventually(lambda: ground.nodes.foreign.on_node("a").cores)
    ground.nodes.turn()
    held = {str(doc["_id"]): doc.get("others") for doc in ground.store.list("nodes")}
    assert held == {"a": {"cores": 0.5, "memory": 2.0**30}, "b": None, "here": None}


def test_what_the_kubelet_keeps_for_other_processes_counts_like_their_pods(ground: Ground) -> None:
    asked = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    ground.kube.put("Pod", "p", spec={"nodeName": "a", "containers": [asked]}, status={"phase": "Running"})
    capacity = {"cpu": "4", "memory": f"{8 * 2**20}Ki"}  # as kubelets write it
    allocatable = {"cpu": "3750m", "memory": f"{7 * 2**20}Ki"}
    ground.node("a", {**READY, "capacity": capacity, "allocatable": allocatable})

    def held() -> dict[str, float] | None:
        ground.nodes.turn()
        return (ground.store.get("nodes", "a") or {}).get("others")

    eventually(lambda: held() == {"cores": 0.75, "memory": 2 * 2.0**30})


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1500m"}}, (0.5, 0.0)),
        ({"capacity": {"cpu": "2"}}, (0.0, 0.0)),
        ({"capacity": {"cpu": "1"}, "allocatable": {"cpu": "2", "memory": "odd"}}, (0.0, 0.0)),
        ({}, (0.0, 0.0)),
    ],
)
def test_a_node_that_does_not_say_what_it_keeps_keeps_nothing(status: dict[str, Any], kept: tuple[float, ...]) -> None:
    assert reserved({"status": status}) == (*kept, 0.0)
