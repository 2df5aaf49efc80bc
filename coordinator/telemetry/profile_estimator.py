"""Learns profiles from what ran: seconds per iteration, overheads, accuracy curves, and finished tasks (Slaml).

Writes them as rows of origin `measured`. They stay in memory until `flush`, so that learning costs no round trip
while jobs are being changed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from adaptive_scheduler.models import pause
from adaptive_scheduler.profiles.convergence import Point
from adaptive_scheduler.profiles.observations import Observation, Observations
from adaptive_scheduler.profiles.profiles import LARGEST, MEASURED, Profiles
from coordinator.errors import Conflict
from coordinator.model.records import number
from coordinator.ports import Doc, Store

LEAST_CHANGE = 0.02  # a speed that changed by less than this share is not written again
SPEED_SHARE = 0.1  # weight of the newest speed, small as jobs of one type differ a little
LEAST_CHANGE_OF_SAVE = 0.25  # likewise, of how long a save takes
NEW_SHARE = 0.5  # weight of the newest overhead
QUARTERS = 4  # points of an accuracy curve that are kept per doubling of the iterations
OBSERVATIONS, IMPORTED = "observations", "imported"
MOST_OBSERVED = 10_000  # newest finished tasks that are kept: older ones tell little about the present code
MOST_TAKEN = 500  # imported rows per turn of the loop, as each is marked with a write
OVERHEADS = ("k8s_init", "k8s_term", "proc_init", "proc_term", "ckpt", "proc_restart", "ckpt_state", "restart_state")


class ProfileEstimator:
    """Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], Doc] = {}  # (table, _id) -> the row as last written or about to be
        self._speeds: dict[tuple[str, str], float] = {}  # the running mean behind each row
        self._changed: set[tuple[str, str]] = set()
        self._finished: dict[str, Observation] = {}  # by `_id`, the newest last
        self._table: Observations | None = None  # made of `_finished`; None: to be made again
        self.know(sorted(store.list(OBSERVATIONS), key=lambda row: (number(row.get("at")) or 0.0, str(row["_id"]))))

    def speed(self, job_type: str, gpu_type: str, num_gpus: int, seconds: float) -> None:
        """Learn that a job of this type takes `seconds` per iteration on so many GPUs; impossible ones are ignored."""
        if not 0 < seconds <= LARGEST:
            return
        key = ("speed_profiles", f"{job_type}|{gpu_type}|{num_gpus}|{MEASURED}")
        with self._lock:
            old = self._rows.get(key)
            mean = self._speeds.get(key, seconds)
            seconds = self._speeds[key] = mean + SPEED_SHARE * (seconds - mean)
            if old is not None and abs(old["seconds_per_iteration"] / seconds - 1) < LEAST_CHANGE:
                return
            self._rows[key] = {
                "_id": key[1],
                "job_type": job_type,
                "gpu_type": gpu_type,
                "num_gpus": num_gpus,
                "seconds_per_iteration": seconds,
                "origin": MEASURED,
            }
            self._changed.add(key)

    def overheads(self, job_type: str, profiles: Profiles, **measured: float | None) -> None:
        """Learn some of the overheads of a type, in seconds; the others stay as they are known."""
        key = ("overheads", f"{job_type}|{MEASURED}")
        found = {k: v for k, v in measured.items() if v is not None and 0 <= v <= LARGEST}
        if not found:
            return
        with self._lock:
            row: dict[str, Any] = dict(self._rows.get(key) or {})
            known = profiles.overheads(job_type)
            for name in OVERHEADS:
                before = row.get(name, asdict(known)[name])
                seen_before = name in row.get("measured", ())
                now = found.get(name)
                row[name] = before if now is None else now if not seen_before else before + NEW_SHARE * (now - before)
            row["measured"] = sorted({*row.get("measured", ()), *found})
            self._rows[key] = {**row, "_id": key[1], "job_type": job_type, "origin": MEASURED}
            self._changed.add(key)

    def save(self, job_type: str, profiles: Profiles, seconds: float, size: float = 0.0) -> None:
        """Learn how long a save of a training takes, until a stop has shown what it takes there (`overheads`).

        `size`: bytes that it has written to the disk; 0: not known.
        """
        key, known = ("overheads", f"{job_type}|{MEASURED}"), profiles.overheads(job_type)
        with self._lock:
            row: dict[str, Any] = dict(self._rows.get(key) or {})
            stopped = "ckpt" in row.get("measured", ()) or (known.origin == MEASURED and not row)
            learned = {name: row.get(name, asdict(known)[name]) for name in OVERHEADS}
            before, state_before = learned["ckpt"], learned["ckpt_state"]
            state = pause.save_s(size, "disk") if size else state_before
            alike = _alike(seconds, before) and (state == state_before or _alike(state or 0.0, state_before or 0.0))
            if stopped or not 0 <= seconds <= LARGEST or alike:
                return
            learned |= {"ckpt": seconds, "ckpt_state": state}
            about = {"_id": key[1], "job_type": job_type, "origin": MEASURED, "measured": row.get("measured", [])}
            self._rows[key] = {**learned, **about}
            self._changed.add(key)

    def curve(self, job_type: str, points: Sequence[Point]) -> None:
        """Learn the Top-5 accuracy by iterations of a finished job of this type.

        One point is kept for each quarter of a doubling of the iterations, that of the newest job: about 80 at most.
        """
        with self._lock:
            for iterations, top5 in points:
                key = ("accuracy_profiles", f"{job_type}|{round(QUARTERS * math.log2(iterations))}|{MEASURED}")
                self._rows[key] = {
                    "_id": key[1],
                    "job_type": job_type,
                    "iterations": round(iterations),
                    "top5": top5,
                    "origin": MEASURED,
                }
                self._changed.add(key)

    def observed(self, row: Doc) -> None:
        """Keep the row of a finished task (Slaml); called again with the same `_id` if more has become known."""
        key = (OBSERVATIONS, str(row["_id"]))
        with self._lock:
            self._rows[key] = {**row, "origin": MEASURED}
            self._changed.add(key)
        self.know([row])

    def take_foreign(self) -> None:
        """Read the rows that were inserted into the table from outside, and mark them as read."""
        found = [row for row in self._store.list(OBSERVATIONS, {"origin": None}) if row.keys() > {"_id"}]
        for row in found[:MOST_TAKEN]:
            with suppress(Conflict):  # gone again, or being replaced
                self._store.update(OBSERVATIONS, row["_id"], {"origin": None}, {"origin": IMPORTED})
        self.know(found[:MOST_TAKEN])

    def know(self, rows: Iterable[Doc]) -> None:
        """Count these rows, which are in the table or will be after the next flush."""
        with self._lock:
            for row in rows:
                self._finished[str(row["_id"])] = _observation(row)
                self._table = None
            for oldest in list(self._finished)[: max(0, len(self._finished) - MOST_OBSERVED)]:
                del self._finished[oldest]

    def observations(self) -> Observations:
        """The table of all finished tasks that are known."""
        with self._lock:
            if self._table is None:
                self._table = Observations.from_rows(self._finished.values())
            return self._table

    def unwritten(self, table: str) -> dict[str, Doc]:
        """The rows of this table that the next flush writes, by `_id`."""
        with self._lock:
            return {row_id: dict(self._rows[of, row_id]) for of, row_id in self._changed if of == table}

    def flush(self) -> None:
        """Write the changed rows; what could not be written stays for the next time."""
        with self._lock:
            changed = {key: dict(self._rows[key]) for key in self._changed}
        for table in sorted({table for table, _ in changed}):
            rows = {key: row for key, row in changed.items() if key[0] == table}
            self._store.put_many(table, [*rows.values()])
            with self._lock:
                for key, row in rows.items():
                    self._written(key, row)

    def _written(self, key: tuple[str, str], row: Doc) -> None:
        """Forget that a row is to be written, unless it has changed meanwhile. With the lock."""
        if self._rows.get(key) == row:
            self._changed.discard(key)
            if key[0] == OBSERVATIONS:
                del self._rows[key]


def _observation(row: Doc) -> Observation:
    cores, memory, gpus, execution_s = (number(row.get(f)) or 0.0 for f in ("cores", "memory", "gpus", "execution_s"))
    return Observation(cores, memory, gpus, execution_s)


def _alike(seconds: float, before: float) -> bool:
    """True if a save takes about as long as before."""
    return abs(seconds - before) <= LEAST_CHANGE_OF_SAVE * before
