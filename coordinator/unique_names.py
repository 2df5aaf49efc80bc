"""Finds names that stand twice in an object of JSON or a mapping of YAML, where parsers silently take the last one.

Pure. Used wherever people hand in documents: over HTTP, from files, in `shares.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.errors import Rejected

MERGE = "tag:yaml.org,2002:merge"  # `<<` may stand twice
TEXT = "tag:yaml.org,2002:str"  # `1` and `'1'` are two names


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, for `object_pairs_hook` of `json`. Raises `Rejected` for a repeated name."""
    _refuse_repeated(name for name, _ in pairs)
    return dict(pairs)


def refuse_repeated_names(text: str) -> None:
    """Raise `Rejected` for a mapping in this YAML with a name that is twice there, `YAMLError` if it is none."""
    import yaml  # only where there is YAML to read

    left: list[Any] = list(yaml.compose_all(text, yaml.SafeLoader))
    seen: set[int] = set()  # an alias may stand in itself
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            names = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE]
            _refuse_repeated(name.value for name in names if name.tag == TEXT)
            _refuse_repeated(name.value for name in names if name.tag != TEXT)
            left.extend(value for _, value in node.value)


def _refuse_repeated(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Rejected(f"{name:.200} is given twice, and only one of the two can hold: write it once.")
        seen.add(name)
