"""Reads job documents and profile rows from JSON or YAML files, one or several per file.

Used by the verbs. YAML needs PyYAML, which ansible-core installs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


def read(raw: bytes) -> list[dict[str, Any]]:
    """The objects in a file: one, a list, or several one after the other. ClickException if it has none."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise click.ClickException("The file is not UTF-8 text.") from None
    found = [part for value in _values(text) for part in (value if isinstance(value, list) else [value])]
    if not found or not all(isinstance(part, dict) for part in found):
        raise click.ClickException("The file must hold one object, a list of objects, or several after one another.")
    return found


SLAML = "Slaml"  # kind of an object of tasks with a deadline (docs/deadlines.md)


def with_folders(slaml: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The Slaml with a folder to run in for each task: the full path of its `job.code`, else the file's own folder."""
    spec = slaml.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("tasks"), list):
        return slaml  # the coordinator says what is wrong
    tasks = [_with_folder(task, beside) for task in spec["tasks"]]
    return {**slaml, "spec": {**spec, "tasks": tasks}}


def _with_folder(task: Any, beside: Path) -> Any:
    job = task.get("job", {}) if isinstance(task, dict) else None
    return {**task, "job": with_full_code({"code": ".", **job}, beside)} if isinstance(job, dict) else task


def with_full_code(doc: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The document with the full path of its `code`: below `beside` if it is a folder there, else below the current."""
    code = doc.get("code")
    if not isinstance(code, str) or Path(code).is_absolute():
        return doc
    folder = beside if (beside / code).is_dir() else Path()
    return {**doc, "code": str((folder / code).resolve())}


def _values(text: str) -> list[Any]:
    try:
        return _json_values(text)
    except ValueError as error:
        why = f"The file is not JSON: {error}."
    try:
        import yaml
    except ImportError:
        raise click.ClickException(f"{why} To read YAML, install PyYAML.") from None
    try:
        return [value for value in yaml.safe_load_all(text) if value is not None]
    except yaml.YAMLError as error:
        if text.lstrip()[:1] in ("{", "["):
            raise click.ClickException(why) from None
        raise click.ClickException(f"The file is neither JSON nor YAML: {' '.join(str(error).split())}.") from None


def _json_values(text: str) -> list[Any]:
    """JSON values one after the other (also JSON lines); ValueError if anything else stands there."""
    decoder, values, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values
