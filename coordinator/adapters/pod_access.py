"""Says to node agents which GPUs the pods of a launch may open; they set the device filters (`sidecar/resources`).

Promises (`coordinator.ports.PodAccess`): returns only once the kernel of each node has it. Which pod is whose is told
by the launcher, never by a pod; the address of an agent, by its newest signed report. Called by the reconciler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coordinator.adapters.sidecars import ask
from coordinator.errors import Transient
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from coordinator.ports import Doc
from sidecar.protocol import HEADER_SIGNATURE, PermitCall, PermitReply, refusal, sign, signed


class NoSeats:
    """Leaves launches on this machine alone: their shims set the filters."""

    def open(self, doc: JobRow, generation: int, gpu_ids: Sequence[Sequence[str]]) -> None:
        """Do nothing."""

    def keep(self, doc: JobRow, generation: int, gpu_ids: Sequence[str]) -> None:
        """Do nothing."""


class AgentCalls:
    """One short connection per pod and call."""

    def __init__(
        self, pods: Callable[[JobRow], Sequence[Doc | None]], permits_at: Callable[[str], str], agent_key: bytes
    ) -> None:
        """`pods`: of a launch, by member. `permits_at`: the address of a node's agent, empty if it is not known."""
        self._pods = pods
        self._permits_at = permits_at
        self._agent_key = agent_key

    def open(self, doc: JobRow, generation: int, gpu_ids: Sequence[Sequence[str]]) -> None:
        pods = self._pods(doc)
        for member, granted in enumerate(gpu_ids):
            pod = pods[member] if member < len(pods) else None
            if pod is None or not pod.get("node"):
                raise Transient(f"the launcher has not told yet which pod job {JobRecord(doc).id} trains in")
            if pod.get("seat"):
                self._ask_agent(pod, generation, granted, opens=True)

    def keep(self, doc: JobRow, generation: int, gpu_ids: Sequence[str]) -> None:
        for pod in _pods_with_seat(self._pods(doc)):
            self._ask_agent(pod, generation, gpu_ids, opens=False)

    def _ask_agent(self, pod: Doc, generation: int, gpu_ids: Sequence[str], opens: bool) -> None:
        node = str(pod["node"])
        url = self._permits_at(node)
        if not url:
            raise Transient(f"the agent of node {node}, which opens and closes GPUs to pods, does not report")
        call = PermitCall(pod=str(pod["uid"]), generation=generation, gpu_ids=list(gpu_ids), opens=opens)
        body = msgspec.json.encode(call)
        path = urlsplit(url).path
        signature = sign(self._agent_key, "POST", path, body)
        headers = {HEADER_SIGNATURE: signature, "Content-Type": "application/json"}
        status, answer, proof = ask(url, path, body, headers, f"agent of node {node}")
        if status != 200:
            why = refusal(answer, f"it answered {status}").rstrip(".")
            raise Transient(f"the agent of node {node} cannot open or close GPUs to pod {pod['name']}: {why}")
        if not _is_answer(self._agent_key, path, answer, proof, signature):
            raise Transient(f"the answer of node {node}'s agent is not signed with the agents' key")


def _pods_with_seat(pods: Iterable[Doc | None]) -> list[Doc]:
    return [pod for pod in pods if pod and pod.get("seat") and pod.get("node") and not pod.get("ended")]


def _is_answer(key: bytes, path: str, answer: bytes, proof: str, call: str) -> bool:
    if not signed(key, "REPLY", path, answer, proof):
        return False
    try:
        reply: Any = msgspec.json.decode(answer, type=PermitReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return bool(reply.call == call)
