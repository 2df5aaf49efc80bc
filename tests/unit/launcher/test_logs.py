"""Readers of logs that outlived their pods: one per job, under few rights, gone when nobody asks any more."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Fatal, Rejected
from coordinator.model.records import JobRecord
from coordinator.stores.sqlite import SqliteStore
from launcher.admission.inject import PodSettings
from launcher.cluster.pods.log_reader import (
    COMES_UP_S,
    IDLE_S,
    MOST,
    ApplyReaderSecret,
    CreateReader,
    DeleteReader,
    DeleteReaderDocument,
    LogReaders,
    WriteReader,
    next_step,
    pod_of,
)
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import launch_name
from sidecar.config import read
from sidecar.protocol import launch_key
from tests.fakes.kube import Kube
from tests.unit.launcher.test_volcano_job_controller import Time

Doc = dict[str, Any]

SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080", namespace="jobs")
JOB: Doc = {"_id": "j", "job_id": "j", "uid": "u", "launch": 3, "checkpoint_claim": "kept", "closed": True}
NAME = launch_name("j", "u", 0)
RECORD: Doc = {"_id": NAME, "job": "j", "asked": 1.0, "ip": None, "failure": None, "version": 1}


def reader(phase: str = "Pending", ip: str | None = None, **meta: Any) -> Pod:
    return Pod({"metadata": {"name": NAME, "uid": "p", **meta}, "status": {"phase": phase, "podIP": ip}})


@pytest.mark.parametrize(
    ("record", "pod", "idle_s", "waits_s", "step"),
    [
        ({}, None, 0.0, 0.0, CreateReader()),
        ({}, reader(), 0.0, 0.0, ApplyReaderSecret(reader())),
        ({"unlocked": "another"}, reader(), 0.0, 0.0, ApplyReaderSecret(reader())),
        ({"unlocked": "p"}, reader(), 0.0, COMES_UP_S, None),
        ({"unlocked": "p"}, reader("Running", "10.1.1.1"), 0.0, 0.0, WriteReader({"ip": "10.1.1.1"})),
        ({"unlocked": "p", "ip": "10.1.1.1"}, reader("Running", "10.1.1.1"), IDLE_S, 99.0, None),
        ({"unlocked": "p", "ip": "10.1.1.1"}, reader("Failed", "10.1.1.1"), 0.0, 0.0, WriteReader({"ip": None})),
        ({"unlocked": "p"}, reader("Failed"), 0.0, 0.0, DeleteReader(reader("Failed"))),
        ({"unlocked": "p"}, reader("Running", deletionTimestamp="now"), 99.0, 0.0, None),
        (
            {"unlocked": "p"},
            reader("Running", "10.1.1.1"),
            IDLE_S + 1,
            0.0,
            DeleteReader(reader("Running", "10.1.1.1")),
        ),
        ({"ip": "10.1.1.1"}, None, 0.0, 0.0, WriteReader({"ip": None})),
        ({}, None, IDLE_S + 1, 0.0, DeleteReaderDocument()),
        ({"unlocked": "p"}, reader(), 0.0, COMES_UP_S + 1, WriteReader({"failure": "its reader does not start"})),
        ({"unlocked": "p", "failure": "why"}, reader(), 0.0, 0.0, DeleteReader(reader())),
        ({"failure": "why"}, None, IDLE_S, 0.0, None),
        ({"failure": "why"}, None, IDLE_S + 1, 0.0, DeleteReaderDocument()),
    ],
)
def test_what_is_done_next(record: Doc, pod: Pod | None, idle_s: float, waits_s: float, step: Any) -> None:
    assert next_step({**RECORD, **record}, pod, idle_s, waits_s) == step


class Ground:
    """The launcher's part over fakes; `kubelet` does what the node would."""

    def __init__(self, folder: Path) -> None:
        self.kube, self.time, self.store = Kube(), Time(), SqliteStore(str(folder / "store.db"))
        self.logs = LogReaders(self.store, self.kube, self.time, SETTINGS, b"master")  # type: ignore[arg-type]
        self.store.put("jobs", JOB)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            pods = {doc["metadata"]["uid"]: Pod(doc) for doc in self.kube.of("Pod")}
            self.logs.turn(ObservedCluster(pods))

    def ask(self, at: float = 1.0) -> None:
        found = self.store.get("readers", NAME)
        if found is None:
            self.store.insert("readers", {**RECORD, "asked": at})
        else:
            self.store.update("readers", NAME, {}, {"asked": at})

    def kubelet(self, phase: str = "Running", ip: str | None = "10.1.1.1") -> None:
        (pod,) = self.kube.of("Pod")
        status = {"phase": phase, "podIP": ip}
        self.kube.put("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], status=status)

    def record(self) -> Doc:
        return self.store.get("readers", NAME) or {}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.store.close()


def test_a_log_that_is_asked_for_gets_one_reader_that_goes_when_nobody_asks_any_more(ground: Ground) -> None:
    ground.ask()
    ground.turn(3)
    (pod,), (secret,) = ground.kube.of("Pod"), ground.kube.of("Secret")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": NAME, "uid": pod["metadata"]["uid"]}
    assert secret["metadata"]["ownerReferences"] == [owner]
    ground.kubelet()
    ground.turn()
    assert ground.record()["ip"] == "10.1.1.1"
    for at in (2.0, 3.0):
        ground.time.at += IDLE_S - 1
        ground.ask(at)
        ground.turn()
    assert len(ground.kube.of("Pod")) == 1
    ground.time.at += IDLE_S + 1
    ground.turn(3)
    assert (ground.kube.of("Pod"), ground.record()) == ([], {})


def test_a_reader_whose_time_was_over_is_followed_by_another_while_somebody_asks(ground: Ground) -> None:
    ground.ask()
    ground.turn(2)
    ground.kubelet("Failed")
    (first,) = ground.kube.of("Pod")
    ground.turn(3)
    (second,) = ground.kube.of("Pod")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


def test_what_keeps_it_from_serving_is_told_and_may_be_tried_again_later(ground: Ground) -> None:
    ground.ask()
    ground.turn(2)
    said = 'persistentvolumeclaim "kept" not found'
    conditions = [{"type": "PodScheduled", "status": "False", "message": said}]
    ground.kube.put("Pod", NAME, "jobs", status={"phase": "Pending", "conditions": conditions})
    ground.turn()
    ground.time.at += COMES_UP_S + 1
    ground.ask(2.0)
    ground.turn()
    assert said in ground.record()["failure"]
    ground.turn()
    assert ground.kube.of("Pod") == []
    ground.time.at += IDLE_S + 1
    ground.turn()
    assert ground.record() == {}


def test_a_job_that_is_gone_or_has_no_claim_says_so(ground: Ground) -> None:
    ground.store.put("jobs", {**JOB, "checkpoint_claim": None})
    ground.ask()
    ground.turn()
    assert "no checkpoint_claim" in ground.record()["failure"] and ground.kube.of("Pod") == []
    ground.store.delete("jobs", "j")
    ground.store.update("readers", NAME, {}, {"failure": None})
    ground.turn()
    assert "gone" in ground.record()["failure"]


def test_a_reader_that_nobody_knows_is_removed_and_a_pod_that_only_looks_like_one_is_not(ground: Ground) -> None:
    made = pod_of(JobRecord(JOB), NAME, SETTINGS)
    ground.kube.create(made)
    labels = made["metadata"]["labels"]
    ground.kube.put("Pod", "mine", "jobs", meta={"labels": labels})
    ground.turn()
    assert [pod["metadata"]["name"] for pod in ground.kube.of("Pod")] == ["mine"]


def test_there_are_never_more_than_so_many(ground: Ground) -> None:
    for number in range(MOST + 2):
        job = {**JOB, "_id": f"j{number}", "job_id": f"j{number}"}
        ground.store.put("jobs", job)
        ground.store.insert("readers", {**RECORD, "_id": launch_name(job["job_id"], "u", 0), "job": job["_id"]})
    ground.turn(2)
    assert len(ground.kube.of("Pod")) == MOST


def test_it_mounts_its_jobs_folder_read_only_and_has_no_rights(ground: Ground) -> None:
    theirs = {
        "securityContext": {"fsGroup": 7, "supplementalGroups": [8]}, "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "other"}],
    }  # fmt: skip
    pod = pod_of(JobRecord({**JOB, "pod": theirs}), NAME, SETTINGS)
    spec = pod["spec"]
    (container,) = spec["containers"]
    claim = next(m for m in container["volumeMounts"] if m["mountPath"] == "/reshape/checkpoints")
    assert (claim["readOnly"], claim["subPath"]) == (True, pod["metadata"]["labels"]["volcano-reshape.io/job"])
    assert len(spec["volumes"]) == 2 and spec["tolerations"] == theirs["tolerations"]
    assert spec["securityContext"]["supplementalGroups"] == [8, 7]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert container["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    with pytest.raises(Rejected, match="no checkpoint_claim"):
        pod_of(JobRecord({**JOB, "checkpoint_claim": None}), NAME, SETTINGS)
    everybodys = PodSettings(image="ours:1", coordinator="http://c:8080", checkpoint_claim="all")
    pod = pod_of(JobRecord({**JOB, "checkpoint_claim": None}), NAME, everybodys)
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "all"


def test_its_secret_is_what_a_reader_reads_and_opens_no_launch(ground: Ground, tmp_path: Path) -> None:
    ground.ask()
    ground.turn(2)
    (secret,) = ground.kube.of("Secret")
    data: Mapping[str, str] = secret["data"]
    for name, text in data.items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    settings = read(tmp_path)
    assert settings.launch.output == "/reshape/checkpoints/.output/output.log"
    assert (settings.launch.launch, settings.launch.job_id) == (0, "j")
    assert settings.key == launch_key(b"master", "u", 0) != launch_key(b"master", "u", 3)
    assert "operator.token" not in data and json.loads((tmp_path / "launch.json").read_text())["pod"] is True


def broken(**status: Any) -> Pod:
    state = {"name": "reader", "state": {"terminated": {"exitCode": 1, "message": "no launch.key"}}}
    about = {"phase": "Failed", "containerStatuses": [state], **status}
    return Pod({"metadata": {"name": NAME, "uid": "p"}, "spec": {"containers": [{"name": "reader"}]}, "status": about})


def test_a_reader_that_ends_by_itself_is_no_reason_for_another_one_but_its_time_is() -> None:
    said = WriteReader({"failure": "its container reader ended with exit code 1: no launch.key"})
    assert next_step({**RECORD, "unlocked": "p"}, broken(), 0.0, 0.0) == said
    late = broken(reason="DeadlineExceeded")
    assert next_step({**RECORD, "unlocked": "p"}, late, 0.0, 0.0) == DeleteReader(late)


def test_a_reader_that_the_api_server_forbids_is_said_to_be(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbids(doc: Doc) -> Doc:
        raise Fatal("exceeded quota: few")

    monkeypatch.setattr(ground.kube, "create", forbids)
    ground.ask()
    ground.turn()
    assert ground.record()["failure"] == "exceeded quota: few"


def test_no_reader_is_made_where_nobody_would_see_it(ground: Ground) -> None:
    ground.logs = LogReaders(ground.store, ground.kube, ground.time, SETTINGS, b"master", ("other",))  # type: ignore[arg-type]
    ground.ask()
    ground.turn()
    assert ground.kube.of("Pod") == []
    assert ground.record()["failure"] == "namespace jobs is not one of those in RESHAPE_NAMESPACES"


def test_a_pod_with_the_name_of_a_reader_in_another_namespace_gets_no_key(ground: Ground) -> None:
    ground.ask()
    ground.turn()
    labels = ground.kube.of("Pod")[0]["metadata"]["labels"]
    ground.kube.put("Pod", NAME, "evil", meta={"labels": labels}, status={"phase": "Running", "podIP": "10.6.6.6"})
    ground.turn(3)
    assert {secret["metadata"]["namespace"] for secret in ground.kube.of("Secret")} == {"jobs"}
    assert ground.record()["ip"] is None


def test_a_job_whose_pod_holds_nonsense_hinders_no_other_reader(ground: Ground) -> None:
    ground.store.put("jobs", {**JOB, "pod": {"securityContext": {"supplementalGroups": 5}}})
    other = launch_name("k", "u", 0)
    ground.store.put("jobs", {**JOB, "_id": "k", "job_id": "k"})
    ground.ask()
    ground.store.insert("readers", {**RECORD, "_id": other, "job": "k"})
    ground.turn()
    assert [pod["metadata"]["name"] for pod in ground.kube.of("Pod")] == [other]
