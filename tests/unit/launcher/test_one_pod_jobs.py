"""Batch Jobs and bare pods: how they are let in, what becomes of their pods, and how each kind ends."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.scheduling import intake
from launcher.admission import kinds
from launcher.admission.gate import waits_for_node
from launcher.admission.inject import node_of, placed_pod
from launcher.admission.owners import proven_owner
from launcher.cluster.controllers import one_pod_jobs, volcano_job_document
from launcher.cluster.controllers.launch import AdoptPod, DeletePod, LaunchState, OpenGate, SuspendJob, steps
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import FIELDS, INJECT, JOB, JOB_ID, LAUNCH, OWNER, OWNER_PROOF, QUEUE_LABEL, SUSPENDED, job_name
from tests.fakes.kube import Kube
from tests.unit.launcher.test_inject import applied
from tests.unit.launcher.test_volcano_job_controller import Ground
from tests.unit.launcher.test_webhook import MASTER_KEY, Desk, review

Doc = dict[str, Any]

GPUS = "volcano-reshape.io/gpus"
QUEUE = "scheduling.volcano.sh/queue-name"
BATCH = {"group": "batch", "version": "v1", "kind": "Job"}
OF_JOB = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-uid", "controller": True}]
COMMAND = ["python3", "train.py"]


def bare(**meta: Any) -> Doc:
    """A pod as its user writes it."""
    notes = {GPUS: "1,2", QUEUE: "gold"}
    about = {"name": "train", "labels": {INJECT: "true"}, "annotations": notes, **meta}
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "command": COMMAND}]}
    return {"metadata": about, "spec": spec}


def batch(spec: Doc | None = None, status: Doc | None = None, **meta: Any) -> Doc:
    """A batch Job as the webhook leaves it."""
    template = bare()
    del template["metadata"]["name"]
    about = {"name": "train", "namespace": "team", "uid": "job-uid", "annotations": {"theirs": "1"}, **meta}
    return {"metadata": about, "spec": {"template": template, **(spec or {})}, "status": status or {}}


def made_of(given: Doc, **request: Any) -> Doc:
    """Return what the API server makes of the webhook's answer."""
    response = review(Desk(queues={"gold": "shared"}), given, **request)[1]["response"]
    assert response["allowed"], response
    made: Doc = applied(json.loads(base64.b64decode(response["patch"])), given)
    return made


def seen(given: Doc, node: str | None = None, phase: str = "Pending", **meta: Any) -> Pod:
    """The injected pod as the API server shows it."""
    made = made_of(given, userInfo={"username": "ada"})
    about = {"uid": "pod-uid", "namespace": "team", **made["metadata"], **meta}
    spec = {**made["spec"], **({"nodeName": node} if node else {})}
    return Pod({"metadata": about, "spec": spec, "status": {"phase": phase}})


def patched(operations: list[Doc], given: Doc) -> Doc:
    """Return what a JSON patch of the launcher makes of an object."""
    kube = Kube()
    about = dict(given["metadata"])
    rest = {name: value for name, value in given.items() if name not in ("metadata", "kind")}
    kube.put("Any", about["name"], "team", meta=about, **rest)
    return kube.patch_json("Any", about["name"], operations, "team")


# the webhook


def test_a_bare_pod_gets_its_sidecar_a_gate_and_the_name_of_its_user() -> None:
    pod = seen(bare())
    assert pod.waits_for_node and pod.has_own_secret and pod.owner == "pod-uid"
    assert one_pod_jobs.is_bare(pod)
    assert proven_owner(MASTER_KEY, {"namespace": "team", **pod.meta}) == "ada"


def test_the_pod_of_a_batch_job_belongs_to_that_and_waits_for_a_secret_of_its_name_to_be() -> None:
    given = bare(name=None, generateName="train-", ownerReferences=OF_JOB)
    pod = seen(given, name="train-x7k2p")
    assert pod.owner == "job-uid" and pod.waits_for_node and not one_pod_jobs.is_bare(pod)
    assert pod.has_own_secret
    assert pod.meta["labels"][JOB] == job_name("team.train", "job-uid")  # also the folder of its checkpoints
    other = seen(given, name="other-x7k2p", generateName="other-")
    assert not other.has_own_secret


@pytest.mark.parametrize(("fields", "claim"), [('{"checkpoint_claim": "kept"}', "kept"), ("[", None), ("[7]", None)])
def test_the_claim_that_its_annotation_names_is_mounted_before_there_is_a_record(
    fields: str, claim: str | None
) -> None:
    notes = {GPUS: "1", QUEUE: "gold", "volcano-reshape.io/job": fields}
    assert seen(bare(annotations=notes)).claim == claim


def test_a_copy_of_an_injected_pod_is_refused() -> None:
    copy = made_of(bare())
    response = review(Desk(queues={"gold": "shared"}), copy)[1]["response"]
    assert response == {"uid": "r-1", "allowed": True}  # asked about twice, by two webhooks
    copy["spec"].pop("schedulingGates")
    response = review(Desk(queues={"gold": "shared"}), copy)[1]["response"]
    assert not response["allowed"] and "it is a copy of one that ran" in response["status"]["message"]


def test_a_pod_of_a_queue_in_mode_recreate_is_refused() -> None:
    response = review(Desk(queues={"gold": "recreate"}), bare())[1]["response"]
    assert not response["allowed"] and "in queue gold, whose devices are `recreate`" in response["status"]["message"]


def test_a_batch_job_that_opts_in_is_labelled_and_owned_and_others_are_left_alone() -> None:
    asked = {FIELDS: "{}", QUEUE: "silver", "theirs": "1"}
    made = made_of(batch(annotations=asked), kind=BATCH, userInfo={"username": "ada"})
    assert made["metadata"]["labels"][JOB] == "waits"
    assert proven_owner(MASTER_KEY, made["metadata"]) == "ada"
    assert made["spec"]["template"]["metadata"]["annotations"] == {GPUS: "1,2", QUEUE: "gold", FIELDS: "{}"}
    del made["metadata"]["labels"]  # as `kubectl replace` does
    again = made_of(made, kind=BATCH, operation="UPDATE", userInfo={"username": "eve"})
    assert again["metadata"]["labels"][JOB] == "waits"
    assert proven_owner(MASTER_KEY, again["metadata"]) == "ada"
    other = batch()
    del other["spec"]["template"]["metadata"]["labels"]
    assert review(Desk(), other, kind=BATCH)[1]["response"] == {"uid": "r-1", "allowed": True}


@pytest.mark.parametrize(
    ("user", "owner"),
    [
        ("system:serviceaccount:kube-system:cronjob-controller", None),
        ("system:kube-controller-manager", None),
        ("ada", "ada"),  # `kubectl create job --from=cronjob/night`
        ("system:serviceaccount:team:ci", "system:serviceaccount:team:ci"),
    ],
)
def test_the_job_of_a_cron_job_is_not_that_of_the_controller_which_all_tenants_share(
    user: str, owner: str | None
) -> None:
    given = batch(ownerReferences=OF_CRON, annotations={OWNER: "eve", OWNER_PROOF: "x"})
    made = made_of(given, kind=BATCH, userInfo={"username": user})
    assert proven_owner(MASTER_KEY, made["metadata"]) == owner
    assert owner or OWNER not in made["metadata"]["annotations"]


def test_a_mark_of_our_suspension_does_not_outlast_it() -> None:
    """Otherwise the launcher would take back the next suspension, which is its user's."""
    marked = {SUSPENDED: "true"}
    ours = made_of(batch({"suspend": True}, annotations=marked), kind=BATCH, operation="UPDATE")
    resumed = made_of(batch({"suspend": False}, annotations=marked), kind=BATCH, operation="UPDATE")
    copied = made_of(batch({"suspend": True}, annotations=marked), kind=BATCH, userInfo={"username": "ada"})
    for made, is_ours in ((ours, True), (resumed, False), (copied, False)):
        assert (SUSPENDED in made["metadata"]["annotations"]) is is_ours


JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "llm"}
OF_JOB_SET = [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "llm", "controller": True}]
OF_MPI = [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "llm", "controller": True}]
OF_CRON = [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "night", "controller": True}]
WHOLE_JOB_SET = {**JOB_SET, "jobset.sigs.k8s.io/global-replicas": "1"}
PART_OF_JOB_SET = {**JOB_SET, "jobset.sigs.k8s.io/global-replicas": "2"}


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (batch(), ""),
        (batch(ownerReferences=OF_CRON), ""),
        (batch(labels=WHOLE_JOB_SET, ownerReferences=OF_JOB_SET), ""),
        (batch({"parallelism": 3}), "it has 3 pods, and one that is reshaped has parallelism: 1"),
        (batch({"completions": 5}), "it has 5 pods"),
        (batch({"managedBy": "kueue.x-k8s.io/multikueue"}), "kueue.x-k8s.io/multikueue runs it"),
        (batch(labels=JOB_SET, ownerReferences=OF_JOB_SET), "JobSet llm has other Jobs, or it is not known"),
        (batch(labels=PART_OF_JOB_SET, ownerReferences=OF_JOB_SET), "JobSet llm has other Jobs"),
        (batch(ownerReferences=OF_MPI), "it belongs to MPIJob llm, of which it is not known what else it starts"),
    ],
)
def test_only_batch_jobs_with_one_pod_of_which_that_is_known_are_let_in(job: Doc, why: str) -> None:
    said = kinds.refuse_batch_job(job)
    assert why in said and bool(said) == bool(why)
    response = review(Desk(), job, kind=BATCH)[1]["response"]
    assert response["allowed"] == (not why)
    if why:
        assert response["status"]["message"] == said


def test_a_batch_job_whose_pod_could_not_be_injected_is_refused_at_once() -> None:
    job = batch()
    del job["spec"]["template"]["spec"]["containers"][0]["command"]
    response = review(Desk(), job, kind=BATCH)[1]["response"]
    assert not response["allowed"] and "has no `command`" in response["status"]["message"]


# as a job document


def test_a_bare_pod_becomes_a_document_with_its_users_own_command() -> None:
    doc = volcano_job_document.job_document(one_pod_jobs.read_pod(seen(bare())) or {})
    assert (doc["job_id"], doc["queue"], doc["command"], doc["optional_num_gpus"]) == (
        "team.train",
        "gold",
        COMMAND,
        [1, 2],
    )
    origin = {"namespace": "team", "name": "train", "uid": "pod-uid", "kind": "pod", "keeps_pod": True}
    assert doc["volcano"] == origin


@pytest.mark.parametrize(
    ("annotations", "labels", "of_job", "queue"),
    [
        ({}, {}, {kinds.KUEUE: "team-a"}, "team-a"),
        ({QUEUE: "gold"}, {}, {kinds.KUEUE: "team-a"}, "gold"),
        ({}, {QUEUE_LABEL: "gold"}, {kinds.KUEUE: "team-a"}, "gold"),
        ({}, {}, {}, "default"),
        ({}, {}, {kinds.KUEUE: ""}, "default"),
    ],
)
def test_a_batch_job_that_kueue_admits_is_in_the_queue_of_that_name(
    annotations: Doc, labels: Doc, of_job: Doc, queue: str
) -> None:
    job = batch(labels=of_job)
    about = job["spec"]["template"]["metadata"]
    about["annotations"] = {GPUS: "1,2", **annotations}
    about["labels"] |= labels
    made = one_pod_jobs.read_batch_job(made_of(job, kind=BATCH))
    assert volcano_job_document.job_document(made)["queue"] == queue


def test_so_is_a_bare_pod() -> None:
    pod = bare(labels={INJECT: "true", kinds.KUEUE: "team-a"}, annotations={GPUS: "1,2"})
    doc = volcano_job_document.job_document(one_pod_jobs.read_pod(seen(pod)) or {})
    assert doc["queue"] == "team-a"


def test_no_label_of_kueues_is_put_on_a_pod_where_kueue_would_take_it_for_its_own() -> None:
    job = batch(labels={kinds.KUEUE: "team-a"})
    assert kinds.KUEUE not in made_of(job, kind=BATCH)["spec"]["template"]["metadata"]["labels"]


def test_a_queue_that_the_launcher_does_not_know_yet_keeps_no_batch_job_out() -> None:
    job = batch(labels={kinds.KUEUE: "new"})
    job["spec"]["template"]["metadata"]["annotations"] = {GPUS: "1,2"}
    assert made_of(job, kind=BATCH)["metadata"]["labels"][kinds.KUEUE] == "new"


def test_a_batch_job_in_kueues_queue_of_the_name_of_one_in_mode_recreate_is_refused() -> None:
    job = batch(labels={kinds.KUEUE: "iron"})
    job["spec"]["template"]["metadata"]["annotations"] = {GPUS: "1,2"}
    response = review(Desk(queues={"iron": "recreate"}), job, kind=BATCH)[1]["response"]
    assert not response["allowed"] and "in queue iron, whose devices are `recreate`" in response["status"]["message"]


@pytest.mark.parametrize(
    ("meta", "keeps"),
    [
        ({}, False),
        ({"ownerReferences": OF_CRON}, False),
        ({"ownerReferences": OF_JOB_SET}, True),
        ({"labels": {kinds.KUEUE: "team"}}, True),
    ],
)
def test_the_pod_of_a_batch_job_is_made_anew_unless_another_controller_suspends_it(meta: Doc, keeps: bool) -> None:
    doc = volcano_job_document.job_document(one_pod_jobs.read_batch_job(batch(**meta)))
    assert (doc["volcano"]["kind"], doc["volcano"]["keeps_pod"]) == ("batch Job", keeps)


def test_a_gang_of_one_pod_is_refused() -> None:
    job = batch(annotations={"volcano-reshape.io/job": '{"gpus_per_pod": 1}'})
    with pytest.raises(Rejected, match="gpus_per_pod is for jobs of several pods, and a batch Job has one"):
        volcano_job_document.job_document(one_pod_jobs.read_batch_job(job))


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (batch(), "Running"),
        (batch({"suspend": True}), "Aborted"),
        (batch({"suspend": True}, annotations={SUSPENDED: "true"}), "Running"),  # by us
        (batch(status={"conditions": [{"type": "Complete", "status": "True"}]}), "Completed"),
        (batch(status={"conditions": [{"type": "FailureTarget", "status": "True"}]}), "Failed"),
        (batch(status={"conditions": [{"type": "Failed", "status": "False"}]}), "Running"),
    ],
)
def test_the_phase_of_a_batch_job_is_read_from_its_conditions(job: Doc, phase: str) -> None:
    assert volcano_job_document.phase(one_pod_jobs.read_batch_job(job)) == phase


# its launch


def view(found: Pod | None, job: Doc | None, wanted: str = "launch", **record: Any) -> LaunchState:
    origin = one_pod_jobs.origin_of(job) if job else {"kind": "pod", "keeps_pod": True}
    doc = {"node": "node-b", "volcano": origin}
    row: Any = {"_id": "l", "origin": "volcano", "wanted": wanted, "doc": doc, "failure": None, **record}
    return LaunchState(row, (found,) if found else (), job)


def test_a_gate_is_opened_and_then_the_pod_is_adopted_on_its_node() -> None:
    pod = seen(bare())
    job = one_pod_jobs.read_pod(pod)
    assert list(steps(view(pod, job))) == [OpenGate(pod)]
    placed = Pod(patched(placed_pod(pod.doc, "node-b", {JOB: "j"}, {JOB_ID: "team.train"}), dict(pod.doc)))
    assert node_of(placed.spec) == "node-b" and not waits_for_node(placed.spec)
    assert (placed.meta["labels"][JOB], placed.meta["annotations"][JOB_ID]) == ("j", "team.train")
    assert placed.meta["annotations"][LAUNCH] == pod.launch
    assert list(steps(view(placed, job))) == []  # its scheduler has not bound it
    bound = Pod({**placed.doc, "spec": {**placed.spec, "nodeName": "node-b"}})
    assert list(steps(view(bound, job))) == [AdoptPod(bound)]


def test_a_batch_job_is_suspended_where_a_pod_is_to_go_and_resumed_for_the_next_launch() -> None:
    pod = seen(bare(ownerReferences=OF_JOB), "node-a", "Running")
    job = one_pod_jobs.read_batch_job(batch())
    known = {"pod": {**pod.record(), "ended": False}, "applied": True}
    assert list(steps(view(pod, job, "remove", **known))) == [SuspendJob(True)]
    ours = one_pod_jobs.read_batch_job(batch({"suspend": True}, annotations={SUSPENDED: "true"}))
    assert list(steps(view(None, ours))) == [SuspendJob(False)]
    halted = one_pod_jobs.read_batch_job(batch({"suspend": True}))
    (wrote,) = steps(view(None, halted))
    assert "its batch Job is suspended, so no pod comes up" in str(wrote)


def test_the_pod_of_a_batch_job_that_others_manage_is_deleted_and_the_job_not_suspended() -> None:
    pod = seen(bare(ownerReferences=OF_JOB), "node-a", "Running")
    job = one_pod_jobs.read_batch_job(batch(ownerReferences=OF_JOB_SET))
    known = {"pod": {**pod.record(), "ended": False}, "applied": True}
    assert list(steps(view(pod, job, "remove", **known))) == [DeletePod(pod)]


@pytest.mark.parametrize("suspend", [True, False])
def test_a_suspension_of_ours_is_marked_as_such(suspend: bool) -> None:
    before = batch({"suspend": not suspend}, annotations={} if suspend else {SUSPENDED: "true"})
    after = patched(one_pod_jobs.suspension(before, suspend), before)
    assert after["spec"]["suspend"] is suspend
    assert (SUSPENDED in after["metadata"]["annotations"]) is suspend


def test_an_object_without_annotations_is_given_one_whatever_those_of_its_pod_are() -> None:
    before = batch({"suspend": False}, annotations={})
    del before["metadata"]["annotations"]
    read = one_pod_jobs.read_batch_job(before)
    assert read["metadata"]["annotations"] == {GPUS: "1,2"}  # of its pod
    after = patched(one_pod_jobs.suspension(read, True), before)
    assert after["metadata"]["annotations"] == {SUSPENDED: "true"}


def test_a_batch_job_named_as_a_launch_is_not_taken_for_it() -> None:
    job = one_pod_jobs.read_batch_job(batch(name="one-abcdefgh-l1"))
    assert ObservedCluster(jobs={"job-uid": job}).job_named("team", "one-abcdefgh-l1") is None


# its end


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.store.close()


def let_in(ground: Ground, job: Doc, **more: Any) -> str:
    """Its record, accepted by a coordinator."""
    ground.turn(job)
    key = volcano_job_document.job_key(job["metadata"]["uid"])
    ground.store.update("jobs", key, {}, {"uid": "u1", "closed": False, **more})
    return key


def test_a_failed_job_ends_its_batch_job_with_the_reason(ground: Ground) -> None:
    job = one_pod_jobs.read_batch_job(batch())
    ground.kube.put("BatchJob", "train", "team", status={}, meta={"uid": "job-uid"})
    let_in(ground, job, state="failed", closed=True, message="it has ended with exit code 3")
    ground.turn(job)
    ground.time.at += 11
    ground.turn(job)
    (condition,) = ground.kube.of("BatchJob")[0]["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("FailureTarget", "TrainingFailed")
    assert condition["message"] == "job team.train has failed: it has ended with exit code 3"


def test_the_bare_pod_of_an_ended_job_is_deleted(ground: Ground) -> None:
    pod = seen(bare(), "node-a", "Running")
    ground.kube.put("Pod", "train", "team", meta={"uid": "pod-uid"})
    job = one_pod_jobs.read_pod(pod) or {}
    let_in(ground, job, state="cancelled", closed=True)
    ground.turn(job)
    ground.time.at += 11
    ground.turn(job)
    assert ground.kube.of("Pod") == []


def test_a_bare_pod_that_was_evicted_cancels_its_job_with_the_reason(ground: Ground) -> None:
    key = let_in(ground, one_pod_jobs.read_pod(seen(bare(), "node-a", "Running")) or {}, state="running")
    lost = seen(bare(), "node-a", "Failed")
    evicted = Pod({**lost.doc, "status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}})
    job = one_pod_jobs.read_pod(evicted) or {}
    ground.turn(job, pods=(evicted,))
    assert not (ground.job(key) or {}).get("cancel")  # its coordinator may still hear of its end
    ground.time.at += 11
    ground.turn(job, pods=(evicted,))
    found = ground.job(key) or {}
    assert found["cancel"] and found["cancel_reason"] == "its pod was evicted from node node-a: low on memory"


def test_a_batch_job_that_is_applied_suspended_waits_from_the_beginning(ground: Ground) -> None:
    job = one_pod_jobs.read_batch_job(batch({"suspend": True}))
    ground.turn(job)
    key = volcano_job_document.job_key("job-uid")
    inserted: Any = ground.job(key)
    accepted: Any = intake.acceptance_fields(inserted, "u1", 1.0)
    assert accepted["held_back"] == accepted["message"] == "waits until its batch Job is resumed (spec.suspend: false)"
    assert intake.acceptance_fields({**inserted, "origin": "record"}, "u1", 1.0)["held_back"] is None
    ground.store.update("jobs", key, {}, accepted)
    ground.turn(one_pod_jobs.read_batch_job(batch()))
    assert (ground.job(key) or {})["held_back"] is None


def test_a_deleted_batch_job_cancels_its_job(ground: Ground) -> None:
    key = let_in(ground, one_pod_jobs.read_batch_job(batch()), state="running")
    ground.turn()
    assert (ground.job(key) or {})["cancel_reason"] == "its batch Job was deleted"


def test_the_job_of_a_bare_pod_is_pinned_to_its_node_once_that_is_decided(ground: Ground) -> None:
    pod = seen(bare())
    job = one_pod_jobs.read_pod(pod) or {}
    key = let_in(ground, job, state="initializing")
    ground.turn(job, pods=(pod,))
    assert (ground.job(key) or {}).get("pinned") is None
    placed = Pod(patched(placed_pod(pod.doc, "node-b", {JOB: "j"}, {JOB_ID: "team.train"}), dict(pod.doc)))
    ground.turn(job, pods=(placed,))
    assert (ground.job(key) or {})["pinned"] == "node-b"
