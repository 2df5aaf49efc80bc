"""A pod may be made while no launcher is there: it waits with a gate, starts nothing, and is replaced later."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from launcher.admission.gate import gated_job, has_gate, without_gate
from launcher.admission.webhook import PodDecision
from launcher.cluster.controllers.gated_pods import AGAIN_S, GatedPods
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import GATE, INJECT, JOB, LAUNCH, OWNER_PROOF, WAITS
from launcher.names import OWNER as OWNER_NOTE
from tests.fakes.kube import Kube
from tests.unit.launcher.test_inject import applied
from tests.unit.launcher.test_volcano_job_controller import OWNER, Time
from tests.unit.launcher.test_volcano_jobs import vcjob
from tests.unit.launcher.test_webhook import Desk, injected, pod, review

Doc = dict[str, Any]

GATED = {"schedulingGates": [{"name": GATE}]}
KIND = {"group": "batch.volcano.sh", "version": "v1alpha1", "kind": "Job"}


def admitted(desk: Desk, job: Doc, **request: Any) -> Doc:
    """The Volcano Job that the API server makes of the answer, without the note of who made it."""
    response = review(desk, job, kind=KIND, **request)[1]["response"]
    assert response["allowed"]
    made: Doc = applied(json.loads(base64.b64decode(response["patch"])), job) if "patch" in response else job
    about = dict(made["metadata"])
    notes = {
        name: value for name, value in about.pop("annotations", {}).items() if name not in (OWNER_NOTE, OWNER_PROOF)
    }
    return {**made, "metadata": {**about, **({"annotations": notes} if notes else {})}}


def gates(job: Doc) -> list[bool]:
    return [has_gate(task["template"]["spec"]) for task in job["spec"]["tasks"]]


@pytest.mark.parametrize("how", ["queue", "label"])
def test_a_volcano_job_that_opts_in_gets_a_gate_in_its_template_and_nothing_else(how: str) -> None:
    job = vcjob(queue="gold")
    if how == "label":
        job["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {INJECT: "true"}}
    made = admitted(Desk(queues={"gold": "shared"} if how == "queue" else {}), job)
    assert gates(made) == [True]
    template = made["spec"]["tasks"][0]["template"]
    assert template["metadata"]["labels"].pop(JOB) == WAITS  # by which the launcher sees its pods
    template["spec"] = without_gate(template["spec"])
    template["metadata"] = {name: value for name, value in template["metadata"].items() if value}
    before = job["spec"]["tasks"][0]["template"]
    assert template["spec"] == before["spec"]
    assert {**made, "spec": {**made["spec"], "tasks": []}} == {**job, "spec": {**job["spec"], "tasks": []}}


@pytest.mark.parametrize("queue", ["silver", "new"])
def test_one_that_nobody_asked_for_passes_as_it_is(queue: str) -> None:
    job = vcjob(queue=queue)
    assert admitted(Desk(queues={"gold": "shared"}), job) == job
    assert admitted(Desk(queues={"gold": "shared"}), {**job, "spec": {"queue": "gold"}})["spec"] == {"queue": "gold"}


def test_one_that_the_launcher_has_injected_needs_no_gate() -> None:
    job = vcjob(queue="gold")
    job["spec"]["tasks"][0]["template"]["metadata"] = {"annotations": {LAUNCH: "l"}}
    assert gates(admitted(Desk(queues={"gold": "shared"}), job)) == [False]


def test_applied_again_it_keeps_what_it_had_since_volcano_refuses_another_template() -> None:
    desk = Desk(queues={"gold": "shared"})
    file = vcjob(queue="gold")
    live = admitted(desk, file)
    update = {"operation": "UPDATE", "oldObject": live}
    assert admitted(desk, file, **update) == live
    assert admitted(Desk(), file, **update) == live  # its queue has lost the label
    without = {"operation": "UPDATE", "oldObject": file}  # made while no launcher answered
    assert admitted(desk, file, **without) == file


def test_the_webhook_takes_the_gate_off_as_it_injects() -> None:
    others = {"name": "theirs.example/quota"}
    labels = {**pod()["metadata"]["labels"], JOB: WAITS}
    made = injected(Desk(PodDecision("team.train")), pod(metadata={"labels": labels}, **GATED))
    assert "schedulingGates" not in made["spec"]
    assert made["metadata"]["labels"][JOB] != WAITS
    both = pod(schedulingGates=[others, {"name": GATE}])
    assert injected(Desk(PodDecision("team.train")), both)["spec"]["schedulingGates"] == [others]


def test_a_pod_that_is_not_ours_any_more_loses_its_gate() -> None:
    labels = {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "silver", JOB: WAITS}
    given = pod(metadata={"labels": labels}, **GATED)
    response = review(Desk(), given)[1]["response"]
    made = applied(json.loads(base64.b64decode(response["patch"])), given)
    assert made == pod(metadata={"labels": labels})


def test_what_is_not_known_yet_leaves_the_gate_on() -> None:
    """It must not run, and need not be refused: Volcano counts refusals and then gives the whole job up."""
    labels = {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "new", JOB: WAITS}
    response = review(Desk(), pod(metadata={"labels": labels}, **GATED))[1]["response"]
    assert response == {"uid": "r-1", "allowed": True}


# once a launcher is back


class Cluster:
    def __init__(self) -> None:
        self.kube = Kube()
        self.time = Time()
        self.controller = GatedPods(self.kube, self.time, EventWriter(self.kube, self.time, "test"))  # type: ignore[arg-type]

    def turn(self, spec: Doc, job: Doc | None = None, **meta: Any) -> list[str]:
        """One turn; the pods that were deleted."""
        about = {"name": "train-trainer-0", "namespace": "team", "uid": "p", "ownerReferences": [OWNER], **meta}
        self.kube.put("Pod", "train-trainer-0", "team", spec=spec, meta=about)
        found = Pod({"metadata": about, "spec": spec, "status": {"phase": "Pending"}})
        self.controller.turn(ObservedCluster({"p": found}, {OWNER["uid"]: job or vcjob()}))
        deleted = [name for verb, kind, name in self.kube.calls if (verb, kind) == ("delete", "Pod")]
        self.kube.calls.clear()
        return deleted


def test_a_gated_pod_is_replaced_and_no_faster_than_the_webhook_may_come_back() -> None:
    cluster = Cluster()
    assert cluster.turn(GATED) == ["train-trainer-0"]
    assert cluster.turn(GATED) == []
    cluster.time.at += AGAIN_S
    assert cluster.turn(GATED) == ["train-trainer-0"]


@pytest.mark.parametrize(
    ("spec", "meta"),
    [
        ({}, {}),
        ({"schedulingGates": [{"name": "theirs.example/quota"}]}, {}),
        (GATED, {"deletionTimestamp": "now"}),
        (GATED, {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "uid": "other"}]}),
    ],
)
def test_no_other_pod_is_touched(spec: Doc, meta: Doc) -> None:
    assert Cluster().turn(spec, **meta) == []


def test_one_whose_volcano_job_would_end_with_it_stays_and_its_user_is_told() -> None:
    cluster = Cluster()
    job = vcjob(policies=[{"event": "PodEvicted", "action": "TerminateJob"}])
    assert cluster.turn(GATED, job) == []
    ((reason, sentence),) = cluster.kube.events()
    assert reason == "WaitsForSidecar"
    assert "PodEvicted: TerminateJob" in sentence


def test_several_tasks_get_a_gate_each() -> None:
    job = vcjob()
    job["spec"]["tasks"] = [*job["spec"]["tasks"], *job["spec"]["tasks"]]
    assert gates(gated_job(job)) == [True, True]
