"""Accepts job documents: returns what is wrong with one, or the fields to add to it. Pure.

Users insert documents into the job table freely; an invalid one affects only itself. It is marked with `problems` and
otherwise left as it is (`reliability.md` 7, row 16).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from coordinator.model import fields, grace, pod_fields, requirements
from coordinator.model import states as s
from coordinator.model.records import SHARED, JobRecord, number, show, whole
from coordinator.model.schema import dataset_fields, image_fields
from coordinator.model.schema.job_fields import (
    JOB_ID,
    MAX_GPUS,
    MAX_LENGTH,
    MAX_PARTS,
    MOST_PRIORITY,
    OWNER,
    PREEMPTIONS,
)
from coordinator.model.tables import JobChanges, JobField, JobRow, plain
from coordinator.scheduling import dependencies
from coordinator.webhooks import NO_WEBHOOK, is_webhook

SCHEMA = 1
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
MAX_TEXT = 32_768
TEMPLATE = ("{{", "{%", "{#")

WHOLE: tuple[JobField, ...] = ("iterations", "epochs", "dataset_size", "batch_size")
TEXTS: tuple[JobField, ...] = (
    "job_type",
    "model",
    "dataset",
    "code",
    "image",
    "base",
    "progress_pattern",
    "progress_file",
    "gpu_type",
    "framework",
    "node",
)


def problems(doc: JobRow, builds_images: bool = False) -> list[str]:
    """Return the reasons to refuse this document, as sentences; empty if it can be accepted.

    `builds_images`: whether an image is built for a document with a base and without an image.
    """
    own = [*_identity(doc), *_counts(doc), *_command(doc), *_texts(doc), *_lengths(doc), *_rest(doc)]
    others = [*requirements.problems(doc), *pod_fields.problems(doc), *dependencies.problems(doc)]
    others += [*dataset_fields.problems(doc), *_packages(doc), *image_fields.problems(doc, builds_images)]
    others += [*_notify(doc), *_owner(doc), *_rank(doc)]
    found = [*own, *others, *fields.unknown_fields(doc)][:20]
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
    return {
        "uid": uid, "job_id": str(doc["_id"]) if doc.get("job_id") is None else doc["job_id"], "closed": False,
        "generation": 0, "launch": 0, "num_gpus": 0, "gpu_ids": None, "reshape": None, "problems": [],
        "optional_num_gpus": allowed_counts(doc), "job_type": job_type(doc), "submit_ts": _submitted(doc, wall),
        "reshapes": 0, "retries": 0, "message": WAITS_FOR_ITS_TURN, **dict.fromkeys(fields.COORDINATOR_FIELDS),
        "pinned": doc.get("node"), "devices": devices, **pod_fields.storable_pod(doc),
    }  # fmt: skip


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
    if job_id is not None and not whole(job_id, 0) and not (isinstance(job_id, str) and JOB_ID.fullmatch(job_id)):
        yield (
            "job_id must be a whole number, or up to 128 letters, digits, dots, dashes and underscores "
            f"that begin with a letter or digit, not {show(job_id)}"
        )
    elif job_id is None and "_id" in doc and not JOB_ID.fullmatch(str(doc["_id"])):
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
        elif not whole(given, 0) or given > MAX_GPUS:
            yield f"num_gpus must be a whole number from 0 to {MAX_GPUS}, not {show(given)}"
        return
    if not isinstance(counts, list) or not counts:
        yield f"optional_num_gpus must be a list of GPU counts such as [1, 2, 4], not {show(counts)}"
        return
    bad = [n for n in counts[:MAX_PARTS] if not whole(n, 0) or n > MAX_GPUS]
    if bad:
        yield f"optional_num_gpus: {show(bad[0])} is not a whole number from 1 to {MAX_GPUS}"
    elif len(counts) > MAX_PARTS or sorted(set(counts)) != counts:
        yield f"optional_num_gpus must go up without repeating, such as [1, 2, 4], not {show(counts)}"
    elif counts[0] == 0 and len(counts) > 1:
        yield "optional_num_gpus: 0 stands alone: a job trains on CPU, [0], or on GPUs, such as [1, 2, 4]"


def _command(doc: JobRow) -> Iterator[str]:
    command = doc.get("command")
    if command is None:
        yield 'command is missing: what starts the training, such as ["python", "train.py"]'
        return
    parts = command if isinstance(command, list) else [command]
    if not parts or not all(isinstance(p, str) for p in parts) or not parts[0]:
        yield f"command must be a text or a list of texts, not {show(command)}"
    elif len(parts) > MAX_PARTS:
        yield f"command has more than {MAX_PARTS} parts"
    else:
        yield from (p for part in parts for p in _text("command", part))


def _texts(doc: JobRow) -> Iterator[str]:
    for field in TEXTS:
        value = doc.get(field)
        if field == "job_type" and whole(value, 0):
            continue
        if value is not None and not isinstance(value, str):
            yield f"{field} must be a text, not {show(value)}"
        elif value is not None:
            yield from _text(field, value)
    if doc.get("node") == "":
        yield "node is empty: name the only node that it may run on, or leave it out"
    if isinstance(pattern := doc.get("progress_pattern"), str) and len(pattern) <= MAX_TEXT:
        yield from _pattern(pattern)
    env = doc.get("env")
    if env is not None and not (isinstance(env, dict) and all(isinstance(v, str) for v in env.values())):
        yield 'env must be an object of texts, such as {"LEARNING_RATE": "0.1"}'
    elif env:
        yield from (p for k, v in env.items() for p in (*_text("env", str(k)), *_text(f"env.{k}"[:80], v)))
    if isinstance(env, dict) and any(not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(k)) for k in env):
        yield "env: a variable's name is letters, digits and underscores, and begins with no digit"


def _packages(doc: JobRow) -> Iterator[str]:
    packages = doc.get("requirements")
    lines = [packages] if isinstance(packages, str) else packages
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        yield from (p for line in lines[:MAX_PARTS] for p in _text("requirements", line))
    elif packages is not None:
        yield f'requirements must be the path of a file or a list of packages such as ["numpy"], not {show(packages)}'


def _owner(doc: JobRow) -> Iterator[str]:
    owner = doc.get("owner")
    if owner is not None and not (isinstance(owner, str) and OWNER.fullmatch(owner)):
        yield f"owner must be the name of a user, up to 64 letters, digits and any of . _ @ -, not {show(owner)}"


def _rank(doc: JobRow) -> Iterator[str]:
    priority = doc.get("priority")
    preemption = doc.get("preemption")
    if priority is not None and (
        not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MOST_PRIORITY
    ):
        yield f"priority must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, not {show(priority)}"
    if preemption is not None and preemption not in PREEMPTIONS:
        yield f"preemption must be one of {', '.join(PREEMPTIONS)}, not {show(preemption)}"


def _notify(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for a `notify` that is no webhook; it does not repeat what may be a secret."""
    if doc.get("notify") is not None and not is_webhook(doc["notify"]):
        yield f"notify {NO_WEBHOOK}"
    elif doc.get("notify") is not None:
        yield from _text("notify", str(doc["notify"]))


def _lengths(doc: JobRow) -> Iterator[str]:
    for field in WHOLE:
        value = doc.get(field)
        if value is not None and (not whole(value, 1) or value > MAX_LENGTH):
            yield f"{field} must be a whole number of at least 1, not {show(value)}"


def _rest(doc: JobRow) -> Iterator[str]:
    if doc.get("elastic") is not None and not isinstance(doc["elastic"], bool):
        yield (
            "elastic must be true (it goes on where it was stopped) or false (it is never stopped), "
            f"not {show(doc['elastic'])}"
        )
    if doc.get("freeze") is not None and not isinstance(doc["freeze"], bool):
        yield f"freeze must be true (NVIDIA's driver may freeze it in memory) or false, not {show(doc['freeze'])}"
    if doc.get("hooks") is not None and not isinstance(doc["hooks"], bool):
        yield f"hooks must be true or false, not {show(doc['hooks'])}"
    grace_s = doc.get("grace_s")
    if grace_s is not None and not 1 <= (number(grace_s) or 0) <= grace.MOST_S:
        yield f"grace_s must be a number of seconds from 1 to {grace.MOST_S:g}, not {show(grace_s)}"
    codes = doc.get("reshape_exit_codes")
    if codes is not None and not (isinstance(codes, list) and all(whole(c, -64) and c < 256 for c in codes)):
        yield f"reshape_exit_codes must be a list of exit codes such as [143, -15], not {show(codes)}"
    if any(str(k).startswith("$") or "." in str(k) for k in doc):
        yield "field names must not begin with $ or hold a dot"


def _text(field: str, value: str) -> Iterator[str]:
    if len(value) > MAX_TEXT:
        yield f"{field} is longer than {MAX_TEXT} characters"
        return  # do not scan megabytes
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        yield f"{field} holds a control character"
    if any(mark in value for mark in TEMPLATE):
        yield f"{field} holds a template mark ({', '.join(TEMPLATE)}), which is not allowed"
    if field in ("code", "dataset", "progress_file") and ".." in value.split("/"):
        yield f"{field} must not go up with `..`: {show(value)}"


def _pattern(pattern: str) -> Iterator[str]:
    try:
        names = set(re.compile(pattern).groupindex)
    except (re.error, RecursionError, OverflowError) as error:
        yield f"progress_pattern is no regular expression: {str(error)[:100]}"
        return
    if not names & {"iteration", "epoch"}:
        yield "progress_pattern needs a named group `iteration` or `epoch`, such as (?P<iteration>\\d+)"
