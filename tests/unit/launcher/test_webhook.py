"""The admission webhook over HTTP, with an API server's own requests."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from coordinator.errors import Transient
from coordinator.http import server_limits
from launcher import names
from launcher.admission.inject import Devices, PodSettings, node_of
from launcher.admission.owners import proven_owner
from launcher.admission.webhook import Injector, PodDecision, make_server
from launcher.cluster.metrics import LauncherMetrics
from launcher.names import JOB, JOB_ID, LAUNCH, job_name
from tests.unit.launcher.test_inject import applied

SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080")
MASTER_KEY = b"master"
OWNER = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "name": "train",
    "uid": "job-uid",
    "controller": True,
}


def pod(**changes: Any) -> dict[str, Any]:
    metadata = {
        "name": "train-main-0",
        "labels": {
            "volcano-reshape.io/inject": "true",
            "volcano.sh/job-name": "train",
            "volcano.sh/queue-name": "gold",
        },
        "annotations": {"scheduling.k8s.io/group-name": "train-1"},
        "ownerReferences": [OWNER],
    }
    spec = {"restartPolicy": "OnFailure", "containers": [{"name": "main", "image": "i", "command": ["python", "t.py"]}]}
    return {"metadata": metadata | changes.pop("metadata", {}), "spec": spec | changes}


class Desk:
    """What the launcher knows."""

    def __init__(
        self, decided: PodDecision | Exception | None = None, queues: Mapping[str, Devices] | None = None
    ) -> None:
        self.answer, self.queues = decided, queues or {}
        self.reports: list[tuple[str, str, str]] = []
        self.hold: threading.Event | None = None
        self.asked: tuple[str | None, int] | None = None
        self.metrics = LauncherMetrics(lambda: True, lambda: 0)

    def queue(self, name: str) -> tuple[bool, Devices]:
        if name == "new":
            raise Transient("Queue new is not known yet.")
        return name in self.queues, self.queues.get(name, "shared")

    def decided(self, uid: str, launch: str | None = None, member: int = 0) -> PodDecision | None:
        assert uid == OWNER["uid"]
        self.asked = (launch, member)
        if self.hold is not None:
            self.hold.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def report(self, namespace: str, owner: Mapping[str, Any], reason: str, sentence: str) -> None:
        self.reports.append((namespace, str(owner["name"]), reason))


def serve(desk: Desk, ready: bool) -> HTTPServer:
    """The webhook's server, which does not listen yet."""
    injector = Injector(SETTINGS, desk, desk.report, desk.metrics.admission, MASTER_KEY)
    return make_server(injector, None, lambda: ready, desk.metrics.text)


def review(desk: Desk, body: dict[str, Any] | bytes, **request: Any) -> tuple[int, dict[str, Any]]:
    """Status and answer."""
    if isinstance(body, dict):
        whole = {"uid": "r-1", "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": "team"}
        body = json.dumps({"request": whole | {"object": body} | request}).encode()

    async def ask() -> tuple[int, bytes]:
        server: HTTPServer = serve(desk, True)
        socket, port = bind_unused_port()
        server.add_socket(socket)
        url = f"http://127.0.0.1:{port}/mutate"
        try:
            answer = await AsyncHTTPClient().fetch(url, method="POST", body=body, raise_error=False)
            return answer.code, answer.body
        finally:
            server.stop()
            await server.close_all_connections()

    status, text = asyncio.run(ask())
    return status, json.loads(text)


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
def test_it_says_whether_it_is_ready(ready: bool, status: int) -> None:
    async def ask() -> list[int]:
        server: HTTPServer = serve(Desk(), ready)
        socket, port = bind_unused_port()
        server.add_socket(socket)
        try:
            urls = [f"http://127.0.0.1:{port}/{path}" for path in ("livez", "readyz", "metrics")]
            return [(await AsyncHTTPClient().fetch(url, raise_error=False)).code for url in urls]
        finally:
            server.stop()
            await server.close_all_connections()

    assert asyncio.run(ask()) == [200, status, 200]


def injected(desk: Desk, given: dict[str, Any]) -> dict[str, Any]:
    """The pod that the API server makes of the answer."""
    status, answer = review(desk, given)
    response = answer["response"]
    assert (status, answer["apiVersion"], response["uid"]) == (200, "admission.k8s.io/v1", "r-1")
    assert response["allowed"] and response["patchType"] == "JSONPatch"
    made: dict[str, Any] = applied(json.loads(base64.b64decode(response["patch"])), given)
    return made


def test_a_labelled_pod_of_a_volcano_job_gets_shim_and_sidecar_on_the_decided_node() -> None:
    made = injected(Desk(PodDecision("team.train", "node-a")), pod())
    assert made["spec"]["containers"][0]["command"][0] == "python3"
    assert node_of(made["spec"]) == "node-a"
    about = made["metadata"]
    assert about["annotations"][JOB_ID] == "team.train" and about["annotations"]["scheduling.k8s.io/group-name"]
    assert about["labels"][JOB] == job_name("team.train", "job-uid")
    secret = about["annotations"][LAUNCH]
    assert secret.startswith("train-main-0-") and len(secret) == len("train-main-0-") + 8
    assert {"name": "reshape-keys", "secret": {"secretName": secret}} in made["spec"]["volumes"]


def test_a_pod_of_the_same_name_waits_for_another_secret() -> None:
    desk = Desk()
    names = {injected(desk, pod())["metadata"]["annotations"][LAUNCH] for _ in range(2)}
    assert len(names) == 2


def test_a_pod_of_a_labelled_queue_is_ours_and_its_queue_says_how_it_gets_gpus() -> None:
    given = pod(metadata={"labels": {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "gold"}})
    desk = Desk(PodDecision("team.train", "node-a", ("A", "B")), {"gold": "recreate"})
    made = injected(desk, given)
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_pod_of_a_queue_that_is_not_known_yet_is_not_let_pass() -> None:
    """The API server has selected it, so it must not go on without a sidecar."""
    labels = {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "new"}
    desk = Desk()
    response = review(desk, pod(metadata={"labels": labels}))[1]["response"]
    assert not response["allowed"] and response["status"]["message"] == "Queue new is not known yet."
    assert desk.reports == []


def test_a_job_that_is_known_stays_ours_when_its_queue_loses_the_label() -> None:
    given = pod(metadata={"labels": {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "silver"}})
    made = injected(Desk(PodDecision("team.train", "node-a", devices="recreate", gpu_ids=("A",), emulated=True)), given)
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "A"} in made["spec"]["containers"][0]["env"]
    assert review(Desk(None), given)[1]["response"] == {"uid": "r-1", "allowed": True}
    response = review(Desk(RuntimeError("down")), given)[1]["response"]
    assert not response["allowed"] and response["status"]["code"] == 503


def made_by_us(index: int) -> dict[str, Any]:
    """A pod of the Volcano Job of a record's gang."""
    given = pod()
    labels = {**given["metadata"]["labels"], JOB: "j-abc", "volcano.sh/job-name": "j-abc-l2"}
    owner = [{**OWNER, "name": "j-abc-l2"}]
    about = {
        "name": f"j-abc-l2-trainer-{index}",
        "labels": labels,
        "annotations": {JOB_ID: "j"},
        "ownerReferences": owner,
    }
    return pod(metadata=about)


def test_each_pod_of_a_gang_is_asked_about_by_its_number_and_keeps_the_name_of_its_job() -> None:
    desk = Desk(PodDecision("j", "node-b", ("g3",), emulated=True, devices="recreate", claim="kept"))
    made = injected(desk, made_by_us(1))
    assert desk.asked == ("j-abc-l2", 1)
    assert made["metadata"]["labels"][JOB] == "j-abc"  # also the folder of its checkpoints, in every launch
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "g3"} in made["spec"]["containers"][0]["env"]
    assert made["spec"]["containers"][0]["volumeMounts"][-1]["subPath"] == "j-abc"
    assert node_of(made["spec"]) == "node-b"
    injected(desk, pod(metadata={"name": "train-main-12"}))
    assert desk.asked == (None, 12)
    unknown = injected(Desk(RuntimeError("down")), made_by_us(0))
    assert (unknown["metadata"]["annotations"][JOB_ID], unknown["metadata"]["labels"][JOB]) == ("j", "j-abc")


def test_of_a_pod_that_the_launcher_has_injected_nothing_is_asked() -> None:
    once = injected(Desk(PodDecision("j", "node-b")), made_by_us(0))
    desk = Desk(RuntimeError("down"))
    assert review(desk, once)[1]["response"] == {"uid": "r-1", "allowed": True}
    assert desk.asked is None


@pytest.mark.parametrize("how", ["unknown", "error", "too late"])
def test_what_the_store_does_not_say_in_time_is_left_out(how: str) -> None:
    desk = Desk(RuntimeError("down") if how == "error" else None)
    desk.hold = threading.Event() if how == "too late" else None
    made = injected(desk, pod())
    if desk.hold is not None:
        desk.hold.set()
    assert "nodeSelector" not in made["spec"] and made["metadata"]["annotations"][JOB_ID] == "team.train"


@pytest.mark.parametrize(
    ("given", "request_"),
    [
        (pod(metadata={"labels": {}}), {}),
        (pod(metadata={"labels": None}), {}),
        (pod(), {"kind": {"kind": "Job"}}),
        (pod(), {"operation": "UPDATE"}),
        ({}, {}),
    ],
)
def test_what_is_not_ours_passes_unchanged(given: dict[str, Any], request_: dict[str, Any]) -> None:
    status, answer = review(Desk(), given, **request_)
    assert (status, answer["response"]) == (200, {"uid": "r-1", "allowed": True})


def test_a_pod_that_has_it_all_passes_unchanged() -> None:
    once = injected(Desk(), pod())
    assert review(Desk(), once)[1]["response"] == {"uid": "r-1", "allowed": True}


def test_a_refused_pod_is_told_of_at_its_volcano_job() -> None:
    desk = Desk()
    status, answer = review(desk, pod(containers=[{"name": "main", "image": "i"}]))
    response = answer["response"]
    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 400)
    assert "no `command`" in response["status"]["message"]
    assert desk.reports == [("team", "train", "CommandRequired")]


def test_a_dry_run_leaves_no_trace() -> None:
    desk = Desk()
    assert not review(desk, pod(containers=[{"name": "main"}]), dryRun=True)[1]["response"]["allowed"]
    assert desk.reports == []


@pytest.mark.parametrize(
    "owner",
    [{"apiVersion": "batch/v1", "kind": "Job"}, {"apiVersion": "ray.io/v1", "kind": "RayCluster"}, None],
)
def test_a_pod_of_another_kind_in_a_queue_of_ours_is_left_alone_and_named(owner: dict[str, str] | None) -> None:
    """It was refused by a sentence about a label that it does not have."""
    desk, owners = Desk(queues={"gold": "shared"}), [{**owner, "name": "theirs", "uid": "u"}] if owner else []
    metadata = {"labels": {"volcano.sh/queue-name": "gold"}, "ownerReferences": owners}
    response = review(desk, pod(metadata=metadata))[1]["response"]
    assert response.pop("warnings")
    assert response == {"uid": "r-1", "allowed": True}
    assert desk.reports == ([("team", "theirs", "NotReshaped")] if owner else [])


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"request": 7}', b'{"request": {"uid": 7}}', b"[" * 90_000, b"\xff"]
)
def test_junk_is_refused_with_a_sentence(body: bytes) -> None:
    status, answer = review(Desk(), body)
    assert status == 400 and "AdmissionReview" in answer["error"]


def test_each_answer_is_counted_by_its_outcome() -> None:
    desk = Desk(PodDecision("team.train", "node-a"))
    review(desk, pod())
    review(desk, pod(restartPolicy="Always"))
    review(desk, {"metadata": {}, "spec": {"containers": []}})
    review(desk, pod(metadata={"labels": {"volcano.sh/job-name": "train", "volcano.sh/queue-name": "new"}}))
    text = desk.metrics.text().decode()
    for outcome in ("injected", "refused", "unchanged", "unknown"):
        assert f'reshape_admission_seconds_count{{outcome="{outcome}"}} 1.0' in text


VOLCANO_JOB = {"group": "batch.volcano.sh", "version": "v1alpha1", "kind": "Job"}
FORGED = {names.OWNER: "bob", names.OWNER_PROOF: "0" * 64}


def owned(about: dict[str, Any], user: str, **request: Any) -> dict[str, Any]:
    """The metadata of a Volcano Job after the webhook has seen it."""
    asked = {"kind": VOLCANO_JOB, "userInfo": {"username": user}, **request}
    status, answer = review(Desk(), {"metadata": about, "spec": {}}, **asked)
    assert status == 200
    assert answer["response"]["allowed"]
    if "patch" not in answer["response"]:
        return about
    made: dict[str, Any] = applied(json.loads(base64.b64decode(answer["response"]["patch"])), {"metadata": about})
    return made["metadata"]


def test_who_makes_a_volcano_job_is_noted_whatever_its_document_says() -> None:
    ann = "system:serviceaccount:team:ann"
    made = owned({"name": "train", "annotations": {"theirs": "stays", **FORGED}}, ann)
    assert (made["annotations"][names.OWNER], made["annotations"]["theirs"]) == (ann, "stays")
    assert proven_owner(MASTER_KEY, {**made, "namespace": "team"}) == ann
    generated = owned({"generateName": "train-"}, "ann@example.org")
    assert proven_owner(MASTER_KEY, {**generated, "namespace": "team", "name": "train-x7"}) == "ann@example.org"


def test_a_note_that_the_webhook_did_not_write_for_this_very_job_counts_as_none() -> None:
    made = {**owned({"name": "train"}, "ann"), "namespace": "team"}
    assert proven_owner(MASTER_KEY, made) == "ann"
    notes = made["annotations"]
    for forged in (
        {**made, "annotations": FORGED},
        {**made, "annotations": {**notes, names.OWNER: "bob"}},
        {**made, "annotations": {names.OWNER: "bob"}},
        {**made, "namespace": "other"},
        {**made, "name": "another"},
        {**made, "name": "another", "generateName": "train"},
        {"name": "train", "namespace": "team"},
    ):
        assert proven_owner(MASTER_KEY, forged) is None
    assert proven_owner(b"another key", made) is None


def test_a_change_of_a_volcano_job_is_left_alone() -> None:
    about = {"name": "train"}
    assert owned(about, "mallory", operation="UPDATE") == about
    assert "annotations" not in owned(about, "mallory", kind={**VOLCANO_JOB, "group": "batch"})


def test_more_connections_than_it_may_have_cost_the_oldest_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_limits, "most_connections", lambda: 2)

    async def ask() -> tuple[bytes, bytes]:
        server = serve(Desk(), True)
        listening, port = bind_unused_port()
        server.add_socket(listening)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        served = await reader.readline()
        left = await idle[0][0].read()
        for _, other in (*idle, (reader, writer)):
            other.close()
        server.stop()
        await server.close_all_connections()
        return served, left

    assert asyncio.run(asyncio.wait_for(ask(), 30)) == (b"HTTP/1.1 200 OK\r\n", b"")
