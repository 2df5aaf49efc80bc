"""Base of the dashboard's handlers: sessions, headers that forbid everything but our own files, errors as pages."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from coordinator import dashboard
from coordinator.adapters.clock import SystemClock
from coordinator.dashboard.pages import TABS, Page, Pages
from coordinator.errors import Rejected, Unauthorized
from coordinator.http.base import Handler
from coordinator.http.dashboard.live import LivePages
from coordinator.http.dashboard.login import OneTimeLinks, Sessions, TokenSessions

STATIC = Path(dashboard.__file__).with_name("static")
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
ZONE_COOKIE = "reshape-zone"  # set by static/dashboard.js
LONGEST_ZONE = 64
FOREIGN = "The form did not come from this page, or from before you logged in: go back, reload the page and try again."
UNKNOWN = "This browser is not logged in, or its time is over."


@dataclass
class Dashboard:
    """What the handlers of one application share."""

    token: str
    pages: Pages
    links: OneTimeLinks = field(default_factory=OneTimeLinks)
    clock: SystemClock = field(default_factory=SystemClock)
    # Pages are made apart from the API's calls: many of them must not keep a sidecar or an operator waiting.
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "http-pages"))
    simulations: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "http-what-if"))

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.token)
        self.token_sessions = TokenSessions()
        self.live = LivePages()


@dataclass(frozen=True)
class Asset:
    """A file of ours that pages load; `version` changes with its contents."""

    kind: str
    contents: bytes

    @property
    def version(self) -> str:
        return hashlib.sha256(self.contents).hexdigest()[:12]


ASSETS = {path.name: Asset(KINDS[path.suffix], path.read_bytes()) for path in STATIC.iterdir() if path.suffix in KINDS}


def asset(name: str) -> str:
    """The address of one, which may be kept for ever."""
    return f"/static/{name}?v={ASSETS[name].version}"


class PageHandler(Handler):
    """Answers only to a session, and with pages."""

    @property
    def dashboard(self) -> Dashboard:
        shared: Dashboard = self.settings["dashboard"]
        return shared

    @property
    def session(self) -> str | None:
        """The session's cookie, valid or not."""
        return self.get_cookie(self.dashboard.sessions.cookie)

    def has_access(self) -> bool:
        sessions = self.dashboard.sessions
        wall = self.dashboard.clock.wall()
        if self.shared is None:
            self._is_operator = sessions.holds(self.session, wall)
            return self._is_operator or self._is_known_tenant()
        uid = sessions.user_of(self.session, wall)
        if uid is None or uid != self.shared.peer(self.request):  # a cookie is worth nothing to another user
            return False
        self._caller = self.shared.known(uid)
        return True

    def _is_known_tenant(self) -> bool:
        """Return whether a user of the cluster asks whose token the API server knew a moment ago."""
        found = None
        if self.tenants is not None and (token := self.cluster_token):
            with contextlib.suppress(Unauthorized):
                found = self.tenants.known(token)
        self._caller = found or self._caller
        return found is not None

    @property
    def cluster_token(self) -> str:
        return self.dashboard.token_sessions.token_of(self.session, asyncio.get_running_loop().time())

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Referrer-Policy", "same-origin")  # with none, browsers hide where a form comes from
        self.set_header("X-Frame-Options", "DENY")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")

    @property
    def zone(self) -> str:
        """The reader's time zone, as the browser names it; empty before it has."""
        return self.get_cookie(ZONE_COOKIE, "")[:LONGEST_ZONE]

    async def page(self, address: str) -> Page:
        loop = asyncio.get_running_loop()
        source = self.services
        pages = self.dashboard.pages.in_zone(self.zone)
        return await loop.run_in_executor(self.dashboard.threads, pages.page, source, address)

    def show(
        self,
        title: str,
        body: str = "",
        page: Page | None = None,
        notice: str = "",
        forward: str = "",
        foot: str = "",
        actions: str = "",
    ) -> None:
        """Write a whole page; one without `page` is for those who are not logged in, too.

        `actions`: forms below the head of the page, `foot`: below all parts.
        """
        self.set_header("Content-Type", "text/html; charset=utf-8")
        knows = page is not None or (self.has_access() and not forward)
        proof = self.dashboard.sessions.proof(self.session) if knows else ""
        about: dict[str, Any] = {
            "title": title,
            "page": page,
            "navigates": knows,
            "body": body,
            "notice": notice,
            "forward": forward,
            "foot": foot,
            "actions": actions,
        }
        self.write(self.dashboard.pages.html("layout.html", asset=asset, tabs=TABS, csrf=proof, **about))

    def form(self) -> dict[str, str]:
        """The fields of a form that was sent; `Rejected` if it did not come from a page of this session."""
        fields = self.fields_from_here()
        if not self.dashboard.sessions.proves(self.session, fields.get("csrf", "")):
            raise Rejected(FOREIGN, 403)
        return fields

    def fields_from_here(self) -> dict[str, str]:
        """The fields of a form that was sent; `Rejected` if a browser says that it comes from elsewhere."""
        # A browser tells where a form came from; what another site or port sends is refused even with a proof.
        # The scheme is left out: behind a proxy with TLS pages are https, while we are asked by http.
        origin = self.request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != self.request.host:
            raise Rejected(FOREIGN, 403)
        return dict(parse_qsl(self.body.decode("utf-8", "replace")))

    def why_not(self, _: str) -> str:
        """Tell people, who know no bearer token, why they are not let in; given what callers of the API are told."""
        return UNKNOWN

    def show_error(self, status: int, sentence: str, problems: Sequence[str], error_id: str) -> None:
        if status == 401:
            self.show(
                "Log in",
                self.dashboard.pages.html(
                    "login.html", sentence=self.why_not(sentence), takes_tokens=self.tenants is not None
                ),
            )
        else:
            title = "Not found" if status == 404 else f"Error {status}"
            self.show(title, notice=" ".join([sentence, *problems, f"(error {error_id})"]))
        self.finish()
