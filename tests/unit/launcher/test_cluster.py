"""The Kubernetes client behind plain dicts: the real client against a small HTTP server that answers as told."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from coordinator.errors import Conflict, Fatal, Rejected, Transient
from launcher.cluster.api import FIELD_MANAGER, Expired, KubernetesApi, NoSuchKind
from launcher.cluster.process import DEEPEST
from tests.fakes.http_thread import serving_in_thread

pytest.importorskip("kubernetes")

Doc = dict[str, Any]


class Api(BaseHTTPRequestHandler):
    """Answers every call with `server.answer`; keeps what it was asked."""

    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        url = urlsplit(self.path)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, url.path, parse_qs(url.query), self.headers["Content-Type"], body))
        status, answer = self.server.pages.pop(0) if self.server.pages else self.server.answer
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def log_message(self, *_: Any) -> None:
        return


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.answer: tuple[int, Any] = (200, {})
        self.pages: list[tuple[int, Any]] = []  # answered first, one after the other
        self.asked: list[tuple[str, str, Doc, str, Any]] = []


@contextmanager
def serving() -> Iterator[Server]:
    made = Server()
    with serving_in_thread(made):
        yield made


def kubeconfig(server: Server, folder: Path) -> Path:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    file = folder / "config"
    file.write_text(json.dumps(config))
    return file


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(server: Server, tmp_path_factory: pytest.TempPathFactory) -> KubernetesApi:
    return KubernetesApi(str(kubeconfig(server, tmp_path_factory.mktemp("kube"))))


@pytest.fixture(autouse=True)
def anew(server: Server) -> None:
    server.asked.clear()


def status(code: int, message: str = "words of the server") -> tuple[int, Doc]:
    return code, {"kind": "Status", "code": code, "message": message, "details": {"name": "p"}}


SECRET: Doc = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns"}}


def test_objects_come_and_go_as_they_are(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, {"metadata": {"name": "p", "deletionTimestamp": None}, "x": 1})
    assert cluster.get("Job", "p", "ns") == server.answer[1]
    assert server.asked[0][:2] == ("GET", "/apis/batch.volcano.sh/v1alpha1/namespaces/ns/jobs/p")


def test_what_is_not_there_is_none(cluster: KubernetesApi, server: Server) -> None:
    server.answer = status(404)
    assert cluster.get("Pod", "p", "ns") is None
    assert cluster.delete("Pod", "p", "ns") is False


@pytest.mark.parametrize("body", [{"kind": "Status", "code": 404, "message": "the server"}, "404 page not found", []])
def test_a_kind_that_is_not_served_tells_nothing_about_its_objects(
    cluster: KubernetesApi, server: Server, body: Any
) -> None:
    server.answer = (404, body)
    for ask in (lambda: cluster.get("Job", "p", "ns"), lambda: cluster.list("Job")):
        with pytest.raises(NoSuchKind, match="does not serve this kind"):
            ask()
    assert cluster.serves_kind("Job") is False


def test_a_kind_is_not_served_any_more_once_its_definition_is_being_deleted(
    cluster: KubernetesApi, server: Server
) -> None:
    verbs = ["delete", "get", "list", "watch"]
    server.answer = (200, {"resources": [{"name": "jobs", "verbs": [*verbs, "create"]}]})
    assert cluster.serves_kind("Job") is True
    assert server.asked[0][:2] == ("GET", "/apis/batch.volcano.sh/v1alpha1")
    server.answer = (
        200,
        {"resources": [{"name": "jobs", "verbs": verbs}, {"name": "jobs/status", "verbs": ["create"]}]},
    )
    assert cluster.serves_kind("Job") is False


def test_a_batch_job_goes_to_kubernetes_own_group(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, {})
    cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "n"}})
    assert server.asked[0][:2] == ("PATCH", "/apis/batch/v1/namespaces/n/jobs/j")


def test_a_list_says_what_kind_its_items_are_and_where_a_watch_goes_on(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "q"}}]})
    seen = cluster.list("Queue", labels="a=b", fields="metadata.name=q")
    assert seen.version == "7"
    assert seen.items == [{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}}]
    _, path, query, *_ = server.asked[0]
    assert path == "/apis/scheduling.volcano.sh/v1beta1/queues"
    assert query == {"limit": ["500"], "labelSelector": ["a=b"], "fieldSelector": ["metadata.name=q"]}


def test_a_list_is_read_page_by_page(cluster: KubernetesApi, server: Server) -> None:
    def page(name: str, more: str) -> tuple[int, Doc]:
        about = {"resourceVersion": "7", "continue": more}
        return 200, {"metadata": about, "items": [{"metadata": {"name": name}}]}

    server.pages = [page("a", "m1"), page("b", "m2"), page("c", "")]
    seen = cluster.list("Pod", "ns", labels="x")
    assert ([each["metadata"]["name"] for each in seen.items], seen.version) == (["a", "b", "c"], "7")
    asked = [query for _, _, query, *_ in server.asked]
    assert [query.get("continue") for query in asked] == [None, ["m1"], ["m2"]]
    assert all((query["limit"], query["labelSelector"]) == (["500"], ["x"]) for query in asked)


def test_a_list_whose_next_page_is_too_old_has_expired(cluster: KubernetesApi, server: Server) -> None:
    server.pages = [(200, {"metadata": {"continue": "m1"}, "items": []}), status(410)]
    with pytest.raises(Expired):
        cluster.list("Pod")


def test_apply_is_server_side_and_ours(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, SECRET)
    cluster.apply(SECRET)
    method, path, query, kind, body = server.asked[0]
    assert (method, path, kind, body) == (
        "PATCH", "/api/v1/namespaces/ns/secrets/s", "application/apply-patch+yaml", SECRET,
    )  # fmt: skip
    assert (query["fieldManager"], query["force"][0].lower()) == ([FIELD_MANAGER], "true")


def test_a_patch_merges_lists_by_name(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, {})
    cluster.patch("MutatingWebhookConfiguration", "w", {"webhooks": [{"name": "a"}]})
    assert server.asked[0][3] == "application/strategic-merge-patch+json"


def test_a_deletion_may_be_of_that_very_object_only(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, {})
    assert cluster.delete("Pod", "p", "ns", uid="u1")
    assert server.asked[0][4]["preconditions"] == {"uid": "u1"}
    server.answer = status(409)
    assert not cluster.delete("Pod", "p", "ns", uid="u1")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, Rejected), (401, Fatal), (403, Fatal), (409, Conflict), (422, Rejected), (429, Transient),
        (500, Transient), (503, Transient), (504, Transient),
    ],
)  # fmt: skip
def test_what_the_server_refuses_is_one_of_our_errors_in_its_words(
    cluster: KubernetesApi, server: Server, code: int, error: type[Exception]
) -> None:
    server.answer = status(code)
    with pytest.raises(error, match="words of the server") as refused:
        cluster.apply(SECRET)
    assert "secret-token" not in str(refused.value)


def test_a_server_that_does_not_answer_or_talks_nonsense_is_transient(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, "<html>")
    with pytest.raises(Transient):
        cluster.get("Pod", "p", "ns")
    assert not cluster.answers()


def test_nobody_listening_is_transient(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    away = KubernetesApi(str(tmp_path / "config"))
    with pytest.raises(Transient):
        away.list("Pod")
    with pytest.raises(Transient):
        list(away.watch("Pod", "1", 1))


def test_no_cluster_named_anywhere_is_said(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="set KUBECONFIG"):
        KubernetesApi(str(tmp_path / "none"))


def test_a_watch_gives_each_change(cluster: KubernetesApi, server: Server) -> None:
    lines = [{"type": "ADDED", "object": {"x": 1}}, {"type": "DELETED", "object": {"x": 2}}]
    server.answer = (200, "\n".join(map(json.dumps, lines)) + "\n")
    assert list(cluster.watch("Pod", "5", 1, "ns")) == [("ADDED", {"x": 1}), ("DELETED", {"x": 2})]
    assert server.asked[0][2]["resourceVersion"] == ["5"]


def test_a_watch_that_is_too_old_has_expired(cluster: KubernetesApi, server: Server) -> None:
    server.answer = (200, json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}) + "\n")
    with pytest.raises(Expired):
        list(cluster.watch("Pod", "5", 1))
    server.answer = status(410)
    with pytest.raises(Expired):
        list(cluster.watch("Pod", "5", 1))
    server.answer = (200, json.dumps({"type": "ERROR", "object": {"code": 500, "message": "broken"}}) + "\n")
    with pytest.raises(Transient, match="broken"):
        list(cluster.watch("Pod", "5", 1))


@pytest.mark.parametrize(
    ("content", "said"),
    [("no kubeconfig", "no kubeconfig"), ("{}", "set KUBECONFIG"), (None, "set KUBECONFIG")],
)
def test_a_file_that_is_no_kubeconfig_is_told_in_a_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    with pytest.raises(Fatal, match=said):
        KubernetesApi(str(tmp_path / "config"))


def test_an_api_server_that_is_not_there_is_told_with_the_cause(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(Transient, match="Connection refused"):
        KubernetesApi(str(tmp_path / "config")).version()


def test_an_object_as_deep_as_the_api_server_takes_keeps_nobody_from_seeing_the_others(
    cluster: KubernetesApi, server: Server
) -> None:
    deep = '{"a":' * 9900 + "1" + "}" * 9900
    server.answer = 200, f'{{"metadata": {{}}, "items": [{{"spec": {deep}}}, {{"metadata": {{"name": "b"}}}}]}}'
    found: list[Any] = []
    thread, before = threading.Thread(target=lambda: found.extend(cluster.list("Slaml").items)), sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST)  # as the launcher does, whose watches are threads
    try:
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(before)
    assert found[1]["metadata"] == {"name": "b"}
