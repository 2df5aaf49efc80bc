"""What node agents send: the GPUs of their node, signed with the agents' key; the reply is signed, too."""

from __future__ import annotations

from coordinator.errors import Unauthorized
from coordinator.http.base import Handler
from sidecar.protocol import HEADER_SIGNATURE


class NodeHandler(Handler):
    public = True  # its signature tells who may
    threads = "quick_threads"  # answered from memory: who waits for the store must not make a node look silent

    async def post(self, name: str) -> None:
        signature = self.request.headers.get(HEADER_SIGNATURE, "")
        if not signature:
            raise Unauthorized("This needs the signature of a node agent.")
        body, reply = await self.call(self.facade.node_reported, name, self.request.path, self.body, signature)
        self.set_header("Content-Type", "application/json")
        self.set_header(HEADER_SIGNATURE, reply)
        self.write(body)
