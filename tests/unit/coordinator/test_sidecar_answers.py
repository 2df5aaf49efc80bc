"""An answer of a sidecar is believed only if it is signed for this call."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from coordinator.adapters.sidecars import HttpSidecars
from coordinator.errors import Transient
from sidecar.protocol import HEADER_SIGNATURE, ShimStatus, StartCall, StopCall, sign
from tests.fakes.http_thread import serving_in_thread

KEY, JOB = b"k" * 64, "job-1"
SAYS = msgspec.json.encode(ShimStatus(trainer="exited", generation=9, exit_code=0))


@contextmanager
def _answers(signature: str | None, body: bytes = SAYS) -> Iterator[str]:
    """A server at the address of a sidecar that answers with this signature."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            if signature is not None:
                self.send_header(HEADER_SIGNATURE, signature)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def _stop(url: str) -> ShimStatus:
    return HttpSidecars().stop(url, KEY, JOB, 1, StopCall(generation=9, command_id="c", grace_s=1.0))


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        sign(b"x" * 64, "REPLY", "/v1/stop", SAYS),
        sign(KEY, "REPLY", "/v1/start", SAYS),
        sign(KEY, "POST", "/v1/stop", SAYS),
        sign(KEY, "REPLY", "/v1/stop", SAYS + b" "),
    ],
)
def test_an_answer_that_is_not_signed_for_this_call_is_not_believed(signature: str | None) -> None:
    with _answers(signature) as url, pytest.raises(Transient, match="not signed with its launch key"):
        _stop(url)


def test_every_call_wants_its_answer_signed() -> None:
    with _answers(None) as url:
        start = StartCall(generation=9, command_id="c", gpu_ids=["a"])
        for ask in (
            lambda: HttpSidecars().start(url, KEY, JOB, 1, start),
            lambda: HttpSidecars().read_output(url, KEY, JOB, 1, 0, 10),
        ):
            with pytest.raises(Transient, match="not signed"):
                ask()


def test_a_rightly_signed_answer_is_believed() -> None:
    with _answers(sign(KEY, "REPLY", "/v1/stop", SAYS)) as url:
        assert _stop(url).generation == 9
