"""What the coordinator's work costs at 100, 1,000 and 10,000 running jobs, on four times as many GPUs.

Calls the parts of a real coordinator on a SQLite store, in this process and one after the other, so that their CPU time
can be told apart: a heartbeat without news, one cycle of the decision loop with nothing new, the same after reading the
store again, one that lets a job in and starts it on a GPU of another one, one look of the reconciler at a job, and a
start and a turn with 100,000 ended jobs in the store; and the memory of a job. Each stands beside what the next smaller
size would give if the cost grew as it should: a cycle linearly with the jobs, all else not at all.
"""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

from tornado.netutil import bind_sockets

from adaptive_scheduler.settings import Settings
from benchmarks.cluster import GPU_TYPE, Cluster
from benchmarks.result import Result, Row, WrongAnswer
from benchmarks.round_trips import RemotePlatform, Running, population, wait_until_read
from benchmarks.scale import history, over_http
from benchmarks.scale.memory import kib_of_a_job
from benchmarks.scale.timing import ROUNDS, timed
from benchmarks.serving import serving
from coordinator.config import Config
from coordinator.http.app import make_app, make_server
from coordinator.http.heartbeats.heartbeat_process import heartbeat_process
from coordinator.ports import Doc, Store
from coordinator.stores.opening import open_store

NODE_GPUS = 8
SAMPLE = 1_000  # most heartbeats and looks that are timed in one round
TERM_S = 3_600.0  # nothing renews it here
FLOOR = 10**0.1  # of ten times as many jobs: a growth exponent of 1.1
BARE = 1.5  # times a bare handler
BEAT_S = 5.0  # pause between two heartbeats of a job, as by default
LATE_MS = 100.0
CYCLE_MS = 2.0  # allowed of a cycle with nothing new, for each 1,000 jobs
ARRIVAL_MS = 100.0  # allowed of a cycle that starts a job which has just come, at the largest size
COUNTS = (1, 2, 4, 8)
PARTS = {
    "heartbeat": ("heartbeat", False),
    "look": ("look at one job", False),
    "cycle": ("cycle with nothing new", True),
    "reading_cycle": ("cycle that reads the store", True),
    "arrival": ("arrival decided, in a whole cycle", True),
    "memory": ("memory of a job", False),
}  # by field of Costs: its name, and whether it may grow with the jobs


@dataclass(frozen=True)
class Costs:
    """CPU milliseconds, but for `late` and `memory`."""

    over_http: float  # a heartbeat with all that the server does
    bare: float  # the same of a bare Tornado handler
    late: float  # not of the CPU: the 99th percentile of answers where all report once in `BEAT_S`
    heartbeat: float
    look: float
    cycle: float
    reading_cycle: float
    arrival: float
    memory: float  # KiB of resident memory for each job


def measure(count: int, folder: Path) -> Costs:
    rng, key = random.Random(4), secrets.token_hex(16).encode()
    jobs, gpus = population(key, count, rng)
    for index, gpu in enumerate(gpus):
        gpu["node"] = f"n{index // NODE_GPUS}"
    node = {gpu["_id"]: gpu["node"] for gpu in gpus}
    for job in jobs:
        job.doc |= {"node": node[job.doc["gpu_ids"][0]], "optional_num_gpus": [*COUNTS], "elastic": True}
    late = _late_ms(_filled(folder / f"{count}-late.db", jobs, gpus), key, jobs, rng)
    database = folder / f"{count}.db"
    store = _filled(database, jobs, gpus)
    try:
        memory = kib_of_a_job(database, key, count)
        cluster = Cluster(store, RemotePlatform(), Config(term_s=TERM_S), Settings(), key)
        coordinator = cluster.coordinator
        if not coordinator.elector.try_to_lead():
            raise WrongAnswer("the coordinator does not lead on a store of its own")
        coordinator.loop.tick()
        _report(cluster, jobs, 1, rng)  # the first ones are news
        coordinator.loop.tick()
        asked = jobs[:SAMPLE]
        seq = iter(range(2, 1_000))
        ours, bare = _over_http(cluster, asked, seq, rng)
        found = Costs(
            over_http=ours,
            bare=bare,
            late=late,
            heartbeat=timed(lambda: _report(cluster, asked, next(seq), rng), len(asked))
            - timed(lambda: _sidecars(asked, rng), len(asked)),
            look=timed(lambda: [coordinator.reconciler.reconcile(job.doc["_id"]) for job in asked], len(asked)),
            cycle=timed(lambda: coordinator.loop.tick(read=False), 1),
            reading_cycle=timed(coordinator.loop.tick, 1),
            arrival=0.0,
            memory=memory,
        )
        if changed := [job.id for job in coordinator.cache.jobs().values() if job.doc["version"] != 1]:
            raise WrongAnswer(f"changed without reason: {changed[:5]}")
        numbers = iter(range(1_000))
        return replace(found, arrival=timed(lambda: _arrive(cluster, f"new-{next(numbers)}", jobs[0]), 1))
    finally:
        store.close()


def _filled(database: Path, jobs: list[Running], gpus: list[Doc]) -> Store:
    """A store that holds these jobs and GPUs, and how fast each type of job trains."""
    store = open_store(f"sqlite:///{database}")
    store.put_many("jobs", [job.doc for job in jobs])
    store.put_many("gpus", gpus)
    for job_type in sorted({job.doc["job_type"] for job in jobs}):
        _put_speeds(store, job_type)
    return store


def _put_speeds(store: Store, job_type: str) -> None:
    for count in COUNTS:
        row = {"job_type": job_type, "gpu_type": GPU_TYPE, "num_gpus": count, "seconds_per_iteration": 1 / count**0.9}
        store.put("speed_profiles", {"_id": f"{job_type}|{count}", "origin": "shipped", **row})


def _arrive(cluster: Cluster, name: str, like: Running) -> None:
    """Insert a short job and have it decided. All GPUs are taken, so another job has to give some."""
    asked = {"command": ["train"], "job_type": like.doc["job_type"], "iterations": 1_000, "optional_num_gpus": [1]}
    cluster.coordinator.store.insert("jobs", {"_id": name, "job_id": name, "state": "submitted", **asked})
    cluster.coordinator.loop.tick()
    job = cluster.coordinator.cache.job(name)
    if job is None or job.operation is None or not job.operation.victims:
        raise WrongAnswer(f"{name} was not started with GPUs of another job")


def _over_http(cluster: Cluster, jobs: list[Running], seq: Iterator[int], rng: random.Random) -> tuple[float, float]:
    """Of our server and of a bare one, which take turns, so that what else the machine does meanwhile meets both."""
    servers = make_server(make_app(cluster.api, secrets.token_hex(16))), over_http.bare()
    with over_http.client() as pool, ExitStack() as both:
        ports = list[int]()
        for server in servers:
            sockets = bind_sockets(0, "127.0.0.1")
            both.enter_context(serving(server, sockets))
            ports.append(sockets[0].getsockname()[1])
        rounds = [
            [over_http.taken(pool, port, [_message(job, next_seq, rng) for job in jobs]) for port in ports]
            for next_seq in islice(seq, 1 + ROUNDS)
        ]
    ours, bare = (median(found) for found in zip(*rounds[1:], strict=True))  # the first one warms up
    return ours, bare


def _late_ms(store: Store, key: bytes, jobs: list[Running], rng: random.Random) -> float:
    """All report once in `BEAT_S` to a coordinator as on a cluster: it reads, decides and writes beside that."""
    cluster = Cluster(store, RemotePlatform(), Config(), Settings(), key)
    sockets = bind_sockets(0, "127.0.0.1")
    app = make_app(cluster.api, secrets.token_hex(16))
    with over_http.client() as pool, serving(make_server(app), sockets, lambda: heartbeat_process(app)):
        cluster.coordinator.start()
        try:
            wait_until_read(cluster, len(jobs))
            _report(cluster, jobs, 1, rng)  # the first ones are news
            rounds = [[_message(job, seq, rng) for job in jobs] for seq in range(2, 3 + ROUNDS)]
            port = sockets[0].getsockname()[1]
            return 1000 * median(pool.submit(over_http.waits_s, port, rounds, BEAT_S).result())
        finally:
            cluster.coordinator.stop()
            store.close()


def _message(job: Running, seq: int, rng: random.Random) -> over_http.Message:
    return job.doc["_id"], *job.heartbeat(seq, rng)


def _sidecars(jobs: list[Running], rng: random.Random) -> None:
    """Write and sign the messages, which is no work of the coordinator."""
    for job in jobs:
        job.heartbeat(1, rng)


def _report(cluster: Cluster, jobs: list[Running], seq: int, rng: random.Random) -> None:
    for job in jobs:
        cluster.api.messages.heartbeat(job.doc["_id"], 1, *job.heartbeat(seq, rng))


def run(options: argparse.Namespace) -> Result:
    sizes = (10, 20) if options.tiny else (100, 1_000, 10_000)
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        found = {size: measure(size, Path(name)) for size in sizes}
    rows = list[Row]()
    for before, size in pairwise(sizes):
        for field, (what, grows) in PARTS.items():
            ours, smaller = getattr(found[size], field), getattr(found[before], field)
            fair = smaller * (size / before if grows else 1)
            unit = "KiB" if field == "memory" else "ms"
            rows.append(Row(f"{size} jobs: {what}", ours, fair, ours / fair, unit, FLOOR))
    for size in sizes:
        ours, bare, cycle = found[size].over_http, found[size].bare, found[size].cycle
        rows.append(
            Row(f"{size} jobs: heartbeat over HTTP, beside a bare handler", ours, bare, ours / bare, "ms", BARE)
        )
        busy, late = ours * size / BEAT_S / 1000, found[size].late
        rows.append(Row(f"{size} jobs, each reports every {BEAT_S:.0f} s: CPU", busy, 1.0, busy, "cores", 1.0))
        what = f"{size} jobs, each reports every {BEAT_S:.0f} s: 99 of 100 are answered within"
        rows.append(Row(what, late, LATE_MS, late / LATE_MS, "ms", 1.0))
        allowed = CYCLE_MS * size / 1_000
        rows.append(Row(f"{size} jobs: cycle with nothing new, as allowed", cycle, allowed, cycle / allowed, "ms", 1.0))
    largest = found[sizes[-1]].arrival
    rows.append(
        Row(f"{sizes[-1]} jobs: arrival decided, as allowed", largest, ARRIVAL_MS, largest / ARRIVAL_MS, "ms", 1.0)
    )
    of_past, note = history.rows(options.tiny)
    return Result(
        "scale", "C1", "work of the coordinator by the number of jobs",
        f"fair growth from {sizes[0]} jobs",
        {"jobs": list(sizes), "GPUs per node": NODE_GPUS, "rounds": ROUNDS},
        [*rows, *of_past],
        notes=[note, "how long answers take is the one figure that is no CPU time: believe it on a quiet machine only"],
    )  # fmt: skip
