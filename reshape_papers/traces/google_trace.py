"""Reads Google's cluster trace of 2019, v3: `instance_events`, as exported by BigQuery (JSON lines, or CSV).

An instance that was scheduled and finished is a job trained on CPU, lasting from its last SCHEDULE to FINISH; one that
was evicted, failed, killed, lost or never finished is left out, and so are alloc sets (D11). Times are microseconds; 0
and the largest number mean before and after the trace. Requests are shares of the largest machine of the cell (D12):
here of the machine that the user names, else of one with `CORES` and `MEMORY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshape_papers.traces.csv_files import CsvRow, CsvTable, TraceSource, documents
from reshape_papers.traces.trace import CORES, Trace, TraceJob
from simulator.scenario import NoWorkload

MEMORY = 256 * 2.0**30
LARGEST_US = 2.0**63 - 1
KINDS = ("SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST")
ENDS = frozenset({"EVICT", "FAIL", "KILL", "LOST"})
COLUMNS = ("time", "type", "collection_id", "instance_index", "resource_request.cpus", "resource_request.memory")
USUAL = tuple(f"instance_events{kind}" for kind in (".json", ".json.gz", ".csv", ".csv.gz"))


@dataclass(slots=True)
class _Instance:
    """The state of one instance, updated by each of its events."""

    submitted_us: float | None = None
    scheduled_us: float | None = None
    finished_us: float | None = None
    broken: bool = False
    cpus: float = 0.0
    memory: float = 0.0

    def takes(self, kind: str, at_us: float, cells: CsvRow) -> None:
        self.broken |= kind in ENDS
        if kind == "SUBMIT" and self.submitted_us is None:
            self.submitted_us = at_us
        elif kind == "SCHEDULE":
            self.scheduled_us = at_us
        elif kind == "FINISH":
            self.finished_us = at_us
        self.cpus = cells.number("resource_request.cpus", self.cpus) or self.cpus
        self.memory = cells.number("resource_request.memory", self.memory) or self.memory


def read(place: TraceSource) -> Trace:
    largest = max(place.nodes, key=lambda node: (node.cores, node.memory), default=None)
    cores = largest.cores if largest is not None and largest.cores else CORES
    memory = largest.memory if largest is not None and largest.memory else MEMORY
    path = place.find(*USUAL)
    instances: dict[tuple[int, int], _Instance] = {}
    for kind, at_us, cells in sorted(_events(path), key=lambda event: event[1]):
        key = cells.whole("collection_id"), cells.whole("instance_index")
        instances.setdefault(key, _Instance()).takes(kind, at_us, cells)
    said = f"requests, stored as shares of the largest machine, are of one with {cores:g} cores, {memory / 2**30:g} GiB"
    return Trace.from_jobs(
        "google", _jobs(instances, cores, memory), invented=(said, "each instance is a job of its own")
    )


def _jobs(instances: Mapping[tuple[int, int], _Instance], cores: float, memory: float) -> Iterator[TraceJob]:
    for (collection, index), it in instances.items():
        if it.scheduled_us is not None and it.finished_us is not None and not it.broken:
            began = it.scheduled_us if it.submitted_us is None else it.submitted_us
            yield TraceJob(
                f"{collection}-{index}", began / 1e6, 0, (it.finished_us - it.scheduled_us) / 1e6,
                it.cpus * cores, it.memory * memory,
            )  # fmt: skip


def _events(path: Path) -> Iterator[tuple[str, float, CsvRow]]:
    """Yield kind, time in microseconds and row of each event within the trace, without those of alloc sets."""
    for cells in _rows(path):
        at_us = cells.number("time")
        if 0 < at_us < LARGEST_US and cells.text("collection_type") not in ("1", "ALLOC_SET"):
            yield _kind(cells), at_us, cells


def _rows(path: Path) -> Iterable[CsvRow]:
    if ".csv" in path.suffixes:
        return (cells for _, cells in CsvTable.read(path, COLUMNS))
    return (_flat(path, position, one) for position, one in enumerate(documents(path), start=1))


def _flat(path: Path, position: int, event: Mapping[str, Any]) -> CsvRow:
    """Return a JSON event as a row with the columns of a CSV export: the request's parts beside the other fields."""
    where = f"{path}, event {position}"
    if missing := [name for name in COLUMNS[:3] if name not in event]:
        raise NoWorkload(f"{where} has no {missing[0]}; expected are the fields of instance_events, v3.")
    request = event.get("resource_request") or {}
    return CsvRow(where, {**event, **{f"resource_request.{name}": value for name, value in request.items()}})


def _kind(cells: CsvRow) -> str:
    """Return the event's kind, given by number or by name; updates are not needed here."""
    kind = cells.text("type") or "0"
    return KINDS[int(kind)] if kind.isdigit() and int(kind) < len(KINDS) else kind
