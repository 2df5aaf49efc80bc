"""Volcano's own `preempt` and `reclaim` beside trainings: a job of more priority takes others' places, never ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.bed_kubectl import until
from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.installed import Installed
from tests.cluster.plays import ENDLESS
from tests.cluster.steps_job import IMAGE

Doc = dict[str, Any]

ACTIONS = "enqueue, allocate, preempt, reclaim, backfill"
HIGH = "high-priority"
SHARE = 0.6  # of a node's memory: two such pods have no place on one node


@pytest.fixture
def preempting(installed: Installed) -> Iterator[Installed]:
    """Volcano with both actions, and a PriorityClass."""
    before = installed.bed.volcano.conf.read_text()
    installed.bed.volcano.set_conf(yaml.safe_dump({**yaml.safe_load(before), "actions": ACTIONS}, sort_keys=False))
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}}
    installed.cluster.apply({**about, "value": 1000})
    yield installed
    installed.bed.volcano.set_conf(before)
    installed.cluster.delete("priorityclass", HIGH)


def plain(name: str, namespace: str, memory: int, priority: str | None = None, **pod: Any) -> Doc:
    """A Volcano Job of somebody else, in the same queue."""
    requests = {"cpu": "10m", "memory": str(memory)}
    container = {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "3600"]}
    named = {} if priority is None else {"priorityClassName": priority}
    template = pod_template({**container, "resources": {"requests": requests}}, **named, **pod)
    made = volcano_job(name, template, queue="default", **named)
    made["metadata"]["namespace"] = namespace
    return made


def test_jobs_of_more_priority_preempt_a_plain_one_and_leave_a_training_in_its_pod(
    preempting: Installed, jobs: Callable[..., str], namespace: str
) -> None:
    cluster = preempting.cluster
    nodes = {node["metadata"]["name"]: _memory_of(node) for node in cluster.list("nodes", None)}
    share = int(SHARE * min(nodes.values()))
    job = jobs("kept", ENDLESS, [1], queue="default", resources={"memory": share})
    preempting.until(job, "running", 90)
    pod = preempting.pod(job)
    (other,) = nodes.keys() - {pod["spec"]["nodeName"]}
    cluster.apply(plain("victim", namespace, share, nodeSelector={"kubernetes.io/hostname": other}))
    cluster.wait("pod", "victim-trainer-0", _runs, namespace)
    cluster.apply(plain("urgent", namespace, share, HIGH))
    urgent = cluster.wait("pod", "urgent-trainer-0", _runs, namespace)
    assert urgent["spec"]["nodeName"] == other
    cluster.delete("vcjob", "victim", namespace)  # `overcommit` would not let the next one in beside it
    cluster.apply(plain("second", namespace, share, HIGH))
    cluster.wait("pod", "second-trainer-0", _finds_no_place, namespace)
    before = _steps(preempting, job)
    until("the training goes on", lambda: _steps(preempting, job) >= before + 20, 60)
    after = preempting.pod(job)["metadata"]
    assert (after["uid"], "deletionTimestamp" in after) == (pod["metadata"]["uid"], False)
    assert _finds_no_place(cluster.get("pod", "second-trainer-0", namespace) or {})


def _runs(pod: Doc) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def _finds_no_place(pod: Doc) -> bool:
    said = pod["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in said)


def _steps(installed: Installed, job: str) -> int:
    return len(re.findall("^step=", installed.told(job), re.M))


def _memory_of(node: Doc) -> int:
    """Bytes for pods; kubelets report them so."""
    return int(str(node["status"]["allocatable"]["memory"]).removesuffix("Ki")) * 1024
