"""Base of all handlers: methods, authentication, body limits, calls into the coordinator, error bodies.

Promises that every answer to a well-formed request that is not a success is
`{"error": {"sentence", "problems", "id"}}`, with an id that stands in the log, and that neither
token nor query is ever logged.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from coordinator.api.services import Services, UserServices
from coordinator.caller import Caller
from coordinator.errors import Conflict, Rejected, ReshapeError, Transient, Unauthorized
from coordinator.http import wire
from coordinator.http.auth import Failures, bearer, is_bearer
from coordinator.http.cluster_tenants import ClusterTenants
from coordinator.http.server_limits import BODY_LIMIT
from coordinator.http.shared_machine import SharedMachine

log = logging.getLogger("reshape.http")
T = TypeVar("T")

CALL_S = 10.0  # seconds that a request may wait for the coordinator (`reliability.md` 6)
RETRY_AFTER_S = 5
MOST_STREAMS = 200  # of events and open pages
MOST_STREAMS_OF_ONE = 50  # of one user of a shared machine or a cluster
METHODS = ("GET", "POST", "DELETE")
ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}  # headers of each answer

SENTENCES = {
    400: "The request is malformed.",
    404: "There is nothing at this address; GET /v1/openapi.yaml lists what there is.",
    405: "This address does not answer to that method; the Allow header lists those that it does.",
    429: "Authentication from your address failed too often; wait ten seconds and use the right token.",
    500: "The coordinator made a mistake; its log says which one, under the id given here.",
}


@stream_request_body
class Handler(RequestHandler):
    """Base of all handlers. The body is taken only after the caller has been authenticated."""

    public: ClassVar[bool] = False  # answers without a token
    body_limit: ClassVar[int] = BODY_LIMIT
    threads: ClassVar[str] = "threads"  # or "quick_threads", which calls that may wait for the store never fill

    def __init__(self, application: Application, request: HTTPServerRequest, **kwargs: Any) -> None:
        self._body = bytearray()
        self._too_long = False
        self._caller: Caller | None = None
        self._is_operator = False
        super().__init__(application, request, **kwargs)

    @property
    def all_services(self) -> Services:
        """Return whatever there is, for addresses that prove their callers otherwise, or tell nothing of jobs."""
        services: Services = self.settings["services"]
        return services

    @property
    def shared(self) -> SharedMachine | None:
        """Return what is known of the users of a shared machine; None if all callers are one."""
        shared: SharedMachine | None = self.settings["shared"]
        return shared

    @property
    def tenants(self) -> ClusterTenants | None:
        """Return what is known of the users of a cluster; None elsewhere."""
        tenants: ClusterTenants | None = self.settings["tenants"]
        return tenants

    @property
    def knows_callers(self) -> bool:
        """Return whether the server knows which user calls, so that nobody need say it."""
        return self.shared is not None or self._caller is not None

    @property
    def caller(self) -> Caller:
        """Return who calls on a shared machine or a cluster; raises `Unauthorized` if that is not known."""
        if self._caller is None:
            raise Unauthorized("It is not known who calls.")
        return self._caller

    @property
    def services(self) -> UserServices:
        """Return the services that judge what the caller may ask for."""
        if self.shared is not None or self._caller is not None:
            return self.all_services.of_caller(self.caller)
        if not self._is_operator:  # whoever is not known gets nothing, not everything
            raise Unauthorized("It is not known who calls.")
        return self.all_services

    @property
    def body(self) -> bytes:
        """The whole request body; `Rejected` if it was longer than this address takes."""
        self._refuse_long()
        return bytes(self._body)

    async def prepare(self) -> None:
        if self.request.method not in self.allowed():
            raise HTTPError(405)
        if not self.public and self.request.method != "OPTIONS" and not await self.lets_in():
            raise Unauthorized("This needs the coordinator's token, sent as `Authorization: Bearer TOKEN`.")
        if not self.public:
            who = "the holder of the token" if self._caller is None else f"user {self._caller.name}"
            note_who_asks(self.settings, self.request.connection, who)
        length = self.request.headers.get("Content-Length", "0")
        self._too_long = length.isascii() and length.isdigit() and int(length[:20]) > self.body_limit
        self._refuse_long()

    def data_received(self, chunk: bytes) -> None:
        self._too_long = self._too_long or len(self._body) + len(chunk) > self.body_limit
        if not self._too_long:
            self._body += chunk

    def read(self) -> dict[str, Any]:
        """The JSON object in the body."""
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Rejected("The body must be JSON, sent with the header `Content-Type: application/json`.", 415)
        return wire.read_object(self.body)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a method of the coordinator in a thread, so that a slow store never blocks the event loop."""
        loop = asyncio.get_running_loop()
        try:
            called = loop.run_in_executor(self.settings[self.threads], function, *args)
        except RuntimeError:  # its threads have ended, and the process ends
            raise Transient("The coordinator is ending; try again once it runs.") from None
        try:
            return await asyncio.wait_for(called, CALL_S)
        except TimeoutError:
            raise Transient("The coordinator is busy or its store does not answer; try again soon.") from None

    def claim_stream(self, refusal: str) -> set[Handler]:
        """Return the streams that are open, to add this one; `Transient` where there are too many, or of this user."""
        streams: set[Handler] = self.settings["streams"]
        of_caller = 0 if self._caller is None else sum(one._caller == self._caller for one in streams)
        if len(streams) >= MOST_STREAMS or of_caller >= MOST_STREAMS_OF_ONE:
            raise Transient(refusal)
        return streams

    def answer(self, value: Any, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.write(wire.write(value))

    async def head(self, *args: str) -> None:
        done: Awaitable[None] | None = self.get(*args)
        if done is not None:
            await done

    def options(self, *args: str) -> None:
        self.set_header("Allow", ", ".join(self.allowed()))
        self.set_status(204)

    @classmethod
    def allowed(cls) -> list[str]:
        """The methods that this address answers to."""
        own = [m for m in METHODS if getattr(cls, m.lower()) is not getattr(RequestHandler, m.lower())]
        return [*own, *(["HEAD"] if "GET" in own else []), "OPTIONS"]

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in ALWAYS.items():
            self.set_header(name, value)

    def compute_etag(self) -> None:
        return None

    def log_exception(self, *info: Any) -> None:
        """Do nothing: `write_error` logs, with the id."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        status, sentence, problems = _shown(error, status_code)
        if status == 401 and self._guessed_too_often():
            status, sentence = 429, SENTENCES[429]
        error_id = secrets.token_hex(6)
        self._log_error(status, error_id, sentence, error)
        self.set_status(status)
        self._explain(status)
        self.show_error(status, sentence, problems, error_id)

    def show_error(self, status: int, sentence: str, problems: Sequence[str], error_id: str) -> None:
        """Write an error's body."""
        self.set_header("Content-Type", "application/json")
        self.finish(wire.write({"error": {"sentence": sentence, "problems": problems, "id": error_id}}))

    def _explain(self, status: int) -> None:
        """Set the headers that some error statuses require."""
        if status == 405:
            self.set_header("Allow", ", ".join(self.allowed()))
        elif status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        elif status in (429, 503):
            self.set_header("Retry-After", str(RETRY_AFTER_S if status == 503 else 10))

    def _log_error(self, status: int, error_id: str, sentence: str, error: BaseException | None) -> None:
        level = logging.ERROR if status == 500 else logging.DEBUG if status == 429 else logging.INFO
        where = (self.request.method, self.request.path, status, error_id, sentence)
        log.log(level, "%s %s answered %d, error %s: %s", *where, exc_info=error if status == 500 else None)

    def _refuse_long(self) -> None:
        if self._too_long:
            raise Rejected(f"The body is larger than {self.body_limit // 1024} KiB.", 413)

    def has_access(self) -> bool:
        """True if the caller may ask here."""
        if self.shared is None:
            self._is_operator = is_bearer(self.request.headers.get("Authorization"), self.settings["token"])
            return self._is_operator
        self._caller = self.shared.caller_of(self.request, self.settings["token"])
        return self._caller is not None

    async def lets_in(self) -> bool:
        """True if the caller may ask here, by the API server's word where the token is one of the cluster."""
        return self.has_access() or await self.is_tenant(self.cluster_token)

    async def still_lets_in(self) -> bool:
        """Return the same in the middle of an answer: who comes again is told why not."""
        try:
            return await self.lets_in()
        except (Unauthorized, Transient):
            return False

    @property
    def cluster_token(self) -> str:
        """Return the token of a cluster by which this is asked; empty if there is none."""
        return bearer(self.request.headers.get("Authorization"))

    async def is_tenant(self, token: str) -> bool:
        """Return whether a user of the cluster calls by this token, and note which. `Unauthorized` if it is refused."""
        tenants = self.tenants
        if tenants is None or not token:
            return False
        self._caller = tenants.known(token)
        # The API server is spared further guesses, and whoever came in lately is not kept out by those of others.
        if self._caller is None and (tenants.was_accepted(token) or not self._has_guessed_too_often()):
            loop = asyncio.get_running_loop()
            try:
                self._caller = await asyncio.wait_for(
                    loop.run_in_executor(tenants.threads, tenants.caller_of, token), CALL_S
                )
            except TimeoutError:
                raise Transient("The API server does not say who calls; try again soon.") from None
        return self._caller is not None

    def _has_guessed_too_often(self) -> bool:
        failures: Failures = self.settings["failures"]
        return failures.too_many(self.request.remote_ip or "", asyncio.get_running_loop().time())

    def _guessed_too_often(self) -> bool:
        failures: Failures = self.settings["failures"]
        return failures.add(self.request.remote_ip or "", asyncio.get_running_loop().time())


class NothingHandler(Handler):
    """Any other address: 404."""

    public = True

    async def prepare(self) -> None:
        raise HTTPError(404)


def _shown(error: BaseException | None, status: int) -> tuple[int, str, list[str]]:
    """Status, sentence and problems for an exception; the text of a foreign one is never shown."""
    match error:
        case Rejected():
            return error.status, str(error), list(error.problems)
        case Unauthorized():
            return 401, str(error), []
        case Conflict():
            return 409, str(error), []
        case Transient():
            return 503, str(error), []
        case ReshapeError():
            return 500, str(error), []
    return status, SENTENCES.get(status, SENTENCES[400 if status < 500 else 500]), []


def note_who_asks(settings: Mapping[str, Any], connection: Any, who: str) -> None:
    """Note who has opened a connection: where there are too many, those of whoever has most are closed."""
    stream: IOStream = connection.stream
    settings["opened_by"][stream] = who


def log_access(request: HTTPServerRequest, status: int) -> None:
    """Log one line of a request, without the query, which may hold a token."""
    log.debug("%s %s %d %.1f ms", request.method, request.path, status, 1000 * request.request_time())
