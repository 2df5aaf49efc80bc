"""Manifests that people publish, as they are in a queue of ours: each works or is told why not, and none is silent.

Volcano's own examples come from its module, so they are what its users copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.bed_build import volcano_source
from tests.cluster.bed_kubectl import until
from tests.cluster.bed_processes import BedError
from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.installed import Installed
from tests.cluster.steps_job import IMAGE, QUEUE

Doc = dict[str, Any]

GPUS = "volcano-reshape.io/gpus"
CONTAINER = "volcano-reshape.io/container"
COUNTS = ["python3", "-u", "-c", "for step in range(1, 6): print(f'step={step} total=5', flush=True)"]
REFUSALS = ("JobRefused", "CommandRequired", "InjectionRefused")
OF_WEBHOOK_TESTS = "invalid_jobs"  # examples of what Volcano's own webhook denies


class Team:
    """A user's namespace, and what is applied in it."""

    def __init__(self, on: Installed, namespace: str) -> None:
        self.on = on
        self.namespace = namespace

    def apply(self, made: Doc) -> None:
        made["metadata"]["namespace"] = self.namespace
        self.on.cluster.apply(made)

    def train(self, name: str, container: Doc | None = None, notes: dict[str, str] | None = None, **pod: Any) -> None:
        """A Volcano Job of one pod that counts to five, with these fields of its container and of its spec."""
        template = pod_template(
            {"image": IMAGE, "imagePullPolicy": "Never", "command": COUNTS, **(container or {})}, **pod
        )
        template["metadata"] = {"annotations": notes or {}}
        made = volcano_job(name, template, queue=QUEUE)
        made["metadata"]["annotations"] = {GPUS: "1"}
        self.apply(made)

    def said(self, name: str, reasons: tuple[str, ...]) -> str:
        """The first event for one of these reasons, once it is there."""

        def look() -> str | None:
            events = self.on.cluster.events(name, self.namespace)
            return next((event for event in events if event.startswith(reasons)), None)

        return until(f"an event of {name}", look, 60)

    def completes(self, name: str) -> None:
        """Wait until the job has completed, by its own record and by Volcano's word."""
        self.on.until(f"{self.namespace}.{name}", "completed", 120)
        self.on.cluster.wait(
            "vcjob", name, lambda job: job["status"]["state"]["phase"] in ("Completed", "Terminated"), self.namespace
        )


@pytest.fixture
def team(installed: Installed, namespace: str) -> Iterator[Team]:
    made = Team(installed, namespace)
    yield made
    print(installed.words("launcher"))
    installed.cluster.delete("vcjob", "--all", namespace, "--wait=false")
    with installed.table("jobs") as jobs:
        names = [str(doc["job_id"]) for doc in jobs.find({"namespace": namespace})]
    installed.end(*names)


def examples() -> list[tuple[str, Doc]]:
    """All Volcano Jobs among Volcano's examples, with the file of each."""
    folder = volcano_source() / "example"
    found: list[tuple[str, Doc]] = []
    for file in sorted(folder.rglob("*.yaml")):
        documents = [each for each in yaml.safe_load_all(file.read_text()) if each]
        path = str(file.relative_to(folder))
        found += [(path, each) for each in documents if str(each["apiVersion"]).startswith("batch.volcano.sh")]
    return [(path, each) for path, each in found if not path.startswith(OF_WEBHOOK_TESTS)]


def why_refused(job: Doc) -> str:
    """Return what our user is to be told first of an example as it is."""
    pods = [task["template"]["spec"] for task in job["spec"]["tasks"]]
    for container in [container for pod in pods for container in pod["containers"]]:
        if not container.get("command"):
            return "has no `command`"
        if "nvidia.com/gpu" in (container.get("resources") or {}).get("limits", {}):
            return "asks for nvidia.com/gpu"
    count = len(job["spec"]["tasks"])
    return f"it has {count} tasks" if count > 1 else "say in the annotation"


def test_each_of_volcanos_own_examples_is_told_why_it_does_not_start_and_makes_no_pod(team: Team) -> None:
    applied: dict[str, Doc] = {}
    denied: list[str] = []
    for number, (path, job) in enumerate(examples()):
        name = f"{job['metadata']['name'][:30]}-{number}"
        job["metadata"]["name"] = name
        job["spec"]["queue"] = QUEUE
        try:
            team.apply(job)
            applied[name] = job
        except BedError as error:
            denied.append(f"{path}: {error}")
    assert len(applied) >= 15, denied
    for name, job in applied.items():
        assert why_refused(job) in team.said(name, REFUSALS)
    assert team.on.cluster.list("pods", team.namespace) == []


def test_pods_with_what_people_add_to_them_train_to_their_end(team: Team) -> None:
    """Beside one another: each waits for a GPU in its turn."""
    code = {"name": "code", "emptyDir": {}}
    below = {"volumeMounts": [{"name": "code", "mountPath": "/code", "subPath": "team/code"}]}
    beside = {"name": "sync", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "3600"]}
    trainer = {"name": "train", "image": IMAGE, "imagePullPolicy": "Never", "command": COUNTS}
    first = {**beside, "name": "first", "command": ["true"]}
    stop = {"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}
    team.train("sub-path", below, volumes=[code])
    team.train("pull-secret", imagePullSecrets=[{"name": "there-is-none"}])
    team.train("host-network", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    team.train("second-container", notes={CONTAINER: "train"}, containers=[beside, trainer])
    team.train("init-container", stop, initContainers=[first])
    for name in ("sub-path", "pull-secret", "host-network", "second-container", "init-container"):
        team.completes(name)


def test_a_namespace_with_default_limits_and_a_quota_of_each_resource_takes_our_containers(team: Team) -> None:
    limits = {"default": {"cpu": "500m", "memory": "512Mi"}, "defaultRequest": {"cpu": "100m", "memory": "64Mi"}}
    hard = {"requests.cpu": "2", "requests.memory": "4Gi", "limits.cpu": "4", "limits.memory": "8Gi", "pods": "4"}
    ranges = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "each"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}}
    team.apply({**ranges, "spec": {"limits": [{"type": "Container", **limits}]}})
    team.apply({**quota, "spec": {"hard": hard}})
    team.train("limited")
    team.completes("limited")
