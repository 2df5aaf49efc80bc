"""Accepts job documents: returns what is wrong with one, or the fields to add to it. Pure.

Users insert documents into the job table freely; an invalid one affects only itself. It is marked with `problems` and
otherwise left as it is (`reliability.md` 7, row 16).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator

from coordinator.model import fields, pod_fields, requirements
from coordinator.model import states as s
from coordinator.model.records import SHARED, JobRecord, number, show, whole
from coordinator.model.schema import dataset_fields, image_fields
from coordinator.model.schema.field_types import is_of_type, must_be, problems_of_value, wrong_fields
from coordinator.model.schema.job_fields import (
    FIELDS,
    JOB_ID,
    MAX_GPUS,
    PROGRESS_GROUPS,
    SCHEMA,
    GpuCount,
    JobSpec,
    Parts,
)
from coordinator.model.tables import JobChanges, JobField, JobRow, plain
from coordinator.model.text_rules import LONGEST_TEXT, problems_of_text
from coordinator.scheduling import dependencies
from coordinator.webhooks import is_webhook

DURATIONS: tuple[JobField, ...] = ("sla", "estimate", "time_limit")
WAITS_FOR_ITS_TURN = "waits for its turn"
LOSES = (
    "its queue has the device mode `recreate`, where each reshape takes a new pod, and nothing keeps its checkpoints: "
    "name a PersistentVolumeClaim in checkpoint_claim, or give one GPU count only"
)
GANG_LOSES = (
    "it has gpus_per_pod, and pods that train together must share a folder of checkpoints that outlives them: name a "
    "PersistentVolumeClaim in checkpoint_claim"
)
NO_NOTICES = "this coordinator tells no webhooks that jobs name (RESHAPE_NOTIFY_JOBS=0): leave notify out"
NO_PODS = "gpus_per_pod is for clusters, where a job may have several pods; here it has one process: leave it out"
NO_GANGS = (
    "gpus_per_pod asks for several pods that start together, which needs Volcano, and this installation is without it "
    "(RESHAPE_VOLCANO=0): leave gpus_per_pod out, or ask who administers the cluster to install volcano-reshape with "
    "Volcano"
)
PATHS: tuple[JobField, ...] = ("code", "dataset", "progress_file")
JUDGED_APART = frozenset({"state", "schema", "command", "num_gpus", "optional_num_gpus"})
"""Fields that have sentences of their own, also where they are left out."""
NOT_READ = frozenset({"pod", "hyper_parameters"})
"""Fields whose texts are not looked at here: nobody reads them, or `pod_fields` looks at them."""


def problems(doc: JobRow, builds_images: bool = False) -> list[str]:
    """Return the reasons to refuse this document, as sentences; empty if it can be accepted.

    `builds_images`: whether an image is built for a document with a base and without an image.
    """
    given = plain(doc)
    wrong = wrong_fields(given, JobSpec)
    right = {name: value for name, value in given.items() if name not in wrong} if wrong else given
    own = [*_identity(doc), *_counts(doc), *_command(doc), *_wrong_values(doc, wrong), *_wrong_contents(right)]
    others = [*requirements.problems(right), *pod_fields.problems(right), *dependencies.problems(right)]
    others += [*dataset_fields.problems(right), *image_fields.problems(right, builds_images)]
    others += fields.unknown_fields(doc)
    found = [*own, *others][:20]
    odd = None if found else pod_fields.storage_problem({k: v for k, v in plain(doc).items() if k != "pod"})
    return [odd] if odd else found


def name_taken(job_id: object) -> str:
    """The sentence for a document whose job_id is in use."""
    return f"job_id {job_id!r} belongs to another job; choose another one"


def refusal_fields(doc: JobRow, found: list[str], wall: float) -> JobChanges:
    """Fields that mark a document as refused at `wall`, from when on retention counts its age.

    A copy of a job's row loses what made it look accepted: it is not to be taken for a job once that one has ended.
    """
    copied = bool(doc.get("uid")) and name_taken(JobRecord(doc).raw_id) in found
    return {"problems": found, "submit_ts": wall, **({"uid": None, "closed": None} if copied else {})}


def acceptance_fields(doc: JobRow, uid: str, wall: float, devices: str = SHARED) -> JobChanges:
    """The fields that intake adds to a valid document; `devices`: the device mode of its queue."""
    held = doc.get("held_back") if doc.get("origin") == "volcano" else None  # applied suspended
    return {
        "uid": uid,
        "job_id": str(doc["_id"]) if doc.get("job_id") is None else doc["job_id"],
        "closed": False,
        "generation": 0,
        "launch": 0,
        "num_gpus": 0,
        "gpu_ids": None,
        "reshape": None,
        "problems": [],
        "optional_num_gpus": allowed_counts(doc),
        "job_type": job_type(doc),
        "submit_ts": _submitted(doc, wall),
        "reshapes": 0,
        "retries": 0,
        "message": held or WAITS_FOR_ITS_TURN,
        **dict.fromkeys(fields.COORDINATOR_FIELDS),
        "pinned": doc.get("node"),
        "devices": devices,
        "suspended": True if doc.get("hold") else None,
        "held_back": held,
        **pod_fields.storable_pod(doc),
    }


def _submitted(doc: JobRow, wall: float) -> float:
    """Submission time. Jobs of a Slaml count from the Slaml's own, since its deadline does."""
    slaml = doc.get("slaml")
    since = number(slaml.get("since")) if isinstance(slaml, dict) else None
    return wall if since is None else min(since, wall)


def allowed_counts(doc: JobRow) -> list[int]:
    """`optional_num_gpus`, or the one count in `num_gpus`; [0] for a job trained on CPU."""
    counts = doc.get("optional_num_gpus")
    return list(counts) if counts is not None else [int(doc["num_gpus"])]


def job_type(doc: JobRow) -> str:
    """The job type: as given, else derived from model, data and hyper-parameters, else from command, image and code.

    SideCar scheduling, III-B: jobs are of one type if they share model, training data and hyper-parameters.
    """
    if doc.get("job_type") is not None:
        return str(doc["job_type"])
    if doc.get("model") is not None:
        parts = [doc.get("model"), doc.get("dataset"), doc.get("batch_size"), doc.get("hyper_parameters")]
    else:
        parts = [doc.get("command"), doc.get("image"), doc.get("code")]
    text = json.dumps(parts, sort_keys=True, default=str)
    return "derived-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _identity(doc: JobRow) -> Iterator[str]:
    job_id = doc.get("job_id")
    if job_id is None and "_id" in doc and not JOB_ID.fullmatch(str(doc["_id"])):
        yield f"job_id is missing, and the document's own _id cannot be a job's name: {show(doc['_id'])}"
    state = doc.get("state")
    if state not in s.JOB_STATES:
        yield f"state must be `submitted` for a new job, not {show(state)}"
    elif state != s.SUBMITTED:
        yield f"state is `{state}`, but this job was never submitted here: insert it with state `submitted`"
    schema = doc.get("schema", SCHEMA)
    if not whole(schema, 1):
        yield f"schema must be a whole number, not {show(schema)}"
    elif schema > SCHEMA:
        yield f"schema {schema} is newer than this coordinator's ({SCHEMA}): update the coordinator"
    if "version" in doc and not whole(doc["version"], 0):
        yield "version is kept by the coordinator: leave it out"


def _counts(doc: JobRow) -> Iterator[str]:
    counts = doc.get("optional_num_gpus")
    if counts is None:
        given = doc.get("num_gpus")
        if given is None:
            yield (
                "optional_num_gpus is missing: list the GPU counts that the job can run on, such as [1, 2, 4], "
                "or [0] for a job trained on CPU"
            )
        else:
            yield from problems_of_value("num_gpus", GpuCount, given)
    elif not isinstance(counts, list) or not counts:
        yield must_be("optional_num_gpus", FIELDS["optional_num_gpus"].kind, counts)
    elif bad := [n for n in counts[: Parts.max_length] if not is_of_type(n, GpuCount)]:
        yield f"optional_num_gpus: {show(bad[0])} is not a whole number from 1 to {MAX_GPUS}"
    elif len(counts) > (Parts.max_length or 0) or sorted(set(counts)) != counts:
        yield f"optional_num_gpus must go up without repeating, such as [1, 2, 4], not {show(counts)}"
    elif counts[0] == 0 and len(counts) > 1:
        yield "optional_num_gpus: 0 stands alone: a job trains on CPU, [0], or on GPUs, such as [1, 2, 4]"


def _command(doc: JobRow) -> Iterator[str]:
    command = doc.get("command")
    kind = FIELDS["command"].kind
    if command is None:
        yield 'command is missing: what starts the training, such as ["python", "train.py"]'
    elif isinstance(command, list) and command[:1] == [""]:
        yield must_be("command", kind, command)
    else:
        yield from problems_of_value("command", kind, command)


def _wrong_values(doc: JobRow, wrong: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each value that is not of its field's type, or holds what no document may hold."""
    for name, value in plain(doc).items():
        if name in wrong and name not in JUDGED_APART:
            yield from problems_of_value(name, FIELDS[name].kind, value)
        elif name not in wrong and name in FIELDS and name not in NOT_READ:
            yield from _problems_of_texts(name, value)
    if any(str(k).startswith("$") or "." in str(k) for k in doc):
        yield "field names must not begin with $ or hold a dot"


def _wrong_contents(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for each value of the right type whose content is not right."""
    for field in DURATIONS:
        if doc.get(field) is not None and requirements.seconds(doc[field]) is None:
            yield must_be(field, FIELDS[field].kind, doc[field])
    pattern = doc.get("progress_pattern")
    if isinstance(pattern, str) and len(pattern) <= LONGEST_TEXT:
        yield from _pattern(pattern)
    if doc.get("notify") is not None and not is_webhook(doc["notify"]):
        yield must_be("notify", FIELDS["notify"].kind, doc["notify"])
    for field in PATHS:
        if ".." in str(doc.get(field) or "").split("/"):
            yield f"{field} must not go up with `..`: {show(doc[field])}"
    env = doc.get("env")
    if isinstance(env, dict) and any(not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(k)) for k in env):
        yield "env: a variable's name is letters, digits and underscores, and begins with no digit"


def _problems_of_texts(field: str, value: object) -> Iterator[str]:
    """Yield a sentence for each text in a value that holds what no text may hold."""
    if isinstance(value, str):
        yield from problems_of_text(field, value)
    elif isinstance(value, list):
        for one in value:
            yield from _problems_of_texts(field, one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from problems_of_text(field, str(name))
            yield from _problems_of_texts(f"{field}.{name}"[:80], one)


def _pattern(pattern: str) -> Iterator[str]:
    try:
        names = set(re.compile(pattern).groupindex)
    except (re.error, RecursionError, OverflowError, TypeError) as error:  # TypeError: MongoDB's own kinds of text
        yield f"progress_pattern is no regular expression: {str(error)[:100]}"
        return
    if not names & {*PROGRESS_GROUPS}:
        yield "progress_pattern needs a named group `iteration` or `epoch`, such as (?P<iteration>\\d+)"
