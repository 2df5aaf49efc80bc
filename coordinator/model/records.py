"""Typed views of the documents in the store. Reading never fails: an invalid value counts as absent.

Documents keep the user's types (`job_id` may be 3 or "3"); inside the coordinator a job is named by `JobRecord.id`, its
`job_id` as a string.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from coordinator.model.tables import GpuRow, JobChanges, JobRow, NodeRow

Doc = dict[str, Any]


UNRESERVED = "not reserved"  # begins the problem of a GPU that Kubernetes has not reserved for our jobs
ASKED_BACK = "asked back"  # begins the problem of one whose placeholder is to be given back
USED_BY = "used by "  # begins the problem of a GPU that works and that somebody else uses
LONGEST_PAUSE_S = 3600.0  # between two tries of a job
RESHAPE_EXIT_CODES = frozenset({42, 75, 143, -15})

SHARED, RECREATE = "shared", "recreate"  # device modes: a launch sees all GPUs of its node, or only its own
POOL = "pool"  # likewise: as in `shared`, but it uses only GPUs that are reserved for its namespace and queue

UNLIMITED: JobChanges = {
    "cpu_limit": None,
    "limit_ts": None,
    "limit_mark": None,
    "limit_told": None,
    "limit_by": None,
}
"""Fields that remove a CPU limit; written at each stop and move, since a limit holds for one training on one node."""


RUNS = frozenset({"running", "adjusting"})  # states in which a generation may be making steps


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
    """True if `value` is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def show(value: object) -> str:
    """Format an untrusted value for a sentence: short, without control characters."""
    try:
        text = repr(value)[:61]
    except RecursionError:
        return "what is nested so deep"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 60 else text[:57] + "..."


def takes_work(node: NodeRow) -> bool:
    """True if jobs may start on this node: neither cordoned on its cluster nor drained by an operator."""
    return bool(node.get("schedulable", True)) and not node.get("drained")


@dataclass(frozen=True)
class Moment:
    """One instant on both clocks: `now` never jumps, `wall` is seconds since 1970."""

    now: float
    wall: float
    boot: str = ""  # names the time since the machine was booted, in which `now` counts; empty: not known

    def from_epoch(self, ts: float) -> float:
        """Convert a time since 1970 to the clock of `now`."""
        return self.now - (self.wall - ts)

    def maybe(self, ts: object) -> float | None:
        return None if (known := number(ts)) is None else self.from_epoch(known)

    def mark(self, ts: float) -> Doc:
        """Return what is written beside a time since 1970, so that a jump of the wall clock does not move it.

        It names that time: a version that knows nothing of marks writes the time alone, and the mark is an old one.
        """
        return {"ts": ts, "now": self.from_epoch(ts), "boot": self.boot}

    def marked(self, ts: float, mark: object) -> float | None:
        """Convert a time since 1970 by its mark; None without one, and on another machine or after another boot."""
        if not isinstance(mark, dict) or mark.get("ts") != ts or not self.boot or mark.get("boot") != self.boot:
            return None
        return number(mark.get("now"), least=-math.inf)

    def passed_s(self, ts: float, mark: object) -> float:
        """Return the seconds since a time since 1970: by its mark where that tells it, else by the wall clock."""
        since = self.marked(ts, mark)
        return max(0.0, self.now - (self.from_epoch(ts) if since is None else since))

    def left_s(self, ts: float, mark: object) -> float:
        """Return the seconds until a time since 1970, less than 0 once it is over; likewise."""
        until = self.marked(ts, mark)
        return (self.from_epoch(ts) if until is None else until) - self.now


@dataclass(frozen=True)
class PromisedGift:
    """GPUs that a victim gives to a newcomer: all that it has in `generation`, but for those that it `keeps`."""

    victim: str
    generation: object
    keeps: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """The operation in progress on a job: its `reshape` field (`reliability.md` 3).

    `kind` is start, reshape, move, restart, requeue or finish; `newcomer` is the job that waits for this victim's GPUs,
    `victims` the jobs that this newcomer waits for; `how` is `in place` or `relaunch`; `node` is the destination of a
    move.
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
    def newcomer(self) -> str | None:
        return name(self.doc.get("for")) if self.kind == "reshape" else None

    @cached_property
    def victims(self) -> dict[str, PromisedGift]:
        """Return what each victim promised, by its id."""
        given = self.doc.get("victims") if self.kind == "start" else None
        if self.kind == "start" and self.doc.get("victim") is not None:  # written by a version that knew one victim
            of_one = {"job": "victim", "generation": "victim_generation", "keeps": "victim_keeps"}
            given = [{field: self.doc.get(earlier) for field, earlier in of_one.items()}]
        rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
        gifts = [PromisedGift(str(row.get("job")), row.get("generation"), _names(row.get("keeps"))) for row in rows]
        return {gift.victim: gift for gift in gifts}

    @property
    def peers(self) -> tuple[str, ...]:
        """Return the other jobs of this operation: the newcomer of a victim, or the victims of a newcomer."""
        return (*self.victims, *([self.newcomer] if self.newcomer is not None else []))

    @property
    def node(self) -> str | None:
        return name(self.doc.get("node"))

    @property
    def launch(self) -> int | None:
        """The number of the new launch of a move that comes up while the job trains on; None for other operations."""
        given = self.doc.get("launch")
        return given if self.kind == "move" and whole(given, 1) else None

    @property
    def leaves(self) -> int | None:
        """The number of the launch that such a move leaves behind."""
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
        """True if an operator agreed to lose progress that is not saved."""
        return self.doc.get("forced") is True

    @property
    def freezes(self) -> bool:
        """True if its training is frozen in memory, and not stopped."""
        return self.doc.get("freeze") is True

    @property
    def stopped(self) -> Doc:
        """Times of the stop, and the exit code; empty if not known."""
        stopped = self.doc.get("stopped")
        return dict(stopped) if isinstance(stopped, dict) else {}

    @cached_property
    def yields_to(self) -> tuple[str, ...]:
        return _names(self.doc.get("yields_to"))

    @property
    def spends(self) -> JobChanges:
        """Fields that a move writes once it cannot be undone: they use up the job's one move (SpeCon)."""
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
        """`job_id` as the user wrote it; the document's `_id` if there is none."""
        job_id = self.doc.get("job_id")
        return str(self.doc["_id"]) if job_id is None else job_id

    @cached_property
    def state(self) -> str:
        return str(self.doc.get("state"))

    @property
    def accepted(self) -> bool:
        """True if intake has accepted the document."""
        return bool(self.doc.get("uid")) and not self.doc.get("problems")

    @property
    def uid(self) -> str:
        return str(self.doc.get("uid") or "")

    @cached_property
    def generation(self) -> int:
        return int(number(self.doc.get("generation")) or 0)

    @cached_property
    def launch(self) -> int:
        return int(number(self.doc.get("launch")) or 0)

    @property
    def next_launch(self) -> int:
        """A launch number that was never used, not even by an abandoned move."""
        return max(self.launch, self.newest_launch or 0) + 1

    @property
    def newest_launch(self) -> int | None:
        """The launch number of its last move, abandoned or not."""
        given = self.doc.get("newest_launch")
        return given if whole(given, 1) else None

    @property
    def coming(self) -> JobRecord | None:
        """The record as it will be launched at the destination of a move, while the present launch trains on."""
        op = self.operation
        if op is None or op.launch is None or op.launch <= self.launch:
            return None
        there: JobChanges = {"launch": op.launch, "node": op.node, "gpu_ids": list(op.to), "num_gpus": len(op.to)}
        return JobRecord({**self.doc, **there, "unleased": None})

    @cached_property
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
        """True if its launch sees only its own GPUs, so that a reshape relaunches (device mode `recreate`)."""
        return bool(self.doc.get("devices") == RECREATE)

    @property
    def keeps_pod(self) -> bool:
        """True if its pod cannot be made anew at our wish: a bare pod, or one of a batch Job that others manage."""
        origin = self.doc.get("volcano")
        return isinstance(origin, Mapping) and origin.get("keeps_pod") is True

    @property
    def is_bare_pod(self) -> bool:
        """True if nothing at all makes its pod anew."""
        origin = self.doc.get("volcano")
        return isinstance(origin, Mapping) and origin.get("kind") == "pod"

    @cached_property
    def pool(self) -> str:
        """Namespace and queue, whose reserved GPUs it uses; empty if it is in no pool."""
        if self.doc.get("devices") != POOL or self.uses_cpu:
            return ""
        return f"{self.doc.get('namespace') or ''}/{self.doc.get('queue') or 'default'}"

    @cached_property
    def optional(self) -> tuple[int, ...]:
        """The GPU counts it can run on; (0,) for one trained on CPU."""
        counts = self.doc.get("optional_num_gpus")
        return tuple(sorted({int(n) for n in counts if number(n) is not None})) if isinstance(counts, list) else ()

    @cached_property
    def gpus_per_pod(self) -> int | None:
        """GPUs of each pod of a gang, a job of several pods that train together; None for a job of one pod."""
        given = self.doc.get("gpus_per_pod")
        return given if whole(given, 1) else None

    def parts(self, gpu_ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Split GPUs by pod, pod 0 first. Pods are added and removed at the end (Volcano's replicas)."""
        size = self.gpus_per_pod or max(1, len(gpu_ids))
        return tuple(tuple(gpu_ids[at : at + size]) for at in range(0, max(1, len(gpu_ids)), size))

    @property
    def members(self) -> int:
        """Number of pods of its launch that may train; after its GPUs were released, the number that might have."""
        if self.gpus_per_pod is None:
            return 1
        return len(self.parts(self.gpu_ids)) if self.gpu_ids else int(number(self.doc.get("members"), 1) or 1)

    @property
    def most_members(self) -> int:
        """`members` after the operation in progress, if that is more."""
        return max(self.members, len(self.parts(self.operation.to)) if self.operation else 1)

    @property
    def uses_cpu(self) -> bool:
        """True if it trains without any GPU."""
        return self.optional == (0,)

    @cached_property
    def operation(self) -> Operation | None:
        doc = self.doc.get("reshape")
        return Operation(doc) if isinstance(doc, dict) else None

    @property
    def cancel(self) -> bool:
        return bool(self.doc.get("cancel"))

    @property
    def cancel_reason(self) -> str:
        """Why it was cancelled: whoever asks for it without a reason is a user."""
        reason = self.doc.get("cancel_reason")
        return reason if reason and isinstance(reason, str) else "cancelled by the user"

    @property
    def suspended(self) -> bool:
        """True if an operator wants it to wait until it is resumed."""
        return self.doc.get("suspended") is True

    @property
    def frozen(self) -> str | None:
        """The node on which its training lives on without a GPU, frozen in memory; None if it does not."""
        found = self.doc.get("frozen")
        return name(found.get("node")) if isinstance(found, dict) and found.get("launch") == self.launch else None

    @property
    def unfrozen(self) -> str:
        """Why the driver did not freeze the present generation when it was asked to; empty if it was not."""
        found = self.doc.get("unfrozen")
        told = isinstance(found, dict) and found.get("generation") == self.generation
        return str(found.get("why") or "it is not known why") if isinstance(found, dict) and told else ""

    @property
    def held(self) -> str:
        """What keeps a training from starting again, until its user resumes it; empty if it is not held."""
        return str(self.doc.get("held") or "")

    @property
    def stalled(self) -> Doc:
        """Since when (seconds since 1970) its training makes no step, and the seconds of a usual one; empty if it does.

        The fields are `since`, `mark` and `usual_s`.
        """
        return {} if self._standstill.get("stopping") else self._standstill

    @property
    def idle_in_stop(self) -> Doc:
        """Since when its training does nothing though it was asked to stop, as `stalled`; empty if it works or ends."""
        return self._standstill if self._standstill.get("stopping") else {}

    @property
    def _standstill(self) -> Doc:
        found = self.doc.get("stalled")
        if not isinstance(found, dict) or found.get("generation") != self.generation or self.state not in RUNS:
            return {}
        known = {field: number(found.get(field)) for field in ("since", "usual_s")}
        more = {"mark": found.get("mark"), "stopping": found.get("stopping") is True}
        return known | more if None not in known.values() else {}

    def stood_s(self, at: Moment) -> float:
        """Seconds for which its training has made no step, or has done nothing in a stop; 0 if it does."""
        return at.passed_s(self._standstill["since"], self._standstill["mark"]) if self._standstill else 0.0

    @property
    def edited(self) -> tuple[str, ...]:
        """Files of its code that have changed since its trainer was started, unless its user has asked for a stop."""
        found = self.doc.get("edited")
        if not isinstance(found, dict) or found.get("generation") != self.generation or self.state not in RUNS:
            return ()
        return () if self.code_agreed else _names(found.get("files"))

    @property
    def code_agreed(self) -> bool:
        """True if its user has asked for a stop of the present generation, after which it runs the code as it is."""
        return bool(self.doc.get("code_agreed") == self.generation)

    @property
    def wanted(self) -> int | None:
        wanted = number(self.doc.get("wanted"), 1)
        return None if wanted is None else int(wanted)

    @property
    def retries(self) -> int:
        return int(number(self.doc.get("retries")) or 0)

    @cached_property
    def yields_to(self) -> tuple[str, ...]:
        """Jobs that must have started before this one may start again."""
        return _names(self.doc.get("yields_to"))

    @property
    def preempts(self) -> int:
        return int(number(self.doc.get("preempts")) or 0)

    def rest_s(self, at: Moment) -> float:
        """Return for how many seconds it still waits until it is tried again; 0: it does not.

        Of a pause that began in an earlier boot, or was written by an earlier version, only the wall clock tells; none
        is so long as one that a jump of that clock seems to leave.
        """
        left_s = at.left_s(number(self.doc.get("retry_ts")) or 0.0, self.doc.get("retry_mark"))
        return left_s if 0 < left_s <= LONGEST_PAUSE_S else 0.0

    @cached_property
    def submit_ts(self) -> float:
        return number(self.doc.get("submit_ts")) or 0.0

    def submitted(self, at: Moment) -> float | None:
        """When it was submitted, on the clock of `now`; None where only the wall clock tells."""
        return at.marked(self.submit_ts, self.doc.get("submit_mark"))

    @property
    def forced(self) -> bool:
        """True if an operator agreed to lose progress that is not saved."""
        return self.doc.get("forced") is True

    @property
    def unleased(self) -> bool:
        """True if its present trainer was started without a lease, and was not seen to have one since."""
        return self.doc.get("unleased") is True

    @property
    def finish_ts(self) -> float:
        """0 while it has not ended, or if the time is missing."""
        return number(self.doc.get("finish_ts")) or 0.0

    def ran_s(self, at: Moment) -> float:
        """Seconds that it has trained, without time spent in the queue."""
        known_s = number(self.doc.get("ran_s")) or 0.0
        since = self.runs_since
        return known_s if since is None else known_s + at.passed_s(since, self.doc.get("run_mark"))

    @property
    def runs_since(self) -> float | None:
        return number(self.doc.get("run_ts", self.doc.get("start_ts")))

    @property
    def iterations_done(self) -> int:
        return int(number(self.doc.get("iters_done")) or 0)

    @property
    def iterations(self) -> int | None:
        """Total iterations: given, or epochs x ceil(dataset / batch) (1.5)."""
        given, epochs = (number(self.doc.get(f), 1) for f in ("iterations", "epochs"))
        if given is not None:
            return int(given)
        return None if epochs is None or self.epoch_iterations is None else int(epochs) * self.epoch_iterations

    @property
    def epoch_iterations(self) -> int | None:
        """Iterations of one epoch, if `dataset_size` and `batch_size` are given."""
        size, batch = (number(self.doc.get(f), 1) for f in ("dataset_size", "batch_size"))
        return None if size is None or batch is None else math.ceil(size / batch)

    @property
    def limits(self) -> int:
        """Number of changes of its CPU limit."""
        return int(number(self.doc.get("limits")) or 0)

    @property
    def limits_told(self) -> int:
        """Number of those changes that were recorded as events."""
        return int(number(self.doc.get("limits_told")) or 0)

    @property
    def limit_by(self) -> str:
        """Return the kind of its CPU limit: `quota` or `weight`."""
        return "weight" if self.doc.get("limit_by") == "weight" else "quota"

    @property
    def unlimitable(self) -> str | None:
        """Return why its present launch cannot be limited, as the launcher reported; None if it can."""
        found = self.doc.get("unlimitable")
        return str(found.get("why")) if isinstance(found, dict) and found.get("launch") == self.launch else None

    def limit_left(self, at: Moment) -> tuple[float | None, float]:
        """(CPU limit in cores, seconds until it expires); (None, 0) without a limit."""
        cores = number(self.doc.get("cpu_limit"))
        left = at.left_s(number(self.doc.get("limit_ts")) or 0.0, self.doc.get("limit_mark"))
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

    @cached_property
    def id(self) -> str:
        return str(self.doc["_id"])

    @cached_property
    def state(self) -> str:
        return str(self.doc.get("state"))

    @cached_property
    def node(self) -> str:
        return str(self.doc.get("node"))

    @property
    def gpu_type(self) -> str:
        return str(self.doc.get("gpu_type"))

    @cached_property
    def job(self) -> str | None:
        return name(self.doc.get("job_id"))

    @cached_property
    def held_by(self) -> str | None:
        return name(self.doc.get("held_by"))

    @property
    def faulty(self) -> bool:
        return self.state == "faulty"

    @property
    def used_by_others(self) -> bool:
        """True if it works, and is kept from jobs only while somebody else uses it."""
        problem = str(self.doc.get("problem") or "")
        by_others = problem.startswith((USED_BY, UNRESERVED, ASKED_BACK))
        return self.faulty and not self.doc.get("retired") and by_others

    @property
    def holder(self) -> str | None:
        """Namespace and name of the pod that the kubelet gave it to; empty: to none. None: its node has no pools."""
        holder = self.doc.get("holder")
        return holder if isinstance(holder, str) else None

    @property
    def pool(self) -> str | None:
        """Whose jobs may use it, as namespace and queue; empty: nobody's. None: its node has no pools."""
        pool = self.doc.get("pool")
        return None if self.holder is None else pool if isinstance(pool, str) else ""

    @property
    def opportunistic(self) -> bool:
        """True if its placeholder goes back as soon as somebody else wants it."""
        return self.doc.get("opportunistic") is True

    @property
    def sound_state(self) -> str:
        """Its state once it is no longer faulty."""
        return "idle" if self.job is None else "in use" if self.job == self.held_by else "reserved"
