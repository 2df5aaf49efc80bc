"""Reads job documents and profile rows from JSON or YAML files, one or several per file.

Used by the verbs. `reshape containerize` takes from a document what its image is built of: one file with base, code,
requirements, dataset and image says all that is needed; what an option says comes first. YAML needs PyYAML, which
ansible-core installs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.errors import Rejected
from coordinator.unique_names import refuse_repeated_names, unique_names

if TYPE_CHECKING:
    from launcher.containerize import Image

CODE = "/code"  # where playbooks/training.Containerfile puts it
MISSING = {
    "name": "the image has no name: write `image` into the job document, such as registry.example/me/train, or --name",
    "base": "no base image is given: write `base` into the job document, such as python:3.11-slim, or --base",
    "code": "nothing to run is given: write the folder of the training into the job document as `code`, or --code",
}


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


TOO_DEEP = "The file is nested too deep: make it flatter."
MOST_VALUES = 1_000_000
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


def record_of(source: Any) -> dict[str, Any]:
    """Return the one job document of an open file."""
    docs = read(source.read())
    if len(docs) != 1:
        raise Rejected("--submit takes one job document.")
    return docs[0]


def image_of(options: dict[str, Any], doc: dict[str, Any] | None, source: Any) -> Image:
    """Return what the image is made of: what `options` leave out, `doc` says. `Rejected` with what is missing."""
    from coordinator.model.schema import dataset_fields
    from launcher.containerize import Image

    given, beside = doc or {}, Path(getattr(source, "name", "")).parent
    name, named = options["name"], given.get("image")
    if name and named not in (None, name):
        raise Rejected(f"--submit takes a job document without an image or with {name}.")
    found = {**options, "name": name or named, "base": options["base"] or given.get("base")}
    if not dataset_fields.address(given):  # what is fetched the launch names: a signature in it is not for a registry
        found["dataset"] = options["dataset"] or given.get("dataset")
    for field in ("name", "base", "dataset"):
        if found[field] is not None and not isinstance(found[field], str):
            raise Rejected(f"{'image' if field == 'name' else field} must be a text, not {found[field]!r:.60}.")
    found["code"] = options["code"] or _folder(given.get("code"), beside)
    if missing := next((sentence for field, sentence in MISSING.items() if not found[field]), None):
        raise Rejected(f"{missing}.")
    return Image(**found | (_packages(given.get("requirements"), beside) if options["requirements"] is None else {}))


def submitted(doc: dict[str, Any], image: str, own_code: bool) -> dict[str, Any]:
    """Return the document to submit. `own_code`: --code was given, so that its `code` is a folder in the image."""
    return {**doc, "image": image} if own_code else {**doc, "image": image, "code": CODE}


def _folder(code: Any, beside: Path) -> Path | None:
    if code is None:
        return None
    path = Path(with_full_code({"code": code}, beside)["code"] if isinstance(code, str) else "")
    if not isinstance(code, str) or not path.is_dir():
        raise Rejected(f"code must be a folder of this machine, which is copied into the image, not {code!r:.200}.")
    return path


def _packages(given: Any, beside: Path) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return {"packages": tuple(given)}
    places = [beside / given, Path(given)] if isinstance(given, str) else []
    if (file := next((place for place in places if place.is_file()), None)) is None:
        raise Rejected(f"requirements must be a file of packages, or a list of them, not {given!r:.200}.")
    return {"requirements": file}


def _values(text: str) -> list[Any]:
    try:
        return _json_values(text)
    except ValueError as error:
        why = f"The file is not JSON: {error}."
    except RecursionError:
        raise click.ClickException(TOO_DEEP) from None
    try:
        import yaml
    except ImportError:
        raise click.ClickException(f"{why} To read YAML, install PyYAML.") from None
    try:
        refuse_repeated_names(text)
        found = [value for value in yaml.safe_load_all(text) if value is not None]
    except RecursionError:
        raise click.ClickException(TOO_DEEP) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that cannot be
        if text.lstrip()[:1] in ("{", "["):
            raise click.ClickException(why) from None
        raise click.ClickException(f"The file is neither JSON nor YAML: {' '.join(str(error).split())}.") from None
    if _holds_too_many(found):
        raise click.ClickException(f"The file holds more than {MOST_VALUES:,} values, as by an alias that repeats.")
    return found


def _holds_too_many(value: Any) -> bool:
    """True for more than `MOST_VALUES` values, each alias counted as often as it stands; one may hold itself."""
    left = [value]
    counted = 0
    while left and counted <= MOST_VALUES:
        one = left.pop()
        counted += 1
        left.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
    return counted > MOST_VALUES


def _json_values(text: str) -> list[Any]:
    """Return JSON values one after the other (also JSON lines); ValueError if anything else stands there."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_names)
    values = []
    rest = text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values
