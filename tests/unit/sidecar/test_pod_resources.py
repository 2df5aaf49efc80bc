"""Which pod holds which GPU, over real gRPC on a Unix socket, in the bytes that a kubelet sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest

from sidecar.protocol import NodeGpu, NodeReply, NodeReport
from sidecar.resources import agent as agents
from sidecar.resources.agent import AgentError, NodeAgent
from sidecar.resources.pod_resources import PodResourcesError, gpu_holders, read_holders


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    assert len(data) < 2**14
    size = bytes([len(data)]) if len(data) < 0x80 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def pod(name: str, *devices: tuple[str, str], namespace: str = "a") -> bytes:
    """A pod whose container has these devices, one entry each: resource, id. NUMA nodes are told with each."""
    topology = field(3, field(1, b"\x08\x01"))
    entries = b"".join(field(2, field(1, resource) + field(2, device) + topology) for resource, device in devices)
    cpus = b"\x1a\x02\x01\x02"  # packed numbers
    return field(1, field(1, name) + field(2, namespace) + field(3, field(1, "main") + entries + cpus))


GPU = "nvidia.com/gpu"
ANSWER = (
    pod("one", (GPU, "GPU-1"), (GPU, "GPU-2"))
    + pod("none")
    + pod("other", ("rdma/ib", "mlx5"), (GPU, "GPU-3"), namespace="b")
)


class Kubelet:
    """Answers v1.PodResourcesLister/List."""

    def __init__(self, socket: Path) -> None:
        self.answer = ANSWER
        self.socket = socket
        self._server = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_unary_rpc_method_handler(lambda _, __: self.answer)
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path / "kubelet.sock")
    yield made
    made.stop()


def test_each_gpu_has_the_pod_that_holds_it(kubelet: Kubelet) -> None:
    assert gpu_holders(kubelet.socket) == {"GPU-1": "a/one", "GPU-2": "a/one", "GPU-3": "b/other"}


def test_a_large_answer_is_read(kubelet: Kubelet) -> None:
    kubelet.answer = b"".join(pod(f"pod-{n}", (GPU, f"GPU-{n}"), namespace="n" * 60) for n in range(50_000))
    assert len(kubelet.answer) > 4 * 2**20
    assert gpu_holders(kubelet.socket)["GPU-49999"] == f"{'n' * 60}/pod-49999"


def test_a_kubelet_that_is_away_is_no_empty_node(kubelet: Kubelet) -> None:
    kubelet.stop()
    with pytest.raises(PodResourcesError, match="the kubelet does not tell which pod holds which device"):
        gpu_holders(kubelet.socket)


@pytest.mark.parametrize("answer", [ANSWER[:-3], b"\x0a", b"\x0b\x00", b"\xff"])
def test_an_answer_that_is_cut_off_is_none(answer: bytes) -> None:
    with pytest.raises(PodResourcesError, match="cannot be read"):
        read_holders(answer)


@pytest.fixture
def agent(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> NodeAgent:
    made = NodeAgent("n", "http://c:1", b"key", 5.0, None, kubelet.socket)
    found = [NodeGpu("GPU-1", "V100"), NodeGpu("GPU-9", "V100")]
    monkeypatch.setattr(made, "_nvml", lambda: found)
    return made


def test_an_agent_reports_who_holds_each_gpu(agent: NodeAgent) -> None:
    assert [(gpu.gpu_id, gpu.holder) for gpu in agent._inventory()] == [("GPU-1", "a/one"), ("GPU-9", "")]


def test_an_agent_reports_nothing_rather_than_that_nobody_holds_a_gpu(agent: NodeAgent, kubelet: Kubelet) -> None:
    kubelet.stop()
    with pytest.raises(AgentError, match="the kubelet does not tell"):
        agent._inventory()


def test_an_agent_reports_at_once_when_another_pod_holds_a_gpu(
    agent: NodeAgent, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "LOOK_S", 0.01)
    agent._heartbeat_s = 600.0
    agent._inventory()
    kubelet.answer = pod("new", (GPU, "GPU-9"))
    agent._wait(threading.Event())
    assert [gpu.holder for gpu in agent._inventory()] == ["", "a/new"]


def test_who_reads_no_pod_resources_says_nothing_of_holders() -> None:
    agent = NodeAgent("n", "http://c:1", b"key", 5.0)
    agent._nvml = lambda: [NodeGpu("GPU-1", "V100")]  # type: ignore[assignment]
    assert [gpu.holder for gpu in agent._inventory()] == [None]
    report = NodeReport(boot="b", seq=1, gpus=agent._inventory())
    assert b"holder" not in msgspec.json.encode(report) and NodeReply(1, 5.0).jobs is None
