"""Declares each field that a user may write into a job document, once: its type, bounds, words, default and meaning.

From these structs come the sentences of refusals (`coordinator.scheduling.intake`), the check of rows as they are read
(`coordinator.model.document_validation`), docs/reference/job.md, docs/reference/job.schema.json and the schema
`Submission` of coordinator/http/openapi.yaml, which `make reference` writes. Rows stay plain documents, which users
insert with clients of their own. What depends on several fields, or on a text's content, only intake judges. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from adaptive_scheduler.snapshot import Preemption
from coordinator.model.grace import MOST_S
from coordinator.model.owner_names import OWNER, OWNER_WORDS
from coordinator.model.pod_fields import LABEL, LABEL_WORDS, NAME, NAME_WORDS
from coordinator.model.records import RESHAPE_EXIT_CODES
from coordinator.model.requirements import MAX_CORES, MAX_MEMORY, TIME
from coordinator.model.schema.dataset_fields import HEX
from coordinator.model.schema.field_types import (
    LARGEST,
    PRACTICAL,
    Number,
    all_meta,
    counted_in,
    refused_alone,
    said_of,
    struct_of,
    types_of_fields,
    whole_text,
    worded,
)
from coordinator.webhooks import WEBHOOK, WEBHOOK_WORDS

MAX_GPUS = 65_536
MAX_TASKS = 1_000
MOST_PRIORITY = 1_000_000
LEAST_WEIGHT = 0.001
MOST_WEIGHT = 1_000
LONGEST_JOB_ID = 128
JOB_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_JOB_ID - 1}}}")
JOB_ID_WORDS = (
    f"a whole number, or up to {LONGEST_JOB_ID} letters, digits, dots, dashes and underscores "
    "that begin with a letter or digit"
)
PROGRESS_GROUPS = ("iteration", "epoch")  # of `progress_pattern`; one of them is needed
NOTHING = "none"
NOT_KNOWN = "not known"


def about(meaning: str, default: str, example: Any) -> Meta:
    """Return what the page says of a field. `default`: what holds where it is left out or null."""
    return Meta(description=meaning, extra={"default": default, "example": example})


SchemaVersion = Literal[1]
(SCHEMA,) = get_args(SchemaVersion)
Length = Annotated[int, Meta(ge=1, le=PRACTICAL)]
Machines = Annotated[int, Meta(ge=1, le=65_536)]
GpuCount = Annotated[int, Meta(ge=0, le=MAX_GPUS)]
NaturalId = Annotated[int, Meta(ge=0, le=LARGEST - 1)]
JobName = Annotated[Annotated[str, whole_text(JOB_ID)] | NaturalId, worded(JOB_ID_WORDS)]
Duration = Annotated[
    Annotated[float, Meta(gt=0, le=LARGEST)] | Annotated[str, whole_text(TIME)],
    worded('seconds above 0, or a text such as "90s", "15m" or "2h"'),
]
Parts = Meta(max_length=4_096)  # of a list
Cores = Annotated[float, Meta(ge=0, le=int(MAX_CORES)), counted_in("cores")]
Memory = Annotated[float, Meta(ge=0, le=int(MAX_MEMORY)), counted_in("bytes")]
NamespaceName = Annotated[str, whole_text(LABEL), worded(LABEL_WORDS)]
ObjectName = Annotated[str, whole_text(NAME), worded(NAME_WORDS)]


class Needs(msgspec.Struct, forbid_unknown_fields=True):
    """Amounts of `resources`."""

    cores: Cores | UnsetType = UNSET
    memory: Memory | UnsetType = UNSET


class TaskNeeds(msgspec.Struct, forbid_unknown_fields=True):
    """One of `tasks`."""

    name: str | UnsetType = UNSET
    cores: Cores | UnsetType = UNSET
    memory: Memory | UnsetType = UNSET
    gpus: GpuCount | UnsetType = UNSET
    replicas: Machines | UnsetType = UNSET


class TargetMeasure(msgspec.Struct, forbid_unknown_fields=True):
    """The `target` of a job."""

    value: Number
    above: bool | UnsetType = UNSET
    name: str | UnsetType = UNSET


NEEDS_WORDS = worded('an object such as {"cores": 2, "memory": 4000000000}')
TARGET_WORDS = worded('an object such as {"value": 0.9, "above": true, "name": "val_accuracy"}')


class WhatRuns(msgspec.Struct, kw_only=True):
    """Fields that say what runs."""

    job_id: Annotated[
        JobName | None,
        about(
            "Names the job; a job that has not ended has the name for itself.",
            "the document's `_id`; over HTTP `job-` and eight digits",
            "resnet-1",
        ),
    ] = None
    state: Annotated[
        Literal["submitted"],
        about(
            "Says that the job is new; from then on the coordinator writes it.",
            "`submitted` over HTTP; needed in a document",
            "submitted",
        ),
    ]
    schema: Annotated[SchemaVersion, about("The version of this format.", "1", 1)]
    command: Annotated[
        Annotated[
            Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1), Parts],
            worded("a text or a list of texts"),
        ],
        about("Starts the training: a list is run as it is, a text by `sh -c`.", "needed", ["python", "train.py"]),
    ]
    code: Annotated[
        str | None,
        about("The folder that the command runs in.", "a folder of the job's own; on a cluster the image's", "/code"),
    ] = None
    env: Annotated[
        Annotated[dict[str, str], worded('an object of texts, such as {"LEARNING_RATE": "0.1"}', secret=True)] | None,
        about("Environment variables of the training.", NOTHING, {"LEARNING_RATE": "0.1"}),
    ] = None
    image: Annotated[
        str | None,
        about("The image of its container, on a cluster.", "that of the container in `pod`", "python:3.11-slim"),
    ] = None
    base: Annotated[
        str | None,
        about(
            "The image that its `image` is built on, by `reshape containerize` or, where it has none, by `reshape"
            " builder`; afterwards a note of what is in that, as `requirements` is.",
            NOTHING,
            "python:3.11-slim",
        ),
    ] = None
    requirements: Annotated[
        Annotated[
            str | Annotated[list[str], Parts], worded('the path of a file or a list of packages such as ["numpy"]')
        ]
        | None,
        about(
            "The packages of its `image`: lines as pip takes them, or, where that is built, the path of a file "
            "with such.",
            NOTHING,
            ["numpy==2.1.0"],
        ),
    ] = None
    owner: Annotated[
        Annotated[str, whole_text(OWNER), worded(OWNER_WORDS)] | None,
        about(
            "Whose job it is: GPUs are shared among owners. On a shared machine and for tenants of a cluster the "
            "server sets it to who submits. Elsewhere nobody proves it, and `reshape` and the Python client name "
            "the user that they run as.",
            "over HTTP whom the client names",
            "ada",
        ),
    ] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None,
        about(
            "Jobs of the same owner start in this order, the highest first, and the lowest is the first to be "
            "suspended for others. It counts against no other user.",
            "0",
            10,
        ),
    ] = None
    weight: Annotated[
        Annotated[float, Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] | None,
        about(
            "How often its completion time counts where the planner compares plans, against the other jobs of its "
            "owner. It counts against no other user.",
            "1",
            5,
        ),
    ] = None
    preemption: Annotated[
        Preemption | None,
        about(
            "What may be taken of it for the right of another user: `any`: it shrinks, or is suspended; `shrink`:"
            " it only shrinks; `never`: nothing, and it starts only within what its owner is entitled to.",
            "any",
            "shrink",
        ),
    ] = None
    hold: Annotated[
        Annotated[bool, worded("true (it waits until it is released) or false")] | None,
        about("true: it waits, without a claim to any GPU, until `reshape release`.", "false", True),
    ] = None
    notify: Annotated[
        Annotated[str, whole_text(WEBHOOK), worded(WEBHOOK_WORDS, secret=True)] | None,
        about(
            "The webhook, http or https, that is told of its end and a missed deadline, besides that of "
            "`RESHAPE_NOTIFY`. Only its host is shown to others.",
            NOTHING,
            "https://chat.example.org/hooks/T0",
        ),
    ] = None
    framework: Annotated[
        str | None, about("A note for people: which framework it trains with.", NOT_KNOWN, "keras")
    ] = None


class HowFast(msgspec.Struct, kw_only=True):
    """Fields that say how fast it trains."""

    job_type: Annotated[
        str | NaturalId | None,
        about(
            "Jobs of one type take equally long per iteration (SideCar, III-B).",
            "derived from `model` and data, else from `command`, `image`, `code`",
            "resnet50",
        ),
    ] = None
    model: Annotated[
        str | None, about("The model that it trains; part of the derived `job_type`.", NOT_KNOWN, "resnet50")
    ] = None
    dataset: Annotated[
        str | None,
        about(
            "The data set; the training finds it as `RESHAPE_DATASET`. An http or https address is fetched before"
            " it starts, once for all jobs; `RESHAPE_DATASET` is the path of that file then. With `dataset_claim`"
            " a path on that claim, or an address that is fetched onto it.",
            NOT_KNOWN,
            "/data/imagenet",
        ),
    ] = None
    dataset_sha256: Annotated[
        Annotated[str, whole_text(HEX), worded("the 64 hexadecimal digits that sha256sum prints")] | None,
        about(
            "The SHA-256 that the fetched data set must have, as `sha256sum` prints it.",
            "not compared",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        ),
    ] = None
    dataset_claim: Annotated[
        ObjectName | None,
        about(
            "The PersistentVolumeClaim with the data set, on a cluster; it is mounted read-only at `/dataset`.",
            NOTHING,
            "imagenet",
        ),
    ] = None
    dataset_size: Annotated[Length | None, about("Samples in the data set.", NOT_KNOWN, 1_281_167)] = None
    batch_size: Annotated[Length | None, about("Samples in one iteration, of all GPUs together.", NOT_KNOWN, 256)] = (
        None
    )
    hyper_parameters: Annotated[
        Any,
        about(
            "Whatever else makes training faster or slower; part of the derived `job_type`.",
            NOTHING,
            {"image_size": 224},
        ),
    ] = None


class HowLong(msgspec.Struct, kw_only=True):
    """Fields that say how long it trains."""

    iterations: Annotated[
        Length | None, about("How many iterations it trains.", "`epochs`, else as its output says", 450_450)
    ] = None
    epochs: Annotated[
        Length | None,
        about(
            "How many epochs it trains; with `dataset_size` and `batch_size` its iterations are known.",
            "`iterations`, else as its output says",
            90,
        ),
    ] = None
    target: Annotated[
        Annotated[TargetMeasure, TARGET_WORDS] | None,
        about(
            "Ends it, with a checkpoint, once a measure that it prints is there: its value, whether it is to rise"
            " to it (`above`, true) or fall, and the measure's name.",
            NOTHING,
            {"value": 0.9, "above": True, "name": "val_accuracy"},
        ),
    ] = None
    target_top5: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        about("The same for a Top-5 accuracy (SideCar, III-B); not together with `target`.", NOTHING, 0.92),
    ] = None
    sla: Annotated[
        Duration | None,
        about(
            'Its deadline, from submission to its end: seconds, or a text such as "90s", "15m" or "2h".', NOTHING, "2h"
        ),
    ] = None
    estimate: Annotated[
        Duration | None, about("The user's own guess of how long it trains, written as `sla`.", NOT_KNOWN, "40m")
    ] = None
    time_limit: Annotated[
        Duration | None,
        about(
            "How long it may train, written as `sla`; time in which it waits does not count. It is asked to save "
            "and end its `grace_s` before that, but not before a tenth of it is left.",
            NOTHING,
            "2h",
        ),
    ] = None
    progress_pattern: Annotated[
        Annotated[str, Meta(extra_json_schema={"pattern": rf".*\(\?P<(?:{'|'.join(PROGRESS_GROUPS)})>.*"})] | None,
        about(
            "A regular expression with a named group `iteration` or `epoch` that finds progress in its output.",
            "common formats are recognised",
            r"done (?P<iteration>\d+)",
        ),
    ] = None
    progress_file: Annotated[
        str | None,
        about("A file that the training writes its progress to.", "its output is read", "/reshape/progress.json"),
    ] = None
    depends_on: Annotated[
        Annotated[
            list[Annotated[JobName, refused_alone("no job can have the name {}; take that out")]],
            Parts,
            worded(f'a list of at most {Parts.max_length} job ids such as ["prepare"]'),
        ]
        | None,
        about("Jobs that must be completed before it may start.", NOTHING, ["prepare"]),
    ] = None


class ItsNeeds(msgspec.Struct, kw_only=True):
    """Fields that say what it needs."""

    optional_num_gpus: Annotated[
        Annotated[list[GpuCount], Meta(min_length=1), Parts, worded("a list of GPU counts such as [1, 2, 4]")] | None,
        about("The GPU counts that it can run on, rising; [0] is a job trained on CPU.", "`num_gpus` alone", [1, 2, 4]),
    ] = None
    num_gpus: Annotated[
        GpuCount | None,
        about(
            "The only GPU count that it can run on, from 0 to "
            f"{MAX_GPUS}, where `optional_num_gpus` is left out. Later the coordinator writes how many it has.",
            "`optional_num_gpus`",
            1,
        ),
    ] = None
    gpus_per_pod: Annotated[
        Machines | None, about("Makes it a gang of pods with so many GPUs each, on a cluster.", "it has one pod", 1)
    ] = None
    max_workers: Annotated[Machines | None, about("Over how many nodes it may spread.", "1; of a gang its pods", 2)] = (
        None
    )
    gpu_type: Annotated[str | None, about("The only GPU type that it may run on.", "any", "V100")] = None
    node: Annotated[
        Annotated[str, Meta(min_length=1)] | None, about("The only node that it may run on.", "any", "gpu-node-1")
    ] = None
    resources: Annotated[
        Annotated[Needs, NEEDS_WORDS] | None,
        about(
            "CPU cores and bytes of memory that it needs beside GPUs.", NOTHING, {"cores": 2, "memory": 4_000_000_000}
        ),
    ] = None
    tasks: Annotated[
        Annotated[
            list[Annotated[TaskNeeds, NEEDS_WORDS]],
            Meta(min_length=1, max_length=MAX_TASKS),
            worded(f'a list of 1 to {MAX_TASKS} objects such as {{"name": "train", "cores": 2}}'),
        ]
        | None,
        about(
            "What it needs in each part of its work, one after the other; not together with `resources`.",
            "one task with its `resources`",
            [{"name": "prepare", "cores": 4}, {"name": "train", "cores": 2, "memory": 4_000_000_000, "gpus": 1}],
        ),
    ] = None


class ItsStops(msgspec.Struct, kw_only=True):
    """Fields that say whether it may be stopped."""

    elastic: Annotated[
        Annotated[bool, worded("true (it goes on where it was stopped) or false (it is never stopped)")] | None,
        about(
            "true: it saves and resumes, and may be stopped at any time; false: it is never stopped to be "
            "reshaped or moved.",
            "kept as it is until it has shown that it resumes",
            True,
        ),
    ] = None
    freeze: Annotated[
        Annotated[bool, worded("true (NVIDIA's driver may freeze it in memory) or false")] | None,
        about(
            "true: one that has not shown that it resumes may be frozen in memory by NVIDIA's driver (570 and "
            "newer), so that its GPU can serve others meanwhile; one process on one GPU, on one machine.",
            "false",
            True,
        ),
    ] = None
    hooks: Annotated[
        bool | None,
        about(
            "false: our code is kept out of its interpreter, so that it saves only by what its script does itself.",
            "true",
            False,
        ),
    ] = None
    grace_s: Annotated[
        Annotated[float, Meta(ge=1, le=int(MOST_S)), counted_in("seconds")] | None,
        about(
            "Seconds that it may take to save and end when it is cancelled, before it is killed; more where its "
            "saves have taken longer, and while files of its checkpoints change. A reshape, a move or a "
            "suspension waits for a training that has announced that it saves.",
            "`RESHAPE_GRACE_S`",
            120,
        ),
    ] = None
    reshape_exit_codes: Annotated[
        Annotated[list[Annotated[int, Meta(ge=-64, le=255)]], worded("a list of exit codes such as [143, -15]")] | None,
        about(
            "Exit codes of a training that was stopped and has saved.",
            ", ".join(map(str, sorted(RESHAPE_EXIT_CODES))),
            [143, -15],
        ),
    ] = None


class ItsPod(msgspec.Struct, kw_only=True):
    """Fields of its pod, on a cluster."""

    namespace: Annotated[
        NamespaceName | None, about("The namespace of its pods.", "that of the launcher", "team-a")
    ] = None
    queue: Annotated[ObjectName | None, about("Its queue of Volcano.", "that of the launcher", "reshape")] = None
    checkpoint_claim: Annotated[
        ObjectName | None,
        about(
            "The PersistentVolumeClaim that its checkpoints lie on.",
            "`RESHAPE_CHECKPOINT_CLAIM`, else its pod's own disk",
            "checkpoints",
        ),
    ] = None
    single_container: Annotated[
        bool | None,
        about("Whether shim and sidecar are in its image, as `reshape containerize` builds it.", "false", False),
    ] = None
    pod: Annotated[
        Annotated[dict[str, Any] | str, worded('an object with fields of a pod\'s spec, such as {"tolerations": []}')]
        | None,
        about(
            "Fields of a pod's spec that are merged into its pods, as an object or as a text of JSON.",
            NOTHING,
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        ),
    ] = None


GROUPS: dict[str, type[msgspec.Struct]] = {
    "What runs": WhatRuns,
    "How fast it trains": HowFast,
    "How long it trains": HowLong,
    "What it needs": ItsNeeds,
    "Whether it may be stopped": ItsStops,
    "Its pod, on a cluster": ItsPod,
}


@dataclass(frozen=True)
class Field:
    """A field as it is declared. `kind`: its type; `default`: what holds where it is left out or null."""

    name: str
    kind: Any
    default: str
    meaning: str
    example: Any


def _declared_fields(struct: type[msgspec.Struct]) -> list[Field]:
    declared = []
    for name, kind in types_of_fields(struct).items():
        (meaning,) = (one.description for one in all_meta(kind) if one.description)
        declared.append(Field(name, kind, said_of(kind, "default"), meaning, said_of(kind, "example")))
    return declared


GROUPED: dict[str, list[Field]] = {title: _declared_fields(struct) for title, struct in GROUPS.items()}
FIELDS: dict[str, Field] = {field.name: field for group in GROUPED.values() for field in group}
JobSpec = struct_of("JobSpec", {name: field.kind for name, field in FIELDS.items()})
"""All that users write; a document that is none has a field that is wrong."""
