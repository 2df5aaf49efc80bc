"""Keeps what GPUs did in the last 24 hours: how many jobs held, and how busy those were that sidecars measured.

One row of the table `gpu_use` for each quarter of an hour, in a ring of `SLOTS`: a later quarter replaces the row of an
earlier one, so the table never grows, whatever the clock is set to. A row has two numbers for each node on which
something was measured. Nothing is filled in: time in which no coordinator watched, and GPUs of which nothing reports
how busy they are, are in no sum.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from coordinator.errors import ReshapeError
from coordinator.model.records import JobRecord
from coordinator.model.tables import GpuUseRow, sound
from coordinator.ports import Clock, Doc, Store
from sidecar.protocol import GpuReading, Heartbeat

TABLE = "gpu_use"
QUARTER_S = 900.0
SHOWN = 96  # quarters of an hour in 24 hours
SLOTS = SHOWN + 4
FLUSH_S = 300.0  # a coordinator that is killed loses at most that much
SILENCE_S = 60.0  # what a GPU did between two heartbeats that are further apart is not known
REFRESH_S = 60.0  # `day` is the same for so long, so that an open page is not sent it again and again


@dataclass
class Quarter:
    """Sums over all GPUs in GPU-seconds, and by node what was measured there, in columns."""

    number: int  # since 1970
    there_s: float = 0.0  # of all GPUs, while a coordinator watched
    held_s: float = 0.0  # of these, held by jobs
    nodes: list[str] = field(default_factory=list)
    measured_s: array[float] = field(default_factory=lambda: array("d"))
    busy_s: array[float] = field(default_factory=lambda: array("d"))
    changed: bool = False

    def copied(self) -> Quarter:
        """Return the same, which stays as it is now."""
        return replace(self, nodes=self.nodes[:], measured_s=self.measured_s[:], busy_s=self.busy_s[:])

    def document(self) -> Doc:
        return {
            "_id": f"slot-{self.number % SLOTS:02}",
            "quarter": self.number,
            "there_s": self.there_s,
            "held_s": self.held_s,
            "nodes": list(self.nodes),
            "measured_s": self.measured_s.tolist(),
            "busy_s": self.busy_s.tolist(),
        }


class GpuUse:
    """Thread-safe. `flush` is called by one thread, and only while its coordinator acts."""

    def __init__(self, store: Store, clock: Clock, node_of: Callable[[str], str | None]) -> None:
        """`node_of`: the node of a GPU; None for one that is not known."""
        self._store = store
        self._clock = clock
        self._node_of = node_of
        self._lock = threading.Lock()
        self._quarters: dict[int, Quarter] = {}
        self._newest: Quarter | None = None
        self._places: dict[str, int] = {}  # by node, its place in the columns of `_newest`
        self._heard: dict[tuple[str, int], tuple[float, int | None]] = {}  # by pod: when, and the trainer's process
        self._is_read = False
        self._flushed_at = clock.now()
        self._day: tuple[float, dict[str, Any]] | None = None  # until when it is shown

    def begin(self) -> None:
        """Forget all: another coordinator may have acted meanwhile. The next `flush` reads what is stored."""
        with self._lock:
            self._quarters.clear()
            self._newest = None
            self._places = {}
            self._heard.clear()
            self._is_read = False
            self._day = None

    def add_heartbeat(self, job: JobRecord, beat: Heartbeat) -> None:
        """Count how busy the GPUs of a pod were since its last heartbeat."""
        now = self._clock.now()
        pod = job.uid, beat.member
        is_running = beat.shim.trainer == "running"
        with self._lock:
            at, process = self._heard.pop(pod, (now, None))
            if is_running:
                self._heard[pod] = now, beat.shim.trainer_pid
            lasted_s = now - at
            if is_running and process == beat.shim.trainer_pid and 0.0 < lasted_s <= SILENCE_S:
                own = set(job.gpu_ids)
                self._count_busy([gpu for gpu in beat.gpus if gpu.gpu_id in own], lasted_s)

    def _count_busy(self, gpus: Sequence[GpuReading], lasted_s: float) -> None:
        quarter = self._quarter_at(int(self._clock.wall() // QUARTER_S))
        for gpu in gpus:
            node = self._node_of(gpu.gpu_id)
            if node is None or gpu.utilisation is None or not math.isfinite(gpu.utilisation):
                continue
            place = self._places.setdefault(node, len(self._places))
            if place == len(quarter.nodes):
                quarter.nodes.append(node)
                quarter.measured_s.append(0.0)
                quarter.busy_s.append(0.0)
            quarter.measured_s[place] += lasted_s
            quarter.busy_s[place] += lasted_s * min(1.0, max(0.0, gpu.utilisation))
            quarter.changed = True

    def count_held(self, passed_s: float, wall: float, held: float, there: int) -> None:
        """Count `held` of `there` GPUs as held by jobs for these seconds up to `wall`, in seconds since 1970."""
        with self._lock:
            for number, seconds in parts_of_time(wall - passed_s, wall, QUARTER_S):
                quarter = self._quarter_at(number)
                quarter.there_s += there * seconds
                quarter.held_s += min(held, there) * seconds
                quarter.changed = True

    def _quarter_at(self, number: int) -> Quarter:
        """Return the quarter of that number, which is the newest one from now on."""
        if self._newest is None or self._newest.number != number:
            self._newest = self._quarters.setdefault(number, Quarter(number))
            self._places = {node: place for place, node in enumerate(self._newest.nodes)}
            oldest_heard = self._clock.now() - SILENCE_S
            self._heard = {pod: heard for pod, heard in self._heard.items() if heard[0] >= oldest_heard}
            for old in sorted(self._quarters)[:-SLOTS]:
                if old != number:
                    del self._quarters[old]
        return self._newest

    def flush_if_due(self) -> None:
        if not self._is_read or self._clock.now() - self._flushed_at >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Read what an earlier coordinator has stored, once, and write what has changed."""
        if not self._is_read:
            self._take_up([quarter for row in self._store.list(TABLE) if (quarter := _read_row(row)) is not None])
        self._flushed_at = self._clock.now()
        with self._lock:
            changed = [one for one in self._quarters.values() if one.changed]
            documents = [one.document() for one in changed]
            for one in changed:
                one.changed = False
        try:
            if documents:
                self._store.put_many(TABLE, documents)
        except ReshapeError:
            with self._lock:
                for one in changed:
                    one.changed = True
            raise

    def _take_up(self, stored: Sequence[Quarter]) -> None:
        """Add what was counted before this coordinator began to act to what it has counted since."""
        with self._lock:
            if self._is_read:
                return
            self._is_read = True
            self._day = None
            for one in stored:
                known = self._quarters.get(one.number)
                self._quarters[one.number] = one if known is None else _with_added(known, one)
            self._newest = None  # it may be another one now

    def day(self) -> dict[str, Any]:
        """Return the last 24 hours, up to `until`, in seconds since 1970.

        `quarters`: one for each quarter of an hour, the oldest first, with its `begin` in seconds since 1970 and
        GPU-seconds: `there_s`, `held_s`, `measured_s`, `busy_s`. `nodes`: the last two by node.
        """
        now = self._clock.now()
        with self._lock:
            if self._day is not None and now < self._day[0]:
                return self._day[1]
            kept = dict(self._quarters)
            if self._newest is not None:  # the only one to which heartbeats add, which must not wait for the sums
                kept[self._newest.number] = self._newest.copied()
        found = _sum_of(kept, self._clock.wall())
        with self._lock:
            self._day = now + REFRESH_S, found
        return found


def _sum_of(kept: Mapping[int, Quarter], wall: float) -> dict[str, Any]:
    last = int(wall // QUARTER_S)
    nodes: dict[str, tuple[float, float]] = {}
    quarters = list[dict[str, float]]()
    for number in range(last - SHOWN + 1, last + 1):
        one = kept.get(number) or Quarter(number)
        quarters.append(
            {
                "begin": number * QUARTER_S,
                "there_s": one.there_s,
                "held_s": one.held_s,
                "measured_s": math.fsum(one.measured_s),
                "busy_s": math.fsum(one.busy_s),
            }
        )
        for node, measured_s, busy_s in zip(one.nodes, one.measured_s, one.busy_s, strict=False):
            before = nodes.get(node, (0.0, 0.0))
            nodes[node] = before[0] + measured_s, before[1] + busy_s
    return {"until": wall, "quarters": quarters, "nodes": nodes}


def _read_row(row: Doc) -> Quarter | None:
    """Return the quarter of a stored row; None for a row that somebody has changed into something else."""
    if not sound([row], GpuUseRow):
        return None
    found = msgspec.convert(row, GpuUseRow)
    columns = len(found.nodes), len(found.measured_s), len(found.busy_s)
    numbers = (found.there_s, found.held_s, *found.measured_s, *found.busy_s)
    if len(set(columns)) > 1 or not all(math.isfinite(one) and one >= 0.0 for one in numbers):
        return None
    measured_s = array("d", found.measured_s)
    return Quarter(found.quarter, found.there_s, found.held_s, found.nodes, measured_s, array("d", found.busy_s))


def _with_added(one: Quarter, other: Quarter) -> Quarter:
    """Return both of one quarter as one, which is to be written."""
    measured_s: dict[str, float] = {}
    busy_s: dict[str, float] = {}
    rows = (zip(each.nodes, each.measured_s, each.busy_s, strict=True) for each in (one, other))
    for node, measured, busy in chain.from_iterable(rows):
        measured_s[node] = measured_s.get(node, 0.0) + measured
        busy_s[node] = busy_s.get(node, 0.0) + busy
    return Quarter(
        one.number,
        one.there_s + other.there_s,
        one.held_s + other.held_s,
        list(measured_s),
        array("d", measured_s.values()),
        array("d", busy_s.values()),
        changed=True,
    )


def parts_of_time(begin: float, end: float, length_s: float) -> Iterator[tuple[int, float]]:
    """Yield (number, seconds in it) of each span of `length_s` since 1970 that lies between `begin` and `end`."""
    while begin < end:
        number = int(begin // length_s)
        until = min(end, (number + 1) * length_s)
        yield number, until - begin
        begin = until
