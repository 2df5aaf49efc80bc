"""Declares the fields that the coordinator and the launcher write into `jobs`, `gpus` and `nodes`: name and type.

Rows stay plain documents, in which fields that no struct names survive. `Any` stands where whoever reads the field
takes what is there: people edit such fields by hand, or nobody decides by them. From these structs come the names that
mypy knows (`coordinator.model.field_names`, by `make reference`) and the check of rows as they are read
(`coordinator.model.document_validation`). A bound may become wider in a later release, never narrower: rows of running
jobs are read by it. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from coordinator.model import states as s
from coordinator.model.schema.field_types import LARGEST, Count, Number, one_of, struct_of, types_of_fields, worded
from coordinator.model.schema.job_fields import FIELDS

Id = Annotated[str | Annotated[int, Meta(ge=1 - LARGEST, le=LARGEST - 1)], worded("a text or a whole number")]
Ids = Annotated[list[Id], worded("a list of names")]


class Gift(msgspec.Struct):
    """A victim's promise: its id, the generation in which it made it, the GPUs that it keeps."""

    job: Id
    keeps: Ids
    generation: Any = None


class OperationFields(msgspec.Struct, kw_only=True, rename={"origin": "from"}):
    """An operation under way, in `reshape` of a job; `coordinator.model.records.Operation` reads it."""

    kind: Literal["start", "reshape", "move", "restart", "requeue", "finish"] = "reshape"
    generation: Count
    at: Number | None = None
    launch: Number | None = None
    from_launch: Number | None = None
    to: Ids | None = None
    origin: Ids | None = None
    yields_to: Ids | None = None
    victims: list[Gift] | None = None
    victim_keeps: Ids | None = None  # written by a version that knew one victim


class JobStatus(msgspec.Struct, kw_only=True):
    """Fields that only the coordinator writes: a value from a user is cleared when the job is let in."""

    up: Count | None = None
    down: Count | None = None
    wanted: Count | None = None
    wish_id: Any = None
    retry_ts: Number | None = None
    retry_mark: dict[str, Any] | None = None
    start_ts: Number | None = None
    finish_ts: Number | None = None
    iters_done: Count | None = None
    epochs_done: Number | None = None
    value: Any = None
    value_name: str | None = None
    checkpoint: dict[str, Any] | None = None
    reshape_cost_s: Number | None = None
    run_ts: Number | None = None
    ran_s: Number | None = None
    expected_s: Number | None = None
    category: str | None = None
    growth: Any = None
    efficiency: Any = None
    migrated_ts: Number | None = None
    rebalanced: bool | None = None
    move_refused_ts: Number | None = None
    preempts: Count | None = None
    yields_to: list[Any] | None = None
    moves: Count | None = None
    newest_launch: Count | None = None
    warnings: list[Any] | None = None
    cpu_limit: Number | None = None
    limit_ts: Number | None = None
    limit_mark: dict[str, Any] | None = None
    limits: Count | None = None
    limit_told: Number | None = None
    limits_told: Count | None = None
    limit_by: Any = None
    unlimitable: dict[str, Any] | None = None
    held_back: Any = None
    fault: Any = None
    members: Count | None = None
    depends_met: bool | None = None
    sla_waiting_s: Number | None = None
    late_s: Number | None = None
    missed_ts: Number | None = None
    resumes: str | None = None
    withdrawn: str | None = None
    lost: dict[str, Any] | None = None
    stopped_by_us: Count | None = None
    forced: bool | None = None
    grew_from: Count | None = None
    unfit: Any = None
    sized_by: str | None = None
    reshaped_by: str | None = None
    suspended: bool | None = None
    held: str | None = None
    stalled: dict[str, Any] | None = None
    pause_s: Number | None = None
    edited: dict[str, Any] | None = None
    code_agreed: Count | None = None
    contradiction: str | None = None
    unleased: bool | None = None
    cancel_reason: Any = None
    frozen: dict[str, Any] | None = None
    unfrozen: dict[str, Any] | None = None
    run_mark: dict[str, Any] | None = None
    image_build: dict[str, Any] | None = None
    timed_out: bool | None = None
    told: dict[str, Any] | None = None
    queued_ts: Number | None = None
    wished_by: str | None = None
    curve: dict[str, Any] | None = None


class JobAdministration(msgspec.Struct, kw_only=True):
    """Further fields that the coordinator or the launcher writes; a copy of a job that has ended has them, too."""

    _id: Any = None
    version: Count | None = None
    last_op: Any = None
    uid: str | None = None
    closed: bool | None = None
    generation: Count | None = None
    launch: Count | None = None
    gpu_ids: Ids | None = None
    reshape: Annotated[OperationFields, worded("an operation under way")] | None = None
    problems: Any = None
    submit_ts: Number | None = None
    reshapes: Count | None = None
    retries: Count | None = None
    message: Any = None
    pinned: str | None = None
    devices: str | None = None
    cancel: Any = None
    origin: Any = None
    volcano: dict[str, Any] | None = None
    slaml: dict[str, Any] | None = None
    submit_mark: dict[str, Any] | None = None
    owner_uid: Count | None = None


class TakenOver(msgspec.Struct, kw_only=True):
    """Fields that a user writes and the coordinator goes on to write, as they are after that."""

    state: Annotated[str, one_of(*s.JOB_STATES)] | None = None
    node: str | None = None


class GpuFields(msgspec.Struct, kw_only=True):
    """A row of `gpus`; without the fields that have no default a GPU is given to nobody."""

    _id: Any = None
    version: Any = None
    last_op: Any = None
    gpu_id: Any = None
    node: str
    index: Count | None = None
    gpu_type: str | None = None
    memory_total: Count | None = None
    emulated: Any = None
    state: Annotated[str, one_of(*s.GPU_STATES)]
    job_id: Id | None = None
    worker_id: Any = None
    held_by: Id | None = None
    generation: Count | None = None
    retired: Any = None
    unhealthy: Any = None
    problem: Any = None
    others: str | None = None
    unleased: bool | None = None
    holder: str | None = None
    pool: str | None = None
    asked_back: str | None = None
    opportunistic: bool | None = None


class NodeFields(msgspec.Struct, kw_only=True):
    """A row of `nodes`."""

    _id: Any = None
    version: Any = None
    cores: Number | None = None
    memory: Number | None = None
    gpus: list[Any] | None = None
    heard: Any = None
    agent: bool | None = None
    schedulable: bool | None = None
    drained: bool | None = None
    others: dict[str, Any] | None = None
    used_by_others: Any = None
    cpu_use: Any = None
    memory_use: Any = None
    pool: dict[str, Any] | None = None


JOB_TYPES: dict[str, Any] = {
    **{name: field.kind for name, field in FIELDS.items()},
    **types_of_fields(JobStatus),
    **types_of_fields(JobAdministration),
    **types_of_fields(TakenOver),
}
ROWS: dict[str, type[msgspec.Struct]] = {
    "jobs": struct_of("JobFields", JOB_TYPES),
    "gpus": GpuFields,
    "nodes": NodeFields,
}
"""By table: what a row of it is read as."""
