"""Takes the calls of Volcano's `extender` plugin, one address for each verb.

The plugin cannot send a token, so none is required. Every process that reaches the coordinator's port may call, as
sidecars in all namespaces must reach it: the answers change nothing, and show only the node on which a job that the
caller can name will run. Answered on the server's thread, from memory: a scheduler session makes thousands of calls.
"""

from __future__ import annotations

from typing import cast

from tornado.http1connection import HTTP1Connection

from coordinator.errors import Transient
from coordinator.http.base import Handler

LARGE = 1024 * 1024  # bytes from which a body counts as large
MOST_LARGE = 4  # large bodies read at the same time; Volcano sends one after the other


class ExtenderHandler(Handler):
    public = True
    body_limit = 16 * 1024 * 1024  # the verbs for evictions carry all pods that may be evicted

    async def prepare(self) -> None:
        cast(HTTP1Connection, self.request.connection).set_max_body_size(self.body_limit)
        await super().prepare()
        large: set[int] = self.settings["large"]
        length = self.request.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= LARGE):
            if len(large) >= MOST_LARGE:
                raise Transient("Too many large requests at once; try again soon.")
            large.add(id(self))

    def post(self, verb: str) -> None:
        services = self.all_services
        if not services.status.acts():  # Volcano then decides without the coordinator
            raise Transient("This coordinator does not act now.")
        answer = services.extender.answer(verb, self.body)
        self.set_header("Content-Type", "application/json")
        self.write(answer)

    def on_finish(self) -> None:
        self.settings["large"].discard(id(self))

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.settings["large"].discard(id(self))
