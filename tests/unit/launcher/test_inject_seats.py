"""Pods with seats: what is added to them, and to which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.model.records import JobRecord
from launcher.admission.inject import (
    INIT_CONTAINER,
    SEAT,
    SIDECAR_CONTAINER,
    VISIBLE,
    CannotInject,
    Injection,
    PodSettings,
    has_seat,
    inject,
)
from launcher.cluster.pods import job_spec
from launcher.cluster.pods.pod_state import Pod
from launcher.names import CONTAINER, SIDECAR

SEATED = PodSettings("image", "http://c", seats="files")
ONE = Injection("a.b", "a-b", "launch")


def pod_spec(**trainer: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "theirs", "command": ["python3", "train.py"], **trainer}
    return {"restartPolicy": "Never", "containers": [container]}


def trainer_of(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = spec["containers"]
    return dict(found)


def test_a_pod_with_a_seat_gets_no_gpu_by_a_variable() -> None:
    theirs = pod_spec(env=[{"name": VISIBLE, "value": "all"}], resources={"limits": {"memory": "1Gi"}})
    spec = inject(theirs, {}, ONE, SEATED).spec
    assert trainer_of(spec)["resources"] == {"limits": {"memory": "1Gi", SEAT: "1"}, "requests": {SEAT: "1"}}
    assert "env" not in trainer_of(spec), "it would win over what a seat shows"
    installer, sidecar = spec["initContainers"]
    assert SEAT not in installer["resources"]["limits"], (
        "it has ended when a kubelet starts anew, which would end the pod"
    )
    assert {"name": VISIBLE, "value": "void"} in sidecar["env"], "it needs no GPU"
    assert has_seat(spec)


def test_the_sidecar_has_a_seat_and_starts_before_containers_of_the_user() -> None:
    theirs = {**pod_spec(), "initContainers": [{"name": "fetch", "image": "theirs"}]}
    theirs["containers"] = [{"name": "sync", "image": "theirs"}, *theirs["containers"]]
    spec = inject(theirs, {"annotations": {CONTAINER: "main"}}, ONE, SEATED).spec
    first, sidecar, fetch = spec["initContainers"]
    assert first["name"] == INIT_CONTAINER and sidecar["name"] == SIDECAR_CONTAINER
    assert (sidecar["resources"]["limits"][SEAT], sidecar["restartPolicy"]) == ("1", "Always")
    assert fetch == {"name": "fetch", "image": "theirs"} and spec["containers"][0] == {
        "name": "sync",
        "image": "theirs",
    }


def test_where_a_container_of_the_user_would_start_first_it_is_refused() -> None:
    in_image = {SIDECAR: "in-image"}
    assert has_seat(inject(pod_spec(), {"annotations": in_image}, ONE, SEATED).spec)
    theirs = {**pod_spec(), "initContainers": [{"name": "fetch", "image": "theirs"}]}
    with pytest.raises(CannotInject, match="Container 'fetch' starts before the one that trains"):
        inject(theirs, {"annotations": in_image}, ONE, SEATED)
    inject(theirs, {"annotations": in_image}, ONE, PodSettings("image", "http://c"))


@pytest.mark.parametrize(
    ("one", "settings"),
    [
        (ONE, PodSettings("image", "http://c")),
        (replace(ONE, emulated=True), SEATED),
        (replace(ONE, devices="recreate", gpu_ids=("g",)), SEATED),
    ],
    ids=["no seats here", "emulated GPUs", "a pod that is made for its GPUs"],
)
def test_other_pods_have_no_seat(one: Injection, settings: PodSettings) -> None:
    assert not has_seat(inject(pod_spec(), {}, one, settings).spec)


def test_the_sidecar_beside_a_seat_reads_no_gpus() -> None:
    doc: Any = {"_id": "one", "job_id": "one", "uid": "u", "launch": 1, "optional_num_gpus": [1], "command": ["true"]}
    template = inject(pod_spec(), {}, ONE, SEATED)
    pod = {"metadata": {"annotations": template.annotations}, "spec": template.spec}
    assert job_spec.launch_json(doc, pod, SEATED, emulated=False)["gpus"] == "none"
    assert JobRecord(doc).launch == 1


def test_a_runtime_class_is_set_where_the_pod_names_none() -> None:
    nvidia = replace(SEATED, runtime_class="nvidia")
    assert inject(pod_spec(), {}, ONE, nvidia).spec["runtimeClassName"] == "nvidia"
    named = {**pod_spec(), "runtimeClassName": "gvisor"}
    assert inject(named, {}, ONE, nvidia).spec["runtimeClassName"] == "gvisor"
    assert "runtimeClassName" not in inject(pod_spec(), {}, replace(ONE, emulated=True), nvidia).spec
    assert "runtimeClassName" not in inject(pod_spec(), {}, ONE, SEATED).spec


def test_the_coordinator_is_told_which_pods_have_a_seat() -> None:
    for settings, told in ((SEATED, True), (PodSettings("image", "http://c"), None)):
        spec = inject(pod_spec(), {}, ONE, settings).spec
        about = {"name": "one-0", "namespace": "a", "uid": "u"}
        assert Pod({"metadata": about, "spec": spec, "status": {}}).record().get("seat") is told
    assert SIDECAR_CONTAINER in {one["name"] for one in spec["initContainers"]}
