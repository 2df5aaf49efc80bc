"""What sidecars send: heartbeats, and wishes that an operator told them.

Both prove themselves by a signature with the launch key (`sidecar/protocol.py`), not by the token,
and both replies are signed, so that nobody else can renew a lease.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.errors import Unauthorized
from coordinator.http.base import Handler
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE

Take = Callable[[str, int, bytes, str], tuple[bytes, str]]


class SignedHandler(Handler):
    """A signed message and its signed reply."""

    public = True
    threads = "quick_threads"  # submissions that wait for a slow store must not cost anybody its lease

    async def take(self, method: Take, status: int) -> None:
        job_id, launch, signature = self._caller()
        body, reply_signature = await self.call(method, job_id, launch, self.body, signature)
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header(HEADER_SIGNATURE, reply_signature)
        self.write(body)

    def _caller(self) -> tuple[str, int, str]:
        job_id, launch, signature = (
            self.request.headers.get(name, "") for name in (HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE)
        )
        if not job_id or not signature or not (launch.isascii() and launch.isdigit() and len(launch) < 10):
            raise Unauthorized("This needs the signature of a running launch.")
        return job_id, int(launch), signature


class Heartbeats(SignedHandler):
    async def post(self) -> None:
        await self.take(self.facade.heartbeat, 200)


class Wishes(SignedHandler):
    async def post(self) -> None:
        await self.take(self.facade.wished, 202)
