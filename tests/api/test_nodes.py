"""Node agents over the real edge: who may report, what is believed, and the agent's own side of it."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from sidecar.protocol import HEADER_SIGNATURE, NodeReport, sign, signed
from sidecar.resources.agent import AgentError, NodeAgent, NvmlInventory, emulated_gpus
from sidecar.resources.gpus import NvmlProbe, list_gpus
from tests.api.caller import Caller
from tests.fakes.coordinator_api import KEY, Live
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml

PATH = "/v1/nodes/node-a"
BODY = msgspec.json.encode(NodeReport(boot="b", seq=1))


def test_a_signed_report_gets_a_signed_reply_without_any_token(call: Caller) -> None:
    call.headers = {HEADER_SIGNATURE: sign(KEY, "POST", PATH, BODY)}
    answer = call("POST", PATH, BODY)
    assert (answer.status, answer.doc) == (200, {"seq": 1, "heartbeat_s": 5.0})
    assert signed(KEY, "REPLY", PATH, answer.raw, answer.headers[HEADER_SIGNATURE])


def test_neither_the_token_nor_the_signature_of_another_node_opens_it(call: Caller) -> None:
    assert call("POST", PATH, BODY).status == 401  # the token
    for path, key in (("/v1/nodes/node-b", KEY), (PATH, b"another key")):
        call.headers = {HEADER_SIGNATURE: sign(key, "POST", path, BODY)}
        assert call("POST", PATH, BODY).status == 401


# the agent


def agent(
    live: Live, folder: Path, node: str = "node-a", key: bytes = KEY, lines: str = "node-a=2xV100\n"
) -> NodeAgent:
    (folder / "gpus").write_text(lines)
    return NodeAgent(node, live.url, key, 0.05, folder)


def test_an_agent_reports_what_its_node_has(live: Live, tmp_path: Path) -> None:
    taken: list[NodeReport] = []
    take = live.coordinator.node_reported

    def keep(name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        taken.append(msgspec.json.decode(raw, type=NodeReport))
        return take(name, path, raw, signature)

    live.coordinator.node_reported = keep  # type: ignore[method-assign]
    reporting = agent(live, tmp_path)
    assert reporting.report().heartbeat_s == 5.0
    reporting.report()
    first, second = taken
    assert [(g.gpu_id, g.gpu_type, g.emulated) for g in first.gpus] == [
        ("EMULATED-node-a-V100-0", "V100", True),
        ("EMULATED-node-a-V100-1", "V100", True),
    ]
    assert first.cores > 0 and first.memory > 0
    assert first.boot == second.boot and first.seq < second.seq


def test_an_agent_says_what_is_wrong_and_goes_on(live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AgentError, match="answered 401: This needs the signature"):
        agent(live, tmp_path, key=b"not the key").report()
    with pytest.raises(AgentError, match="does not answer"):
        NodeAgent("node-a", "http://127.0.0.1:9", KEY, 1.0, tmp_path).report()
    with pytest.raises(AgentError, match="such as node-a=4xV100"):
        agent(live, tmp_path, lines="node-a=lots").report()
    with pytest.raises(AgentError, match="is no address"):
        NodeAgent("node-a", "reshape-coordinator:8080", KEY, 1.0)
    end, heard = threading.Event(), threading.Event()
    take = live.coordinator.node_reported

    def second_time(name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        if not heard.is_set():
            heard.set()
            raise OSError("a fault of ours")
        end.set()
        return take(name, path, raw, signature)

    live.coordinator.node_reported = second_time  # type: ignore[method-assign]
    agent(live, tmp_path).run(end)
    assert [r.getMessage()[:28] for r in caplog.records if r.name == "sidecar.resources.agent"] == [
        "the coordinator answered 500",
        "the coordinator answers agai",
    ]


def test_emulated_gpus_belong_to_the_node_that_a_line_names() -> None:
    lines = ["# a comment", "", "a=1xV100", " b = 2xH100 # two", "a.example.com=1xT4"]
    assert [g.gpu_id for g in emulated_gpus(lines, "b") or []] == ["EMULATED-b-H100-0", "EMULATED-b-H100-1"]
    assert [g.gpu_id for g in emulated_gpus(lines, "a") or []] == ["EMULATED-a-V100-0"]
    assert emulated_gpus(lines, "c") is None


def test_a_gpu_that_fell_off_the_bus_is_reported_unhealthy_and_healthy_again() -> None:
    card = FakeGpu("GPU-1", "NVIDIA H100 80GB HBM3")
    nvml = FakeNvml([FakeGpu("GPU-0"), card])
    look = NvmlInventory(lambda: list_gpus(nvml), NvmlProbe(nvml))
    assert [(g.gpu_id, g.gpu_type, g.healthy) for g in look()] == [("GPU-0", "V100", True), ("GPU-1", "H100", True)]
    card.lost = True
    lost = look()[1]
    assert (lost.healthy, "GPU-1 cannot be read" in lost.problem) == (False, True)
    card.lost = False
    assert [g.healthy for g in look()] == [True, True]
