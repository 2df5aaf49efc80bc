"""Computes the difference between two JSON documents as a JSON Patch (RFC 6902). Pure; called by `webhook`.

Promise: applied to `before` the patch gives `after`; nothing that is equal is touched. Lists that only grew at their
end get additions; all others are replaced where they differ, element by element while the length is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def difference(before: Any, after: Any, path: str = "") -> list[Operation]:
    """Return the operations that turn `before` into `after`. `path`: JSON Pointer of both."""
    return list(_operations(before, after, path))


def _operations(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if _same(before, after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and 0 < len(before) <= len(after):
        yield from _of_lists(before, after, path)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _of_objects(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for name in sorted(before.keys() - after.keys()):
        yield {"op": "remove", "path": f"{path}/{pointer_part(name)}"}
    for name, value in after.items():
        place = f"{path}/{pointer_part(name)}"
        if name not in before:
            yield {"op": "add", "path": place, "value": value}
        else:
            yield from _operations(before[name], value, place)


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    """Yield operations by element; a list of strings is replaced as a whole, as a command with a prefix is."""
    if any(isinstance(one, str) for one in before):
        yield {"op": "replace", "path": path, "value": after}
        return
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from _operations(old, new, f"{path}/{index}")
    for new in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": new}


def _same(one: Any, other: Any) -> bool:
    """True if both are the same JSON: unlike Python's equality, True is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def pointer_part(name: str) -> str:
    """Return a name as one part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
