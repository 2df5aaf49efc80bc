"""Writes the JSON Schema of a job document, and the schema `Submission` of the OpenAPI description, from `job_fields`.

Pure. Two dialects: JSON Schema 2020-12 for documents in the `jobs` table, OpenAPI 3.0 for the body of a submission.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.model.schema.field_types import BEFORE_END, LARGEST, is_nullable
from coordinator.model.schema.job_fields import FIELDS, Field, GpuCount

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNT = "num_gpus"
"""The field that counts only without `optional_num_gpus`, beside which it may be anything."""


def schema_of(kind: Any) -> Schema:
    """Return the JSON Schema of a type; null, which means that a field is left out, is no part of it."""
    told = msgspec.json.schema(kind)
    plain: Schema = _without_wrappers(told, told.get("$defs", {}))
    return plain


def document(others: frozenset[str]) -> Schema:
    """Return the schema of a document inserted into the `jobs` table.

    `others`: fields that the coordinator or the launcher writes, which a copy of a job that has ended also has.
    """
    ours = "|".join(sorted(others - FIELDS.keys() - {"_id"}))
    counts: list[Schema] = [
        {"required": ["optional_num_gpus"], "properties": {"optional_num_gpus": {"type": "array"}}},
        {"required": [COUNT], "properties": {COUNT: schema_of(GpuCount), "optional_num_gpus": {"type": "null"}}},
    ]
    return {
        "$schema": DIALECT,
        "title": "Job document of volcano-reshape",
        "type": "object",
        "required": ["state", "command"],
        "anyOf": counts,
        "properties": {name: _described(field, _with_null(field)) for name, field in FIELDS.items()},
        "patternProperties": {r"^(x_|_)[^.]*$": True, f"^({ours})$": True},
        "additionalProperties": False,
    }


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


def _without_wrappers(schema: Any, structs: Schema) -> Any:
    """Return msgspec's schema with structs where they are named, and without what only says that a number is finite."""
    if isinstance(schema, list):
        return [_without_wrappers(one, structs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if named := schema.get("$ref"):
        return _without_wrappers(structs[named.rpartition("/")[2]], structs)
    finite = [key for key in BOUNDS if abs(schema.get(key, 0)) >= LARGEST - 1]
    left_out = {"$defs", "title", "description", *finite} if "type" in schema else {"description"}
    found = {key: _without_wrappers(value, structs) for key, value in schema.items() if key not in left_out}
    if "anyOf" in found:
        choices = [one for one in found["anyOf"] if one != {"type": "null"}]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if "pattern" in found:
        return found | {"pattern": found["pattern"].removesuffix(BEFORE_END)}
    if "enum" in found:
        return {"type": "integer" if isinstance(found["enum"][0], int) else "string", **found}
    return {**found, "required": found["required"]} if found.get("required") else _without_key(found, "required")


def _without_key(schema: Schema, key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


def _described(field: Field, schema: Schema) -> Schema:
    return {**schema, "description": f"{field.meaning} Default: {field.default}."}


def _schema_of_field(field: Field) -> Schema:
    return {} if field.name == COUNT else schema_of(field.kind)


def _with_null(field: Field) -> Schema:
    schema = _schema_of_field(field)
    if not schema or not is_nullable(field.kind):
        return schema
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def _openapi(field: Field) -> Schema:
    """OpenAPI 3.0 has `nullable` beside a type, and no type null."""
    schema: Schema = _older_bounds(_schema_of_field(field))
    if not schema or not is_nullable(field.kind):
        return schema
    if "anyOf" not in schema:
        return {**schema, "nullable": True}
    first, *others = schema["anyOf"]
    return {"anyOf": [{**first, "nullable": True}, *others]}


def _older_bounds(schema: Any) -> Any:
    """`exclusiveMinimum: 0` of JSON Schema is `exclusiveMinimum: true` beside `minimum: 0` in OpenAPI 3.0."""
    if isinstance(schema, list):
        return [_older_bounds(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _older_bounds(value) for key, value in schema.items()}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in found:
            found |= {bound: found[exclusive], exclusive: True}
    return found
