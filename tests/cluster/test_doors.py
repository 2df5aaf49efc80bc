"""The doors on the real cluster: what is refused becomes a sentence, and a job and its Volcano Job end together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.bed_kubectl import until
from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.installed import SYSTEM, Installed, answered
from tests.cluster.steps_job import IMAGE, QUEUE

Doc = dict[str, Any]

GPUS = "volcano-reshape.io/gpus"
INJECT = "volcano-reshape.io/inject"
# Counts to ten, ends early when told to.
TRAINER = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for step in range(1, {total} + 1):
    print(f"step={{step}} total={total}", flush=True)
    time.sleep(0.2)
"""
LONG, SHORT = 3000, 10


def command(total: int) -> list[str]:
    return ["python3", "-u", "-c", TRAINER.format(total=total)]


def trainer(total: int = LONG, **more: Any) -> Doc:
    return pod_template({"image": IMAGE, "imagePullPolicy": "Never", "command": command(total), **more})


class Team:
    """A user's namespace, and the Volcano Jobs in it."""

    def __init__(self, on: Installed, namespace: str) -> None:
        self.on, self.namespace = on, namespace

    def apply(self, name: str = "train", gpus: str | None = "1", template: Doc | None = None, **spec: Any) -> Doc:
        made = volcano_job(name, template or trainer(), **{"queue": QUEUE, **spec})
        made["metadata"] |= {"namespace": self.namespace, "annotations": {GPUS: gpus} if gpus is not None else {}}
        self.on.cluster.apply(made)
        return self.on.cluster.get("vcjob", name, self.namespace) or {}

    def documents(self) -> list[Doc]:
        with self.on.table("jobs") as jobs:
            return list(jobs.find({"namespace": self.namespace}))

    def phase(self, name: str = "train") -> str:
        found = self.on.cluster.get("vcjob", name, self.namespace) or {}
        return str(found.get("status", {}).get("state", {}).get("phase"))

    def said(self, reason: str, name: str = "train") -> str:
        """The event, once it is there."""
        words = f"{reason}: "

        def look() -> str | None:
            return next((e for e in self.on.cluster.events(name, self.namespace) if e.startswith(words)), None)

        return until(f"event {reason} of {name}", look, 30).removeprefix(words)

    def clear(self) -> None:
        self.on.cluster.delete("vcjob", "--all", self.namespace, "--wait=false")
        self.on.end(*(str(doc["job_id"]) for doc in self.documents()))


@pytest.fixture
def team(installed: Installed, namespace: str) -> Iterator[Team]:
    made = Team(installed, namespace)
    yield made
    print(installed.words("launcher"))
    made.clear()


def message(team: Team, job: str) -> str:
    """What its user reads: why it waits or failed, or why its document is not accepted."""
    view = answered(f"job {job} is known", lambda: team.on.job(job))
    return str(view["message"] or view.get("problems") or "")


def test_why_a_record_cannot_be_launched_is_its_message(team: Team) -> None:
    """All at once: each takes the cluster some seconds to find out."""
    broken: dict[str, tuple[Doc, str]] = {
        "image": ({"image": "reshape.local/none:1", "pod": {"containers": [{"imagePullPolicy": "Never"}]}}, "none:1"),
        "python": ({"image": "reshape.local/pause:1"}, "the image needs python3, 3.8 or newer"),
        "queue": ({"queue": "no-such-queue"}, "no-such-queue"),
        "quota": ({"resources": {"memory": 4e9}, "pod": {"priorityClassName": "no-such-class"}}, "no-such-class"),
        "namespace": ({"namespace": "no-such-namespace"}, "no-such-namespace"),
    }
    ids = {name: f"{team.namespace}.{name}" for name in broken}
    with team.on.table("jobs") as jobs:
        for name, (fields, _) in broken.items():
            base = {"_id": ids[name], "job_id": ids[name], "state": "submitted", "optional_num_gpus": [1]}
            more = {"image": IMAGE, "command": command(SHORT), "namespace": team.namespace}
            jobs.insert_one({**base, **more, **fields})
    try:
        for name, (_, words) in broken.items():
            until(f"the message of {name}: {words}", lambda n=name, w=words: w in message(team, ids[n]), 90)
    finally:
        team.on.end(*ids.values())
        with team.on.table("jobs") as jobs:
            jobs.delete_many({"_id": {"$in": list(ids.values())}})


def test_a_volcano_job_that_cannot_be_reshaped_gets_an_event_and_no_job_document(team: Team) -> None:
    team.apply("no-gpus", gpus=None)
    team.apply("odd-gpus", gpus="some")
    two = {"name": "t", "replicas": 2, "template": trainer()}
    team.apply("two-pods", tasks=[two])
    no_command = trainer()
    no_command["spec"]["containers"][0].pop("command")
    team.apply("no-command", template=no_command)
    assert "say in the annotation" in team.said("JobRefused", "no-gpus")
    assert "must be GPU counts" in team.said("JobRefused", "odd-gpus")
    assert "has 2 pods" in team.said("JobRefused", "two-pods")
    assert "has no `command`" in team.said("CommandRequired", "no-command")
    assert team.documents() == []


def test_the_same_name_again_is_another_job(team: Team) -> None:
    for _ in range(2):
        team.apply(template=trainer(SHORT))
        until("the Volcano Job is completed", lambda: team.phase() == "Completed", 60)
        team.on.cluster.delete("vcjob", "train", team.namespace)
        answered("the job is closed", lambda: all(doc.get("closed") for doc in team.documents()))
    states = {str(doc["job_id"]): doc["state"] for doc in team.documents()}
    assert list(states.values()) == ["completed", "completed"]
    assert all(job.startswith(f"{team.namespace}.train") for job in states)


def test_a_deleted_volcano_job_is_a_cancelled_job(team: Team) -> None:
    team.apply()
    job = f"{team.namespace}.train"
    team.on.until(job, "running")
    team.on.cluster.delete("vcjob", "train", team.namespace)
    team.on.until(job, "cancelled")
    assert message(team, job) == "its Volcano Job was deleted"


def test_a_job_that_ends_by_an_eviction_says_so(team: Team) -> None:
    team.apply(policies=[{"event": "PodEvicted", "action": "TerminateJob"}])
    job, pod = f"{team.namespace}.train", "train-trainer-0"
    team.on.until(job, "running")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": team.namespace}}
    path = f"/api/v1/namespaces/{team.namespace}/pods/{pod}/eviction"
    team.on.cluster.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))  # as `kubectl drain` does
    team.on.until(job, "cancelled")
    assert re.match(
        "its pod was evicted from node node-[ab]: .*; its Volcano Job was terminated for", message(team, job)
    )


@pytest.mark.deep  # Volcano tries for some three minutes
def test_a_job_whose_pod_a_quota_refuses_until_volcano_gives_up_ends_with_that_reason(team: Team) -> None:
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": team.namespace}}
    team.on.cluster.apply({**about, "spec": {"hard": {"pods": "0"}}})
    team.apply()
    job = f"{team.namespace}.train"
    team.on.until(job, "cancelled", 300)
    assert message(team, job).startswith("Volcano could not make its pod and gave up: ")
    assert "exceeded quota: none" in message(team, job)


def test_kubernetes_own_job_in_a_queue_of_ours_runs_as_it_is_and_is_told_so(team: Team) -> None:
    """It waited for ever: its owner is of the kind Job, too, and no record is ever made of it."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command(SHORT)}
    meta = {
        "labels": {"volcano.sh/queue-name": QUEUE}, "annotations": {"scheduling.volcano.sh/queue-name": QUEUE},
    }  # fmt: skip
    spec = {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]}
    theirs = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "theirs", "namespace": team.namespace}}
    team.on.cluster.apply({**theirs, "spec": {"template": {"metadata": meta, "spec": spec}}})
    about = team.on.cluster.wait(
        "jobs.batch", "theirs", lambda found: found.get("status", {}).get("succeeded"), team.namespace
    )
    assert about["status"]["succeeded"] == 1
    assert "This one belongs to batch Job theirs: it runs as it is" in team.said("NotReshaped", "theirs")
    assert team.documents() == []


def test_a_cancelled_jobs_volcano_job_is_terminated_and_not_started_again(team: Team) -> None:
    policies = [{"event": "PodFailed", "action": "RestartJob"}, {"event": "PodEvicted", "action": "RestartJob"}]
    team.apply(policies=policies)
    job = f"{team.namespace}.train"
    team.on.until(job, "running")
    team.on.client.cancel(job)
    until("the Volcano Job is terminated", lambda: team.phase() == "Terminated", 60)
    team.on.until(job, "cancelled")
    assert [doc["job_id"] for doc in team.documents()] == [job]


def test_a_volcano_job_cancelled_before_it_was_launched_is_terminated(team: Team) -> None:
    template = trainer()
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "no-such-node"}
    team.apply(template=template)
    job = f"{team.namespace}.train"
    answered("the job is let in", lambda: team.on.job(job)["state"] == "submitted")
    team.on.client.cancel(job)
    until("the Volcano Job is terminated", lambda: team.phase() == "Terminated", 60)


def test_labelling_a_queue_opens_the_door_and_the_webhooks_selector_follows(team: Team) -> None:
    cluster, name = team.on.cluster, f"team-{team.namespace[-6:]}"
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "spec": {"weight": 1, "reclaimable": True}}

    def selected() -> list[str]:
        found = cluster.get("mutatingwebhookconfiguration", "reshape-inject", SYSTEM) or {}
        (webhook,) = [w for w in found["webhooks"] if w["name"] == "queue.volcano-reshape.io"]
        return [v for e in webhook["objectSelector"]["matchExpressions"] for v in e["values"]]

    try:
        cluster.apply({**queue, "metadata": {"name": name}})
        cluster.wait("queue", name, lambda found: found.get("status", {}).get("state") == "Open")
        team.apply("asks", queue=name)
        assert "nor a queue with that label" in team.said("NotLabelled", "asks")
        team.apply(queue=name, gpus=None, template=trainer(SHORT))
        until("its pod is there", lambda: cluster.list("pods", team.namespace))
        assert team.documents() == []
        cluster.delete("vcjob", "train", team.namespace)
        cluster.apply({**queue, "metadata": {"name": name, "labels": {INJECT: "true"}}})
        until("the webhook is asked", lambda: name in selected(), 30)
        team.apply(queue=name, template=trainer(SHORT))
        until("the Volcano Job is completed", lambda: team.phase() == "Completed", 60)
        assert {doc["volcano"]["name"] for doc in team.documents()} == {"train", "asks"}  # which waited all the time
    finally:
        cluster.delete("vcjob", "--all", team.namespace)
        cluster.patch("queue", name, {"metadata": {"labels": {INJECT: None}}})
        until("the webhook is asked no more", lambda: name not in selected(), 30)
        cluster.delete("queue", name)


def test_a_labelled_pod_template_opens_the_door_in_any_queue(team: Team) -> None:
    template = {"metadata": {"labels": {INJECT: "true"}}, **trainer(SHORT)}
    team.apply(queue="default", template=template)
    until("the Volcano Job is completed", lambda: team.phase() == "Completed", 60)
    (pod,) = team.on.cluster.list("pods", team.namespace)
    assert {c["name"] for c in pod["spec"]["initContainers"]} == {"reshape-init", "reshape-sidecar"}


def ask_volcano(team: Team, action: str, name: str = "train") -> None:
    """What `vcctl job suspend` and `resume` do."""
    job = team.on.cluster.get("vcjob", name, team.namespace) or {}
    owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    about = {"name": f"{name}-{action.lower()}", "namespace": team.namespace}
    target = {**owner, "controller": True}
    command = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": action, "target": target}
    team.on.cluster.apply({**command, "metadata": {**about, "ownerReferences": [target]}})


def test_a_suspended_volcano_job_waits_without_gpus_and_goes_on_when_it_is_resumed(team: Team) -> None:
    team.apply()
    job = f"{team.namespace}.train"
    team.on.until(job, "running")
    ask_volcano(team, "AbortJob")
    until("it waits", lambda: "until its Volcano Job is resumed" in message(team, job), 60)
    assert (team.on.job(job)["state"], team.on.job(job)["gpu_ids"]) == ("submitted", None)
    ask_volcano(team, "ResumeJob")
    team.on.until(job, "running")


def test_a_pod_that_finds_no_place_is_told_of_and_is_no_failed_launch(team: Team) -> None:
    job, big = f"{team.namespace}.big", {"resources": {"requests": {"memory": "900Gi"}}}
    with team.on.table("jobs") as jobs:
        base = {"_id": job, "job_id": job, "state": "submitted", "optional_num_gpus": [1]}
        more = {"image": IMAGE, "command": command(SHORT), "namespace": team.namespace, "pod": {"containers": [big]}}
        jobs.insert_one({**base, **more})

    def unplaced() -> str:
        with team.on.table("launches") as launches:
            return str((launches.find_one({"job_id": job}) or {}).get("unplaced"))

    try:
        until("the launcher says why", lambda: unplaced().startswith("Volcano "), 60)
        assert team.on.job(job)["state"] == "initializing"
    finally:
        team.on.end(job)
        with team.on.table("jobs") as jobs:
            jobs.delete_one({"_id": job})
