"""The door for Volcano's scheduler: its `extender` plugin posts here, one address for each verb.

The plugin can send no header of ours, so nobody is asked who they are. Whoever reaches the coordinator's port may
ask, which sidecars in all namespaces must: the answers change nothing, and tell no more than the node on which a job
that the caller can name is to run. Answered on the spot, from memory: a session of the scheduler makes thousands of
calls.
"""

from __future__ import annotations

from typing import cast

from tornado.http1connection import HTTP1Connection

from coordinator.errors import Transient
from coordinator.http.base import Handler

LARGE = 1024 * 1024  # bytes from which a body counts as large
MOST_LARGE = 4  # at once: Volcano sends one after the other


class ExtenderHandler(Handler):
    public = True
    body_limit = 16 * 1024 * 1024  # `prioritize` carries all nodes with all their pods

    def prepare(self) -> None:
        cast(HTTP1Connection, self.request.connection).set_max_body_size(self.body_limit)
        super().prepare()
        large: set[int] = self.settings["large"]
        length = self.request.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= LARGE):
            if len(large) >= MOST_LARGE:
                raise Transient("Too many large requests at once; try again soon.")
            large.add(id(self))

    def post(self, verb: str) -> None:
        answer = self.facade.extend(verb, self.body)
        self.set_header("Content-Type", "application/json")
        self.write(answer)

    def on_finish(self) -> None:
        self.settings["large"].discard(id(self))

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.settings["large"].discard(id(self))
