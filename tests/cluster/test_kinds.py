"""Batch Jobs and bare pods on the real cluster: each is reshaped in its living pod, and ends as its kind ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reshape.client import CoordinatorRefused
from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, condition, until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_processes import BedError
from tests.cluster.faults_tools import scale
from tests.cluster.installed import SYSTEM, Installed, answered
from tests.cluster.plays import ENDLESS, identity, in_order

Doc = dict[str, Any]
SPACE = steps_job.NAMESPACE
RECORD = "volcano-reshape.io/record"
LAUNCHERS = "app.kubernetes.io/component=launcher"
KINDS = {"batch": ("job", steps_job.batch_job), "bare": ("pod", steps_job.bare_pod)}


class Theirs:
    """Objects that a user applies."""

    def __init__(self, on: Installed) -> None:
        self.on = on
        self.made: list[tuple[str, str]] = []

    def apply(self, doc: Doc) -> str:
        """Apply it; returns the id of its job."""
        name = str(doc["metadata"]["name"])
        self.made.append(("job" if doc["kind"] == "Job" else "pod", name))
        self.on.cluster.apply(doc)
        return f"{SPACE}.{name}"

    def start(self, kind: str, total: int, counts: list[int], **more: Any) -> str:
        name = f"{kind}-{uuid.uuid4().hex[:6]}"
        return self.apply(KINDS[kind][1](name, total, counts, self.on.shared, **more))

    def get(self, kind: str, job_id: str) -> Object:
        return self.on.cluster.get(kind, job_id.partition(".")[2], SPACE) or {}

    def pods(self, job_id: str) -> list[Object]:
        """The pods of its object that are not going."""
        name = job_id.partition(".")[2]
        found = self.on.cluster.list("pods", SPACE)
        return [
            pod
            for pod in found
            if pod["metadata"]["name"].startswith(name) and "deletionTimestamp" not in pod["metadata"]
        ]

    def said(self, job_id: str, reason: str) -> str:
        """The first event for this reason, once it is there."""
        name = job_id.partition(".")[2]

        def look() -> str | None:
            events = self.on.cluster.events(name, SPACE)
            return next((event for event in events if event.startswith(reason)), None)

        return until(f"an event {reason} of {name}", look, 60)


@pytest.fixture
def theirs(installed: Installed) -> Iterator[Theirs]:
    made = Theirs(installed)
    yield made
    print(installed.words("coordinator"), installed.words("launcher"))
    for kind, name in made.made:
        installed.cluster.delete(kind, name, SPACE, "--wait=false")
    installed.end(*(f"{SPACE}.{name}" for _, name in made.made))


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_gpus_to_a_newcomer_and_gets_them_back_in_its_living_pod(
    installed: Installed, theirs: Theirs, jobs: Callable[..., str], kind: str
) -> None:
    job = theirs.start(kind, ENDLESS, [1, 2, 4])
    node = installed.until_on(job, 4)["node"]
    (before,) = theirs.pods(job)
    assert before["spec"]["nodeName"] == node in NODES
    until("it has made some steps", lambda: len(installed.gpus.steps(job)) > 5)

    newcomer = jobs("newcomer", ENDLESS, [2], node=node, owner=installed.job(job)["owner"])
    installed.until_on(newcomer, 2)
    installed.until_on(job, 2)
    installed.end(newcomer)
    installed.until_on(job, 4)

    (after,) = theirs.pods(job)
    assert identity(before) == identity(after)
    assert RECORD in theirs.get(KINDS[kind][0], job)["metadata"]["annotations"], "a store that is lost finds it there"
    assert in_order(installed.gpus.steps(job)), "each step was done once"
    assert installed.gpus.violations() == []


def test_a_batch_job_and_a_bare_pod_complete_as_their_kind_does(installed: Installed, theirs: Theirs) -> None:
    batch = theirs.start("batch", 30, [1])
    bare = theirs.start("bare", 30, [1])
    for job in (batch, bare):
        installed.until(job, "completed", 120)
    until("the batch Job is complete", lambda: condition(theirs.get("job", batch), "Complete"), 60)
    assert theirs.get("pod", bare)["status"]["phase"] == "Succeeded"
    assert theirs.get("job", batch)["status"].get("failed", 0) == 0


def test_a_cancelled_job_ends_and_its_batch_job_says_why(installed: Installed, theirs: Theirs) -> None:
    batch = theirs.start("batch", ENDLESS, [1])
    bare = theirs.start("bare", ENDLESS, [1])
    for job in (batch, bare):
        installed.until_on(job, 1)
    for job in (batch, bare):
        installed.client.cancel(job)
    for job in (batch, bare):
        installed.until(job, "cancelled")
    until("the batch Job has failed", lambda: condition(theirs.get("job", batch), "Failed"), 90)
    (failed,) = [each for each in theirs.get("job", batch)["status"]["conditions"] if each["type"] == "Failed"]
    assert failed["reason"] == "TrainingCancelled" and f"job {batch} is cancelled" in failed["message"]
    assert {pod["status"]["phase"] for job in (batch, bare) for pod in theirs.pods(job)} <= {"Failed"}


def test_a_job_that_fails_ends_its_batch_job_with_the_reason(installed: Installed, theirs: Theirs) -> None:
    made = steps_job.batch_job(f"fails-{uuid.uuid4().hex[:6]}", ENDLESS, [1], installed.shared)
    made["spec"]["template"]["spec"]["containers"][0]["command"] = ["python3", "-c", "raise SystemExit(64)"]
    job = theirs.apply(made)
    failed = installed.until(job, "failed", 120)
    until("the batch Job has failed", lambda: condition(theirs.get("job", job), "Failed"), 90)
    (why,) = [each for each in theirs.get("job", job)["status"]["conditions"] if each["type"] == "Failed"]
    assert why["reason"] == "TrainingFailed" and failed["message"] in why["message"]


def test_a_deleted_object_cancels_its_job(installed: Installed, theirs: Theirs) -> None:
    batch = theirs.start("batch", ENDLESS, [1])
    bare = theirs.start("bare", ENDLESS, [1])
    for job in (batch, bare):
        installed.until_on(job, 1)
    for kind, job in (("job", batch), ("pod", bare)):
        installed.cluster.delete(kind, job.partition(".")[2], SPACE, "--wait=false")
    assert installed.until(batch, "cancelled")["message"] == "its batch Job was deleted"
    assert installed.until(bare, "cancelled")["message"] == "its pod was deleted"


def test_a_batch_job_and_a_bare_pod_can_be_deleted_while_no_launcher_answers(
    installed: Installed, theirs: Theirs
) -> None:
    batch = theirs.start("batch", ENDLESS, [1])
    bare = theirs.start("bare", ENDLESS, [1])
    for job in (batch, bare):
        installed.until_on(job, 1)
    scale(installed, "launcher", 0)
    try:
        until("no launcher is left", lambda: not installed.cluster.list("pods", SYSTEM, LAUNCHERS))
        installed.cluster.delete("job", batch.partition(".")[2], SPACE, "--cascade=foreground", "--wait=false")
        installed.cluster.delete("pod", bare.partition(".")[2], SPACE, "--wait=false")
        until("its finalizer is taken off, and it is gone", lambda: not theirs.get("job", batch), 90)
        until("the bare pod is gone", lambda: not theirs.get("pod", bare), 90)
    finally:
        scale(installed, "launcher", 2)
    for job in (batch, bare):  # no watch has shown their deletion: the launcher asks the API server for each
        installed.until(job, "cancelled", 120)


def test_a_batch_job_whose_pod_is_deleted_goes_on_in_the_next_one(installed: Installed, theirs: Theirs) -> None:
    job = theirs.start("batch", ENDLESS, [1], checkpoint_claim=steps_job.CLAIM)
    installed.until_on(job, 1)
    (before,) = theirs.pods(job)
    until("it has made some steps", lambda: len(installed.gpus.steps(job)) > 5)
    installed.cluster.delete("pod", before["metadata"]["name"], SPACE, "--wait=false")

    def another() -> bool:
        return bool(installed.job(job)["launch"] > 1 and installed.job(job)["state"] == "running")

    until("it trains in another pod", another, 120)
    (after,) = theirs.pods(job)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert in_order(installed.gpus.steps(job)), "it went on from its checkpoint"


def test_a_suspended_batch_job_loses_its_pod_unharmed_and_goes_on_in_another(
    installed: Installed, theirs: Theirs
) -> None:
    job = theirs.start("batch", ENDLESS, [1], checkpoint_claim=steps_job.CLAIM)
    installed.until_on(job, 1)
    (before,) = theirs.pods(job)
    until("it has made some steps", lambda: len(installed.gpus.steps(job)) > 5)
    installed.client.suspend(job)
    until("its batch Job is suspended", lambda: theirs.get("job", job)["spec"].get("suspend"), 60)
    until("its pod is gone", lambda: not theirs.pods(job), 60)
    installed.client.resume(job)
    installed.until_on(job, 1, 120)
    (after,) = theirs.pods(job)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert theirs.get("job", job)["status"].get("failed", 0) == 0
    assert in_order(installed.gpus.steps(job)), "it went on from its checkpoint"


def test_a_batch_job_that_its_user_suspends_waits_until_it_is_resumed(installed: Installed, theirs: Theirs) -> None:
    made = steps_job.batch_job(f"theirs-{uuid.uuid4().hex[:6]}", 30, [1], installed.shared)
    made["spec"]["suspend"] = True
    job = theirs.apply(made)
    answered("it says why it waits", lambda: "spec.suspend" in str(installed.job(job)["message"]), 60)
    installed.cluster.patch("job", job.partition(".")[2], {"spec": {"suspend": False}}, SPACE)
    installed.until(job, "completed", 120)


def test_a_bare_pod_is_not_suspended_and_says_so(installed: Installed, theirs: Theirs) -> None:
    job = theirs.start("bare", ENDLESS, [1], checkpoint_claim=steps_job.CLAIM)
    installed.until_on(job, 1)
    with pytest.raises(CoordinatorRefused, match="its pod would have to go, and it cannot be made anew"):
        installed.client.suspend(job)


def test_what_cannot_be_reshaped_is_refused_with_the_reason(installed: Installed, theirs: Theirs) -> None:
    three = steps_job.batch_job("three", 30, [1], installed.shared)
    three["spec"] |= {"parallelism": 3, "completions": 3}
    always = steps_job.bare_pod("always", 30, [1], installed.shared)
    always["spec"]["restartPolicy"] = "Always"
    recreate = steps_job.bare_pod("recreate", 30, [1], installed.shared)
    recreate["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] = steps_job.RECREATE_QUEUE
    for made, why in ((three, "it has 3 pods"), (always, "restartPolicy is Always"), (recreate, "are `recreate`")):
        with pytest.raises(BedError, match=why):
            theirs.apply(made)
    silent = steps_job.batch_job(f"silent-{uuid.uuid4().hex[:6]}", 30, [1], installed.shared)
    del silent["spec"]["template"]["metadata"]["annotations"]["volcano-reshape.io/gpus"]
    assert "say in the annotation volcano-reshape.io/gpus" in theirs.said(theirs.apply(silent), "JobRefused")


def test_a_bare_pod_of_kubernetes_own_scheduler_is_reshaped_as_well(
    installed: Installed, theirs: Theirs, jobs: Callable[..., str]
) -> None:
    made = steps_job.bare_pod(f"plain-{uuid.uuid4().hex[:6]}", ENDLESS, [2, 4], installed.shared)
    del made["spec"]["schedulerName"]
    job = theirs.apply(made)
    node = installed.until_on(job, 4)["node"]
    newcomer = jobs("newcomer", ENDLESS, [2], node=node, owner=installed.job(job)["owner"])
    installed.until_on(newcomer, 2)
    installed.until_on(job, 2)


def test_the_launcher_may_change_no_pod_and_no_batch_job_that_did_not_ask(installed: Installed, namespace: str) -> None:
    container = {"name": "main", "image": steps_job.IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "60"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    about = {"name": "theirs", "namespace": namespace}
    installed.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    job = {"suspend": True, "template": {"spec": spec}}
    installed.cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": job})
    launcher = f"--as=system:serviceaccount:{SYSTEM}:reshape-launcher"
    for kind, why in (("pod", "does not wait for its node"), ("job.batch", "this batch Job is not reshaped")):
        with pytest.raises(BedError, match=why):
            installed.cluster.kubectl("annotate", kind, "theirs", "mine=1", "-n", namespace, launcher)
