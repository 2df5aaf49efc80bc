"""The coordinator's calls to a node agent, over a socket: who is obeyed, and what is made of each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from coordinator.adapters.pod_access import AgentCalls
from coordinator.adapters.sidecars import ask
from coordinator.errors import Transient
from sidecar.device_filter import Unable
from sidecar.protocol import HEADER_SIGNATURE, PermitCall, sign
from sidecar.resources.permit_server import PermitServer
from sidecar.resources.pod_filters import PodFilters, StaleCall

KEY = b"agents"
SEATED = {"name": "one-0", "uid": "u-1", "node": "n1", "seat": True}
DOC: Any = {"_id": "one", "job_id": "one", "uid": "j", "launch": 3, "gpus_per_pod": None}


class Filters(PodFilters):
    """Notes what is asked for; the kernel's part is in test_pod_filters.py."""

    def __init__(self) -> None:
        self.calls: list[PermitCall] = []
        self.fault: Exception | None = None

    def obey(self, call: PermitCall) -> list[str]:
        if self.fault is not None:
            raise self.fault
        self.calls.append(call)
        return call.gpu_ids


class Agent:
    def __init__(self) -> None:
        self.filters = Filters()
        self.server = PermitServer(KEY, self.filters, "127.0.0.1", 0)
        self.server.start()
        self.pods: list[Any] = [SEATED]
        self.address = self.server.address
        self.calls = AgentCalls(lambda doc: self.pods, lambda node: self.address if node == "n1" else "", KEY)

    def send(self, path: str, key: bytes = KEY, signed_path: str | None = None) -> int:
        body = msgspec.json.encode(PermitCall(pod="u-1", generation=1, gpu_ids=["GPU-0"], opens=True))
        headers = {HEADER_SIGNATURE: sign(key, "POST", signed_path or path, body)}
        return ask(self.address, path, body, headers)[0]


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.server.stop()


def test_gpus_are_opened_and_kept_by_signed_calls(agent: Agent) -> None:
    agent.calls.open(DOC, 4, [["GPU-0", "GPU-1"]])
    agent.calls.keep(DOC, 5, ["GPU-1"])
    assert agent.filters.calls == [
        PermitCall(pod="u-1", generation=4, gpu_ids=["GPU-0", "GPU-1"], opens=True),
        PermitCall(pod="u-1", generation=5, gpu_ids=["GPU-1"]),
    ]


def test_only_a_signed_call_to_this_very_agent_is_obeyed(agent: Agent) -> None:
    path = urlsplit(agent.address).path
    assert agent.send(path) == 200
    assert agent.send(path, key=b"other") == 401
    assert agent.send("/v1/permits/0123456789abcdef") == 409
    assert agent.send(path, signed_path="/v1/permits/0123456789abcdef") == 401
    assert len(agent.filters.calls) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (StaleCall("generation 9 of pod u-1 was obeyed before"), "generation 9 of pod u-1 was obeyed before"),
        (Unable("no control groups v2 are mounted here"), "no control groups v2 are mounted here"),
        (OSError(1, "Operation not permitted"), "this kernel permits no device program"),
    ],
)
def test_what_an_agent_cannot_do_is_tried_again(agent: Agent, fault: Exception, why: str) -> None:
    agent.filters.fault = fault
    with pytest.raises(Transient, match=f"agent of node n1 cannot open or close GPUs to pod one-0: {why}"):
        agent.calls.keep(DOC, 4, [])


def test_each_pod_of_a_gang_opens_its_own(agent: Agent) -> None:
    agent.pods = [SEATED, {"name": "one-1", "uid": "u-2", "node": "n1"}, {**SEATED, "uid": "u-3"}]
    agent.calls.open(DOC, 4, [["a"], ["b"], ["c"]])
    assert [(call.pod, call.gpu_ids) for call in agent.filters.calls] == [("u-1", ["a"]), ("u-3", ["c"])]


def test_a_pod_that_is_not_known_yet_is_waited_for(agent: Agent) -> None:
    for pods in ([], [None], [{**SEATED, "node": None}]):
        agent.pods = pods
        with pytest.raises(Transient, match="the launcher has not told yet which pod job one trains in"):
            agent.calls.open(DOC, 4, [["a"]])
        agent.calls.keep(DOC, 5, [])
    assert agent.filters.calls == []


def test_an_agent_that_does_not_report_or_answer_is_waited_for(agent: Agent) -> None:
    agent.pods = [{**SEATED, "node": "n2"}]
    with pytest.raises(Transient, match="the agent of node n2, which opens and closes GPUs to pods, does not report"):
        agent.calls.keep(DOC, 4, [])
    agent.pods = [SEATED]
    agent.address = "http://127.0.0.1:1/v1/permits/x"
    with pytest.raises(Transient, match=r"the agent of node n1 at .* does not answer"):
        agent.calls.keep(DOC, 4, [])
    agent.pods = [{**SEATED, "ended": True}]
    agent.calls.keep(DOC, 4, [])  # its filter went with its control group
