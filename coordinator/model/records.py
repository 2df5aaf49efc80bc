"""Typed views of the documents in the store. Reading never fails: a strange value reads as absent.

Documents keep the user's own types (`job_id` may be 3 or "3"); inside the coordinator a job is
named by `JobRecord.id`, its `job_id` as a string.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from coordinator.model.tables import GpuRow, JobChanges, JobRow

Doc = dict[str, Any]


RESHAPE_EXIT_CODES = frozenset({42, 75, 143, -15})

SHARED, RECREATE = "shared", "recreate"  # device modes: launches that see all GPUs of their node, or only their own

UNLIMITED: JobChanges = {"cpu_limit": None, "limit_ts": None, "limit_told": None, "limit_by": None}
"""Written into whatever stops or moves: a CPU limit holds for one training on one node."""


def _names(ids: object) -> tuple[str, ...]:
    return tuple(str(i) for i in ids) if isinstance(ids, list) else ()


def name(value: object) -> str | None:
    """A job or GPU id as a string; None stays None."""
    return None if value is None else str(value)


def number(value: object, least: float = 0.0) -> float | None:
    """A finite number of at least `least`, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and value >= least else None
    except OverflowError:  # JSON holds whole numbers of any length
        return None


def whole(value: object, least: int) -> TypeGuard[int]:
    """Whether it is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def show(value: object) -> str:
    """A value from anybody as part of a sentence: short, without control characters."""
    text = repr(value)[:61]
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Operation:
    """The one operation under way on a job: its `reshape` field (`reliability.md` 3).

    `kind` is start, reshape, move, restart, requeue or finish; `peer` the newcomer that waits for this
    victim, or the victim that this newcomer waits for; `how` is `in place` or `relaunch`; `node` where a
    move leads to.
    """

    doc: Doc

    @property
    def kind(self) -> str:
        return str(self.doc.get("kind", "reshape"))

    @cached_property
    def to(self) -> tuple[str, ...]:
        return _names(self.doc.get("to"))

    @cached_property
    def origin(self) -> tuple[str, ...]:
        return _names(self.doc.get("from"))

    @property
    def generation(self) -> int:
        return int(number(self.doc.get("generation")) or 0)

    @property
    def peer(self) -> str | None:
        return name(self.doc.get("for") if self.kind == "reshape" else self.doc.get("victim"))

    @property
    def node(self) -> str | None:
        return name(self.doc.get("node"))

    @property
    def launch(self) -> int | None:
        """Of a move whose newcomer comes up while the job trains on: its launch, until and after the grant."""
        given = self.doc.get("launch")
        return given if self.kind == "move" and whole(given, 1) else None

    @property
    def leaves(self) -> int | None:
        """The launch that such a move leaves behind."""
        given = self.doc.get("from_launch")
        return given if self.launch is not None and whole(given, 1) else None

    @property
    def how(self) -> str:
        return str(self.doc.get("how", "in place"))

    @property
    def decision(self) -> str | None:
        return name(self.doc.get("decision"))

    @property
    def forced(self) -> bool:
        """Whether an operator agreed to lose what its training has not saved."""
        return self.doc.get("forced") is True

    @property
    def stopped(self) -> Doc:
        """When its training was stopped, and how it ended; empty where that is not known."""
        stopped = self.doc.get("stopped")
        return dict(stopped) if isinstance(stopped, dict) else {}

    @cached_property
    def yields_to(self) -> tuple[str, ...]:
        return _names(self.doc.get("yields_to"))

    @property
    def spends(self) -> JobChanges:
        """What a move writes into the job once it cannot be undone: its one chance is spent (seed 000)."""
        spends = self.doc.get("spends")
        return dict(spends) if isinstance(spends, dict) else {}


@dataclass(frozen=True)
class JobRecord:
    """One row of the job table."""

    doc: JobRow

    @property
    def key(self) -> Any:
        return self.doc["_id"]

    @cached_property
    def id(self) -> str:
        return str(self.raw_id)

    @property
    def raw_id(self) -> Any:
        """As the user wrote it; the document's own `_id` where none was given."""
        job_id = self.doc.get("job_id")
        return str(self.doc["_id"]) if job_id is None else job_id

    @property
    def state(self) -> str:
        return str(self.doc.get("state"))

    @property
    def accepted(self) -> bool:
        """Whether intake has let it in."""
        return bool(self.doc.get("uid")) and not self.doc.get("problems")

    @property
    def uid(self) -> str:
        return str(self.doc.get("uid", ""))

    @property
    def generation(self) -> int:
        return int(number(self.doc.get("generation")) or 0)

    @property
    def launch(self) -> int:
        return int(number(self.doc.get("launch")) or 0)

    @property
    def next_launch(self) -> int:
        """A number that no launch of it has had: not that of a move's newcomer that was given up, either."""
        return max(self.launch, self.newest_launch or 0) + 1

    @property
    def newest_launch(self) -> int | None:
        """That of its last move's newcomer, whatever became of it."""
        given = self.doc.get("newest_launch")
        return given if whole(given, 1) else None

    @property
    def coming(self) -> JobRecord | None:
        """As it will be launched where it moves to, while its present launch trains on."""
        op = self.operation
        if op is None or op.launch is None or op.launch <= self.launch:
            return None
        there: JobChanges = {"launch": op.launch, "node": op.node, "gpu_ids": list(op.to), "num_gpus": len(op.to)}
        return JobRecord({**self.doc, **there})

    @property
    def node(self) -> str | None:
        return name(self.doc.get("node"))

    @property
    def job_type(self) -> str:
        return str(self.doc.get("job_type"))

    @cached_property
    def gpu_ids(self) -> tuple[str, ...]:
        return _names(self.doc.get("gpu_ids"))

    @property
    def recreated(self) -> bool:
        """Whether its launch holds its GPUs for good, so that a reshape is another launch (device mode `recreate`)."""
        return bool(self.doc.get("devices") == RECREATE)

    @cached_property
    def optional(self) -> tuple[int, ...]:
        """The GPU counts it can run on; (0,) for one trained on CPU."""
        counts = self.doc.get("optional_num_gpus")
        return tuple(sorted({int(n) for n in counts if number(n) is not None})) if isinstance(counts, list) else ()

    @property
    def gpus_per_pod(self) -> int | None:
        """Of a gang: a job of several pods with so many GPUs each, that train together. None: it has one pod."""
        given = self.doc.get("gpus_per_pod")
        return given if whole(given, 1) else None

    def parts(self, gpu_ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """What each pod of the job has of these GPUs, pod 0 first. Pods come and go at the end (Volcano's replicas)."""
        size = self.gpus_per_pod or max(1, len(gpu_ids))
        return tuple(tuple(gpu_ids[at : at + size]) for at in range(0, max(1, len(gpu_ids)), size))

    @property
    def members(self) -> int:
        """How many pods of its launch may train; where it has let go of its GPUs, how many might have."""
        if self.gpus_per_pod is None:
            return 1
        return len(self.parts(self.gpu_ids)) if self.gpu_ids else int(number(self.doc.get("members"), 1) or 1)

    @property
    def most_members(self) -> int:
        """The same, with those that it is about to get."""
        return max(self.members, len(self.parts(self.operation.to)) if self.operation else 1)

    @property
    def uses_cpu(self) -> bool:
        """Whether it trains without any GPU."""
        return self.optional == (0,)

    @cached_property
    def operation(self) -> Operation | None:
        doc = self.doc.get("reshape")
        return Operation(doc) if isinstance(doc, dict) else None

    @property
    def cancel(self) -> bool:
        return bool(self.doc.get("cancel"))

    @property
    def wanted(self) -> int | None:
        wanted = number(self.doc.get("wanted"), 1)
        return None if wanted is None else int(wanted)

    @property
    def retries(self) -> int:
        return int(number(self.doc.get("retries")) or 0)

    @cached_property
    def yields_to(self) -> tuple[str, ...]:
        """Jobs that must have started before it may again."""
        return _names(self.doc.get("yields_to"))

    @property
    def preempts(self) -> int:
        return int(number(self.doc.get("preempts")) or 0)

    @property
    def retry_ts(self) -> float:
        return number(self.doc.get("retry_ts")) or 0.0

    @property
    def submit_ts(self) -> float:
        return number(self.doc.get("submit_ts")) or 0.0

    @property
    def forced(self) -> bool:
        """Whether an operator agreed to lose what its training has not saved."""
        return self.doc.get("forced") is True

    @property
    def finish_ts(self) -> float:
        """0 while it has not ended, and where nobody wrote when."""
        return number(self.doc.get("finish_ts")) or 0.0

    def ran_s(self, wall: float) -> float:
        """Seconds that it has trained, without the time it was back in the queue."""
        since = number(self.doc.get("run_ts", self.doc.get("start_ts")))
        return (number(self.doc.get("ran_s")) or 0.0) + (0.0 if since is None else max(0.0, wall - since))

    @property
    def iterations_done(self) -> int:
        return int(number(self.doc.get("iters_done")) or 0)

    @property
    def iterations(self) -> int | None:
        """The job's whole length: given, or epochs x ceil(dataset / batch) (1.5)."""
        given, epochs = (number(self.doc.get(f), 1) for f in ("iterations", "epochs"))
        if given is not None:
            return int(given)
        return None if epochs is None or self.epoch_iterations is None else int(epochs) * self.epoch_iterations

    @property
    def epoch_iterations(self) -> int | None:
        """Iterations of one epoch, where size of data set and batch are given."""
        size, batch = (number(self.doc.get(f), 1) for f in ("dataset_size", "batch_size"))
        return None if size is None or batch is None else math.ceil(size / batch)

    @property
    def limits(self) -> int:
        """How often its CPU limit was changed."""
        return int(number(self.doc.get("limits")) or 0)

    @property
    def limits_told(self) -> int:
        """How often that was told."""
        return int(number(self.doc.get("limits_told")) or 0)

    @property
    def limit_by(self) -> str:
        """Whether its CPU limit is a `quota` or a `weight`."""
        return "weight" if self.doc.get("limit_by") == "weight" else "quota"

    @property
    def unlimitable(self) -> str | None:
        """Why its present launch cannot be limited, as the launcher found out."""
        found = self.doc.get("unlimitable")
        return str(found.get("why")) if isinstance(found, dict) and found.get("launch") == self.launch else None

    def limit_left(self, wall: float) -> tuple[float | None, float]:
        """CPU cores that it may use at most, and for how many seconds more; None: all it can get."""
        cores, left = number(self.doc.get("cpu_limit")), (number(self.doc.get("limit_ts")) or 0.0) - wall
        return (cores, left) if cores and left > 0 else (None, 0.0)

    @property
    def reshape_exit_codes(self) -> frozenset[int]:
        """Exit codes that mean `stopped for reshape` (docs/starting.md, "What your script needs")."""
        codes = self.doc.get("reshape_exit_codes")
        return frozenset(c for c in codes if isinstance(c, int)) if isinstance(codes, list) else RESHAPE_EXIT_CODES


@dataclass(frozen=True)
class GpuRecord:
    """One row of the GPU table."""

    doc: GpuRow

    @property
    def id(self) -> str:
        return str(self.doc["_id"])

    @property
    def state(self) -> str:
        return str(self.doc.get("state"))

    @property
    def node(self) -> str:
        return str(self.doc.get("node"))

    @property
    def gpu_type(self) -> str:
        return str(self.doc.get("gpu_type"))

    @property
    def job(self) -> str | None:
        return name(self.doc.get("job_id"))

    @property
    def held_by(self) -> str | None:
        return name(self.doc.get("held_by"))

    @property
    def faulty(self) -> bool:
        return self.state == "faulty"
