"""CPU limits of pods, from the job's document to the Pod object, over a store and an API in memory.

Launchers come and go at any moment; whoever acts next gives back what a pod had.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Fatal, Rejected, Transient
from coordinator.model.records import JobRecord
from coordinator.stores.sqlite import SqliteStore
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.pods.limit_rules import NO_CLASS
from launcher.cluster.pods.pod_state import Pod
from launcher.cluster.pods.resize import AGAIN_S, TOO_OLD, PodResizer
from tests.fakes.kube import Kube
from tests.unit.launcher.test_pods import ENDED, RUNNING, pod
from tests.unit.launcher.test_volcano_job_controller import Time

Doc = dict[str, Any]

HAD = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
VOLCANO: Doc = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "v", "namespace": "default", "uid": "v"},
}


class Ground:
    """One launch whose pod runs, of a job that trains."""

    def __init__(self, folder: Path) -> None:
        self.kube, self.time = Kube(), Time()
        self.store = SqliteStore(str(folder / "store.db"))
        self.store.put("jobs", {"_id": "j", "launch": 1})
        self.store.put("nodes", {"_id": "node-a", "cores": 4.0})
        self.show(RUNNING, HAD)
        uid = self.pod["metadata"]["uid"]
        self.store.put("launches", {"_id": "l", "launch": 1, "wanted": "launch", "pod": {"uid": uid}, "version": 1})
        self.launcher()

    def launcher(self) -> None:
        """A new one, that knows nothing."""
        news = EventWriter(self.kube, self.time, "launcher")
        self.resizing = PodResizer("launches", self.store, self.kube, self.time, news)  # type: ignore[arg-type]

    def show(self, state: Doc, resources: Doc | None, qos: str = "Burstable") -> None:
        doc = pod(state)
        doc["spec"]["containers"][0] |= {"resources": resources} if resources else {}
        meta = {"annotations": {}}
        self.kube.put("Pod", "p", spec=doc["spec"], status={**doc["status"], "qosClass": qos}, meta=meta)

    @property
    def pod(self) -> Doc:
        (found,) = self.kube.of("Pod")
        return found

    @property
    def job(self) -> Doc:
        return self.store.get("jobs", "j") or {}

    def wants(self, cores: float | None, lasts_s: float = 60.0) -> None:
        until = None if cores is None else self.time.wall() + lasts_s
        self.store.update("jobs", "j", {}, {"cpu_limit": cores, "limit_ts": until})

    def turn(self) -> None:
        record = self.store.get("launches", "l") or {}
        pods = [Pod(doc) for doc in self.kube.of("Pod")]
        self.resizing.look(record, pods, self.job, VOLCANO)

    @property
    def resources(self) -> Doc:
        found: Doc = self.pod["spec"]["containers"][0]["resources"]
        return found

    @property
    def resizes(self) -> int:
        return sum(verb == "patch resize" for verb, *_ in self.kube.calls)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_a_limit_is_set_once_and_given_back_once(ground: Ground) -> None:
    ground.turn()
    assert ground.resizes == 0
    ground.wants(0.5)
    for _ in range(3):
        ground.turn()
    assert ground.resources == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "500m", "memory": "2Gi"},
    }
    ground.wants(None)
    for _ in range(3):
        ground.turn()
    assert (ground.resources["limits"]["cpu"], ground.resources["requests"]["cpu"]) == ("2000m", "500m")
    assert ground.resizes == 2
    assert (ground.store.get("launches", "l") or {})["held"] is None
    assert ground.kube.events() == []


def test_a_container_without_a_limit_is_given_all_cores_of_its_node(ground: Ground) -> None:
    ground.show(RUNNING, None)
    ground.wants(0.5)
    ground.turn()
    assert ground.resources == {"requests": {"cpu": "1m"}, "limits": {"cpu": "500m"}}
    ground.wants(None)
    ground.turn()
    assert ground.resources == {"requests": {"cpu": "1m"}, "limits": {"cpu": "4000m"}}


@pytest.mark.parametrize("killed", [False, True])
def test_a_limit_that_nobody_renews_is_lifted_at_its_end_also_by_the_next_launcher(
    ground: Ground, killed: bool
) -> None:
    ground.wants(0.5, lasts_s=60.0)
    ground.turn()
    ground.time.at += 59.0
    ground.turn()
    assert ground.resources["limits"]["cpu"] == "500m"
    ground.time.at += 2.0
    if killed:
        ground.launcher()
    ground.turn()
    assert ground.resources["limits"]["cpu"] == "2000m"


def test_what_it_had_is_written_down_before_anything_is_changed(ground: Ground) -> None:
    """A launcher that is killed in between leaves no pod that nobody knows how to give back."""
    ground.wants(0.5)
    ground.kube.trouble = Transient("the API server is away")
    with pytest.raises(Transient):
        ground.turn()
    assert (ground.store.get("launches", "l") or {})["held"]["limits"] == 2000
    ground.kube.trouble = None
    ground.launcher()
    ground.turn()
    ground.wants(None)
    ground.turn()
    assert ground.resources["limits"]["cpu"] == "2000m"


def test_a_pod_that_cannot_be_limited_is_said_to_be_once_and_left_alone(ground: Ground) -> None:
    ground.show(RUNNING, None, "BestEffort")
    ground.wants(0.5)
    for _ in range(5):
        ground.turn()
    assert ground.resizes == 0
    assert ground.kube.events() == [("NotLimitable", f"The CPU of job j cannot be limited: {NO_CLASS}.")]
    assert JobRecord(ground.job).unlimitable == NO_CLASS
    assert ground.job["cpu_limit"] is None


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (Rejected("Pod QOS Class may not change as a result of resizing", 422), "Pod QOS Class may not change"),
        (Rejected("the server could not find the requested resource", 404), TOO_OLD),
        (Fatal("the API server refuses this account"), "the API server refuses this account"),
    ],
)
def test_a_refusal_is_told_and_not_asked_for_again(ground: Ground, refusal: Exception, why: str) -> None:
    ground.kube.refuses = refusal  # type: ignore[assignment]
    ground.wants(0.5)
    for _ in range(5):
        ground.turn()
        ground.time.at += AGAIN_S
    assert ground.resizes == 1
    assert why in str(JobRecord(ground.job).unlimitable)
    assert [reason for reason, _ in ground.kube.events()] == ["NotLimitable"]


def test_a_release_that_is_refused_is_asked_for_again_but_not_at_every_turn(ground: Ground) -> None:
    ground.wants(0.5)
    ground.turn()
    ground.kube.refuses = Rejected("not now", 422)
    ground.wants(None)
    for _ in range(5):
        ground.turn()
    assert ground.resizes == 2
    ground.kube.refuses = None
    ground.time.at += AGAIN_S
    ground.turn()
    assert ground.resources["limits"]["cpu"] == "2000m"
    assert JobRecord(ground.job).unlimitable is None


def test_what_the_kubelet_puts_off_is_told_once(ground: Ground) -> None:
    ground.wants(0.5)
    ground.turn()
    status = ground.pod["status"]
    waits = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}
    ground.kube.put("Pod", "p", status={**status, "conditions": [waits]})
    for _ in range(3):
        ground.turn()
    assert ground.kube.events() == [("ResizeLate", "The CPU limit of job j is not in force yet: no room")]


@pytest.mark.parametrize("gone", ["ended", "vanished", "another", "removed"])
def test_only_the_living_pod_of_the_present_launch_is_resized(ground: Ground, gone: str) -> None:
    ground.wants(0.5)
    if gone == "ended":
        ground.show(ENDED, HAD)
    elif gone == "vanished":
        ground.kube.vanish("Pod", "p")
    elif gone == "another":
        ground.store.update("jobs", "j", {}, {"launch": 2})
    else:
        ground.store.update("launches", "l", {}, {"wanted": "remove"})
    ground.turn()
    assert ground.resizes == 0 and ground.kube.events() == []


def test_a_pod_that_goes_in_that_very_moment_is_no_news(ground: Ground) -> None:
    ground.wants(0.5)
    seen = [Pod(doc) for doc in ground.kube.of("Pod")]
    ground.kube.vanish("Pod", "p")
    ground.resizing.look(ground.store.get("launches", "l") or {}, seen, ground.job, VOLCANO)
    assert ground.kube.events() == [] and JobRecord(ground.job).unlimitable is None


def test_what_was_asked_of_pods_that_are_gone_is_forgotten(ground: Ground) -> None:
    ground.wants(0.5)
    ground.turn()
    ground.resizing.forget_all_but([])
    assert ground.resizing._asked == {}
