"""A user's Volcano Job as a job document."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.scheduling import intake
from launcher.cluster.controllers import volcano_job_document

Doc = dict[str, Any]

GPUS, MORE, INJECT = "volcano-reshape.io/gpus", "volcano-reshape.io/job", "volcano-reshape.io/inject"


def vcjob(name: str = "train", uid: str = "1234abcd-0000", **more: Any) -> Doc:
    container = {"name": "main", "image": "img:1", "command": ["python3", "train.py"], "args": ["--fast"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"name": name, "namespace": "team", "uid": uid, "annotations": {GPUS: "1, 2,4"}, **more.pop("meta", {})}
    spec = {"queue": "reshape", "tasks": [{"name": "t", "replicas": 1, "template": template}], **more}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta, "spec": spec}


def gang(replicas: int, each: int | None = None, policies: list[Doc] | None = None, gpus: str = "2,4") -> Doc:
    more = {"checkpoint_claim": "kept"} | ({"gpus_per_pod": each} if each is not None else {})
    job = vcjob(meta={"annotations": {GPUS: gpus, MORE: json.dumps(more)}})
    job["spec"]["tasks"][0]["replicas"] = replicas
    job["spec"]["policies"] = policies or []
    return job


def trainer(job: Doc) -> Doc:
    container: Doc = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    return container


def test_it_says_what_runs_and_the_annotation_on_how_many_gpus() -> None:
    doc = volcano_job_document.job_document(vcjob())
    assert doc == {
        "_id": "volcano-1234abcd-0000",
        "job_id": "team.train",
        "state": "submitted",
        "origin": "volcano",
        "volcano": {"namespace": "team", "name": "train", "uid": "1234abcd-0000"},
        "namespace": "team",
        "queue": "reshape",
        "owner": "team",
        "image": "img:1",
        "command": ["python3", "train.py", "--fast"],
        "optional_num_gpus": [1, 2, 4],
    }
    assert intake.problems(doc) == []


def test_more_fields_come_from_an_annotation() -> None:
    notes = {MORE: '{"epochs": 3, "optional_num_gpus": [2, 4], "model": "resnet"}'}
    doc = volcano_job_document.job_document(vcjob(meta={"annotations": notes}))
    assert (doc["epochs"], doc["optional_num_gpus"], doc["model"]) == (3, [2, 4], "resnet")


def test_another_volcano_job_of_the_same_name_is_another_job() -> None:
    first, second = (
        volcano_job_document.job_document(vcjob()),
        volcano_job_document.job_document(vcjob(uid="99999999-1"), taken=True),
    )
    assert first["_id"] != second["_id"]
    assert second["job_id"] == "team.train.99999999"


def test_a_user_who_named_a_node_meant_it() -> None:
    job = vcjob()
    job["spec"]["tasks"][0]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-b"}
    assert volcano_job_document.job_document(job)["node"] == "node-b"


def with_container(job: Doc, **more: Any) -> Doc:
    trainer(job).update(more)
    return job


def two_containers(named: str | None) -> Doc:
    job = vcjob()
    template = job["spec"]["tasks"][0]["template"]
    template["spec"]["containers"] += [{"name": "logs", "command": ["tail"]}]
    template["metadata"] = {"annotations": {"volcano-reshape.io/container": named} if named else {}}
    return job


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (vcjob(meta={"annotations": {}}), r"say in the annotation volcano-reshape.io/gpus .* \"1,2,4\"\.$"),
        (vcjob(meta={"annotations": {GPUS: "two"}}), "must be GPU counts such as"),
        (vcjob(meta={"annotations": {GPUS: "0,1"}}), "0 stands alone"),
        (vcjob(meta={"annotations": {MORE: "{"}}), "is no JSON"),
        (vcjob(meta={"annotations": {MORE: "[]"}}), "must be an object"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"command": "rm"}'}}), "cannot set command"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"slaml": {"since": 1}}'}}), "cannot set slaml"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"epochs": -1}'}}), "epochs must be a whole number"),
        (vcjob(tasks=[]), "it has 0 tasks"),
        (vcjob(tasks=[{"replicas": 0, "template": {}}]), "has 0 replicas.* Write 1 or more"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"a":' * 3000 + "1" + "}" * 3000}}), "deep"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"a":' * 40 + "1" + "}" * 40}}), "deep"),
        (vcjob(meta={"annotations": {GPUS: "1", MORE: '{"sla": 1' + "0" * 400 + "}"}}), "sla must be"),
        (vcjob(tasks=[{"template": {}}, {"template": {}}]), "it has 2 tasks, and a job that is reshaped has one"),
        (gang(3), "3 pods with 1 GPU each, which is 3 GPUs, but .* names 2, 4"),
        (gang(2, each=4), "2 pods with 4 GPUs each, which is 8 GPUs"),
        (with_container(vcjob(), command=None), "has no `command`"),
        (with_container(vcjob(), args=["{{ evil }}"]), "template mark"),
        (two_containers(None), "has 2 containers. Name the one that trains"),
        (two_containers("other"), "none of them named other"),
    ],
)
def test_what_cannot_be_reshaped_is_refused_with_a_sentence(job: Doc, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        volcano_job_document.job_document(job)


def test_several_pods_are_a_gang_that_comes_and_goes_in_pods() -> None:
    doc = volcano_job_document.job_document(gang(2))
    assert (doc["gpus_per_pod"], doc["optional_num_gpus"]) == (1, [2, 4])
    doc = volcano_job_document.job_document(gang(2, each=2))
    assert (doc["gpus_per_pod"], doc["optional_num_gpus"]) == (2, [2, 4])
    assert volcano_job_document.job_document(gang(1, each=2))["gpus_per_pod"] == 2
    assert "gpus_per_pod" not in volcano_job_document.job_document(gang(1, gpus="1,2"))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"event": "PodEvicted", "action": "RestartJob"}, "PodEvicted: RestartJob"),
        ({"events": ["PodFailed", "*"], "action": "AbortJob"}, "*: AbortJob"),
        ({"event": "PodFailed", "action": "RestartJob"}, None),
        ({"event": "PodEvicted", "action": "SyncJob"}, None),
        ({"event": "TaskCompleted", "action": "CompleteJob"}, None),
    ],
)
def test_a_gang_whose_own_policies_would_end_it_keeps_its_size_and_its_user_is_told(
    policy: Doc, said: str | None
) -> None:
    """Volcano takes a pod that a smaller `replicas` takes away for an evicted one."""
    job = gang(2, policies=[policy])
    doc = volcano_job_document.job_document(job)
    assert doc["optional_num_gpus"] == ([2] if said else [2, 4])
    assert (volcano_job_document.fixed_size(job, doc) or "").startswith(f"Its policy {said} would end" if said else "")
    assert (volcano_job_document.fixed_size(job, doc) is None) == (said is None)
    of_task = gang(2)
    of_task["spec"]["tasks"][0]["policies"] = [policy]
    assert volcano_job_document.ends_with_a_pod(of_task) == said
    small = gang(2, gpus="2", policies=[policy])
    assert volcano_job_document.fixed_size(small, volcano_job_document.job_document(small)) is None


def test_of_several_containers_the_named_one_trains() -> None:
    assert volcano_job_document.job_document(two_containers("logs"))["command"] == ["tail"]


def test_ours_are_those_in_labelled_queues_and_those_with_the_label() -> None:
    assert volcano_job_document.is_managed(vcjob(), ["reshape"])
    assert not volcano_job_document.is_managed(vcjob(), ["other"])
    labelled = copy.deepcopy(vcjob())
    labelled["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {INJECT: "true"}}
    assert volcano_job_document.is_managed(labelled, [])
    made = vcjob("x-l2", meta={"labels": {"volcano-reshape.io/job": "x"}})
    assert not volcano_job_document.is_managed(made, ["reshape"]) and volcano_job_document.misused_label(made) is None


@pytest.mark.parametrize("name", ["train", "x", "x-l", "x-l2-copy", "xx-l2"])
def test_our_label_on_a_users_volcano_job_counts_for_nothing_and_its_user_is_told(name: str) -> None:
    job = vcjob(name, meta={"labels": {"volcano-reshape.io/job": "x"}})
    assert volcano_job_document.is_managed(job, ["reshape"]) and not volcano_job_document.is_managed(job, [])
    assert "take it away" in (volcano_job_document.misused_label(job) or "")
    assert volcano_job_document.misused_label(vcjob(name)) is None


def test_what_is_odd_in_it_is_never_a_fault_of_ours() -> None:
    bare = {"metadata": {"name": "x", "uid": "u", "namespace": "team"}}
    assert not volcano_job_document.is_managed(bare, ["reshape"])
    assert volcano_job_document.phase(bare) == "Pending"
    with pytest.raises(Rejected):
        volcano_job_document.job_document(bare)


def test_of_volcanos_events_the_sentence_is_shown() -> None:
    printed = 'Error: [failed to create pod p, err: &errors.StatusError{Message:"pods \\"p\\" is forbidden"}]'
    assert volcano_job_document.api_message(printed) == 'pods "p" is forbidden'
    assert volcano_job_document.api_message("plain") == "plain"


def test_one_that_says_how_it_can_be_reshaped_but_not_that_it_shall_be_is_told() -> None:
    assert volcano_job_document.missing_label(vcjob(), ["other"])
    assert not volcano_job_document.missing_label(vcjob(), ["reshape"])
    assert not volcano_job_document.missing_label(vcjob(meta={"annotations": {}}), ["other"])


def test_the_label_on_the_volcano_job_itself_is_told_to_be_at_the_wrong_place() -> None:
    labelled = vcjob(meta={"annotations": {}, "labels": {INJECT: "true"}})
    assert "on the template of its task" in (volcano_job_document.missing_label(labelled, ["other"]) or "")
    assert not volcano_job_document.missing_label(labelled, ["reshape"])
