"""Serves the sidecar's HTTP endpoints (`reliability.md` 6).

Promises: `/v1/start`, `/v1/stop` and `/v1/checkpoint` obey only the holder of the launch key, and refuse every other
caller in the same way; an operator's `/v1/reshape` and `/v1/signal` change nothing here and are forwarded to the
coordinator; `/v1/output` returns the trainer's output to the coordinator only; `/v1/status`, `/livez`, `/healthz` and
`/metrics` only read. Bad input gets a 4xx with {"error": sentence}, an unreachable shim 503 with Retry-After; 500 is a
bug.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

import msgspec
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler

from sidecar import core, kept_output
from sidecar.config import TOKEN, SidecarSettings
from sidecar.endpoints.limited_server import FewConnectionsServer
from sidecar.links.coordinator_link import CoordinatorRejected, NoTrustedAnswer
from sidecar.links.shim_link import ShimUnreachable
from sidecar.protocol import (
    HEADER_JOB,
    HEADER_LAUNCH,
    HEADER_SIGNATURE,
    CheckpointCall,
    Output,
    OutputCall,
    StartCall,
    StopCall,
    sign,
    signed,
)
from sidecar.service import Sidecar, boottime

log = logging.getLogger("sidecar")

BODY_LIMIT = 64 * 1024  # bytes
REQUEST_S = 10.0  # for a request to arrive
IDLE_S = 60.0  # that a connection may stay idle, or with half a header
HEALTH_S = 2.0  # for the shim to answer
MOST_GPUS = 1024
MOST_VARIABLES = 64
MOST_S = 86400.0
MOST_LEASE_S = 1e9  # more than thirty years: an endless lease
MOST_GENERATION = 2**53
MOST_OUTPUT = 1024 * 1024  # bytes per response
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
SENTENCES = {
    401: "this call needs a right signature of the coordinator, or the operator's token",
    404: "there is nothing at this path",
    405: "this path does not know that method",
    500: "the sidecar made a mistake; its log says which",
}

Call = StartCall | StopCall | CheckpointCall
T = TypeVar("T")


class ReshapeBody(msgspec.Struct):
    """The body of `POST /v1/reshape`."""

    gpus: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)]
    force: bool = False  # even if work is lost


class SignalBody(msgspec.Struct):
    """The body of `POST /v1/signal`: `checkpoint` or `stop`; the coordinator decides whether it is possible."""

    signal: Annotated[str, msgspec.Meta(pattern="^[a-z]{1,32}$")]
    force: bool = False  # even if work is lost


class Refusal(HTTPError):
    """Ends a request with this status and sentence."""

    def __init__(self, status: int, sentence: str = "") -> None:
        super().__init__(status)
        self.sentence = sentence or SENTENCES[status]


class Endpoint(RequestHandler):
    """Base of all endpoints: signs answers, reports errors, reads bodies."""

    def initialize(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.trusted = False  # whether the caller showed the launch key; if so, the answer is signed too

    def set_default_headers(self) -> None:
        self.clear_header("Server")

    def answer(self, body: bytes) -> None:
        self.set_header("Content-Type", "application/json")
        if self.trusted:
            self.set_header(HEADER_SIGNATURE, sign(self.sidecar.settings.key, "REPLY", self.request.path, body))
        self.finish(body)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error with {"error": sentence}."""
        fault = kwargs.get("exc_info", (None, None, None))[1]
        if status_code == 503:
            self.set_header("Retry-After", "1")
        if status_code == 405:
            self.set_header("Allow", "GET" if type(self).post is RequestHandler.post else "POST")
        sentence = fault.sentence if isinstance(fault, Refusal) else SENTENCES.get(status_code, "this was refused")
        self.answer(msgspec.json.encode({"error": sentence}))

    def read(self, kind: type[T]) -> T:
        """Return the body as `kind`; answer 400 with the field's name if it cannot be parsed."""
        try:
            return msgspec.json.decode(self.request.body, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise Refusal(400, f"the body cannot be used: {error}") from None

    def is_signed(self) -> bool:
        """Return whether the caller holds the launch key. Always compares everything, so timing reveals nothing."""
        settings, headers = self.sidecar.settings, self.request.headers
        rights = (
            _same(headers.get(HEADER_JOB, ""), settings.launch.job_id),
            _same(headers.get(HEADER_LAUNCH, ""), str(settings.launch.launch)),
            signed(
                settings.key,
                self.request.method or "",
                self.request.path,
                self.request.body,
                headers.get(HEADER_SIGNATURE, ""),
            ),
        )
        return all(rights)

    def refuse(self) -> Refusal:
        log.warning("401 on %s for %s", self.request.path, self.request.remote_ip)
        return Refusal(401)


class NotFoundEndpoint(Endpoint):
    """404 for every other path."""

    def prepare(self) -> None:
        raise Refusal(404)


class CommandEndpoint(Endpoint):
    """`POST /v1/start`, `/v1/stop`, `/v1/checkpoint`: forwarded to the shim, which tracks generation and answers."""

    def initialize(self, sidecar: Sidecar, verb: str, kind: type[Call]) -> None:  # type: ignore[override]
        super().initialize(sidecar)
        self.verb, self.kind = verb, kind

    async def post(self) -> None:
        if not self.is_signed():
            raise self.refuse()
        self.trusted = True
        call: Call = self.read(self.kind)
        check(call)
        request = {"do": self.verb, **msgspec.to_builtins(call)}
        if isinstance(call, StartCall):
            await self.sidecar.read_on()
            if not core.running(self.sidecar.state):  # else it is a repeated call
                await self.sidecar.release.begin(call.gpu_ids, self.sidecar.holder)
            request["lease_deadline"] = self.deadline(call)
        if isinstance(call, StopCall) and call.unasked:
            await self.refuse_other_code()
        try:
            answer = await self.sidecar.shim.ask(request)
        except ShimUnreachable as error:
            raise Refusal(503, str(error)) from None
        if not answer.ok or answer.status is None:
            raise Refusal(409 if answer.conflict else 400, answer.error or "the shim refused")
        self.answer(msgspec.json.encode(core.reportable(self.sidecar.state, answer.status)))

    async def refuse_other_code(self) -> None:
        """Refuse to stop a running trainer unasked if its next start would run different code."""
        shim = self.sidecar.state.shim
        if shim is not None and shim.trainer == "running" and (files := await self.sidecar.look_at_source()):
            raise Refusal(409, f"the code has changed since the training was started: {', '.join(files)}")

    def deadline(self, call: StartCall) -> float:
        """Return the lease's deadline; answer 503 if it has passed, unless the call was already carried out."""
        state, now = self.sidecar.state, boottime()
        deadline = core.start_deadline(state, call.lease_s, now)
        done = state.shim is not None and state.shim.command_id == call.command_id
        if deadline - self.sidecar.settings.launch.grace_s <= now and not done:
            raise Refusal(503, "the lease has run out, nothing may start until a heartbeat is answered again")
        return deadline


class OperatorEndpoint(Endpoint):
    """`POST /v1/reshape`, `/v1/signal`: forwarded to the coordinator, which alone allocates GPUs."""

    def initialize(self, sidecar: Sidecar, kind: type[ReshapeBody] | type[SignalBody]) -> None:  # type: ignore[override]
        super().initialize(sidecar)
        self.kind = kind

    async def post(self) -> None:
        if not self.is_operator():
            raise self.refuse()
        asked: ReshapeBody | SignalBody = self.read(self.kind)
        gpus = asked.gpus if isinstance(asked, ReshapeBody) else None
        signal = asked.signal if isinstance(asked, SignalBody) else None
        try:
            said = await self.sidecar.forward_request(gpus, signal, asked.force)
        except CoordinatorRejected as error:
            raise Refusal(error.status, str(error)) from None
        except NoTrustedAnswer as error:
            raise Refusal(503, f"the request was not passed on: {error}") from None
        self.set_status(202)
        self.answer(said)

    def is_operator(self) -> bool:
        """Return whether the caller shows the token that only its owner can read. Without a token file: False.

        On one machine, only from that machine; in a pod, from every address that network policies admit.
        """
        settings = self.sidecar.settings
        try:
            token = (settings.keys / TOKEN).read_text().strip()
        except (OSError, UnicodeError):
            token = ""
        right = _same(self.request.headers.get("Authorization", ""), f"Bearer {token}")
        return right and bool(token) and may_be_operator(settings.launch.host, self.request.remote_ip)


class StatusEndpoint(Endpoint):
    """`GET /v1/status`: a heartbeat for every caller; the end of the output only for the coordinator."""

    async def get(self) -> None:
        self.trusted = self.is_signed()
        if self.sidecar.settings.launch.private and not self.trusted:
            raise self.refuse()
        try:
            answer = await self.sidecar.shim.ask({"do": "status"})
        except ShimUnreachable as error:
            raise Refusal(503, str(error)) from None
        if answer.status is None:
            raise Refusal(503, "the shim did not say how things stand")
        state = self.sidecar.state
        status = core.reportable(state, answer.status)
        if not self.trusted:
            status = msgspec.structs.replace(status, output_tail="")
        self.answer(msgspec.json.encode(self.sidecar.heartbeat(status, state.seq)))


class OutputEndpoint(Endpoint):
    """`POST /v1/output`: a part of the log."""

    async def post(self) -> None:
        if not self.is_signed():
            raise self.refuse()
        self.trusted = True
        call = self.read(OutputCall)
        if not -MOST_OUTPUT <= call.offset < MOST_GENERATION or not 0 < call.limit <= MOST_OUTPUT:
            raise Refusal(
                400,
                f"the body cannot be used: ask for 1 to {MOST_OUTPUT} bytes from offset 0 or more, or from at most "
                f"{MOST_OUTPUT} bytes before the end, as an offset below 0",
            )
        path = Path(self.sidecar.settings.launch.output)
        try:
            piece = await asyncio.to_thread(_output, path, call.offset, call.limit)
        except OSError as error:
            raise Refusal(503, f"the output cannot be read: {error.strerror}") from None
        self.answer(msgspec.json.encode(piece))


class LivenessEndpoint(Endpoint):
    """`GET /livez`: the event loop runs, whatever the state of the shim."""

    def get(self) -> None:
        self.answer(b'{"status":"ok"}')


class HealthEndpoint(Endpoint):
    """`GET /healthz`: the shim answers too."""

    async def get(self) -> None:
        try:
            await self.sidecar.shim.ask({"do": "status"}, HEALTH_S)
        except ShimUnreachable as error:
            raise Refusal(503, str(error)) from None
        self.answer(b'{"status":"ok"}')


class MetricsEndpoint(Endpoint):
    """`GET /metrics`, for Prometheus."""

    def get(self) -> None:
        if self.sidecar.settings.launch.private:
            raise self.refuse()
        from sidecar.endpoints import metrics  # most sidecars are never asked, and each would start later

        self.set_header("Content-Type", metrics.CONTENT_TYPE)
        self.finish(metrics.render(self.sidecar))


def check(call: Call) -> None:
    """Check what the types do not; answer 400 with the field's name."""
    seconds = call.lease_s if isinstance(call, StartCall) else call.grace_s if isinstance(call, StopCall) else 1.0
    bad = {
        "generation": not 0 <= call.generation < MOST_GENERATION,
        "command_id": not 0 < len(call.command_id) <= 500,
        "lease_s" if isinstance(call, StartCall) else "grace_s": not 0
        <= seconds
        <= (MOST_LEASE_S if isinstance(call, StartCall) else MOST_S),
    }
    if isinstance(call, StartCall):
        bad["gpu_ids"] = len(call.gpu_ids) > MOST_GPUS or len(set(call.gpu_ids)) < len(call.gpu_ids)
        bad["checkpoint"] = not _is_plain(call.checkpoint)
        bad["env"] = len(call.env) > MOST_VARIABLES or not all(map(_is_variable, call.env.items()))
    for name, wrong in bad.items():
        if wrong:
            raise Refusal(400, f"the body cannot be used: `{name}` is out of bounds")


def make_server(sidecar: Sidecar) -> HTTPServer:
    own = {"sidecar": sidecar}
    routes: list[Any] = [
        ("/v1/start", CommandEndpoint, {**own, "verb": "start", "kind": StartCall}),
        ("/v1/stop", CommandEndpoint, {**own, "verb": "stop", "kind": StopCall}),
        ("/v1/checkpoint", CommandEndpoint, {**own, "verb": "checkpoint", "kind": CheckpointCall}),
        ("/v1/reshape", OperatorEndpoint, {**own, "kind": ReshapeBody}),
        ("/v1/signal", OperatorEndpoint, {**own, "kind": SignalBody}),
        ("/v1/status", StatusEndpoint, own),
        ("/v1/output", OutputEndpoint, own),
        ("/livez", LivenessEndpoint, own),
        ("/healthz", HealthEndpoint, own),
        ("/metrics", MetricsEndpoint, own),
    ]
    app = Application(
        routes, default_handler_class=NotFoundEndpoint, default_handler_args=own, log_function=lambda _: None
    )
    return _server(app)


def make_reader(settings: SidecarSettings) -> HTTPServer:
    """Return a server for a launch that is gone, of which only the log is left (`reader.py`)."""
    own = {"sidecar": SimpleNamespace(settings=settings)}
    routes: list[Any] = [("/v1/output", OutputEndpoint, own), ("/livez", LivenessEndpoint, own)]
    return _server(
        Application(
            routes, default_handler_class=NotFoundEndpoint, default_handler_args=own, log_function=lambda _: None
        )
    )


def _server(app: Application) -> HTTPServer:
    return FewConnectionsServer(
        app, max_body_size=BODY_LIMIT, max_header_size=16 * 1024, body_timeout=REQUEST_S, idle_connection_timeout=IDLE_S
    )


def may_be_operator(host: str, remote: str | None) -> bool:
    """Return whether a caller at `remote` may use a token at a sidecar that listens on `host`."""
    return not _is_loopback(host) or _is_loopback(remote)


def _output(path: Path, offset: int, limit: int) -> Output:
    """Return a part of the output; empty while there is no file, before the trainer starts.

    Training code can write to that folder: a symlink or pipe there is neither followed nor waited for.
    """
    return Output(*kept_output.read(str(path), offset, limit, kept_output.open_as_it_is))


def _is_plain(name: str | None) -> bool:
    """Return whether a checkpoint's name stays inside the job's folder."""
    return name is None or (0 < len(name) <= 200 and name not in (".", "..") and name.isprintable() and "/" not in name)


def _is_variable(given: tuple[str, str]) -> bool:
    """Return whether it is a valid environment variable."""
    return VARIABLE.fullmatch(given[0]) is not None and "\0" not in given[1]


def _is_loopback(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode("utf-8", "replace"))
