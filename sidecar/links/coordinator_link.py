"""Posts signed messages to the coordinator (`reliability.md` 6).

Promise: a returned body was signed with the launch key for this path; anything else raises `NoTrustedAnswer` or, if the
coordinator refused the request, `CoordinatorRejected`. A message may arrive twice. Called by `service.py`.
"""

from __future__ import annotations

from sidecar.config import SidecarSettings
from sidecar.links.http_connection import HttpConnection, HttpFault
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, refusal, sign, signed

REFUSALS = (400, 404, 409, 429)  # the request is at fault, not the connection


class NoTrustedAnswer(Exception):
    """Raised when there was no trusted answer; the argument is a sentence."""


class CoordinatorRejected(Exception):
    """Raised when the coordinator refused the request."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class CoordinatorLink:
    """Signs requests and verifies answers."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._connection = HttpConnection(settings.launch.coordinator)

    async def post(self, path: str, body: bytes) -> bytes:
        """Post the body; return that of a correctly signed answer."""
        key, launch = self._settings.key, self._settings.launch
        headers = {
            HEADER_JOB: launch.job_id,
            HEADER_LAUNCH: str(launch.launch),
            HEADER_SIGNATURE: sign(key, "POST", path, body),
            "Content-Type": "application/json",
        }
        try:
            answer = await self._connection.post(path, headers, body)
        except HttpFault as fault:
            raise NoTrustedAnswer(f"the coordinator at {launch.coordinator} cannot be reached ({fault})") from None
        if answer.status in REFUSALS:
            raise CoordinatorRejected(answer.status, refusal(answer.body, "the coordinator refused"))
        signature = answer.headers.get(HEADER_SIGNATURE.lower(), "")
        if not signed(key, "REPLY", path, answer.body, signature):
            raise NoTrustedAnswer(f"the answer to {path} ({answer.status}) was not signed with the launch key")
        if answer.status not in (200, 202):
            raise NoTrustedAnswer(f"the coordinator answered {answer.status} to {path}")
        return answer.body
