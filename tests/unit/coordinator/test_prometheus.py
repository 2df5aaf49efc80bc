"""What a Prometheus is asked, and what becomes of its answers: by a small server that speaks its API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from coordinator.adapters.prometheus import Prometheus
from coordinator.errors import Transient
from tests.fakes.http_thread import serving_in_thread

Answer = tuple[int, Any]
PODS = [{"name": "a.b-0", "namespace": "team", "node": 'no"de'}, {"name": "a.b-1", "namespace": "team", "node": "n"}]


class Server:
    """`answer` says what each query gets; `asked` are the queries so far."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: Callable[[str], Answer] = lambda query: (200, found([]))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.asked.append({name: values[0] for name, values in body.items()})
                outer.paths.append(self.path)
                status, doc = outer.answer(outer.asked[-1]["query"])
                self.send_response(status)
                self.end_headers()
                self.wfile.write(doc if isinstance(doc, bytes) else json.dumps(doc).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/below/"


def found(result: list[Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def samples(*pairs: tuple[float, str], **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": pairs}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with serving_in_thread(server.http):
        yield server


def asked(server: Server, pods: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return Prometheus(server.url, lambda doc: PODS if pods is None else pods, list).used({}, 1_000.0, 1_060.5)


def test_containers_of_the_pods_are_asked_for_over_the_run_and_the_load_of_their_node(server: Server) -> None:
    def answer(query: str) -> Answer:
        if query.startswith("container_cpu"):
            return 200, found([samples((1_001, "1"), (1_051, "26"), container="trainer")])
        if query.startswith("container_memory"):
            return 200, found([samples((1_001, "100"), (1_051, "NaN"), pod="p", container="trainer")])
        if query.startswith("sum(rate(container_"):
            return 200, found([{"metric": {}, "value": [1_060.5, "30" if "_fs_" in query else "40"]}])
        return 200, found([{"metric": {}, "value": [1_060.5, "1.25"]}])

    server.answer = answer
    assert asked(server) == {
        "used_cores": 0.5, "used_cores_peak": 0.5, "used_s": 50.0, "used_from": "prometheus", "used_memory": 100.0,
        "used_block_io": 30.0, "used_network_io": 40.0, "node_load": 1.25,
    }  # fmt: skip
    cpu, _, disk, network, load = (each["query"] for each in server.asked)
    assert cpu == (
        'container_cpu_usage_seconds_total{namespace="team",pod=~"a\\\\.b-0|a\\\\.b-1",'
        'container!="",container!="POD",container!~"reshape-.*"}[61s]'
    )
    assert disk.count("container_fs_") == 2 and 'container!~"reshape-.*"}[61s]' in disk
    assert network.count("container_network_") == 2 and 'interface!="lo"}[61s]' in network
    assert 'node_uname_info{nodename="no\\"de"}' in load and "[61s]" in load
    assert {each["time"] for each in server.asked} == {"1060.500"}
    assert set(server.paths) == {"/below/api/v1/query"}


def test_where_no_container_is_named_the_whole_pod_counts(server: Server) -> None:
    def answer(query: str) -> Answer:
        whole = 'container=""' in query and query.startswith("container_cpu")
        return 200, found([samples((1, "1"), (11, "6"))] if whole else [])

    server.answer = answer
    assert asked(server)["used_cores"] == 0.5


def test_what_it_does_not_know_is_not_said(server: Server) -> None:
    assert asked(server) == {}
    assert asked(server, []) == {}


@pytest.mark.parametrize(
    "answer",
    [
        (422, {"status": "error", "errorType": "execution", "error": "too many samples"}),
        (200, b"<html>not it</html>"),
        (200, {"status": "success", "data": {"result": [{"metric": {}}]}}),
        (200, {"status": "success", "data": {"result": [samples((1, "many"))]}}),
        (302, b""),
    ],
)
def test_an_answer_that_is_none_is_a_sentence(server: Server, answer: Answer) -> None:
    server.answer = lambda query: answer
    with pytest.raises(Transient, match=r"Prometheus at 127\.0\.0\.1 did not answer a query"):
        asked(server)


def test_one_that_is_away_is_a_sentence() -> None:
    away = Prometheus("http://127.0.0.1:9", lambda doc: PODS, list)
    with pytest.raises(Transient, match="does not answer"):
        away.used({}, 0.0, 1.0)
