"""Starts the heartbeat process, hands connections over to it, and answers what it passes on.

While there is no such process, as after it has died, all connections stay with the coordinator, as they do where none
is started: on one machine there are few jobs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tornado.http1connection import HTTP1Connection
from tornado.web import Application

from coordinator.giving_way import collect_rarely
from coordinator.http.heartbeats.heartbeat_messages import Answered, Asked, MessageLink
from coordinator.http.heartbeats.heartbeat_request import Sender, answered

log = logging.getLogger(__name__)

MODULE = "coordinator.http.heartbeats.heartbeat_server"
AGAIN_S = 2.0  # after its death until another one is started
ENDS_S = 5.0  # within which it ends once the coordinator has closed the sockets


class HeartbeatProcess:
    """Of one application; for the thread of its server alone."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: socket.socket | None = None  # where connections are handed over; None: there is no process
        self._link: MessageLink[Asked] | None = None
        self._next: asyncio.Task[None] | None = None  # which starts another one
        self._stopping = False

    async def start(self) -> None:
        """Have the application hand connections over from now on."""
        messages, its_messages = socket.socketpair()
        connections, its_connections = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with its_messages, its_connections:
            numbers = its_messages.fileno(), its_connections.fileno()
            command = [sys.executable, "-P", "-m", MODULE, *map(str, numbers)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=numbers)
        for ours in (messages, connections):
            ours.setblocking(False)
        link = MessageLink(Asked, self._answer, self._lost)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=messages)
        self._link, self._connections = link, connections
        self._app.settings["hand_over"] = self.hand_over

    async def stop(self) -> None:
        """End it; sidecars whose connections it has ask over new ones."""
        self._stopping = True
        if self._next is not None:
            self._next.cancel()
        if self._link is not None:
            self._link.close()
        self._forget()
        await asyncio.to_thread(self._reap)

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return None if self._process is None else self._process.pid

    def hand_over(self, connection: HTTP1Connection) -> None:
        """Give away a connection whose request was answered. Its sidecar sends nothing before it has the answer."""
        stream = connection.stream
        if self._connections is None or stream is None or stream.closed() or stream.writing():
            return
        try:
            socket.send_fds(self._connections, [b"+"], [stream.socket.fileno()])
        except OSError:  # its queue is full: with the next heartbeat, then
            return
        connection.detach().close()  # only here: the other process has the connection now

    def _answer(self, asked: list[Asked]) -> None:
        answers = list(map(self._answer_one, asked))
        if self._link is not None:
            self._link.send(answers)

    def _answer_one(self, asked: Asked) -> Answered:
        of = Sender(asked.job_id, asked.launch, asked.signature)
        try:
            found = answered(self._app.settings["services"].messages, of, asked.body)
        except Exception:  # a mistake of ours, too: the sidecar asks again, where it is logged and explained
            found = None
        return Answered(asked.number) if found is None else Answered(asked.number, *found)

    def _lost(self) -> None:
        """Start another one after a while if this one has died."""
        self._forget()
        if not self._stopping:
            log.warning("the heartbeat process has ended; heartbeats are answered here until there is another one")
            self._next = asyncio.create_task(self._again())

    def _forget(self) -> None:
        if self._connections is not None:
            self._connections.close()
        self._connections = self._link = None

    async def _again(self) -> None:
        while self._connections is None:
            await asyncio.sleep(AGAIN_S)
            await asyncio.to_thread(self._reap)
            try:
                await self.start()
            except OSError as error:
                log.warning("no heartbeat process could be started: %s", error)

    def _reap(self) -> None:
        if (process := self._process) is not None:
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._process = None


@asynccontextmanager
async def heartbeat_process(app: Application) -> AsyncIterator[HeartbeatProcess]:
    """Have heartbeats of this application taken by a process beside this one, both of which look for garbage rarely."""
    process, collecting = HeartbeatProcess(app), asyncio.create_task(collect_rarely())
    await process.start()
    try:
        yield process
    finally:
        collecting.cancel()
        await process.stop()
