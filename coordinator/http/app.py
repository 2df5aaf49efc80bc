"""The coordinator's HTTP API: its addresses, and a server with bounded patience for it.

`coordinator.service` starts it; tests start it around a fake facade. What it answers is described
by `openapi.yaml`, which `tests/api/test_openapi.py` holds it to.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from coordinator.http import events, extender, heartbeats, jobs, nodes, profiles
from coordinator.http.auth import Failures
from coordinator.http.base import Handler, Nothing
from coordinator.http.facade import Facade

OPENAPI = Path(__file__).with_name("openapi.yaml").read_bytes()
MAX_BODY = 2 * profiles.Profiles.body_limit  # beyond it the server cuts the connection without an error body
BODY_S = 10.0  # how long a request's body may take to arrive
IDLE_S = 60.0  # how long a connection may stand open without a request
LARGEST_HEADER = 16 * 1024  # bytes

log = logging.getLogger("reshape.http")


class Health(Handler):
    public = True
    threads = "quick_threads"

    async def get(self) -> None:
        health = await self.call(self.facade.health)
        self.answer(health, 200 if health["ok"] else 503)


class Ready(Handler):
    """Whether calls shall come here: who is not ready gets no heartbeats, so trouble alone is no reason."""

    public = True

    def get(self) -> None:
        acts = self.facade.acts()
        sentence = "It acts." if acts else "Another coordinator acts, or none can now."
        self.answer({"ok": acts, "sentence": sentence}, 200 if acts else 503)


class Live(Handler):
    """Whether this process still turns."""

    public = True

    def get(self) -> None:
        self.answer({"ok": True, "sentence": "It is alive."})


class Metrics(Handler):
    public = True
    threads = "quick_threads"

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.write(await self.call(self.facade.metrics))


class OpenApi(Handler):
    public = True

    def get(self) -> None:
        self.set_header("Content-Type", "application/yaml")
        self.write(OPENAPI)


ID = f"([^/]{{1,{jobs.LONGEST_ID}}})"
ADDRESSES: list[tuple[str, type[RequestHandler]]] = [
    (r"/v1/jobs", jobs.Jobs),
    (rf"/v1/jobs/{ID}", jobs.Job),
    (rf"/v1/jobs/{ID}/reshape", jobs.Reshape),
    (rf"/v1/jobs/{ID}/logs", jobs.Logs),
    (r"/v1/gpus", jobs.Gpus),
    (r"/v1/nodes", jobs.Nodes),
    (rf"/v1/nodes/{ID}", nodes.Node),
    (r"/v1/decisions", jobs.Decisions),
    (rf"/v1/decisions/{ID}", jobs.Decision),
    (r"/v1/events", events.Events),
    (r"/v1/profiles/([^/]+)", profiles.Profiles),
    (r"/v1/heartbeats", heartbeats.Heartbeats),
    (r"/v1/wishes", heartbeats.Wishes),
    (r"/v1/extender/([A-Za-z]{1,40})", extender.Extender),
    (r"/v1/openapi\.yaml", OpenApi),
    (r"/healthz", Health),
    (r"/readyz", Ready),
    (r"/livez", Live),
    (r"/metrics", Metrics),
]


def make_app(facade: Facade, token: str) -> Application:
    """The API over `facade`; callers need `token`, except sidecars and whoever reads health and metrics."""
    return Application(
        ADDRESSES,
        default_handler_class=Nothing,
        log_function=_log_access,
        facade=facade,
        token=token,
        failures=Failures(),
        streams=set(),
        large=set(),
        threads=ThreadPoolExecutor(8, "http"),
        quick_threads=ThreadPoolExecutor(2, "http-quick"),
    )


def make_server(app: Application) -> HTTPServer:
    """A server for `app` with bounded patience, still without a socket (`add_socket`).

    Stop it with `server.stop()` and `await server.close_all_connections()`, which ends the event streams, too.
    """
    return HTTPServer(
        app, max_body_size=MAX_BODY, max_header_size=LARGEST_HEADER, body_timeout=BODY_S, idle_connection_timeout=IDLE_S
    )


def _log_access(handler: RequestHandler) -> None:
    """One line per request, without the query: somebody may have put a token there."""
    request = handler.request
    milliseconds = 1000 * request.request_time()
    log.debug("%s %s %d %.1f ms", request.method, request.path, handler.get_status(), milliseconds)
