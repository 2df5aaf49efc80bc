"""C3: how often the coordinator asks MongoDB, per reshape and per 1,000 heartbeats.

Counted, not timed: a pymongo listener sees every command that goes over the socket to nx-27017. First a job shrinks
by k GPUs for a newcomer and takes them back, with the real launcher, sidecars and trainers. Then the heartbeats of
1,000 jobs, signed as their sidecars sign them, are handed to a real coordinator that finds these jobs in its store.

Allowed of each operation are its journal (docs/reliability.md, section 3: three writes of the job, one for each GPU
that changes hands) and the reason of a decision. A start that waits for the GPUs of a victim has two more: the tables
of the paper show such a job as `initialized` and its GPUs as `reserved` (docs/algorithms.md, section 1).

Before the counts are believed the jobs must have done what they should, step after step.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pymongo
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from adaptive_scheduler.settings import Settings
from benchmarks.cluster import GPU_TYPE, WITHIN_S, Cluster, running
from benchmarks.gap import Trainer, command, shapes
from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.config import Config
from coordinator.model.tables import JobRow
from coordinator.ports import Doc, Evidence
from coordinator.service import FLUSH_S
from coordinator.stores.mongo import DEFAULTS, MongoStore
from sidecar.protocol import Heartbeat, HeartbeatReply, Progress, ShimStatus, launch_key, sign
from tests.fakes.nx import start_nx, stop_nx

JOB_TYPE = "trips"
JOURNAL, REASON, WAITING = 3, 1, 2  # allowed of an operation, beside one for each GPU
FLOOR_PER_1000 = 10
HISTORY_S = FLUSH_S + 1  # after which what happened has been written to the history, and what was reported
SIZES = (1, 2, 4, 8)  # GPUs of a job, seven types: the mix of workload S
TYPES = 7
BEAT_S = 1.0  # pause between two heartbeats of a job here; in production 5

CAUSED = ("job", "GPU", "decision", "receipt")  # by a reshape; all else goes out by the clock, whatever happened
BY_BEATS = ("heartbeats", "learned")


@dataclass(frozen=True)
class RoundTrip:
    """One command: what it is about, and of which job or GPU write."""

    kind: str
    what: str = ""


class CommandCounter(CommandListener):
    """Keeps every command that the store sends."""

    def __init__(self) -> None:
        self.trips: list[RoundTrip] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.trips.append(trip(event.command_name, event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Counted when it was sent."""

    def failed(self, event: CommandFailedEvent) -> None:
        """A refused command was a round trip, too."""


def trip(name: str, command: Mapping[str, Any]) -> RoundTrip:
    """Name the purpose of one database command, by its table and the fields that it sets."""
    table = str(command.get("collection" if name == "getMore" else name))
    if name == "findAndModify" and table == "jobs":
        job, changes = command["query"]["_id"], command["update"].get("$set", {})
        op = str(changes.get("last_op", "")).partition(":")[0]
        return RoundTrip("job", f"{job}: {op}") if op else RoundTrip("intake", f"{job}: let in")
    if name == "findAndModify" and table == "gpus":
        return RoundTrip("GPU", _gpu_write(command["update"].get("$set", {})))
    if name == "update" and table == "gpus":
        return RoundTrip("GPU", _gpu_write(command["updates"][0]["u"].get("$set", {})))
    if table == "terms":
        return RoundTrip("term")
    if name == "aggregate" or "maxTimeMS" in command:
        return RoundTrip("watch", table)
    if name in ("find", "getMore"):
        again = table in ("jobs", "gpus") and "_id" in command.get("filter", {})
        return RoundTrip("read again" if again else "poll", table)
    if name == "findAndModify" and table == "decisions":
        return RoundTrip("receipt", table)  # the standstill, beside what was predicted of it
    kinds = {"decisions": "decision", "events": "history", "heartbeats": "heartbeats"}
    kinds |= {"overheads": "learned", "speed_profiles": "learned"}
    return RoundTrip(kinds.get(table, f"{name} {table}"), table)


def _gpu_write(changes: Mapping[str, Any]) -> str:
    if "worker_id" in changes:
        return "occupied" if changes.get("state") == "in use" else "freed"
    if "state" not in changes:
        return "let go"
    return "reserved" if changes["state"] == "reserved" else "taken"


@contextmanager
def counted_store(folder: Path) -> Iterator[tuple[MongoStore, CommandCounter, pymongo.MongoClient[Doc]]]:
    """A fresh server, a store on it whose commands are kept, and a second client whose commands are not."""
    process, url = start_nx(folder / "nx")
    try:
        listener = CommandCounter()
        client: pymongo.MongoClient[Doc] = pymongo.MongoClient(
            url, retryWrites=False, event_listeners=[listener], **DEFAULTS
        )
        with pymongo.MongoClient[Doc](url) as users:
            store = MongoStore(f"{url}/trips", client)
            try:
                yield store, listener, users
            finally:
                store.close()
    finally:
        stop_nx(process)


# a reshape down for a newcomer, and up again


def journey(folder: Path, k: int) -> dict[str, Counter[RoundTrip]]:
    """Round trips of a reshape by `k` GPUs, down and up; nothing else goes on meanwhile."""
    speeds = {k: 0.04, 2 * k: 0.02}
    with (
        counted_store(folder) as (store, listener, users),
        running(folder / "state", store, 2 * k, speeds, JOB_TYPE) as cluster,
    ):
        _submit(users, "one", [k, 2 * k], 1_000_000)
        cluster.until("started", "one", 0)
        time.sleep(HISTORY_S)
        begin = len(listener.trips)
        _submit(users, "two", [k], 25)
        down = cluster.until("reshaped", "one", 0)["_id"]
        cluster.until("reshaped", "one", down)
        time.sleep(HISTORY_S)
        trips = listener.trips[begin:]
        _check(cluster, k)
    middle = trips.index(RoundTrip("job", "two: completed"))  # until then it trains, and nothing else happens
    return {"down": Counter(trips[:middle]), "up": of_up(trips[middle:])}


def _submit(users: pymongo.MongoClient[Doc], job: str, counts: list[int], iterations: int) -> None:
    """Submit a job by inserting a document, as any user can."""
    doc: Doc = {"_id": job, "job_id": job, "state": "submitted", "job_type": JOB_TYPE, "optional_num_gpus": counts}
    trainer = Trainer("numpy", sys.executable, {})
    doc |= {"command": command(trainer, iterations), "iterations": iterations, "elastic": True}
    users["trips"]["jobs"].insert_one(doc)


def of_up(trips: list[RoundTrip]) -> Counter[RoundTrip]:
    """Without what belongs to the end of job two, which only happens at the same time."""
    return Counter(t for t in trips if not t.what.startswith("two:") and t.what != "freed")


def _check(cluster: Cluster, k: int) -> None:
    """`WrongAnswer` unless job one went 2k, k, 2k without losing or repeating a step, and job two ended well."""
    found = shapes(cluster.output("one"))
    steps = [step for shape in found for step, _ in shape.steps]
    if [shape.gpus for shape in found] != [2 * k, k, 2 * k] or any(b != a + 1 for a, b in pairwise(steps)):
        raise WrongAnswer(f"job one trained on {[s.gpus for s in found]} GPUs, not once down and up, or lost a step")
    if cluster.api.jobs.job("two")["state"] != "completed":
        raise WrongAnswer(f"job two is {cluster.api.jobs.job('two')['state']}")


def of_victim(trips: Counter[RoundTrip]) -> Counter[RoundTrip]:
    """Return the share of the shrinking job alone."""
    return Counter({t: n for t, n in trips.items() if t.what.startswith("one:") or t.what == "let go"})


def operations(k: int, trips: Mapping[str, Counter[RoundTrip]]) -> list[tuple[str, int, Counter[RoundTrip], int]]:
    """Name, GPUs, round trips, and how many of them are allowed, of each operation of a `journey`."""
    down, victim = trips["down"], of_victim(trips["down"])
    allowed = JOURNAL + k
    return [
        ("reshape up", k, trips["up"], allowed + REASON),
        ("reshape down", k, victim, allowed),
        ("the start that it is for", k, down - victim, allowed + REASON + WAITING),
    ]


def total(trips: Counter[RoundTrip], kinds: Sequence[str]) -> int:
    return sum(n for t, n in trips.items() if t.kind in kinds)


def reshape_row(name: str, k: int, trips: Counter[RoundTrip], allowed: int) -> Row:
    ours = total(trips, CAUSED)
    return Row(f"{name}, {k} GPU{'s' * (k > 1)} changing hands", ours, allowed, ours / allowed, "trips", 1.0)


def by_kind(what: str, k: int, trips: Counter[RoundTrip]) -> list[str]:
    return [what, str(k), *(str(total(trips, [kind])) for kind in CAUSED)]


def by_command(what: str, k: int, trips: Counter[RoundTrip]) -> list[list[str]]:
    """Order the commands: those caused by a reshape first, then the periodic ones."""
    ordered = sorted(trips.items(), key=lambda item: (item[0].kind not in CAUSED, item[0].kind, item[0].what))
    return [[what, str(k), t.kind, t.what, str(n)] for t, n in ordered]


# heartbeats


class RemotePlatform:
    """The platform of jobs whose processes run on machines that are never queried."""

    def launch(self, doc: JobRow) -> None:
        raise WrongAnswer(f"the coordinator launches {doc['_id']}, which already runs")

    def failure(self, doc: JobRow) -> str | None:
        return None

    def keep(self, doc: JobRow) -> None:
        return None

    def adopt(self, doc: JobRow) -> None:
        return None

    def recall(self, jobs: Sequence[JobRow]) -> Evidence:
        return Evidence()

    def vanished(self, doc: JobRow) -> frozenset[int]:
        return frozenset()

    def nothing_runs(self, job_id: str) -> bool:
        return False

    def unplaced(self, doc: JobRow) -> str | None:
        return None

    def remove(self, doc: JobRow) -> None:
        raise WrongAnswer(f"the coordinator removes {doc['_id']}, which runs well")

    def gone(self, doc: JobRow) -> bool:
        return False

    def ended(self, doc: JobRow) -> frozenset[int]:
        return frozenset()

    def output(self, doc: JobRow, offset: int, limit: int) -> tuple[bytes, int]:
        return b"", offset


@dataclass
class Running:
    """One job as its sidecar sees it."""

    doc: Doc
    key: bytes
    iterations: int = 0

    def heartbeat(self, seq: int, rng: random.Random) -> tuple[bytes, str]:
        """Body and signature. Jobs of one type differ by some per cent in speed, as real ones do."""
        self.iterations += 100
        shim = ShimStatus(
            shim_pid=2, trainer="running", trainer_pid=3, generation=1, command_id=f"{self.doc['_id']}:1:start",
            gpu_ids=self.doc["gpu_ids"], spawn_at=1.0,
        )  # fmt: skip
        speed = 0.1 * rng.uniform(0.95, 1.05) / self.doc["num_gpus"]
        progress = Progress(iterations=self.iterations, seconds_per_iteration=speed, first_step_at=2.0)
        beat = Heartbeat(
            job_id=self.doc["_id"], launch=1, seq=seq, url="http://127.0.0.1:9", sidecar_pid=1, shim=shim,
            progress=progress,
        )  # fmt: skip
        raw = msgspec.json.encode(beat)
        return raw, sign(self.key, "POST", "/v1/heartbeats", raw)


def population(master_key: bytes, count: int, rng: random.Random) -> tuple[list[Running], list[Doc]]:
    """Jobs in the middle of their training, and their GPUs."""
    jobs, gpus = list[Running](), list[Doc]()
    for number in range(count):
        job, size, uid = f"job-{number}", rng.choice(SIZES), f"uid-{number}"
        mine = [f"gpu-{len(gpus) + i}" for i in range(size)]
        where = {"node": f"n{number}", "version": 1}
        doc = {
            "_id": job, "job_id": job, "uid": uid, "state": "running", "closed": False, "launch": 1, "up": 1,
            "generation": 1, "gpu_ids": mine, "num_gpus": size, "optional_num_gpus": [size], "command": ["train"],
            "job_type": f"type-{rng.randrange(TYPES)}", "iterations": 10**6, "submit_ts": float(number),
            "start_ts": float(number), **where,
        }  # fmt: skip
        jobs.append(Running(doc, launch_key(master_key, uid, 1)))
        for index, gpu in enumerate(mine):
            held = {"state": "in use", "job_id": job, "held_by": job, "worker_id": index, "generation": 1}
            gpus.append({"_id": gpu, "gpu_id": gpu, "gpu_type": GPU_TYPE, "index": index, **held, **where})
    return jobs, gpus


def heartbeats(folder: Path, count: int, rounds: int) -> tuple[Counter[RoundTrip], float, int]:
    """Round trips while `count` jobs report `rounds` times; the seconds that took; how many GPUs they have."""
    rng, key = random.Random(4), secrets.token_hex(16).encode()
    jobs, gpus = population(key, count, rng)
    with counted_store(folder) as (store, listener, users):
        users["trips"]["jobs"].insert_many([job.doc for job in jobs])
        users["trips"]["gpus"].insert_many(gpus)
        cluster = Cluster(store, RemotePlatform(), Config(heartbeat_s=BEAT_S), Settings(), key)
        cluster.coordinator.start()
        try:
            wait_until_read(cluster, count)
            _round(cluster, jobs, 1, rng)  # the first one tells a coordinator that was just started
            threading.Event().wait(HISTORY_S)
            before, began = len(listener.trips), time.monotonic()
            for number in range(rounds):
                _round(cluster, jobs, number + 2, rng)
                threading.Event().wait(BEAT_S)
            threading.Event().wait(HISTORY_S)
            found = Counter(listener.trips[before:])
            took = time.monotonic() - began
        finally:
            cluster.coordinator.stop()
        _check_heartbeats(users, jobs)
    return found, took, len(gpus)


def wait_until_read(cluster: Cluster, count: int) -> None:
    deadline, cache = time.monotonic() + WITHIN_S, cluster.coordinator.cache
    while cache.read_number is None or len(cache.jobs()) < count:
        if time.monotonic() > deadline:
            raise WrongAnswer(f"the coordinator found {len(cache.jobs())} of {count} running jobs")
        time.sleep(0.05)


def _round(cluster: Cluster, jobs: list[Running], seq: int, rng: random.Random) -> None:
    for job in jobs:
        answer, _ = cluster.api.messages.heartbeat(job.doc["_id"], 1, *job.heartbeat(seq, rng))
        if not msgspec.json.decode(answer, type=HeartbeatReply).known:
            raise WrongAnswer(f"the coordinator does not know {job.doc['_id']} any more")


def _check_heartbeats(users: pymongo.MongoClient[Doc], jobs: list[Running]) -> None:
    """Check that the last reports lie in the store and that no job was changed."""
    stored = {row["job_id"]: row for batch in users["trips"]["heartbeats"].find() for row in batch["rows"]}
    late = [j.doc["_id"] for j in jobs if stored.get(j.doc["_id"], {}).get("iters_done") != j.iterations]
    changed = [d["_id"] for d in users["trips"]["jobs"].find() if d["version"] != 1]
    if late or changed:
        raise WrongAnswer(f"not stored as reported: {late[:5]}; changed without reason: {changed[:5]}")


def run(options: argparse.Namespace) -> Result:
    """Reshapes by one and by four GPUs, and three rounds of 1,000 heartbeats."""
    sizes, count, rounds = ((1,), 50, 1) if options.tiny else ((1, 4), 1000, 3)
    found = list[tuple[str, int, Counter[RoundTrip], int]]()
    with tempfile.TemporaryDirectory(prefix="trips-") as name:
        for k in sizes:
            found += operations(k, journey(Path(name) / f"by-{k}", k))
        beats, took, gpus = heartbeats(Path(name) / "beats", count, rounds)
    per_1000 = 1000 * total(beats, BY_BEATS) / (count * rounds)
    clock = sum(beats.values()) - total(beats, BY_BEATS)
    rows = [reshape_row(*operation) for operation in found]
    rows.append(Row("1,000 heartbeats", per_1000, FLOOR_PER_1000, per_1000 / FLOOR_PER_1000, "trips", 1.0))
    return Result(
        "round_trips", "C3", "commands to MongoDB, counted on the socket", "allowed",
        {"GPUs changing hands": list(sizes), "jobs that report": count, "on GPUs": gpus, "rounds": rounds},
        rows,
        [
            Table(
                "reshapes, by purpose", ["", "GPUS", *(kind.upper() for kind in CAUSED)],
                [by_kind(what, k, trips) for what, k, trips, _ in found],
            ),
            Table(
                "reshapes, command by command", ["", "GPUS", "FOR", "WHAT", "TRIPS"],
                [line for what, k, trips, _ in found for line in by_command(what, k, trips)],
            ),
            Table("heartbeats", ["", "", "FOR", "WHAT", "TRIPS"], by_command("", count, beats)),
        ],
        [
            f"allowed: {JOURNAL} writes of the job, one for each GPU that changes hands, {REASON} for the reason of a "
            f"decision; {WAITING} more for a start that waits: `initialized` and `reserved`",
            f"history goes out {FLUSH_S:.0f} s after its first event, whatever it holds: one command for many reshapes",
            f"by the clock (watching, polling, the term): {clock / took:.1f} commands a second with {count} jobs",
        ],
    )  # fmt: skip
