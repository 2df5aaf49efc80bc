"""Streams events as they happen (server-sent events, text/event-stream), resumable by event id.

A client that lost its connection sends the last id it got and misses nothing. Each client is sent one batch at a time,
so a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError
from tornado.web import Application

from coordinator.errors import Rejected, ReshapeError
from coordinator.http import wire
from coordinator.http.base import Handler, log

KEEP_ALIVE_S = 15.0  # proxies cut connections that are silent for longer than 30 to 60 s
RETRY_MS = 2000  # milliseconds that a browser waits before it reconnects
BATCH = 500


class EventsHandler(Handler):
    def __init__(self, application: Application, request: HTTPServerRequest, **kwargs: Any) -> None:
        self._appended = asyncio.Event()
        self._closed = False
        self._until_end_of: str | None = None
        super().__init__(application, request, **kwargs)

    async def get(self) -> None:
        after = await self._after()
        keeps_following = wire.truth("follow", self.get_query_argument("follow", "true"))
        self._until_end_of = self.get_query_argument("until_end_of", None)
        streams = self.claim_stream("Too many clients follow the events already; try again later.")
        streams.add(self)
        stop = self.services.history.on_event(self._notifier())
        try:
            await self._follow(after, keeps_following)
        except StreamClosedError:
            pass
        except ReshapeError as error:
            log.warning("an event stream ends: %s", error)  # the client reconnects with the last id it got
        finally:
            stop()
            streams.discard(self)

    async def head(self, *args: str) -> None:
        self._stream_headers()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._closed = True
        self._appended.set()

    async def _after(self) -> int:
        """The id to begin after: from the header that a reconnecting browser sends, else the query, else the newest."""
        last = await self.call(self.services.history.last_event)
        name, text = "Last-Event-ID", self.request.headers.get("Last-Event-ID")
        if text is None:
            name, text = "after", self.get_query_argument("after", None)
        # An id from before the store was wiped would wait for ever.
        return min(wire.whole(name, text, last, 0, wire.MAX_INTEGER), last)

    async def _follow(self, after: int, keeps_following: bool) -> None:
        """Send what came after event `after`, then what happens; without `keeps_following` only the former.

        With `until_end_of` it also ends with that job: asked before the events are read, so its last ones are sent.
        """
        self._stream_headers()
        self.write(f"retry: {RETRY_MS}\n\n")
        await self.flush()
        while not self._closed and await self.still_lets_in():  # a token of a user may have ended meanwhile
            self._appended.clear()
            is_over = self._until_end_of is not None and await self._has_ended(self._until_end_of)
            events = await self.call(self.services.history.events_after, after, BATCH)
            if events:
                after = events[-1]["_id"]
                self.write(_frames(events))
            elif is_over or not keeps_following:
                return
            elif not await self._wait():
                self.write(": keep-alive\n\n")
            await self.flush()

    async def _has_ended(self, job_id: str) -> bool:
        """Return whether nothing more will become of a job: it is closed, was not accepted, or is not there."""
        if await self.call(self.services.jobs.open_jobs, [job_id]):
            return False
        try:
            job = await self.call(self.services.jobs.job, job_id)
        except Rejected:
            return True
        return bool(job.get("closed")) or (bool(job["problems"]) and not job["launch"])

    async def _wait(self) -> bool:
        """Wait for an event; False if none came in time."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._appended.wait(), KEEP_ALIVE_S)
        return False

    def _notifier(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed a moment ago
                loop.call_soon_threadsafe(self._appended.set)

        return notify

    def _stream_headers(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")  # nginx would hold the events back


def _frames(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (e["_id"], "-".join(str(e["type"]).split()).encode(), wire.write(e))
        for e in events
    )
