"""Field names of the store's tables as types, so that `mypy --strict` refuses a misspelt field. Pure.

`Row[JobField]` is what code reads: `row["field"]`, `row.get("field")` and `"field" in row` of a plain dict, of which
mypy checks the names; `JobChanges` is what code writes. A document from the store (`dict[str, Any]`) fits every `Row`
without a cast, and at run time both are plain dicts. Users' own fields (`x_...`) are not listed: no code reads them.
`FIELDS` has the same names at run time; the store of the tests refuses to write others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar, cast, get_args, overload

import msgspec

PublicJobField = Literal[  # what users write
    "job_id", "state", "schema", "command", "code", "env", "image", "framework", "job_type", "model", "dataset",
    "dataset_size", "batch_size", "hyper_parameters", "iterations", "epochs", "progress_pattern", "progress_file",
    "reshape_exit_codes", "optional_num_gpus", "num_gpus", "gpus_per_pod", "max_workers", "gpu_type", "node",
    "resources", "tasks", "sla", "estimate", "time_limit", "target", "target_top5", "elastic", "freeze", "hooks",
    "grace_s", "depends_on", "namespace", "queue", "checkpoint_claim", "dataset_claim", "dataset_sha256", "base",
    "requirements", "single_container", "pod", "notify", "owner", "priority", "preemption",
]  # fmt: skip
CoordinatorJobField = Literal[  # what only the coordinator writes: a value from a user is cleared at intake
    "up", "down", "wanted", "wish_id", "retry_ts", "start_ts", "finish_ts", "iters_done", "epochs_done", "value",
    "value_name", "checkpoint", "reshape_cost_s", "run_ts", "ran_s", "expected_s", "category", "growth", "efficiency",
    "migrated_ts", "rebalanced", "move_refused_ts", "preempts", "yields_to", "moves", "newest_launch", "warnings",
    "cpu_limit", "limit_ts", "limits", "limit_told", "limits_told", "limit_by", "unlimitable", "held_back", "fault",
    "members", "depends_met", "sla_waiting_s", "missed_ts", "resumes", "withdrawn", "lost", "stopped_by_us", "forced",
    "grew_from", "unfit", "sized_by", "reshaped_by", "suspended", "held", "stalled", "pause_s", "edited",
    "code_agreed", "contradiction", "unleased", "cancel_reason", "frozen", "unfrozen", "run_mark", "image_build",
    "timed_out", "told", "queued_ts", "wished_by", "curve",
]  # fmt: skip
SystemJobField = Literal[  # what the coordinator or the launcher writes, and a copy of an ended job has, too
    "_id", "version", "last_op", "uid", "closed", "generation", "launch", "gpu_ids", "reshape", "problems",
    "submit_ts", "reshapes", "retries", "message", "pinned", "devices", "cancel", "origin", "volcano", "slaml",
    "submit_mark", "owner_uid",
]  # fmt: skip
JobField = Literal[
    PublicJobField, CoordinatorJobField, SystemJobField,
    "emulated_speed",  # only in what the platform is given of a job on emulated GPUs
]  # fmt: skip
GpuField = Literal[
    "_id", "version", "last_op", "gpu_id", "node", "index", "gpu_type", "memory_total", "emulated", "state", "job_id",
    "worker_id", "held_by", "generation", "retired", "unhealthy", "problem", "others", "unleased",
]  # fmt: skip
LaunchField = Literal[
    "_id", "version", "job_id", "uid", "launch", "origin", "wanted", "doc", "failure", "unplaced", "gone", "pod",
    "pods", "secret", "applied", "held",
]  # fmt: skip
QueueField = Literal["_id", "version", "inject", "devices"]
SlamlField = Literal[
    "_id", "version", "namespace", "name", "generation", "created", "spec", "notes", "deleted", "since", "judged",
    "plan", "again", "inserted", "status", "finished", "starts",
]  # fmt: skip
NodeField = Literal[
    "_id", "version", "cores", "memory", "gpus", "heard", "agent", "schedulable", "drained", "others", "used_by_others",
    "cpu_use", "memory_use",
]  # fmt: skip

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
JobChanges = dict[JobField, Any]
GpuChanges = dict[GpuField, Any]
LaunchChanges = dict[LaunchField, Any]
SlamlChanges = dict[SlamlField, Any]
NodeChanges = dict[NodeField, Any]

FIELDS: dict[str, frozenset[str]] = {
    "jobs": frozenset(get_args(JobField)), "gpus": frozenset(get_args(GpuField)),
    "launches": frozenset(get_args(LaunchField)), "queues": frozenset(get_args(QueueField)),
    "slamls": frozenset(get_args(SlamlField)), "nodes": frozenset(get_args(NodeField)),
}  # fmt: skip


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
