"""Memory that a coordinator takes for each running job, with its GPUs and its newest report: measured in a process of
its own, so that nothing of other sizes is in it."""

from __future__ import annotations

import gc
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from adaptive_scheduler.settings import Settings
from benchmarks.cluster import Cluster
from benchmarks.round_trips import RemotePlatform, population
from coordinator.config import Config
from coordinator.stores.opening import open_store


def kib_of_a_job(database: Path, key: bytes, count: int) -> float:
    """KiB of resident memory for each of the `count` jobs of `population` that lie in this SQLite file."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_grown_kib, database, key, count).result() / count


def _grown_kib(database: Path, key: bytes, count: int) -> float:
    rng = random.Random(4)
    beats = [(job.doc["_id"], *job.heartbeat(1, rng)) for job in population(key, count, rng)[0]]
    gc.collect()
    before = _resident_kib()
    store = open_store(f"sqlite:///{database}")
    cluster = Cluster(store, RemotePlatform(), Config(), Settings(), key)
    cluster.coordinator.elector.try_to_lead()
    cluster.coordinator.loop.tick()
    for name, raw, signature in beats:
        cluster.api.messages.heartbeat(name, 1, raw, signature)
    cluster.coordinator.loop.tick()
    gc.collect()
    grown = _resident_kib() - before
    store.close()
    return grown


def _resident_kib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))
