"""Each field that a user may write into a job document: its type, default, meaning and an example. Pure.

Its names are those of `coordinator.model.tables.PublicJobField`; `make reference` writes docs/reference/job.md,
docs/reference/job.schema.json and the schema `Submission` of coordinator/http/openapi.yaml from them. The rules that
decide are those of `coordinator.scheduling.intake`: a type here takes all that intake takes, and refuses what intake
refuses for its type. What depends on several fields, or on a text's content, only intake judges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

from adaptive_scheduler.snapshot import Preemption
from coordinator.model.pod_fields import LABEL, NAME
from coordinator.model.requirements import MAX_CORES, MAX_HOSTS, MAX_MEMORY, MAX_REPLICAS, MAX_TASKS, TIME
from coordinator.model.schema.dataset_fields import HEX
from coordinator.model.tables import PublicJobField
from coordinator.webhooks import WEBHOOK

MAX_GPUS = 65_536
MAX_PARTS = 4_096
MAX_LENGTH = 10**15
MOST_PRIORITY = 1_000_000
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

PREEMPTIONS = get_args(Preemption)
OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")

Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """`schema`: its type, in JSON Schema; `default`: what holds where it is left out or null."""

    name: PublicJobField
    schema: Schema
    default: str
    meaning: str
    example: Any
    type_words: str = ""  # where the schema does not say them


def text(pattern: str | None = None) -> Schema:
    return {"type": "string"} if pattern is None else {"type": "string", "pattern": f"^(?:{pattern})$"}


def whole(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least} if most is None else {**whole(least), "maximum": most}


def listing(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def record(properties: dict[str, Schema], *required: str) -> Schema:
    fixed = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**fixed, "required": list(required)} if required else fixed


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


CORES: Schema = {"type": "number", "minimum": 0, "maximum": int(MAX_CORES)}
MEMORY: Schema = {"type": "number", "minimum": 0, "maximum": int(MAX_MEMORY)}
AMOUNTS = {"cores": CORES, "memory": MEMORY}
TASK = record({"name": text(), **AMOUNTS, "gpus": whole(0, MAX_REPLICAS), "replicas": whole(1, MAX_REPLICAS)})
DURATION = either({"type": "number", "minimum": 0, "exclusiveMinimum": True}, text(TIME.pattern))
TARGET = record({"value": {"type": "number"}, "above": {"type": "boolean"}, "name": text()}, "value")
NOTHING, NOT_KNOWN = "none", "not known"

WHAT_RUNS = (
    Field("job_id", either(text(JOB_ID.pattern), whole(0)), "the document's `_id`; over HTTP `job-` and eight digits",
          "Names the job; a job that has not ended has the name for itself.", "resnet-1"),
    Field("state", {"type": "string", "enum": ["submitted"]}, "`submitted` over HTTP; needed in a document",
          "Says that the job is new; from then on the coordinator writes it.", "submitted"),
    Field("schema", {"type": "integer", "enum": [1]}, "1", "The version of this format.", 1),
    Field("command", either({"type": "string", "minLength": 1}, listing(text(), minItems=1, maxItems=MAX_PARTS)),
          "needed", "Starts the training: a list is run as it is, a text by `sh -c`.", ["python", "train.py"]),
    Field("code", text(), "a folder of the job's own; on a cluster the image's",
          "The folder that the command runs in.", "/code"),
    Field("env", {"type": "object", "additionalProperties": text()}, NOTHING,
          "Environment variables of the training.", {"LEARNING_RATE": "0.1"}),
    Field("image", text(), "that of the container in `pod`", "The image of its container, on a cluster.",
          "python:3.11-slim"),
    Field("base", text(), NOTHING, "The image that its `image` is built on, by `reshape containerize` or, where it "
          "has none, by `reshape builder`; afterwards a note of what is in that, as `requirements` is.",
          "python:3.11-slim"),
    Field("requirements", either(text(), listing(text(), maxItems=MAX_PARTS)), NOTHING, "The packages of its `image`: "
          "lines as pip takes them, or, where that is built, the path of a file with such.", ["numpy==2.1.0"]),
    Field("owner", text(OWNER.pattern), "over HTTP whom the client names", "Whose job it is: GPUs are shared among "
          "owners. Nobody proves it, but on a shared machine the server sets it to the user who submits. `reshape` and "
          "the Python client name the user that they run as.", "ada"),
    Field("priority", whole(-MOST_PRIORITY, MOST_PRIORITY), "0", "Jobs of the same owner start in this order, the "
          "highest first, and the lowest is the first to be suspended for others. It counts against no other user.",
          10),
    Field("preemption", text("|".join(PREEMPTIONS)), "any", "What may be taken of it for the right "
          "of another user: `any`: it shrinks, or is suspended; `shrink`: it only shrinks; `never`: nothing, and it "
          "starts only within what its owner is entitled to.", "shrink"),
    Field("notify", text(WEBHOOK.pattern), NOTHING, "The webhook, http or https, that is told of its end and a missed "
          "deadline, besides that of `RESHAPE_NOTIFY`. Only its host is shown to others.",
          "https://chat.example.org/hooks/T0"),
    Field("framework", text(), NOT_KNOWN, "A note for people: which framework it trains with.", "keras"),
)  # fmt: skip
HOW_FAST = (
    Field("job_type", either(text(), whole(0)), "derived from `model` and data, else from `command`, `image`, `code`",
          "Jobs of one type take equally long per iteration (SideCar, III-B).", "resnet50"),
    Field("model", text(), NOT_KNOWN, "The model that it trains; part of the derived `job_type`.", "resnet50"),
    Field("dataset", text(), NOT_KNOWN, "The data set; the training finds it as `RESHAPE_DATASET`. An http or https "
          "address is fetched before it starts, once for all jobs; `RESHAPE_DATASET` is the path of that file then. "
          "With `dataset_claim` a path on that claim, or an address that is fetched onto it.", "/data/imagenet"),
    Field("dataset_sha256", text(HEX.pattern), "not compared", "The SHA-256 that the fetched data set must have, as "
          "`sha256sum` prints it.", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    Field("dataset_claim", text(NAME.pattern), NOTHING, "The PersistentVolumeClaim with the data set, on a cluster; it "
          "is mounted read-only at `/dataset`.", "imagenet"),
    Field("dataset_size", whole(1, MAX_LENGTH), NOT_KNOWN, "Samples in the data set.", 1_281_167),
    Field("batch_size", whole(1, MAX_LENGTH), NOT_KNOWN, "Samples in one iteration, of all GPUs together.", 256),
    Field("hyper_parameters", {}, NOTHING, "Whatever else makes training faster or slower; part of the derived "
          "`job_type`.", {"image_size": 224}),
)  # fmt: skip
HOW_LONG = (
    Field("iterations", whole(1, MAX_LENGTH), "`epochs`, else as its output says", "How many iterations it trains.",
          450_450),
    Field("epochs", whole(1, MAX_LENGTH), "`iterations`, else as its output says",
          "How many epochs it trains; with `dataset_size` and `batch_size` its iterations are known.", 90),
    Field("target", TARGET, NOTHING, "Ends it, with a checkpoint, once a measure that it prints is there: its value, "
          "whether it is to rise to it (`above`, true) or fall, and the measure's name.",
          {"value": 0.9, "above": True, "name": "val_accuracy"}),
    Field("target_top5", {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1,
                          "exclusiveMaximum": True}, NOTHING,
          "The same for a Top-5 accuracy (SideCar, III-B); not together with `target`.", 0.92),
    Field("sla", DURATION, NOTHING, 'Its deadline, from submission to its end: seconds, or a text such as "90s", "15m" '
          'or "2h".', "2h"),
    Field("estimate", DURATION, NOT_KNOWN, "The user's own guess of how long it trains, written as `sla`.", "40m"),
    Field("time_limit", DURATION, NOTHING, "How long it may train, written as `sla`; time in which it waits does not "
          "count. It is asked to save and end its `grace_s` before that, but not before a tenth of it is left.", "2h"),
    Field("progress_pattern", text(r".*\(\?P<(?:iteration|epoch)>.*"), "common formats are recognised",
          "A regular expression with a named group `iteration` or `epoch` that finds progress in its output.",
          r"done (?P<iteration>\d+)"),
    Field("progress_file", text(), "its output is read", "A file that the training writes its progress to.",
          "/reshape/progress.json"),
    Field("depends_on", listing(either(text(JOB_ID.pattern), whole(0)), maxItems=MAX_PARTS), NOTHING,
          "Jobs that must be completed before it may start.", ["prepare"]),
)  # fmt: skip
WHAT_IT_NEEDS = (
    Field("optional_num_gpus", listing(whole(0, MAX_GPUS), minItems=1, maxItems=MAX_PARTS), "`num_gpus` alone",
          "The GPU counts that it can run on, rising; [0] is a job trained on CPU.", [1, 2, 4]),
    Field("num_gpus", {}, "`optional_num_gpus`", "The only GPU count that it can run on, from 0 to "
          f"{MAX_GPUS}, where `optional_num_gpus` is left out. Later the coordinator writes how many it has.", 1,
          "whole number"),
    Field("gpus_per_pod", whole(1, MAX_REPLICAS), "it has one pod",
          "Makes it a gang of pods with so many GPUs each, on a cluster.", 1),
    Field("max_workers", whole(1, MAX_HOSTS), "1; of a gang its pods", "Over how many nodes it may spread.", 2),
    Field("gpu_type", text(), "any", "The only GPU type that it may run on.", "V100"),
    Field("node", {"type": "string", "minLength": 1}, "any", "The only node that it may run on.", "gpu-node-1"),
    Field("resources", record(AMOUNTS), NOTHING, "CPU cores and bytes of memory that it needs beside GPUs.",
          {"cores": 2, "memory": 4_000_000_000}),
    Field("tasks", {**listing(TASK, minItems=1, maxItems=MAX_TASKS)}, "one task with its `resources`",
          "What it needs in each part of its work, one after the other; not together with `resources`.",
          [{"name": "prepare", "cores": 4}, {"name": "train", "cores": 2, "memory": 4_000_000_000, "gpus": 1}]),
)  # fmt: skip
HOW_IT_STOPS = (
    Field("elastic", {"type": "boolean"}, "kept as it is until it has shown that it resumes",
          "true: it saves and resumes, and may be stopped at any time; false: it is never stopped to be reshaped or "
          "moved.", True),
    Field("freeze", {"type": "boolean"}, "false",
          "true: one that has not shown that it resumes may be frozen in memory by NVIDIA's driver (570 and newer), so "
          "that its GPU can serve others meanwhile; one process on one GPU, on one machine.", True),
    Field("hooks", {"type": "boolean"}, "true",
          "false: our code is kept out of its interpreter, so that it saves only by what its script does itself.",
          False),
    Field("grace_s", {"type": "number", "minimum": 1, "maximum": 3600}, "`RESHAPE_GRACE_S`, 20",
          "Seconds that it may take to save and end when it is cancelled, before it is killed; more where its saves "
          "have taken longer, and while files of its checkpoints change. A reshape, a move or a suspension waits for a "
          "training that has announced that it saves.", 120),
    Field("reshape_exit_codes", listing(whole(-64, 255)), "42, 75, 143 and -15",
          "Exit codes of a training that was stopped and has saved.", [143, -15]),
)  # fmt: skip
ITS_POD = (
    Field("namespace", text(LABEL.pattern), "that of the launcher", "The namespace of its pods.", "team-a"),
    Field("queue", text(NAME.pattern), "that of the launcher", "Its queue of Volcano.", "reshape"),
    Field("checkpoint_claim", text(NAME.pattern), "`RESHAPE_CHECKPOINT_CLAIM`, else its pod's own disk",
          "The PersistentVolumeClaim that its checkpoints lie on.", "checkpoints"),
    Field("single_container", {"type": "boolean"}, "false",
          "Whether shim and sidecar are in its image, as `reshape containerize` builds it.", False),
    Field("pod", either({"type": "object"}, text()), NOTHING,
          "Fields of a pod's spec that are merged into its pods, as an object or as a text of JSON.",
          {"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
)  # fmt: skip

GROUPS = {
    "What runs": WHAT_RUNS, "How fast it trains": HOW_FAST, "How long it trains": HOW_LONG,
    "What it needs": WHAT_IT_NEEDS, "Whether it may be stopped": HOW_IT_STOPS, "Its pod, on a cluster": ITS_POD,
}  # fmt: skip
FIELDS = {field.name: field for group in GROUPS.values() for field in group}
NEVER_NULL = frozenset({"command", "state", "schema"})
