"""Addresses of the coordinator's HTTP API and dashboard, and a server for it with timeouts and size limits.

`reshape/services` starts it. `openapi.yaml` describes the API's answers; `tests/api/test_openapi.py` checks them
against it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.web import Application, RequestHandler

from coordinator.adapters.clock import time_in_zone
from coordinator.api.services import Services
from coordinator.dashboard.pages import Pages
from coordinator.http import events, extender, jobs, profiles, reservations, shares, signed, user_tokens
from coordinator.http.auth import Failures
from coordinator.http.base import Handler, NothingHandler, log_access
from coordinator.http.cluster_tenants import ClusterTenants
from coordinator.http.dashboard import handlers as dashboard
from coordinator.http.dashboard.base_page import Dashboard
from coordinator.http.heartbeats.heartbeat_request import HEARTBEATS, is_heartbeat
from coordinator.http.server_limits import limited_server
from coordinator.http.shared_machine import SharedMachine

OPENAPI = Path(__file__).with_name("openapi.yaml").read_bytes()
MAX_BODY = 2 * profiles.ProfilesHandler.body_limit  # beyond it the server cuts the connection without an error body


class HealthHandler(Handler):
    public = True
    threads = "quick_threads"

    async def get(self) -> None:
        health = await self.call(self.all_services.status.health)
        self.answer(health, 200 if health["ok"] else 503)


class ReadyHandler(Handler):
    """Reports if it acts. Not `/healthz`: without readiness it would get no heartbeats, even in trouble."""

    public = True

    def get(self) -> None:
        acts = self.all_services.status.acts()
        sentence = "It acts." if acts else "Another coordinator acts, or none can now."
        self.answer({"ok": acts, "sentence": sentence}, 200 if acts else 503)


class LiveHandler(Handler):
    """Reports that this process answers."""

    public = True

    def get(self) -> None:
        self.answer({"ok": True, "sentence": "It is alive."})


class MetricsHandler(Handler):
    public = True
    threads = "quick_threads"

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.write(await self.call(self.all_services.status.metrics))


class OpenApiHandler(Handler):
    public = True

    def get(self) -> None:
        self.set_header("Content-Type", "application/yaml")
        self.write(OPENAPI)


ID = f"([^/]{{1,{jobs.LONGEST_ID}}})"
ADDRESSES: list[tuple[str, type[RequestHandler]]] = [
    (HEARTBEATS, signed.HeartbeatHandler),  # all that `KnownHeartbeat` does not answer
    (r"/v1/jobs", jobs.JobsHandler),
    (rf"/v1/jobs/{ID}", jobs.JobHandler),
    (rf"/v1/jobs/{ID}/reshape", jobs.ReshapeHandler),
    (rf"/v1/jobs/{ID}/remove", jobs.RemoveHandler),
    (rf"/v1/jobs/{ID}/rerun", jobs.RerunHandler),
    (r"/v1/slamls", jobs.SlamlsHandler),
    (rf"/v1/slamls/{ID}", jobs.SlamlHandler),
    (r"/v1/policy", jobs.PolicyHandler),
    (r"/v1/shares", shares.SharesHandler),
    (r"/v1/usage", shares.UsageHandler),
    (r"/v1/reservations", reservations.ReservationsHandler),
    (rf"/v1/reservations/{ID}", reservations.ReservationHandler),
    (rf"/v1/jobs/{ID}/suspend", jobs.SuspendHandler),
    (rf"/v1/jobs/{ID}/resume", jobs.ResumeHandler),
    (rf"/v1/jobs/{ID}/priority", jobs.PriorityHandler),
    (rf"/v1/jobs/{ID}/logs", jobs.LogsHandler),
    (rf"/v1/jobs/{ID}/curve", jobs.CurveHandler),
    (rf"/v1/jobs/{ID}/curve\.svg", jobs.CurvePictureHandler),
    (r"/v1/gpus", jobs.GpusHandler),
    (r"/v1/nodes", jobs.NodesHandler),
    (rf"/v1/nodes/{ID}", signed.NodeHandler),
    (rf"/v1/nodes/{ID}/drain", jobs.DrainHandler),
    (rf"/v1/nodes/{ID}/undrain", jobs.UndrainHandler),
    (r"/v1/snapshot", jobs.SnapshotHandler),
    (r"/v1/journal", jobs.JournalHandler),
    (r"/v1/decisions", jobs.DecisionsHandler),
    (rf"/v1/decisions/{ID}", jobs.DecisionHandler),
    (r"/v1/events", events.EventsHandler),
    (r"/v1/profiles/([^/]+)", profiles.ProfilesHandler),
    (r"/v1/wishes", signed.ForwardedRequestHandler),
    (r"/v1/extender/([A-Za-z]{1,40})", extender.ExtenderHandler),
    (r"/v1/logins", dashboard.LinkHandler),
    (r"/v1/tokens", user_tokens.TokensHandler),
    (rf"/v1/tokens/{ID}", user_tokens.TokenHandler),
    (r"/v1/openapi\.yaml", OpenApiHandler),
    (r"/healthz", HealthHandler),
    (r"/readyz", ReadyHandler),
    (r"/livez", LiveHandler),
    (r"/metrics", MetricsHandler),
]

NOT_SHARED: tuple[type[RequestHandler], ...] = (
    signed.ForwardedRequestHandler,
    signed.NodeHandler,
    extender.ExtenderHandler,
)
"""Addresses that a shared machine lacks: it has no agents and no Volcano, and its sidecars know no operator."""


class _Application(Application):
    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        if is_heartbeat(str(request.method), request.path, request.headers):
            return signed.KnownHeartbeat(self, request)
        return super().find_handler(request, **kwargs)


def make_app(
    services: Services,
    token: str,
    shared: SharedMachine | None = None,
    tenants: ClusterTenants | None = None,
) -> Application:
    """Make API and dashboard over `services`; callers need `token`, except for signed messages, health and metrics.

    `shared`: the users of the machine, each of whom has rights of an own; `token` is root's then.
    `tenants`: the users of a cluster, likewise; `token` is the operator's.
    """
    addresses = ADDRESSES
    if shared is not None:
        addresses = [(address, handler) for address, handler in ADDRESSES if handler not in NOT_SHARED]
    return _Application(
        [*addresses, *dashboard.ADDRESSES],
        default_handler_class=NothingHandler,
        log_function=lambda handler: log_access(handler.request, handler.get_status()),
        services=services,
        token=token,
        shared=shared,
        tenants=tenants,
        failures=Failures(),
        streams=set(),
        large=set(),
        opened_by=WeakKeyDictionary(),
        dashboard=Dashboard(token, Pages(time_in_zone)),
        threads=ThreadPoolExecutor(8, "http"),
        quick_threads=ThreadPoolExecutor(2, "http-quick"),
    )


def make_server(app: Application) -> HTTPServer:
    """A server for `app` with timeouts and size limits, still without a socket (`add_socket`).

    Stop it with `server.stop()` and `await server.close_all_connections()`, which ends the event streams, too.
    """
    return limited_server(app, MAX_BODY, app.settings.get("opened_by"))
