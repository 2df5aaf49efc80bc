"""Posts signed messages to the coordinator (`reliability.md` 6).

Promise: a returned body was signed with the launch key for this path; anything else is `NoTrustedAnswer` or, where
the coordinator refused what was asked, `CoordinatorRejected`. Called by `service.py`; library exceptions end
here.
"""

from __future__ import annotations

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from sidecar.config import SidecarSettings
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, refusal, sign, signed

TIMEOUT_S = 5.0
BODY_LIMIT = 64 * 1024  # bytes of an answer
REFUSALS = (400, 404, 409, 429)  # the request is wrong, not the connection


class NoTrustedAnswer(Exception):
    """There was no trusted answer; the reason as a sentence."""


class CoordinatorRejected(Exception):
    """The coordinator refused the request."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class CoordinatorLink:
    """The HTTP client of one launch."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._base = settings.launch.coordinator.rstrip("/")
        self._client = AsyncHTTPClient(force_instance=True, max_body_size=BODY_LIMIT)

    async def post(self, path: str, body: bytes) -> bytes:
        """Return the body of a correctly signed answer."""
        key, launch = self._settings.key, self._settings.launch
        headers = {
            HEADER_JOB: launch.job_id,
            HEADER_LAUNCH: str(launch.launch),
            HEADER_SIGNATURE: sign(key, "POST", path, body),
            "Content-Type": "application/json",
        }
        response = await self._fetch(path, headers, body)
        if response.code in REFUSALS:
            raise CoordinatorRejected(response.code, refusal(response.body, "the coordinator refused"))
        signature = response.headers.get(HEADER_SIGNATURE, "")
        if not signed(key, "REPLY", path, response.body, signature):
            raise NoTrustedAnswer(f"the answer to {path} ({response.code}) was not signed with the launch key")
        if response.code not in (200, 202):
            raise NoTrustedAnswer(f"the coordinator answered {response.code} to {path}")
        return response.body

    async def _fetch(self, path: str, headers: dict[str, str], body: bytes) -> HTTPResponse:
        request = HTTPRequest(
            self._base + path,
            method="POST",
            headers=headers,
            body=body,
            connect_timeout=TIMEOUT_S,
            request_timeout=TIMEOUT_S,
            follow_redirects=False,  # what is signed is meant for one address
        )
        try:
            return await self._client.fetch(request, raise_error=False)
        except Exception as error:  # Tornado's client has no common base for what a broken peer makes it raise
            raise NoTrustedAnswer(f"the coordinator at {self._base} cannot be reached ({error})") from None

    def close(self) -> None:
        self._client.close()
