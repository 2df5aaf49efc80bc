"""Validates rows of `jobs`, `gpus` and `nodes` as they are read from the store.

Documents can be edited by hand. An invalid field is replaced by its former value where that is known, else dropped; a
job that is meaningless without the field is set aside, so that one bad document affects only itself. The store is not
changed. Rows of profiles are validated in `adaptive_scheduler/profiles/profiles.py`. Pure; called by the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coordinator.model import states as s
from coordinator.model.records import Doc, show
from coordinator.model.schema.job_fields import JOB_ID, PREEMPTIONS
from coordinator.model.tables import JobRow

LARGEST = 2**63  # beyond it neither a store nor an array holds a whole number
UNKNOWN_NODE = "unknown"  # node of a GPU whose `node` field is invalid
KINDS = ("start", "reshape", "move", "restart", "requeue", "finish")

Fits = Callable[[Any], bool]


class FieldRule(NamedTuple):
    """The type of a field, in words and as a predicate. None counts as absent and is always valid."""

    words: str
    fits: Fits


class ValidatedDocument(NamedTuple):
    """A row that is safe to use, and one sentence per invalid field."""

    doc: Doc
    invalid_fields: tuple[str, ...] = ()
    usable: bool = True  # False: set the row aside


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)


def _job_name(value: Any) -> bool:
    return _id(value) and JOB_ID.fullmatch(str(value)) is not None


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_id, value))


def _operation(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("kind", "reshape") not in KINDS or not _count(value.get("generation")):
        return False
    numbers = all(value.get(f) is None or _finite(value[f]) for f in ("at", "launch", "from_launch"))
    ids = all(value.get(f) is None or _ids(value[f]) for f in ("to", "from", "yields_to", "victim_keeps"))
    victims = value.get("victims")
    return numbers and ids and (victims is None or (isinstance(victims, list) and all(map(_gift, victims))))


def _gift(value: Any) -> bool:
    """Return whether the value is a victim's promise: its id, the generation in which it made it, the GPUs it keeps."""
    return isinstance(value, dict) and _id(value.get("job")) and _ids(value.get("keeps"))


COUNT = FieldRule("a whole number", _count)
NUMBER = FieldRule("a number", _finite)
TEXT = FieldRule("a text", lambda value: isinstance(value, str))
ID = FieldRule("a text or a whole number", _id)
JOB_NAME = FieldRule("the name that it was let in with", _job_name)
IDS = FieldRule("a list of names", _ids)
OBJECT = FieldRule("an object", lambda value: isinstance(value, dict))
LIST = FieldRule("a list", lambda value: isinstance(value, list))
FLAG = FieldRule("true or false", lambda value: isinstance(value, bool))
SPAN = FieldRule("a number of seconds or a text such as 2h", lambda value: isinstance(value, str) or _finite(value))
COUNTS = FieldRule(
    "a list of GPU counts", lambda value: isinstance(value, list) and value != [] and all(map(_count, value))
)
OPERATION = FieldRule("an operation under way", _operation)


WHOLE = FieldRule("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))


def _one_of(*words: str) -> FieldRule:
    return FieldRule(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def _each(rule: FieldRule, *fields: str) -> dict[str, FieldRule]:
    return dict.fromkeys(fields, rule)


RULES: Mapping[str, Mapping[str, FieldRule]] = {
    "jobs": {
        "job_id": JOB_NAME, "uid": TEXT, "state": _one_of(*s.JOB_STATES), "gpu_ids": IDS, "optional_num_gpus": COUNTS,
        "reshape": OPERATION, "closed": FLAG, "job_type": ID,
        **_each(COUNT, "generation", "launch", "num_gpus", "up", "down", "newest_launch", "retries", "reshapes",
                "moves", "preempts", "wanted", "members", "gpus_per_pod", "max_workers", "limits", "limits_told",
                "iters_done", "stopped_by_us", "grew_from", "code_agreed", "owner_uid",
                "iterations", "epochs", "dataset_size", "batch_size", "version"),
        **_each(NUMBER, "submit_ts", "start_ts", "run_ts", "finish_ts", "retry_ts", "migrated_ts", "move_refused_ts",
                "limit_ts", "pause_s", "ran_s", "expected_s", "sla_waiting_s", "reshape_cost_s", "cpu_limit",
                "epochs_done", "grace_s", "queued_ts"),
        **_each(TEXT, "node", "pinned", "gpu_type", "devices", "queue", "value_name", "checkpoint_claim", "model",
                "dataset_claim", "dataset_sha256", "base",
                "dataset", "code", "image", "progress_pattern", "progress_file", "framework", "category",
                "notify", "owner", "sized_by", "reshaped_by", "held", "contradiction", "wished_by"),
        "priority": WHOLE, "preemption": _one_of(*PREEMPTIONS),
        **_each(SPAN, "sla", "estimate", "time_limit"), "resumes": TEXT, "withdrawn": TEXT,
        **_each(FLAG, "elastic", "freeze", "hooks", "forced", "suspended", "unleased", "timed_out"),
        **_each(OBJECT, "lost", "stalled", "edited", "checkpoint", "unlimitable", "env", "resources", "volcano",
                "slaml", "told", "curve", "frozen", "unfrozen", "run_mark", "submit_mark", "image_build"),
        **_each(LIST, "yields_to", "tasks", "reshape_exit_codes", "depends_on", "warnings"),
    },
    "gpus": {
        "node": TEXT, "state": _one_of(*s.GPU_STATES), "gpu_type": TEXT, "job_id": ID, "held_by": ID,
        **_each(COUNT, "index", "generation", "memory_total"), "unleased": FLAG, "others": TEXT,
    },
    "nodes": {
        **_each(NUMBER, "cores", "memory"), "others": OBJECT, "gpus": LIST,
        **_each(FLAG, "schedulable", "drained", "agent"),
    },
}  # fmt: skip

ESSENTIAL = (
    "job_id",
    "uid",
    "state",
    "gpu_ids",
    "optional_num_gpus",
    "reshape",
    "closed",
    "generation",
    "launch",
    "version",
)
"""Fields without which a job is meaningless: the job is set aside unless their former value is known.

A former `version` does not help, because compare-and-set compares the one in the store.
"""


REQUIRED = {"gpus": ("node", "state")}
"""Fields that may not be absent either: without them a GPU is given to nobody."""


def validate(table: str, doc: Doc, former: Mapping[str, Any] | None = None) -> ValidatedDocument:
    """Validate a row of `table`; `former` is the row as it was used before, if it was."""
    rules = RULES[table]
    # Some MongoDB-compatible servers store true and false as 1 and 0.
    kept = {f: v == 1 for f, v in doc.items() if rules.get(f) is FLAG and type(v) is int and v in (0, 1)}
    doc = {**doc, **kept} if kept else doc
    wrong = [
        field for field, value in doc.items() if value is not None and field in rules and not rules[field].fits(value)
    ]
    wrong += [field for field in REQUIRED.get(table, ()) if doc.get(field) is None]
    same = "uid" in wrong or (former or {}).get("uid") == doc.get("uid")
    if table == "jobs" and former and same:  # else it would be two jobs
        wrong += ["job_id"] if "job_id" not in wrong and former.get("job_id") != doc.get("job_id") else []
    held = table == "jobs" and isinstance(doc.get("contradiction"), str)  # a human is to decide about it
    if not wrong:
        return ValidatedDocument(doc, (doc["contradiction"],), usable=False) if held else ValidatedDocument(doc)
    before = former or {}
    mended = {field: value for field, value in doc.items() if field not in wrong}
    mended |= {field: before[field] for field in wrong if field in before}
    usable = table != "jobs" or not (held or any(f in ESSENTIAL and (f == "version" or f not in before) for f in wrong))
    if table == "gpus" and any(
        field in ("node", "state", "job_id", "held_by") and field not in before for field in wrong
    ):
        # A job may have it, so it is not assigned.
        mended |= {"node": mended.get("node") or UNKNOWN_NODE, "state": s.FAULTY}
    return ValidatedDocument(
        mended, tuple(_sentence(field, doc.get(field), rules[field], field in before) for field in wrong), usable
    )


def is_closed(doc: JobRow) -> bool:
    """True if a raw job document is closed: nothing is left to reconcile."""
    return doc.get("closed") in (True, 1)


def gpu_fields_of(doc: JobRow) -> Doc:
    """Fields of a GPU row as the job document of its owner implies them: former values if none are known."""
    known: Doc = {"state": s.IN_USE, "job_id": doc.get("job_id"), "held_by": doc.get("job_id")}
    return known if doc.get("gpus_per_pod") or doc.get("max_workers") else {**known, "node": doc.get("node")}


def _sentence(field: str, value: Any, rule: FieldRule, mended: bool) -> str:
    then = "its former value is used" if mended else "it is passed over"
    return f"{field} must be {rule.words}, not {show(value)}; {then} until you correct or remove it"
