"""Ports: interfaces of the coordinator to external services. Adapters implement them; tests use fakes.

All ports are synchronous and may be called from any thread, so that decisions and the reconciler are plain code, and a
crash test is a plain exception. Only the HTTP API is asynchronous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from coordinator.model.records import Moment
from coordinator.model.tables import JobRow
from sidecar.protocol import CheckpointCall, ShimStatus, StartCall, StopCall, Usage

Doc = dict[str, Any]
MEASURED_S = 120.0  # that present use is the mean of: two samples lie in it, however rarely Prometheus scrapes
Key = Any  # `_id`, chosen by the user or the coordinator: str, int, ObjectId

PROFILE_TABLES = ("speed_profiles", "accuracy_profiles", "overheads", "observations")  # those that users may import


class Store(Protocol):
    """Documents in named tables. Each method is atomic for one document and durable on return.

    Raises only `Conflict`, `Transient`, `Rejected` (`coordinator.errors`). `where` and `expect`
    are equalities on top-level fields; None also matches a missing field, and a value a list that
    holds it, as MongoDB has it.
    The rules for documents are those every server keeps (`reliability.md` 1): unique by `_id` only,
    no `.` or `$` in keys, no NaN, times as numbers.
    """

    def get(self, table: str, key: Key) -> Doc | None: ...

    def list(self, table: str, where: Mapping[str, Any] | None = None) -> list[Doc]:
        """Return the rows, in order of `_id` for keys of one type."""
        ...

    def scan(self, table: str, fields: Sequence[str]) -> Iterator[Doc]:
        """All rows, each with its `_id` and those of `fields` that it has. In parts: other calls come in between."""
        ...

    def changed(
        self, tables: Sequence[str], since: int | None
    ) -> tuple[int, Mapping[tuple[str, Key], Doc | None] | None]:
        """A number for now, and what came, changed or went in these tables since such a number: each row as it is now
        by (table, `_id`), None where it is gone. Jobs that are not accepted, or ended before, may be left out.

        None instead of the rows: that is not known, so all must be read. A table is one of
        `coordinator.stores.rules.FOLLOWED`; each is asked for by one caller.
        """
        ...

    def insert(self, table: str, doc: Doc) -> None:
        """`Conflict` if the `_id` is taken. A document without `_id` gets one."""
        ...

    def update(self, table: str, key: Key, expect: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Doc:
        """Set top-level fields if `expect` still holds, and return the new document.

        One round trip. `Conflict` when there is no such document or `expect` does not hold.
        Adds 1 to `version` by itself. Fields not named stay as they are.
        """
        ...

    def update_many(self, table: str, updates: Sequence[tuple[Key, Mapping[Any, Any], Mapping[Any, Any]]]) -> int:
        """(`_id`, `expect`, `changes`) of some documents, each as by `update`; returns how many were changed.

        One round trip where the server can. Each is atomic, all of them together are not: after a crash or an error
        any of them may have been made.
        """
        ...

    def put(self, table: str, doc: Doc) -> None:
        """Insert or replace as a whole."""
        ...

    def put_many(self, table: str, docs: Sequence[Doc]) -> None:
        """Each as by `put`, in one round trip where the server can; after an error any of them may have been put."""
        ...

    def delete(self, table: str, key: Key, expect: Mapping[str, Any] | None = None) -> None:
        """`Conflict` when there is no such document or `expect` does not hold."""
        ...

    def remove(self, table: str, keys: Sequence[Key], expect: Mapping[str, Any] | None = None) -> int:
        """Delete those of these rows of which `expect` holds; returns their number. Repeated, it changes nothing."""
        ...

    def compact(self) -> None:
        """Give the space of removed rows back where the store is a file. `Transient` while other processes write."""
        ...

    def append_events(self, events: Sequence[Doc]) -> None:
        """One round trip for all. Each event carries its own increasing integer `_id`."""
        ...

    def events_after(self, seq: int, limit: int = 1000) -> Sequence[Doc]: ...

    def last_event(self) -> int:
        """The highest event `_id`, 0 if there is none."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait until a job is inserted, or `seconds` passed; True if a change was seen.

        Only a hint that saves waiting for the next poll. Stores that cannot watch just sleep.
        """
        ...

    def close(self) -> None: ...


class Sidecars(Protocol):
    """Signed calls to the sidecar of one launch; each answers with the shim's status.

    `Transient` when it does not answer, `Conflict` when it has seen a higher generation (its
    heartbeats tell which), `Fatal` when it refuses for good.
    """

    def start(self, url: str, key: bytes, job: str, launch: int, call: StartCall) -> ShimStatus: ...

    def stop(self, url: str, key: bytes, job: str, launch: int, call: StopCall) -> ShimStatus: ...

    def checkpoint(self, url: str, key: bytes, job: str, launch: int, call: CheckpointCall) -> ShimStatus: ...

    def read_output(self, url: str, key: bytes, job: str, launch: int, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes of the trainer's output from byte `offset`, and the offset after them."""
        ...


@dataclass(frozen=True)
class LivingLaunch:
    """A launch of which processes run, whatever the store says."""

    job_id: str
    uid: str
    launch: int
    shim: ShimStatus | None  # None: it does not answer


@dataclass(frozen=True)
class Evidence:
    """What is known without the store: copies of jobs' documents, and the launches that run."""

    records: tuple[Doc, ...] = ()
    living: tuple[LivingLaunch, ...] = ()


class Platform(Protocol):
    """Starts and removes launches; `local` (processes here) or `kubernetes`. All idempotent."""

    def launch(self, doc: JobRow) -> None:
        """Ask for the launch of the job in `doc` (its `launch` number names it); returns at once.

        Of a gang asked again with other GPUs: its pods, of which each has `gpus_per_pod`, come and go at the end.
        """
        ...

    def failure(self, doc: JobRow) -> str | None:
        """Return why the launch last asked for has failed, as a sentence; None while it may still succeed."""
        ...

    def unplaced(self, doc: JobRow) -> str | None:
        """Return why there is no place for the launch, such as on a full node or disk; None if there is.

        Asked of a launch that is late or has failed; a failed one with a reason is tried again without end.
        """
        ...

    def remove(self, doc: JobRow) -> None:
        """Ask for the removal of the launch; returns at once."""
        ...

    def gone(self, doc: JobRow) -> bool:
        """True only if it is certain that no process of this launch runs any more."""
        ...

    def vanished(self, doc: JobRow) -> frozenset[int]:
        """The pods of this launch whose objects are gone though nothing proved that their processes have ended."""
        ...

    def nothing_runs(self, job_id: str) -> bool:
        """True if certainly no process runs of a job whose document is gone and whose launch is unknown.

        Ends processes that still run. On a cluster it is asked about a job without a lease once one would have ended.
        """
        ...

    def keep(self, doc: JobRow) -> None:
        """Keep a copy of the document of a launched job where the loss of the store does not reach it."""
        ...

    def adopt(self, doc: JobRow) -> None:
        """Take a launch that runs for one of its own, where what it knew of that went with the store."""
        ...

    def recall(self, jobs: Sequence[JobRow]) -> Evidence:
        """Return the copies of all jobs that have not ended and of those of `jobs` that have, and what runs."""
        ...

    def ended(self, doc: JobRow) -> frozenset[int]:
        """The pods of a gang's launch of which it is certain that no process runs any more."""
        ...

    def output(self, doc: JobRow, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes of the trainer's output from byte `offset`, and the offset after them.

        An `offset` below 0 counts from the end.
        """
        ...


class PodAccess(Protocol):
    """Sets which GPUs the pods of a launch can open, by the device filters of its nodes. Idempotent.

    `Transient` where a node agent does not answer, cannot do it, or has obeyed a higher generation. A pod without a
    seat has no filter, and one that is gone needs none.
    """

    def open(self, doc: JobRow, generation: int, gpu_ids: Sequence[Sequence[str]]) -> None:
        """Let each pod of the present launch open exactly these, by member. They are closed to all other pods first."""
        ...

    def keep(self, doc: JobRow, generation: int, gpu_ids: Sequence[str]) -> None:
        """Close all GPUs but these to the pods of the present launch; opens none."""
        ...


class MeasuredNow(NamedTuple):
    """Mean use over the last `MEASURED_S` seconds."""

    others: Mapping[str, tuple[float, float]]  # by node: cores and bytes that are used by what is not a job's pod
    jobs: Mapping[tuple[str, int], Usage]  # by uid and launch of a job


class Measurements(Protocol):
    """A monitoring system that watches the pods and nodes of the cluster, beside what the pods report themselves."""

    def now(self, at: float) -> MeasuredNow:
        """The use at this time (seconds since 1970), of all that it knows. `Transient` when it does not answer."""
        ...

    def used(self, doc: JobRow, since: float, until: float) -> Doc:
        """Resource use of the job's pods between two times (seconds since 1970), as fields of a row of
        `observations`, without unknown ones. `Transient` when it does not answer."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds of a clock that never jumps and runs on while the machine sleeps (CLOCK_BOOTTIME)."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for records that people read."""
        ...

    def boot_id(self) -> str:
        """Return what names the time since this machine was booted, in which `now` counts; empty if it is not known."""
        ...


def moment_of(clock: Clock) -> Moment:
    """Return what a clock shows now."""
    return Moment(clock.now(), clock.wall(), clock.boot_id())
