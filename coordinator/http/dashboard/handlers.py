"""Handlers of the dashboard's addresses: pages, what changes in them, login and logout, our own files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from adaptive_scheduler.settings import QueueOrder
from coordinator.dashboard import new_job
from coordinator.dashboard.gantt import gantt
from coordinator.dashboard.pages import Page, job_href, what_if_examples
from coordinator.errors import Rejected, Unauthorized
from coordinator.http import wire
from coordinator.http.base import Handler
from coordinator.http.dashboard.base_page import ASSETS, PageHandler
from coordinator.http.dashboard.login import LINK_S, OPERATOR, SESSION_S, LinkUser
from coordinator.http.events import KEEP_ALIVE_S, RETRY_MS
from coordinator.http.jobs import LOG_CHUNK
from coordinator.policies import POLICIES

ORDERS = get_args(QueueOrder)
NOT_HERE = (
    "This dashboard is for browsers of this machine, also by `ssh -L`, and for no proxy: their user is asked for."
)
NO_TOKEN = "Paste the token of your account; it was not sent, or others guess too often from your address."
ONCE = "This link is none of ours, has been used, or is too old."


class DashboardHandler(PageHandler):
    """Every page."""

    async def get(self, *_: str) -> None:
        page = await self.page(self.request.uri or "/")
        # Forms are no parts of the page: they hold a proof of this session.
        fill, proof = self.dashboard.pages.html, self.dashboard.sessions.proof(self.session)
        actions = ""
        if page.job is not None and page.job.get("closed"):
            actions = fill("job/again.html", view=page.job, csrf=proof)
        elif page.job is not None and not page.job.get("finish_ts"):
            actions = fill("job/actions.html", view=page.job, csrf=proof)
        foot = fill("node_actions.html", nodes=page.nodes, csrf=proof) if page.nodes else ""
        self.show(page.title, page=page, foot=foot, actions=actions)


class JobActionHandler(PageHandler):
    """An action on one job, asked for by a form; the job's page then shows what comes of it."""

    async def post(self, job_id: str, action: str) -> None:
        fields = self.form()
        if action == "reshape":
            gpus = wire.whole("gpus", fields.get("gpus") or None, 0, 1, 65536) or None
            await self.call(self.services.operator.request, job_id, gpus, None, fields.get("force") == "yes")
        else:
            services = self.services
            act = services.submissions.rerun if action == "rerun" else getattr(services.operator, action)
            await self.call(act, job_id)
        self.redirect(job_href(job_id), status=303)


class SubmitHandler(PageHandler):
    """Submits a job by a form; the job's page then shows what becomes of it."""

    async def get(self) -> None:
        await self._ask({})

    async def post(self) -> None:
        fields = self.form()
        try:
            job = await self.call(self.services.submissions.submit, new_job.document(fields))
        except Rejected as refused:
            self.set_status(refused.status)
            await self._ask(fields, " ".join([str(refused), *refused.problems[1:]]))
        else:
            self.redirect(job_href(job["job_id"]), status=303)

    async def _ask(self, given: Mapping[str, str], notice: str = "") -> None:
        page = await self.page("/submit")
        shared = self.dashboard
        types = sorted({node["gpu_type"] for node in page.nodes} - {None})
        proof = shared.sessions.proof(self.session)
        self.show(page.title, shared.pages.html("submit_form.html", csrf=proof, given=given, types=types), page, notice)


class LogFileHandler(PageHandler):
    """Sends all that a job's training wrote as a file, piece by piece."""

    async def get(self, job_id: str) -> None:
        piece, offset = await self.call(self.services.output.logs, job_id, 0, LOG_CHUNK)
        name = re.sub(r"[^\w.-]", "_", job_id, flags=re.ASCII)[:100]
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.log"')
        with contextlib.suppress(StreamClosedError):
            while piece:
                self.write(piece)
                await self.flush()
                piece, offset = await self.call(self.services.output.logs, job_id, offset, LOG_CHUNK)


class NoPageHandler(PageHandler):
    """Any address without a page: it says so, to a browser with the way to the others for who is logged in."""

    public = True

    def get(self) -> None:
        raise Rejected("There is no page at this address; GET /v1/openapi.yaml lists those of the API.", 404)

    def show_error(self, status: int, sentence: str, problems: Sequence[str], error_id: str) -> None:
        if "text/html" in self.request.headers.get("Accept", ""):
            super().show_error(status, sentence, problems, error_id)
        else:
            Handler.show_error(self, status, sentence, problems, error_id)


class DrainFormHandler(PageHandler):
    """Drains a node, or gives it work again."""

    async def post(self) -> None:
        fields = self.form()
        await self.call(self.services.drains.drain, fields.get("node", ""), fields.get("drained") == "yes")
        self.redirect("/", status=303)


class WhatIfHandler(PageHandler):
    """Asks what would happen, by a form; nothing is changed."""

    async def get(self) -> None:
        pages = self.dashboard.pages.in_zone(self.zone)
        await self._answer({}, {"opening": await self.call(pages.what_if_opening, self.services)})

    async def post(self) -> None:
        fields, loop = self.form(), asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self.dashboard.simulations, self.services.simulations.what_if, fields)
            found = await call
            picture = gantt(found["times"])
            answer = self.dashboard.pages.html("what_if/answer.html", answer=found, picture=picture)
        except Rejected as refused:
            self.set_status(refused.status)
            await self._answer(fields, {}, str(refused))
        else:
            await self._answer(fields, {"answer": answer})

    async def _answer(self, given: Mapping[str, str], parts: Mapping[str, str], notice: str = "") -> None:
        page, shared = await self.page("/what-if"), self.dashboard
        asked = shared.pages.html(
            "what_if/form.html",
            csrf=shared.sessions.proof(self.session),
            given=given,
            nodes=page.nodes,
            types=sorted({node["gpu_type"] for node in page.nodes} - {None}),
            policies=POLICIES,
            orders=ORDERS,
            examples=what_if_examples(page.nodes),
        )
        self.show(page.title, asked, replace(page, parts={**page.parts, **parts}), notice)


class ChangesHandler(PageHandler):
    """Follows the page at the address `of`: sends its parts if they differ from `version`, then each change."""

    def initialize(self) -> None:
        self._news, self._closed = asyncio.Event(), False

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._closed = True
        self._news.set()

    async def get(self) -> None:
        address = self.get_query_argument("of", "/")
        version = self.request.headers.get("Last-Event-ID") or self.get_query_argument("version", "")
        streams = self.claim_stream("Too many pages are open already; close some, then reload.")
        first = await self.page(address)  # an error of it is this answer's
        streams.add(self)
        try:
            await self._follow(address, first if first.version == version else None)
        except StreamClosedError:
            pass
        finally:
            streams.discard(self)

    async def _follow(self, address: str, shown: Page | None) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")  # nginx would hold the events back
        self.write(f"retry: {RETRY_MS}\n\n")
        await self.flush()
        # Those who look at one page share it, but for users of a machine or a cluster: each sees a page of an own.
        whose = "" if self._is_operator else f"{self.session} "
        looking = self.dashboard.live.looking(
            f"{whose}{self.zone} {address}", self._news, lambda: self.page(address), self.services.history
        )
        async with looking as page:
            while await self.still_lets_in() and not page.failed and not self._closed:
                self._news.clear()
                newest = page.newest
                if newest is not None and newest is not shown:
                    self._send(newest, shown)
                    shown = newest
                    await self.flush()
                try:
                    await asyncio.wait_for(self._news.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    self.write(": keep-alive\n\n")
                    await self.flush()

    def _send(self, newest: Page, shown: Page | None) -> None:
        before = shown.parts if shown else {}
        parts = {name: part for name, part in newest.parts.items() if before.get(name) != part}
        if parts:
            self.write(f"id: {newest.version}\nevent: parts\ndata: {json.dumps(parts)}\n\n")

    async def head(self, *_: str) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")


class LinkHandler(Handler):
    """Makes a one-time link for callers of the API."""

    def post(self) -> None:
        links = self.settings["dashboard"].links
        now = asyncio.get_running_loop().time()
        if self.shared is None:
            user = OPERATOR if self._is_operator else LinkUser(token=self.cluster_token, name=self.caller.name)
            self.answer({"path": f"/login?once={links.make(now, user)}", "lasts_s": LINK_S})
        else:
            path = f"/login?once={links.make(now, LinkUser(self.caller.uid))}"
            self.answer({"path": path, "lasts_s": LINK_S, "url": self.shared.url})


class LoginHandler(PageHandler):
    """Exchanges a one-time link, or on a cluster a token, for a session."""

    public = True

    async def get(self) -> None:
        dashboard = self.dashboard
        once = self.get_query_argument("once", "")
        uid = None
        if self.shared is not None and (uid := self.shared.peer(self.request)) is None:
            raise Unauthorized(NOT_HERE)
        user = dashboard.links.redeem(once, asyncio.get_running_loop().time(), uid)
        if user is None:
            raise Unauthorized(ONCE)
        if user.token:
            await self._let_in_by_token(user.token)
        else:
            self._let_in(dashboard.sessions.begin(dashboard.clock.wall(), uid))

    async def post(self) -> None:
        if self.tenants is None:
            raise HTTPError(405)
        await self._let_in_by_token(self.fields_from_here().get("token", "").strip())

    async def _let_in_by_token(self, token: str) -> None:
        if not await self.is_tenant(token):
            raise Unauthorized(NO_TOKEN)
        self._let_in(self.dashboard.token_sessions.begin(token, self.caller.name, asyncio.get_running_loop().time()))

    def _let_in(self, session: str) -> None:
        self.set_cookie(
            self.dashboard.sessions.cookie,
            session,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="Strict",
            # Who feigns that a proxy with TLS is before us gets a cookie that is sent less often, nothing more.
            secure="https" in (self.request.protocol, self.request.headers.get("X-Forwarded-Proto")),
        )
        # Not a redirect: after a link from elsewhere the browser would not send the new cookie along with it.
        self.show("Logged in", body='<p><a href="/">Go on to the fleet</a></p>', forward="/")

    def why_not(self, sentence: str) -> str:
        return sentence

    async def head(self, *_: str) -> None:
        """Uses no link up: programs that look at links beforehand come this way."""


class LogoutHandler(PageHandler):
    def post(self) -> None:
        self.form()
        self.dashboard.token_sessions.end(self.session)
        self.clear_cookie(self.dashboard.sessions.cookie, httponly=True, samesite="Strict")
        self.show("Logged out", "<p>This browser is logged out. <code>reshape dashboard</code> lets it in again.</p>")


class AssetHandler(PageHandler):
    public = True

    def get(self, name: str) -> None:
        if name not in ASSETS:
            raise HTTPError(404)
        self.set_header("Content-Type", ASSETS[name].kind)
        if self.get_query_argument("v", "") == ASSETS[name].version:
            self.set_header("Cache-Control", "public, max-age=31536000, immutable")
        self.write(ASSETS[name].contents)


ADDRESSES: list[tuple[str, type[RequestHandler]]] = [
    (r"/", DashboardHandler),
    (r"/jobs", DashboardHandler),
    (r"/jobs/([^/]{1,512})", DashboardHandler),
    (r"/jobs/([^/]{1,512})/(cancel|reshape|suspend|resume|rerun)", JobActionHandler),
    (r"/jobs/([^/]{1,512})/log", LogFileHandler),
    (r"/submit", SubmitHandler),
    (r"/drain", DrainFormHandler),
    (r"/timeline", DashboardHandler),
    (r"/decisions", DashboardHandler),
    (r"/what-if", WhatIfHandler),
    (r"/live", ChangesHandler),
    (r"/login", LoginHandler),
    (r"/logout", LogoutHandler),
    (r"/static/([a-z.]{1,40})", AssetHandler),
    (r"/(?!v1/|v1$).*", NoPageHandler),
]
