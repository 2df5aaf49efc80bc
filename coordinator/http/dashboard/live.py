"""Sends open pages what has changed in them, as server-sent events.

All who look at one address share one rendering. A page is made again after an event of the coordinator, and from time
to time, as progress makes no event. Between two renderings there is a pause that grows with what a rendering takes, so
an open page costs at most a tenth of a core, however much happens. A slow reader misses renderings, never the last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from coordinator.api.history import History
from coordinator.dashboard.pages import Page

REFRESH_S = 2.0  # longest time between two renderings of an open page
PAUSE_S = 0.3  # shortest
SHARE = 0.1  # of a core, at most, for one address

Make = Callable[[], Awaitable[Page]]


class LivePage:
    """The newest rendering of one address, for all who look at it."""

    def __init__(self) -> None:
        self.viewers: set[asyncio.Event] = set()  # each is set at each rendering
        self.newest: Page | None = None
        self.failed: BaseException | None = None
        self.task: asyncio.Task[None] | None = None

    def publish(self, page: Page | None, failed: BaseException | None = None) -> None:
        self.newest, self.failed = page, failed
        for viewer in self.viewers:
            viewer.set()


class LivePages:
    """Renders each address that someone looks at. Belongs to the server's event loop."""

    def __init__(self) -> None:
        self._pages: dict[str, LivePage] = {}

    @contextlib.asynccontextmanager
    async def looking(
        self, address: str, viewer: asyncio.Event, make: Make, history: History
    ) -> AsyncIterator[LivePage]:
        """The page at `address`, kept up to date by `make` while this block runs; `viewer` is set at each change.

        All who give the same `address` get what the first one's `make` makes.
        """
        page = self._pages.setdefault(address, LivePage())
        page.viewers.add(viewer)
        if page.task is None:
            page.task = asyncio.create_task(self._keep(page, make, history))
        try:
            yield page
        finally:
            page.viewers.discard(viewer)
            if not page.viewers:
                page.task.cancel()
                self._pages.pop(address, None)

    async def _keep(self, page: LivePage, make: Make, history: History) -> None:
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed a moment ago
                loop.call_soon_threadsafe(happened.set)

        stop = history.on_event(tell)
        try:
            while True:
                happened.clear()
                began = loop.time()
                page.publish(await make())
                await asyncio.sleep(max(PAUSE_S, (loop.time() - began) / SHARE))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(happened.wait(), REFRESH_S)
        except Exception as error:
            page.publish(None, error)
        finally:
            stop()
