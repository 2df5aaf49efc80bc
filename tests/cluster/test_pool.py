"""Mode `pool` on real kubelets with a fake of NVIDIA's device plugin: what Kubernetes counts is what trainings use.

Each node has four fake GPUs. Placeholder pods hold those that trainings of queue `reshape` use; foreign pods ask for
GPUs as anybody does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import installed as ours
from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, phase, until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_report import Report
from tests.cluster.images import PAUSE
from tests.cluster.installed import Installed, answered
from tests.cluster.plays import ENDLESS, in_order

MANIFESTS = Path(__file__).parent / "manifests-pool"
GPUS = 4
RESERVED = "volcano-reshape.io/placeholder"
OPPORTUNISTIC = "reshape-gpu-opportunistic"
SPACE = steps_job.NAMESPACE


@pytest.fixture(scope="module")
def pool(installed: Installed) -> Iterator[Installed]:
    """The bed with device plugins, and our product in mode `pool`; afterwards both are as before."""
    for node in NODES:
        installed.bed.start_gpu_plugin(node, [f"EMULATED-{node}-V100-{index}" for index in range(GPUS)])
    ours._apply(installed.bed, MANIFESTS)
    answered("GPUs are told with their holders", lambda: all(g["problem"] for g in installed.client.gpus()))
    yield installed
    ours._apply(installed.bed, ours.MANIFESTS)
    for node in NODES:
        installed.bed.stop_gpu_plugin(node)
    until("no placeholder is left", lambda: not placeholders(installed), 60)
    answered("GPUs are free again", lambda: all(g["state"] == "idle" for g in installed.client.gpus()), 60)


def placeholders(pool: Installed) -> list[Object]:
    return pool.cluster.list("pods", None, RESERVED)


def names(pool: Installed, *, opportunistic: bool | None = None) -> list[str]:
    """The running placeholders, those that are being deleted among them."""
    found = [pod for pod in placeholders(pool) if pod["status"].get("phase") == "Running"]
    low = {pod["metadata"]["name"]: pod["spec"]["priorityClassName"] == OPPORTUNISTIC for pod in found}
    return sorted(name for name, is_low in low.items() if opportunistic in (None, is_low))


def gpus_of(pool: Installed, job_id: str) -> list[dict[str, Any]]:
    return [gpu for gpu in pool.client.gpus() if gpu["held_by"] == job_id]


def foreign(pool: Installed, name: str, namespace: str, gpus: int = 1, node: str | None = None) -> None:
    """A pod of somebody else, by Kubernetes' own scheduler."""
    asked = {"nvidia.com/gpu": str(gpus)}
    container = {
        "name": "uses",
        "image": PAUSE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["sleep", "600"],
        "resources": {"limits": asked},
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1, "restartPolicy": "Never"}
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    about = {"name": name, "namespace": namespace}
    pool.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})


def steps_of(pool: Installed, job_id: str) -> list[int]:
    """All steps that it has done, in their order."""
    return pool.gpus.steps(job_id)


def no_step_is_lost(pool: Installed, job_id: str) -> bool:
    return in_order(steps_of(pool, job_id)) and pool.client.job(job_id)["lost"] is None


def test_a_job_trains_on_reserved_gpus_and_on_no_others(pool: Installed, jobs: Any) -> None:
    job_id = jobs("reserved", ENDLESS, [1, 2], node="node-a")
    pool.until_on(job_id, 2)
    held = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in placeholders(pool)}
    rows = {gpu["_id"]: gpu for gpu in table(pool, "gpus")}
    used = [rows[gpu["gpu_id"]] for gpu in gpus_of(pool, job_id)]
    assert len(used) == 2 and {gpu["holder"] for gpu in used} <= held
    assert {pod["metadata"]["namespace"] for pod in placeholders(pool)} == {SPACE}
    assert [gpu["state"] for gpu in rows.values()].count("faulty") == 2 * GPUS - 2
    pool.end(job_id)
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def test_a_bare_pod_trains_on_reserved_gpus_as_well(pool: Installed) -> None:
    made = steps_job.bare_pod(f"bare-{uuid.uuid4().hex[:6]}", ENDLESS, [1, 2], pool.shared)
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-a"}
    pool.cluster.apply(made)
    job_id = f"{SPACE}.{made['metadata']['name']}"
    pool.until_on(job_id, 2)
    held = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in placeholders(pool)}
    rows = {gpu["_id"]: gpu for gpu in table(pool, "gpus")}
    assert {rows[gpu["gpu_id"]]["holder"] for gpu in gpus_of(pool, job_id)} <= held
    pool.end(job_id)
    pool.cluster.delete("pod", made["metadata"]["name"], SPACE, "--wait=false")
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def table(pool: Installed, name: str) -> list[dict[str, Any]]:
    with pool.table(name) as found:
        return list(found.find({}))


def test_a_foreign_pod_gets_a_gpu_into_which_a_job_has_grown(
    pool: Installed, jobs: Any, namespace: str, report: Report
) -> None:
    """The node is full; the job shrinks without losing a step, and nobody is evicted."""
    with report.scenario("a foreign pod gets an opportunistic GPU") as figures:
        job_id = jobs("grows", ENDLESS, [1, 2, 4], node="node-a")
        pool.until_on(job_id, 4)
        assert (len(names(pool, opportunistic=False)), len(names(pool, opportunistic=True))) == (1, 3)
        until("it has made some steps", lambda: len(steps_of(pool, job_id)) > 5)
        began = time.monotonic()
        foreign(pool, "foreign", namespace, node="node-a")
        pool.cluster.wait("pod", "foreign", phase("Running"), namespace, 60)
        figures["foreign_pod_runs_after_s"] = round(time.monotonic() - began, 2)
        job = pool.until_on(job_id, 2)
        assert job["node"] == "node-a"
        assert no_step_is_lost(pool, job_id)
        pool.cluster.delete("pod", "foreign", namespace, "--grace-period=1")
        pool.until_on(job_id, 4)  # and grows again once nobody wants it
        pool.end(job_id)
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def test_an_evicted_placeholder_is_answered_within_its_grace(
    pool: Installed, jobs: Any, namespace: str, report: Report
) -> None:
    with report.scenario("a placeholder is evicted") as figures:
        job_id = jobs("evicted", ENDLESS, [1, 2], node="node-a")
        pool.until_on(job_id, 2)
        until("it has made some steps", lambda: len(steps_of(pool, job_id)) > 5)
        victim = names(pool, opportunistic=True)[0]
        began = time.monotonic()
        pool.cluster.delete("pod", victim, SPACE, "--wait=false")
        pool.until_on(job_id, 1)
        pool.cluster.wait_gone("pod", victim, SPACE, 40)
        figures["gone_after_s"] = round(time.monotonic() - began, 2)
        assert no_step_is_lost(pool, job_id)
        pool.end(job_id)
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def test_a_resource_quota_binds(pool: Installed, jobs: Any) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": SPACE},
        "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
    }
    pool.cluster.apply(quota)
    try:
        pool.cluster.wait("resourcequota", "gpus", lambda found: found["status"].get("hard"), SPACE)
        job_id = jobs("within-quota", ENDLESS, [1, 2, 4], node="node-a")
        pool.until_on(job_id, 2)
        waits = jobs("beyond-quota", ENDLESS, [2], node="node-b")
        answered("it says why it waits", lambda: "exceeded quota: gpus" in str(pool.client.job(waits)["message"]), 60)
        assert len(names(pool)) == 2
        pool.end(job_id, waits)
    finally:
        pool.cluster.delete("resourcequota", "gpus", SPACE)
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def test_the_capability_of_a_queue_binds(pool: Installed, jobs: Any) -> None:
    pool.cluster.patch("queue", "reshape", {"spec": {"capability": {"nvidia.com/gpu": "2"}}})
    try:
        job_id = jobs("within-capability", ENDLESS, [1, 2, 4], node="node-a")
        pool.until_on(job_id, 2)
        most = 0
        for _ in range(30):
            most = max(most, len(names(pool)))
            time.sleep(0.2)
        assert most == 2
        pool.end(job_id)
    finally:
        pool.cluster.patch("queue", "reshape", {"spec": {"capability": None}})
    until("idle placeholders are given back", lambda: not placeholders(pool), 60)


def test_new_agents_coordinators_and_launchers_keep_everything(pool: Installed, jobs: Any) -> None:
    job_id = jobs("kept", ENDLESS, [1, 2], node="node-a")
    pool.until_on(job_id, 2)
    before = names(pool)
    gpus = sorted(gpu["gpu_id"] for gpu in gpus_of(pool, job_id))
    parts = ("deployment/reshape-coordinator", "deployment/reshape-launcher", "daemonset/reshape-agent")
    pool.cluster.kubectl("rollout", "restart", *parts, "-n", ours.SYSTEM)
    until("all are new", lambda: all(ours.is_ready(pool.cluster, part) for part in ours.PARTS), 120)
    steps = len(steps_of(pool, job_id))
    answered("it makes more steps", lambda: len(steps_of(pool, job_id)) > steps + 20, 60)
    assert names(pool) == before
    assert sorted(gpu["gpu_id"] for gpu in gpus_of(pool, job_id)) == gpus
    assert no_step_is_lost(pool, job_id)
    pool.end(job_id)
