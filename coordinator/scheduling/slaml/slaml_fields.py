"""Declares the fields of a Slaml's spec, once. Pure.

On one machine `slaml_object` checks objects by these structs; on a cluster the API server does, by
manifests/base/slaml-crd.yaml, whose properties `make reference` writes from them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from coordinator.model.requirements import TIME
from coordinator.model.schema.field_types import whole_text, worded

MOST_TASKS = 32
LONGEST_TASK_NAME = 40
MOST_REPLICAS = 64
TASK_NAME = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{LONGEST_TASK_NAME - 2}}}[a-z0-9])?")
QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
PRESERVED = {"x-kubernetes-preserve-unknown-fields": True}

TaskName = Annotated[
    str,
    Meta(max_length=LONGEST_TASK_NAME),
    whole_text(TASK_NAME),
    worded(f"up to {LONGEST_TASK_NAME} small letters, digits and dashes"),
]
Words = Annotated[list[str], Meta(max_length=4_096), worded("a list of texts")]
PARAMETERS = {
    "batch-size": {"type": "integer", "minimum": 1},
    "epochs": {"type": "integer", "minimum": 1},
    "lr": {"type": "number"},
}
Parameters = Annotated[dict[str, Any], Meta(extra_json_schema={**PRESERVED, "properties": PARAMETERS})]


def number_or_text(pattern: re.Pattern[str], meaning: str) -> Meta:
    """Return what the API server takes as a number or a text of this pattern; here `slaml_spec` says what is none."""
    kind = {"x-kubernetes-int-or-string": True, "pattern": f"^(?:{pattern.pattern})$"}
    return Meta(description=meaning, extra_json_schema=kind)


def quantity(meaning: str = "Of each replica.") -> Meta:
    """Return the type of an amount of a resource, as Kubernetes writes it."""
    return number_or_text(QUANTITY, f'{meaning} A quantity such as "500m", "2" or "2Gi".')


class SlamlTaskFields(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One of `tasks`. On a cluster it also needs `containerImage`."""

    task_name: TaskName
    type: Annotated[Literal["data", "feature", "model"] | UnsetType, Meta(description="For people.")] = UNSET
    container_image: Annotated[str, Meta(min_length=1, max_length=400)] | UnsetType = UNSET
    container_registry: Annotated[str, Meta(max_length=400)] | UnsetType = UNSET
    container_tag: Annotated[str, Meta(max_length=128)] | UnsetType = UNSET
    container_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_REPLICAS)],
        Meta(description="How many pods do this task, each by itself. The next task begins when all are done."),
    ] = 1
    model_params: Annotated[
        Annotated[list[Parameters], Meta(max_length=MOST_REPLICAS)] | UnsetType,
        Meta(description="The entry with index i is in the environment of replica i; batch-size as BATCH_SIZE."),
    ] = UNSET
    CPU: Annotated[Any, quantity()] = UNSET
    memory: Annotated[Any, quantity()] = UNSET
    GPU: Annotated[Any, quantity()] = UNSET
    command: Annotated[
        Words | UnsetType,
        Meta(
            description="What the image would start by itself (its ENTRYPOINT); left out it is read from a registry of "
            "RESHAPE_REGISTRIES."
        ),
    ] = UNSET
    args: Words | UnsetType = UNSET
    job: Annotated[
        Annotated[dict[str, Any], Meta(extra_json_schema=PRESERVED)] | UnsetType,
        Meta(
            description="Further fields of its job documents (docs/reference/volcano-jobs.md), such as env, "
            "checkpoint_claim, job_type, epochs, or pod with pieces of the pod's spec."
        ),
    ] = UNSET


class SlamlSpecFields(msgspec.Struct, kw_only=True, rename="camel"):
    """The spec beside `tasks`, whose rules are written into the CRD by hand."""

    is_sla: Annotated[bool, Meta(description="Whether it has a deadline.")] = True
    sla_target: Annotated[
        Any,
        number_or_text(
            TIME,
            'Seconds from submission, or a text such as "90s", "15m" or "2h", within which all tasks shall end.',
        ),
    ] = UNSET
    name: Annotated[Annotated[str, Meta(max_length=253)] | UnsetType, Meta(description="For people.")] = UNSET
