"""Field names of the store's tables as types, so that `mypy --strict` refuses a misspelt field. Pure.

`Row[JobField]` is what code reads: `row["field"]`, `row.get("field")` and `"field" in row` of a plain dict, of which
mypy checks the names; `JobChanges` is what code writes. A document from the store (`dict[str, Any]`) fits every `Row`
without a cast, and at run time both are plain dicts. Users' own fields (`x_...`) are not listed: no code reads them.
The names of jobs, GPUs and nodes come from the structs in `coordinator.model.schema`. `FIELDS` has all of them at run
time; the store of the tests refuses to write others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar, cast, get_args, overload

import msgspec

from coordinator.model.field_names import CoordinatorJobField, GpuField, NodeField, PublicJobField, SystemJobField

JobField = Literal[
    PublicJobField,
    CoordinatorJobField,
    SystemJobField,
    "emulated_speed",  # only in what the platform is given of a job on emulated GPUs
]
LaunchField = Literal[
    "_id",
    "version",
    "job_id",
    "uid",
    "launch",
    "origin",
    "wanted",
    "doc",
    "failure",
    "unplaced",
    "gone",
    "pod",
    "pods",
    "secret",
    "applied",
    "held",
    "moved",
]
QueueField = Literal[
    "_id",
    "version",
    "inject",
    "devices",
    "weight",
    "guaranteed",
    "limit",
    "reclaimable",
    "parent",
    "makespan_weight",
]
SlamlField = Literal[
    "_id",
    "version",
    "namespace",
    "name",
    "generation",
    "created",
    "spec",
    "notes",
    "deleted",
    "since",
    "judged",
    "plan",
    "again",
    "inserted",
    "status",
    "finished",
    "starts",
]
PlaceholderField = Literal[
    "_id",
    "version",
    "namespace",
    "queue",
    "node",
    "job_id",
    "group",
    "size",
    "opportunistic",
    "wanted",
    "why",  # ours
    "pod",
    "unplaced",
    "failure",
    "gone",  # what the launcher writes
]
PoolField = Literal["_id", "version", "mark", "waits"]

F_contra = TypeVar("F_contra", bound=str, contravariant=True)


class Row(Protocol[F_contra]):
    """A document of one table, for reading; every `dict[str, Any]` is one."""

    def __getitem__(self, field: F_contra, /) -> Any: ...

    @overload
    def get(self, field: F_contra, /) -> Any: ...
    @overload
    def get(self, field: F_contra, default: Any, /) -> Any: ...

    def __contains__(self, field: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def keys(self) -> Iterable[Any]: ...


JobRow = Row[JobField]
GpuRow = Row[GpuField]
LaunchRow = Row[LaunchField]
QueueRow = Row[QueueField]
SlamlRow = Row[SlamlField]
NodeRow = Row[NodeField]
PlaceholderRow = Row[PlaceholderField]
JobChanges = dict[JobField, Any]
GpuChanges = dict[GpuField, Any]
LaunchChanges = dict[LaunchField, Any]
SlamlChanges = dict[SlamlField, Any]
NodeChanges = dict[NodeField, Any]
PlaceholderChanges = dict[PlaceholderField, Any]

FIELDS: dict[str, frozenset[str]] = {
    "jobs": frozenset(get_args(JobField)),
    "gpus": frozenset(get_args(GpuField)),
    "launches": frozenset(get_args(LaunchField)),
    "queues": frozenset(get_args(QueueField)),
    "slamls": frozenset(get_args(SlamlField)),
    "nodes": frozenset(get_args(NodeField)),
    "placeholders": frozenset(get_args(PlaceholderField)),
    "pool": frozenset(get_args(PoolField)),
}


def plain(row: Row[Any]) -> dict[str, Any]:
    """The same dict for code that treats all fields alike, such as `{**plain(row), ...}`."""
    return cast(dict[str, Any], row)


# What only the coordinator writes, and shows: a row that somebody has changed into something else is passed over.


class GpuReadingRow(msgspec.Struct):
    gpu_id: str
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_own: int | None = None
    memory_others: int | None = None
    healthy: bool = True


class ReportRow(msgspec.Struct):
    """The newest report of a job, in a row of `heartbeats`; older versions wrote less."""

    job_id: str | int
    uid: str = ""
    at: float = 0.0
    iters_done: int = 0
    epochs_done: float | None = None
    value: float | None = None
    value_name: str | None = None
    seconds_per_iteration: float | None = None
    cpu_cores: float | None = None
    memory: int | None = None
    gpus: list[GpuReadingRow] = []


class GpuUseRow(msgspec.Struct):
    """One quarter of an hour, in GPU-seconds; see `coordinator/telemetry/gpu_use.py`."""

    quarter: int
    there_s: float
    held_s: float
    nodes: list[str]
    measured_s: list[float]
    busy_s: list[float]


class DecisionRow(msgspec.Struct):
    """A row of `decisions`."""

    _id: str
    job_id: str | int
    at: float
    sentence: str
    kind: str = ""
    algorithm: str = ""
    candidates: list[dict[str, Any]] = []
    jobs: list[str] = []
    unchanged_makespan_s: float | None = None
    unchanged_guesses: list[str] = []
    counted: list[str] | None = None


class EventRow(msgspec.Struct):
    """A row of `events`."""

    _id: int
    type: str
    at: float = 0.0
    job_id: str | int | None = None


def sound(rows: object, kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """Those of a list of rows that have the fields and types of `kind`, as they are; empty for anything else."""
    return [row for row in rows if _fits(row, kind)] if isinstance(rows, list) else []


def _fits(row: object, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(row, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True
