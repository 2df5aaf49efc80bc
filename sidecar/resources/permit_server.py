"""Takes the coordinator's calls about which GPUs a pod may open: `POST` to the address that the agent reports.

Promises: obeys only a call that is signed with the agents' key, and that was made to this very agent: its address
holds a word of this process, so that what was sent to an earlier agent of the node is refused. Answers once the kernel
has it. Called by the node agent.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from sidecar import device_filter
from sidecar.device_filter import Unable
from sidecar.protocol import HEADER_SIGNATURE, PermitCall, PermitReply, sign, signed
from sidecar.resources.pod_filters import PodFilters, StaleCall

TIMEOUT_S = 5.0  # for a caller that says nothing
BODY_MAX = 65_536
MOST_CALLS = 32  # at once; the coordinator makes few
CALL = msgspec.json.Decoder(PermitCall)

log = logging.getLogger(__name__)


class PermitServer:
    """Serves in a thread from `start` to `stop`."""

    def __init__(self, key: bytes, filters: PodFilters, host: str, port: int) -> None:
        """`host`: this pod's address, which the coordinator calls. `port`: 0 takes any. OSError if it is taken."""
        self._key = key
        self._filters = filters
        self.path = f"/v1/permits/{hashlib.sha256(secrets.token_bytes(16)).hexdigest()[:16]}"
        self._server = FewCallsServer(("", port), self._handler())
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_address[1]}{self.path}"
        self._serving = threading.Thread(target=self._server.serve_forever, name="permits", daemon=True)

    def start(self) -> None:
        self._serving.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def answer(self, path: str, body: bytes, signature: str) -> tuple[int, bytes]:
        """Return status and body for a call."""
        if path != self.path:
            return 409, _refusal_answer("This call was made to an earlier agent of this node.")
        if not signed(self._key, "POST", path, body, signature):
            return 401, _refusal_answer("Not a call of the coordinator.")
        try:
            call = CALL.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return 400, _refusal_answer(f"The call cannot be read: {error}.")
        try:
            return 200, msgspec.json.encode(PermitReply(signature, self._filters.obey(call)))
        except StaleCall as stale:
            return 409, _refusal_answer(f"{stale}.")
        except Unable as fault:
            return 503, _refusal_answer(f"{fault}.")
        except OSError as fault:
            return 503, _refusal_answer(f"{device_filter.why_refused(fault)}.")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_S

            def do_POST(self) -> None:
                """Answer one call; what was obeyed is signed."""
                length = self.headers.get("Content-Length", "")
                if not length.isdigit() or int(length) > BODY_MAX:
                    self.send_error(413)
                    return
                body = self.rfile.read(int(length))
                status, answer = server.answer(self.path, body, self.headers.get(HEADER_SIGNATURE, ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                if status == 200:  # a refusal may be of a path that the caller chose
                    self.send_header(HEADER_SIGNATURE, sign(server._key, "REPLY", server.path, answer))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: anybody may call."""

        return Handler


class FewCallsServer(ThreadingHTTPServer):
    """Answers few calls at once, and reads each for a short time: anybody may connect."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free = threading.BoundedSemaphore(MOST_CALLS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; close it at once if too many are served."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection; nothing more is read from it after `TIMEOUT_S`."""
        watch = threading.Timer(TIMEOUT_S, _end_reading, (request,))
        watch.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            watch.cancel()
            self._free.release()


def _end_reading(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)


def _refusal_answer(sentence: str) -> bytes:
    return msgspec.json.encode({"error": sentence})
