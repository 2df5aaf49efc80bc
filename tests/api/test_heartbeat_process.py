"""The process that speaks HTTP with sidecars beside the coordinator: a real one, on loopback."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from coordinator.errors import Unauthorized
from coordinator.http.heartbeats import heartbeat_process
from coordinator.http.heartbeats.heartbeat_process import HeartbeatProcess
from coordinator.http.heartbeats.heartbeat_request import HEARTBEATS
from sidecar.links import http_connection
from sidecar.links.http_connection import HttpAnswer, HttpConnection
from sidecar.protocol import HEADER_SIGNATURE, signed
from tests.api.test_authorization import beat, headers
from tests.fakes.coordinator_api import KEY, Live
from tests.patience import eventually, patient


class Beside:
    """The heartbeat process of an application that runs in another thread."""

    def __init__(self, live: Live) -> None:
        self.live, self.process = live, HeartbeatProcess(live.app)
        self.given = 0
        hand_over = self.process.hand_over

        def counted(connection: Any) -> None:
            hand_over(connection)
            self.given += connection.stream is None

        self.process.hand_over = counted  # type: ignore[method-assign]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.live.loop).result(patient(20))

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.live.port, timeout=patient(20))


@pytest.fixture
def beside(live: Live) -> Iterator[Beside]:
    live.coordinator.in_memory = True
    found = Beside(live)
    found.run(found.process.start())
    yield found
    found.run(found.process.stop())


def ask(
    connection: http.client.HTTPConnection, seq: int = 7, path: str = HEARTBEATS, key: bytes = KEY
) -> tuple[int, http.client.HTTPMessage, bytes]:
    body = beat(seq=seq)
    connection.request("POST", path, body, {**headers(path, body, key), "Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def trusted(answer: tuple[int, http.client.HTTPMessage, bytes]) -> bool:
    status, fields, body = answer
    return status == 200 and signed(KEY, "REPLY", HEARTBEATS, body, fields[HEADER_SIGNATURE])


def test_a_connection_is_handed_over_after_its_first_heartbeat_and_answers_stay_the_same(beside: Beside) -> None:
    with closing(beside.connection()) as connection:
        first, *others = (ask(connection, seq) for seq in range(1, 6))
        assert beside.given == 1
        assert all(map(trusted, (first, *others)))
        for _, fields, _ in others:
            assert {**fields, "Date": "", HEADER_SIGNATURE: ""} == {**first[1], "Date": "", HEADER_SIGNATURE: ""}
        assert [b'"seq":%d' % seq in body for seq, (*_, body) in enumerate((first, *others), 1)] == [True] * 5


def test_each_of_many_sidecars_gets_the_answer_to_its_own_heartbeat(beside: Beside) -> None:
    def sidecar(number: int) -> bool:
        with closing(beside.connection()) as connection:
            found = [ask(connection, 1000 * number + beat) for beat in range(20)]
        return all(trusted(answer) for answer in found) and all(
            b'"seq":%d,' % (1000 * number + beat) in body for beat, (*_, body) in enumerate(found)
        )

    with ThreadPoolExecutor(30) as pool:
        assert all(pool.map(sidecar, range(1, 31)))
    assert beside.given == 30


async def posts(live: Live, before: list[Any]) -> list[HttpAnswer]:
    """Answers that a sidecar's own connection gets; before each one something is done."""
    connection, found = HttpConnection(live.url), list[HttpAnswer]()
    for change in before:
        change()
        found.append(await connection.post(HEARTBEATS, headers(HEARTBEATS, beat()), beat()))
    return found


def test_a_sidecar_asks_the_coordinator_itself_what_the_process_cannot_answer(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "KEPT_S", patient(20))  # a slow answer makes it connect again, too
    coordinator = beside.live.coordinator

    def set_to(value: bool) -> None:
        coordinator.in_memory = value

    found = asyncio.run(posts(beside.live, [lambda: set_to(True), lambda: set_to(True), lambda: set_to(False)]))
    assert [answer.status for answer in found] == [200] * 3
    assert beside.given == 1  # the last one was answered where its job is looked for in the store


@pytest.mark.parametrize(("mistake", "status"), [(Unauthorized("not yours"), 401), (KeyError("inner secret"), 500)])
def test_why_a_heartbeat_is_refused_the_coordinator_itself_explains(
    beside: Beside, mistake: Exception, status: int
) -> None:
    coordinator, heartbeat = beside.live.coordinator, beside.live.coordinator.heartbeat

    def refuse(*_: Any) -> tuple[bytes, str]:
        raise mistake

    def begin_to_refuse() -> None:
        coordinator.heartbeat = refuse

    first, second = asyncio.run(posts(beside.live, [lambda: None, begin_to_refuse]))
    coordinator.heartbeat = heartbeat
    assert (first.status, second.status, b"secret" in second.body) == (200, status, False)


def test_other_messages_over_a_connection_that_was_handed_over_are_sent_to_the_coordinator(beside: Beside) -> None:
    for path, key in (("/v1/wishes", KEY), (HEARTBEATS, b"another job's key"), ("/v1/jobs", KEY)):
        with closing(beside.connection()) as connection:
            assert trusted(ask(connection))
            status, fields, _ = ask(connection, path=path, key=key)
            assert (status, fields["Connection"]) == (503, "close")


def test_a_process_that_dies_costs_no_heartbeat_and_is_followed_by_another(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_process, "AGAIN_S", 0.1)
    died = beside.process.pid
    assert died is not None
    first, second = asyncio.run(posts(beside.live, [lambda: None, lambda: os.kill(died, signal.SIGKILL)]))
    assert (first.status, second.status) == (200, 200)
    eventually(lambda: beside.process.pid not in (None, died), "another process")
    given = beside.given

    def handed_over() -> bool:
        with closing(beside.connection()) as connection:
            assert trusted(ask(connection))
            return beside.given > given

    eventually(handed_over, "a connection is handed over again")


def test_it_ends_with_the_coordinator(live: Live) -> None:
    live.coordinator.in_memory = True
    beside = Beside(live)
    beside.run(beside.process.start())
    pid = beside.process.pid
    with closing(beside.connection()) as connection:
        assert trusted(ask(connection))
        beside.run(beside.process.stop())
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(connection)
    assert beside.process.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with closing(beside.connection()) as connection:
        assert trusted(ask(connection)) and trusted(ask(connection))
