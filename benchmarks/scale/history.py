"""What a past of 100,000 ended jobs costs: a start, a turn that reads the store, one removal, and bytes on disk.

A real coordinator on a SQLite store in this process, with 100 running jobs: first without a past, then after 100,000
jobs have ended there, each with four events and two decisions, as an ordinary job leaves them. What follows the removal
is measured, too.
"""

from __future__ import annotations

import json
import random
import secrets
import tempfile
import time
from pathlib import Path

from adaptive_scheduler.settings import Settings
from benchmarks.cluster import Cluster
from benchmarks.result import Row, WrongAnswer
from benchmarks.round_trips import RemotePlatform, Running, population
from benchmarks.scale.timing import timed
from coordinator.config import Config, Keep
from coordinator.ports import Doc
from coordinator.stores import retention
from coordinator.stores.opening import open_store
from coordinator.stores.sqlite import SqliteStore

RUNNING = 100
TERM_S = 3_600.0  # nothing renews it here
ENDED = 100_000
ALTERNATIVES = 8  # rejected candidates in a decision
SMALLER = 0.4  # the newest tenth of the jobs is left, with half of the events
SAME = 1.25  # ratio with a past to without one that counts as independent of it


def _write(store: SqliteStore, table: str, docs: list[Doc]) -> None:
    """All at once: a past of years is not to be written row by row."""
    with store._writing() as connection:
        connection.executemany(
            "INSERT INTO documents (name, key, body) VALUES (?, ?, ?)", [_row(table, doc) for doc in docs]
        )


def _row(table: str, doc: Doc) -> tuple[str, object, str]:
    return table, doc["_id"], json.dumps(doc)


def past(store: SqliteStore, count: int, jobs: list[Running]) -> None:
    """Write `count` ended jobs, the newest an hour ago, with their events and decisions."""
    wall, like = time.time(), jobs[0].doc

    def at(number: int) -> float:
        return wall - retention.FRESH_S - (count - number) * 60.0

    for begin in range(0, count, 10_000):
        numbers = range(begin, min(begin + 10_000, count))
        _write(store, "jobs", [_ended(n, like, at(n)) for n in numbers])
        _write(store, "decisions", [d for n in numbers for d in _decisions(n, at(n))])
        _write(store, "events", [e for n in numbers for e in _events(n, at(n))])


def _ended(number: int, like: Doc, at: float) -> Doc:
    job = f"old-{number}"
    ended = {"state": "completed", "closed": True, "gpu_ids": None, "num_gpus": 0, "finish_ts": at, "message": "done"}
    return {**like, "_id": job, "job_id": job, "uid": f"u-{number}", **ended}


def _decisions(number: int, at: float) -> list[Doc]:
    job, other = f"old-{number}", {"node": "n1", "num_gpus": 2, "makespan_s": 123.456, "sum_s": 4567.8, "why": "longer"}
    about = {"job_id": job, "jobs": [job], "at": at, "kind": "start", "algorithm": "elastic.schedule"}
    return [
        {"_id": f"{job}-{n}", **about, "sentence": "starts on 2 GPUs of n1" * 3, "candidates": [other] * ALTERNATIVES}
        for n in ("v1", "waits")
    ]


def _events(number: int, at: float) -> list[Doc]:
    kinds = ("submitted", "decided", "started", "completed")
    return [
        {"_id": 4 * number + n + 1, "at": at, "by": "x", "type": kind, "job_id": f"old-{number}", "state": "completed"}
        for n, kind in enumerate(kinds)
    ]


def start(path: Path, key: bytes) -> Cluster:
    """Open the file and make the first turn, as a coordinator that begins does."""
    cluster = Cluster(open_store(f"sqlite:///{path}"), RemotePlatform(), Config(term_s=TERM_S), Settings(), key)
    if not cluster.coordinator.elector.try_to_lead():
        raise WrongAnswer("the coordinator does not lead on a store of its own")
    cluster.coordinator.loop.tick()
    if len(cluster.coordinator.cache.jobs()) != RUNNING:
        raise WrongAnswer(f"found {len(cluster.coordinator.cache.jobs())} of {RUNNING} jobs")
    return cluster


def costs(path: Path, key: bytes) -> tuple[float, float]:
    """CPU milliseconds of a start, and of a turn that reads the store."""
    began = timed(lambda: start(path, key).coordinator.store.close(), 1)
    cluster = start(path, key)
    try:
        return began, timed(cluster.coordinator.loop.tick, 1)
    finally:
        cluster.coordinator.store.close()


def rows(tiny: bool) -> tuple[list[Row], str]:
    """The rows of this past, each beside the same without it, and a note on the removal."""
    count = 500 if tiny else ENDED
    keep = Keep(jobs=count // 10, decisions=count // 5, events=2 * count)
    rng, key = random.Random(4), secrets.token_hex(16).encode()
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        path = Path(name) / "store.db"
        store = SqliteStore(str(path))
        jobs, gpus = population(key, RUNNING, rng)
        _write(store, "jobs", [job.doc for job in jobs])
        _write(store, "gpus", gpus)
        alone = costs(path, key)
        past(store, count, jobs)
        behind = costs(path, key)
        store.compact()
        large = path.stat().st_size
        removal = timed_once(store, keep)
        small = path.stat().st_size
        if len(store.list("jobs", {"closed": True})) != keep.jobs:
            raise WrongAnswer(f"{len(store.list('jobs', {'closed': True}))} ended jobs are left, not {keep.jobs}")
        store.close()
    ended, mib = f"{count:,} ended jobs", 2**20
    return [
        Row(f"start with {ended}", behind[0], alone[0], behind[0] / alone[0], "ms", SAME),
        Row(f"turn with {ended}", behind[1], alone[1], behind[1] / alone[1], "ms", SAME),
        Row("bytes after a removal of nine tenths", small / mib, large / mib, small / large, "MiB", SMALLER),
    ], f"that removal, and making the file smaller, took {removal:.1f} s of CPU"


def timed_once(store: SqliteStore, keep: Keep) -> float:
    """CPU seconds of the first removal, which has the most to do."""
    began = time.process_time()
    retention.prune(store, keep, time.time())
    store.compact()
    return time.process_time() - began
