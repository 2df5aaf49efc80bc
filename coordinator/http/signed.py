"""Signed messages: heartbeats and forwarded operator requests of sidecars, inventories of node agents.

A sender proves itself by a signature (`sidecar/protocol.py`) with its launch key or the agents' key, not by the token.
Replies are signed, too, so that only the coordinator can renew a lease.
"""

from __future__ import annotations

from coordinator.errors import Unauthorized
from coordinator.http.base import Handler
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE


class SignedHandler(Handler):
    """A signed message and its signed reply."""

    public = True
    threads = "quick_threads"  # a slow store must not cost a sidecar its lease, nor make a node look silent

    def reply(self, signed: tuple[bytes, str], status: int = 200) -> None:
        """Send a body and its signature."""
        body, signature = signed
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header(HEADER_SIGNATURE, signature)
        self.write(body)

    def sender(self) -> tuple[str, int, str]:
        """Job id, launch and signature from a sidecar's headers; `Unauthorized` if one of them is missing."""
        job_id, launch, signature = (
            self.request.headers.get(name, "") for name in (HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE)
        )
        if not job_id or not signature or not (launch.isascii() and launch.isdigit() and len(launch) < 10):
            raise Unauthorized("This needs the signature of a running launch.")
        return job_id, int(launch), signature


class HeartbeatHandler(SignedHandler):
    """Answered on the server's own thread where that needs memory only: a thread more costs as much as the answer."""

    async def post(self) -> None:
        sender, heartbeat = self.sender(), self.coordinator.heartbeat
        job_id, launch, signature = sender
        if self.coordinator.knows(job_id):
            self.reply(heartbeat(job_id, launch, self.body, signature))
        else:
            self.reply(await self.call(heartbeat, job_id, launch, self.body, signature))


class ForwardedRequestHandler(SignedHandler):
    """A request that an operator made of a sidecar, which forwards it."""

    async def post(self) -> None:
        job_id, launch, signature = self.sender()
        self.reply(await self.call(self.coordinator.take_request, job_id, launch, self.body, signature), 202)


class NodeHandler(SignedHandler):
    """A node agent's report."""

    async def post(self, name: str) -> None:
        signature = self.request.headers.get(HEADER_SIGNATURE, "")
        if not signature:
            raise Unauthorized("This needs the signature of a node agent.")
        self.reply(await self.call(self.coordinator.node_reported, name, self.request.path, self.body, signature))
