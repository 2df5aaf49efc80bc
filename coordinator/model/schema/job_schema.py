"""Writes the JSON Schema of a job document, and the schema `Submission` of the OpenAPI description, from `job_fields`.

Pure. Two dialects: JSON Schema 2020-12 for documents in the `jobs` table, OpenAPI 3.0 for the body of a submission.
"""

from __future__ import annotations

from typing import Any

from coordinator.model.schema.job_fields import FIELDS, MAX_GPUS, NEVER_NULL, Field, Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
COUNTS: list[Schema] = [
    {"required": ["optional_num_gpus"], "properties": {"optional_num_gpus": {"type": "array"}}},
    {
        "required": ["num_gpus"],
        "properties": {
            "num_gpus": {"type": "integer", "minimum": 0, "maximum": MAX_GPUS},
            "optional_num_gpus": {"type": "null"},
        },
    },
]


def document(others: frozenset[str]) -> Schema:
    """Return the schema of a document inserted into the `jobs` table.

    `others`: fields that the coordinator or the launcher writes, which a copy of a job that has ended also has.
    """
    ours = "|".join(sorted(others - FIELDS.keys() - {"_id"}))
    return {
        "$schema": DIALECT, "title": "Job document of volcano-reshape", "type": "object",
        "required": ["state", "command"], "anyOf": COUNTS,
        "properties": {name: _described(field, _json_schema(field)) for name, field in FIELDS.items()},
        "patternProperties": {r"^(x_|_)[^.]*$": True, f"^({ours})$": True}, "additionalProperties": False,
    }  # fmt: skip


def submission() -> Schema:
    """Return the schema of the body of `POST /v1/jobs`."""
    about = (
        "Also needed is `optional_num_gpus`, or `num_gpus` for one count. A field that is not listed here is a problem "
        "unless it begins with `x_` or `_`, as those of users' own tools do, or is one that a job that has ended also "
        "has, which is ignored. Written by `make reference` from coordinator/model/schema/job_fields.py."
    )
    properties = {name: _described(field, _openapi(field)) for name, field in FIELDS.items()}
    return {"type": "object", "required": ["command"], "description": about, "properties": properties}


def type_words(schema: Schema) -> str:
    """Return the type in words: `text or whole number`."""
    if "anyOf" in schema:
        return " or ".join(type_words(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_plural(schema['items'])}"
    words = {"string": "text", "integer": "whole number", "boolean": "true or false", None: "any"}
    return words.get(schema.get("type"), str(schema.get("type")))


def _plural(items: Schema) -> str:
    words = type_words(items)
    return " or ".join(f"{word}s" for word in words.split(" or "))


def _described(field: Field, schema: Schema) -> Schema:
    return {**schema, "description": f"{field.meaning} Default: {field.default}."}


def _json_schema(field: Field) -> Schema:
    """With null, which means that the field is left out; bounds are numbers of their own."""
    schema: Schema = _bounds(field.schema)
    if field.name in NEVER_NULL or not schema:
        return schema
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def _bounds(schema: Any) -> Any:
    """`exclusiveMinimum: true` of OpenAPI 3.0 is `exclusiveMinimum: 0` since JSON Schema draft 6."""
    if isinstance(schema, list):
        return [_bounds(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _bounds(value) for key, value in schema.items()}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if found.get(exclusive) is True:
            found[exclusive] = found.pop(bound)
    return found


def _openapi(field: Field) -> Schema:
    """OpenAPI 3.0 has `nullable` beside a type, and no type null."""
    schema = field.schema
    if field.name in NEVER_NULL or not schema:
        return schema
    if "anyOf" not in schema:
        return {**schema, "nullable": True}
    first, *others = schema["anyOf"]
    return {"anyOf": [{**first, "nullable": True}, *others]}
