"""Measures how long a session of Volcano's scheduler waits for the extender: `jobEnqueueable` of 1,000 jobs, beside a
bare Tornado handler that parses the same bodies and says `{}`.

One call after the other on one connection, as Volcano makes them; each server is a process of its own. Bodies are
recorded ones of Volcano 1.10 with other names.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.api.services import Services
from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.http.app import make_app, make_server
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobChanges

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "api" / "volcano"
GOAL_S = 1.0
FLOOR = 2.0  # times the bare handler
TRIES = 5
QUEUES = 5
BUSY = "processor"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Call = tuple[str, bytes]


@dataclass(frozen=True)
class Server:
    """A process that answers on a port of this machine."""

    port: int
    pid: int

    def busy_s(self) -> float:
        """Seconds of processor time that it has used so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) * TICK_S


def run(options: argparse.Namespace) -> Result:
    waiting, starting = (50, 2) if options.tiny else (1_000, 10)
    calls = session(waiting, starting)
    with serving(_ours, waiting) as ours, serving(_bare, waiting) as bare:
        check(ours.port, waiting)
        rounds = [(measure(ours, calls), measure(bare, calls)) for _ in range(2 if options.tiny else TRIES)]
    kinds = ("jobEnqueueable", "queueOverused")
    median = {k: [statistics.median(r[side][k] for r in rounds) for side in (0, 1)] for k in kinds}
    whole = [statistics.median(sum(r[side][k] for k in kinds) for r in rounds) for side in (0, 1)]
    busy = [statistics.median(r[side][BUSY] for r in rounds) for side in (0, 1)]
    size = {k: max(len(raw) for verb, raw in calls if verb == k) for k in kinds}
    count = {k: sum(verb == k for verb, _ in calls) for k in kinds}
    each = [[k, str(count[k]), f"{size[k] / 1024:.1f} KiB", f"{1000 * median[k][0] / count[k]:.2f} ms"] for k in kinds]
    return Result(
        name="extender",
        goals="issue 5",
        title="what one session of Volcano's scheduler waits for us",
        against="bare handler",
        sizes={"waiting jobs": waiting, "starting jobs": starting},
        rows=[
            Row("one session", whole[0], whole[1], whole[0] / whole[1], "s", FLOOR),
            Row("processor time of the server", busy[0], busy[1], busy[0] / max(busy[1], TICK_S), "s", FLOOR),
        ],
        tables=[Table("Calls of one session", ["VERB", "CALLS", "LARGEST", "OURS EACH"], each)],
        notes=[
            f"The goal is less than {GOAL_S:g} s a session: {'reached' if whole[0] < GOAL_S else 'missed'} here. "
            "The time holds this client and what else ran on the machine; the processor time does not."
        ],
    )


def session(waiting: int, starting: int) -> list[Call]:
    """The calls of one session: every waiting job may enter or not."""
    calls = [("queueOverused", _recorded("queueOverused"))] * (QUEUES + starting)
    enqueueable = _recorded("jobEnqueueable").decode()
    return calls + [("jobEnqueueable", enqueueable.replace("train-mnist", f"job-{n}").encode()) for n in range(waiting)]


def _recorded(verb: str) -> bytes:
    return (RECORDED / f"{verb}.json").read_bytes()


def check(port: int, waiting: int) -> None:
    """`WrongAnswer` unless the decided job enters and others wait."""
    decided, undecided = session(waiting, 0)[QUEUES:][:2]
    entering = [_post(_connection(port), *call) for call in (decided, undecided)]
    if entering != [{"status": 0}, {"status": -1}]:
        raise WrongAnswer(f"the extender answers {entering}")


def measure(server: Server, calls: list[Call]) -> dict[str, float]:
    """Seconds by verb, and those that the server's processor was busy."""
    connection, spent, busy_s = _connection(server.port), dict[str, float](), server.busy_s()
    for verb, raw in calls:
        began = time.perf_counter()
        _post(connection, verb, raw)
        spent[verb] = spent.get(verb, 0.0) + time.perf_counter() - began
    connection.close()
    return {**spent, BUSY: server.busy_s() - busy_s}


def _connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def _post(connection: http.client.HTTPConnection, verb: str, raw: bytes) -> Any:
    connection.request("POST", f"/v1/extender/{verb}", raw, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise WrongAnswer(f"{verb} was answered {response.status}: {answer[:200]!r}")
    return json.loads(answer)


# the servers


class _Acting:
    """The status of a coordinator that acts."""

    def acts(self) -> bool:
        return True


class _ExtenderServices:
    """The services that the extender's handler calls, over jobs of which the first is decided."""

    status = _Acting()

    def __init__(self, waiting: int) -> None:
        owner = json.loads(_recorded("jobEnqueueable"))["job"]["PodGroup"]["ownerReferences"][0]
        jobs = [_job(n, owner["uid"]) for n in range(waiting)]
        self.extender = VolcanoExtender({job.id: job for job in jobs}.get, dict)


def _job(number: int, uid: str) -> JobRecord:
    name, decided = f"job-{number}", number == 0
    doc: JobChanges = {"_id": name, "job_id": f"team-a.{name}", "state": "initializing" if decided else "submitted"}
    made_from = {"namespace": "team-a", "name": name, "uid": uid}
    return JobRecord({**doc, "node": "node-1" if decided else None, "volcano": made_from})


class _Bare(RequestHandler):
    def post(self) -> None:
        msgspec.json.decode(self.request.body)
        self.set_header("Content-Type", "application/json")
        self.write(b"{}")


def _ours(waiting: int) -> HTTPServer:
    return make_server(make_app(cast(Services, _ExtenderServices(waiting)), "no token"))


def _bare(_: int) -> HTTPServer:
    return HTTPServer(Application([(r"/v1/extender/\w+", _Bare)]))


def _serve(make: Any, waiting: int, told: Any) -> None:
    async def forever() -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        make(waiting).add_sockets(sockets)
        told.send(sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(forever())


@contextmanager
def serving(make: Any, waiting: int) -> Iterator[Server]:
    """Such a server, while the block runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(make, waiting, there), daemon=True)
    process.start()
    try:
        if not here.poll(60):
            raise WrongAnswer("the server did not start")
        yield Server(here.recv(), process.pid or 0)
    finally:
        process.kill()
        process.join()
