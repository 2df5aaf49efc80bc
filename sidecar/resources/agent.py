"""Reports to the coordinator which GPUs this node has, whether they work, and how busy the node is.

Promise: reports at every heartbeat until told to end, and keeps reporting after any error (no coordinator, a GPU off
the bus). A known GPU that can no longer be read is reported unhealthy, not omitted. Needs no Kubernetes API access.
Called by `reshape agent`, one per node; `reshape/services/local_gpus.py` uses its inventory.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from sidecar.protocol import HEADER_SIGNATURE, NodeGpu, NodeJobs, NodeReply, NodeReport, Usage, refusal, sign, signed
from sidecar.resources.gpu_health import XidWatch
from sidecar.resources.gpus import DeviceInfo, NvmlProbe, list_gpus, short_type
from sidecar.resources.host import HostUsage
from sidecar.resources.pod_resources import PodResourcesError, gpu_holders

EMULATED = re.compile(r"([1-9][0-9]{0,3})x([A-Za-z0-9][A-Za-z0-9._-]{0,31})")
EMULATED_MEMORY = 16 * 2**30
FILE = "gpus"  # in the folder of emulated inventories
TIMEOUT_S = 5.0
LOOK_S = 1.0  # between two looks at which pods hold the GPUs
ANSWER_MAX = 65_536

log = logging.getLogger(__name__)


class AgentError(Exception):
    """Raised for an error in the agent's settings or from its coordinator, as a sentence."""


@dataclass
class NvmlInventory:
    """Lists the GPUs that NVML finds, and as unhealthy those that it no longer finds or that reported an error."""

    find: Callable[[], list[DeviceInfo]] = list_gpus
    probe: NvmlProbe = field(default_factory=NvmlProbe)
    errors: XidWatch = field(default_factory=XidWatch)
    _known: dict[str, NodeGpu] = field(default_factory=dict)

    def __call__(self) -> list[NodeGpu]:
        found = {g.gpu_id: NodeGpu(g.gpu_id, short_type(g.gpu_type), g.memory) for g in self.find()}
        self._known |= found
        lost = [gpu_id for gpu_id in self._known if gpu_id not in found]
        problems = {
            r.gpu_id: r.problem for r in self.probe.read(lost, Usage()) if not r.healthy
        } | self.errors.problems()
        return [
            msgspec.structs.replace(gpu, healthy=False, problem=problems[gpu_id]) if gpu_id in problems else gpu
            for gpu_id, gpu in self._known.items()
        ]


def emulated_gpus(lines: Iterable[str], node: str) -> list[NodeGpu] | None:
    """Return the GPUs that a line such as `node=4xV100` gives this node; None if no line names it.

    Their ids contain the node's name, so that they are unique across nodes.
    """
    for line in lines:
        name, _, given = (part.strip() for part in line.partition("#")[0].partition("="))
        if name != node:
            continue
        match = EMULATED.fullmatch(given)
        if match is None:
            raise AgentError(f"The emulated GPUs of node {node} must be a number and a type, such as {node}=4xV100.")
        kind = match[2]
        return [NodeGpu(f"EMULATED-{node}-{kind}-{i}", kind, EMULATED_MEMORY, True) for i in range(int(match[1]))]
    return None


class NodeAgent:
    """Reports for one node."""

    def __init__(
        self,
        node: str,
        coordinator: str,
        key: bytes,
        heartbeat_s: float,
        folder: Path | None = None,
        pod_resources: Path | None = None,
        permits: str = "",
    ) -> None:
        """`folder`: holds emulated inventories, reread for each report.

        `pod_resources`: the kubelet's socket, of a node whose GPUs are reserved by pods. `permits`: where the
        coordinator says which GPUs a pod may open; empty: this node offers no seats.
        """
        address = urlsplit(coordinator)
        if address.scheme != "http" or not address.hostname:
            raise AgentError(
                f"{coordinator!r} is no address of a coordinator, such as http://reshape-coordinator:8080."
            )
        self._host, self._port = address.hostname, address.port
        self._prefix, self._path = address.path.rstrip("/"), f"/v1/nodes/{quote(node, safe='')}"
        self._node, self._key, self._heartbeat_s, self._folder = node, key, heartbeat_s, folder
        self._pod_resources = pod_resources
        self._permits = permits
        self._holders: dict[str, str] | None = None  # as last reported
        self._nvml, self._use = NvmlInventory(), HostUsage()
        self._jobs: NodeJobs | None = None  # of this node, by the last reply
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._seq = 0

    def run(self, end: threading.Event) -> None:
        """Report until `end` is set; log when an error begins and ends."""
        told = ""
        while not end.is_set():
            try:
                self._heartbeat_s = self.report().heartbeat_s
                trouble = ""
            except AgentError as error:
                trouble = str(error)
            if trouble != told:
                log.warning("%s", trouble or "the coordinator answers again")
                told = trouble
            self._wait(end)

    def _wait(self, end: threading.Event) -> None:
        """Wait for the next heartbeat, or until another pod holds a GPU: somebody waits for that news."""
        left_s = self._heartbeat_s
        while left_s > 0 and not end.wait(min(left_s, LOOK_S)):
            left_s -= LOOK_S
            if self._pod_resources is None or self._holders is None:
                continue
            with contextlib.suppress(PodResourcesError):  # the next report says so
                if gpu_holders(self._pod_resources) != self._holders:
                    return

    def report(self) -> NodeReply:
        """Report once; return the reply. Raises `AgentError` on failure."""
        self._seq = max(self._seq + 1, int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000))
        report = NodeReport(
            boot=self._boot,
            seq=self._seq,
            gpus=self._inventory(),
            cores=float(os.cpu_count() or 0),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            cpu_use=self._use.cpu(),
            memory_use=self._use.memory(),
            jobs=self._jobs,
            permits=self._permits,
        )
        status, answer, signature = self._post(msgspec.json.encode(report))
        if status != 200:
            raise AgentError(f"the coordinator answered {status}: {refusal(answer, 'without saying why')[:300]}")
        if not signed(self._key, "REPLY", self._path, answer, signature):
            raise AgentError("the coordinator's answer is not signed with the agents' key; is it another coordinator?")
        reply = msgspec.json.decode(answer, type=NodeReply)
        self._jobs = reply.jobs
        return reply

    def _inventory(self) -> list[NodeGpu]:
        """Return this node's emulated GPUs if it has a line for them, else the real ones."""
        given = None
        if self._folder is not None:
            try:
                given = emulated_gpus((self._folder / FILE).read_text().splitlines(), self._node)
            except (OSError, UnicodeDecodeError) as error:
                raise AgentError(f"the emulated GPUs in {self._folder / FILE} cannot be read: {error}") from None
        found = self._nvml() if given is None else given
        if self._pod_resources is None:
            return found
        try:
            self._holders = holders = gpu_holders(self._pod_resources)
        except PodResourcesError as error:
            raise AgentError(str(error)) from None
        return [msgspec.structs.replace(gpu, holder=holders.get(gpu.gpu_id, "")) for gpu in found]

    def _post(self, body: bytes) -> tuple[int, bytes, str]:
        headers = {
            HEADER_SIGNATURE: sign(self._key, "POST", self._path, body),
            "Content-Type": "application/json",
        }
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", self._prefix + self._path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_MAX), response.getheader(HEADER_SIGNATURE) or ""
        except (OSError, http.client.HTTPException) as error:
            raise AgentError(f"the coordinator does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
