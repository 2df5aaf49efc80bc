"""Writes the properties of manifests/base/slaml-crd.yaml from the structs of coordinator/scheduling/slaml."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from coordinator.model.schema.field_types import BEFORE_END
from coordinator.scheduling.slaml import slaml_fields
from reference_pages.job import yaml_lines

REGION = re.compile(
    r"^( *)# begin: (\w+), written by make reference\n.*?^ *# end: written by make reference\n",
    re.MULTILINE | re.DOTALL,
)


def crd_text(text: str) -> str:
    """Return the definition `text` with the properties of each struct that it names replaced by those of the struct."""
    return REGION.sub(_rewritten_region, text)


def _rewritten_region(found: re.Match[str]) -> str:
    indent, name = found.groups()
    lines = "".join(yaml_lines(_properties(getattr(slaml_fields, name)), indent))
    return f"{indent}# begin: {name}, written by make reference\n{lines}{indent}# end: written by make reference\n"


def _properties(struct: type[msgspec.Struct]) -> dict[str, Any]:
    declared = msgspec.json.schema(struct)["$defs"][struct.__name__]["properties"]
    return {name: _for_the_api_server(schema) for name, schema in declared.items()}


def _for_the_api_server(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the type that Kubernetes needs beside values, and take out what Go's expressions do not have."""
    if "enum" in schema:
        return {"type": "string", **schema}
    if "pattern" in schema:
        return {**schema, "pattern": schema["pattern"].removesuffix(BEFORE_END)}
    return schema
