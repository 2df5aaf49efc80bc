"""Placeholder pods: made as rows ask, removed when rows ask, told in rows; rows are made again from pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Fatal
from coordinator.stores.sqlite import SqliteStore
from launcher.admission.inject import PodSettings
from launcher.cluster.controllers import placeholders
from launcher.cluster.controllers.placeholders import AGAIN_S, PlaceholderController
from launcher.cluster.informer import Informer
from launcher.cluster.pods import placeholder_pods
from launcher.cluster.pods.foreign_usage import ForeignUsage, gpus_waited_for
from launcher.cluster.pods.pod_state import Pod
from launcher.names import JOB, PLACEHOLDER
from sidecar import placeholder
from tests.fakes.kube import Kube
from tests.patience import eventually
from tests.unit.launcher.test_volcano_job_controller import Time

SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080", namespace="usual")
KEY = b"k" * 32
QUEUES = {"team": {"metadata": {"name": "team", "annotations": {"volcano-reshape.io/devices": "pool"}}}}


def row(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "_id": f"reshape-gpu-1-{index}",
        "namespace": "a",
        "queue": "team",
        "node": "n",
        "job_id": "one",
        "group": "reshape-gpu-1",
        "size": 1,
        "opportunistic": bool(index),
        "wanted": "hold",
        "version": 1,
        **more,
    }


class Ground:
    def __init__(self, folder: Path) -> None:
        self.kube = Kube()
        self.time = Time()
        self.store = SqliteStore(str(folder / "store.db"))
        self.foreign = ForeignUsage(self.kube)  # type: ignore[arg-type]
        self.groups = Informer(self.kube, "PodGroup", None, None, lambda: None)  # type: ignore[arg-type]
        self.groups.start()
        self.controller = self.another()

    def another(self) -> PlaceholderController:
        groups = [self.groups]
        made = PlaceholderController(
            self.store,
            self.kube,
            self.time,
            SETTINGS,
            KEY,
            self.foreign,
            (),
            groups,
            lambda: None,  # type: ignore[arg-type]
        )
        made.start()
        eventually(lambda: all(informer.in_step for informer in made._pods))
        return made

    def ask(self, *rows: dict[str, Any]) -> None:
        for each in rows:
            self.store.put("placeholders", each)

    def turn(self) -> dict[str, Any]:
        """One turn, once the watch has seen all pods; the rows afterwards."""
        there = {pod["metadata"]["uid"]: pod for pod in self.kube.of("Pod")}
        eventually(lambda: {uid: p for i in self.controller._pods for uid, p in i.items().items()} == there)
        self.controller.turn(QUEUES)
        return {doc["_id"]: doc for doc in self.store.list("placeholders")}

    def mark(self) -> str:
        return str((self.store.get("pool", "seen") or {}).get("mark"))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.controller.stop()
    made.groups.stop()
    made.store.close()


def runs(ground: Ground, name: str, **meta: Any) -> None:
    ground.kube.put(
        "Pod",
        name,
        "a",
        spec={"nodeName": "n"},
        status={"phase": "Running"},
        meta={**ground.kube.objects[("Pod", "a", name)]["metadata"], **meta},
    )


def test_a_row_gets_a_pod_that_asks_for_one_gpu_in_its_namespace_and_queue(ground: Ground) -> None:
    ground.ask(row(0), row(1))
    ground.turn()
    first, second = sorted(ground.kube.of("Pod"), key=lambda pod: str(pod["metadata"]["name"]))
    assert (first["metadata"]["namespace"], first["spec"]["priorityClassName"]) == ("a", "reshape-gpu")
    assert second["spec"]["priorityClassName"] == "reshape-gpu-opportunistic"
    (container,) = first["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]  # Guaranteed: evicted last
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (group,) = ground.kube.of("PodGroup")
    assert (group["spec"]["queue"], group["spec"]["minMember"]) == ("team", 1)
    assert first["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]


def test_an_evicted_placeholder_stays_while_a_training_saves(ground: Ground) -> None:
    spec = placeholder_pods.pod_of(row(), SETTINGS, KEY)["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 2 * (SETTINGS.grace_s + SETTINGS.kill_s)
    assert spec["containers"][0]["command"][-2] == "sidecar.placeholder"


def test_a_row_tells_what_has_become_of_its_pod_and_the_mark_is_another(ground: Ground) -> None:
    ground.ask(row())
    ground.turn()
    before = ground.mark()
    runs(ground, "reshape-gpu-1-0")
    found = ground.turn()["reshape-gpu-1-0"]["pod"]
    assert (found["namespace"], found["node"], found["phase"], found["leaves_at"]) == ("a", "n", "Running", None)
    assert ground.mark() != before
    runs(ground, "reshape-gpu-1-0", deletionTimestamp="2026-01-01T00:01:00Z")
    assert ground.turn()["reshape-gpu-1-0"]["pod"]["leaves_at"] == 1767225660.0


def test_nothing_is_written_where_nothing_has_changed(ground: Ground) -> None:
    ground.ask(row())
    ground.turn()
    ground.turn()
    before = ground.mark(), ground.store.list("placeholders")
    ground.turn()
    assert (ground.mark(), ground.store.list("placeholders")) == before


def test_a_pod_is_removed_only_once_its_row_asks_for_that(ground: Ground) -> None:
    ground.ask(row(wanted="asked back"))
    ground.ask(row())
    ground.turn()
    runs(ground, "reshape-gpu-1-0")
    ground.turn()
    ground.store.update("placeholders", "reshape-gpu-1-0", {}, {"wanted": "asked back"})
    ground.turn()
    assert len(ground.kube.of("Pod")) == 1
    ground.store.update("placeholders", "reshape-gpu-1-0", {}, {"wanted": "release"})
    ground.turn()
    assert ground.kube.of("Pod") == []
    assert ground.turn() == {}
    eventually(lambda: ground.turn() == {} and ground.kube.of("PodGroup") == [])


def test_an_evicted_pod_is_told_to_end_as_no_kubelet_shortens_its_grace(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(placeholders, "tell_to_end", lambda address, word: told.append((address, word)))
    ground.ask(row())
    ground.turn()
    runs(ground, "reshape-gpu-1-0", deletionTimestamp="2026-01-01T00:01:00Z")
    ground.kube.put("Pod", "reshape-gpu-1-0", "a", status={"phase": "Running", "podIP": "10.0.0.1"})
    ground.turn()
    ground.store.update("placeholders", "reshape-gpu-1-0", {}, {"wanted": "release"})
    ground.turn()
    eventually(lambda: told == [("10.0.0.1", placeholder.word_of(KEY, "reshape-gpu-1-0"))])
    assert len(ground.kube.of("Pod")) == 1


def test_a_pod_whose_row_was_lost_gets_it_again(ground: Ground) -> None:
    ground.ask(row(0), row(1))
    ground.turn()
    for index in (0, 1):
        runs(ground, f"reshape-gpu-1-{index}")
    before = ground.turn()
    for name in before:
        ground.store.delete("placeholders", name)
    ground.store.delete("pool", "seen")
    after = ground.turn()
    kept = ("namespace", "queue", "node", "job_id", "group", "size", "opportunistic", "wanted", "pod")
    assert {n: [r[f] for f in kept] for n, r in after.items()} == {n: [r[f] for f in kept] for n, r in before.items()}
    assert ground.mark() != "None"


def test_the_row_of_a_pod_that_is_gone_goes(ground: Ground) -> None:
    ground.ask(row())
    ground.turn()
    runs(ground, "reshape-gpu-1-0")
    ground.turn()
    ground.kube.vanish("Pod", "reshape-gpu-1-0", "a")
    assert ground.turn() == {}


def test_what_the_api_server_refuses_is_told_and_tried_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    make = ground.kube.create
    said = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"

    def create(doc: dict[str, Any]) -> dict[str, Any]:
        if doc["kind"] == "Pod":
            raise Fatal(f'the API server refuses this account (post x): pods "reshape-gpu-1-0" is forbidden: {said}')
        return make(doc)

    monkeypatch.setattr(ground.kube, "create", create)
    ground.ask(row())
    assert ground.turn()["reshape-gpu-1-0"]["failure"] == said
    monkeypatch.setattr(ground.kube, "create", make)
    ground.turn()
    assert ground.kube.of("Pod") == []
    ground.time.at += AGAIN_S
    ground.turn()
    assert ground.turn()["reshape-gpu-1-0"]["failure"] is None and len(ground.kube.of("Pod")) == 1


def waits(message: str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", **more: Any) -> dict[str, Any]:
    asked = {"resources": {"requests": {"nvidia.com/gpu": "2"}}}
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    meta = {"name": "p", "namespace": "b", "uid": "1", **more}
    return {"metadata": meta, "spec": {"containers": [asked]}, "status": {"phase": "Pending", "conditions": [said]}}


def test_a_foreign_pod_waits_for_gpus_where_the_scheduler_says_so() -> None:
    assert gpus_waited_for(waits()) == {"name": "pod b/p", "gpus": 2}


@pytest.mark.parametrize(
    "pod",
    [
        waits("0/2 nodes are available: 2 Insufficient cpu."),
        waits(labels={JOB: "x"}),
        waits(labels={PLACEHOLDER: "x"}),
        waits(deletionTimestamp="2026-01-01T00:01:00Z"),
        {**waits(), "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}},
    ],
)
def test_no_other_pod_does(pod: dict[str, Any]) -> None:
    assert gpus_waited_for(pod) is None


def test_a_pod_group_that_is_not_let_in_waits_for_its_least_resources() -> None:
    group = {
        "metadata": {"name": "g", "namespace": "b"},
        "status": {"phase": "Pending"},
        "spec": {"minMember": 2, "minResources": {"nvidia.com/gpu": "4", "cpu": "1"}},
    }
    ours = {**group, "metadata": {**group["metadata"], "labels": {PLACEHOLDER: "x"}}}  # type: ignore[dict-item]
    let_in = {**group, "status": {"phase": "Inqueue"}}
    found = [placeholder_pods.wait_of_group(each) for each in (group, ours, let_in)]
    assert found == [{"name": "PodGroup b/g", "gpus": 2, "pods": 2}, None, None]


def test_a_row_is_read_back_from_its_pod() -> None:
    made = placeholder_pods.pod_of(row(1), SETTINGS, KEY)
    assert placeholder_pods.row_of(Pod(made)) == row(1)


def test_rows_of_users_reservations_are_left_alone(ground: Ground) -> None:
    kept = {"_id": "r-1", "node": "n", "num_gpus": 1, "user": "ada", "from_ts": 0.0, "until_ts": 9e9}
    ground.store.put("reservations", kept)
    ground.ask(row())
    ground.turn()
    assert [one["_id"] for one in ground.store.list("reservations")] == ["r-1"]
