"""Prints the part of requirements.lock that some of it needs, hashes and all: `subset.py k8s hatchling`.

Each argument is an extra of pyproject.toml, "." for what the project needs itself, or a distribution. The images are
built from it, so that they hold the versions that the tests ran with. Standard library only: it runs inside a build.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OURS = "volcano-reshape"


def subset(lock: str, project: dict[str, object], wanted: list[str]) -> str:
    """Return the blocks of `lock` for `wanted` and for all that these require."""
    blocks = blocks_of(lock)
    chosen: set[str] = set()
    more = {name for word in wanted for name in meant(project, word)}
    while more:
        chosen |= more
        more = {name_of(b) for b in blocks if askers(b) & chosen} - chosen
    if missing := chosen - {name_of(b) for b in blocks}:
        raise SystemExit(f"requirements.lock does not hold {', '.join(sorted(missing))}: run make lock")
    return "".join(b for b in blocks if name_of(b) in chosen)


def blocks_of(lock: str) -> list[str]:
    """Split the lock into the head of the file and one block per pinned distribution."""
    return re.split(r"(?m)^(?=[A-Za-z0-9])", lock)


def meant(project: dict[str, object], word: str) -> set[str]:
    """Return the distributions that one argument names."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    asked: list[str] = project["dependencies"] if word == "." else extras.get(word, [])  # type: ignore[assignment]
    if word != "." and word not in extras:
        return {word}
    names: set[str] = set()
    for requirement in asked:
        name, bracket = re.match(r"([A-Za-z0-9._-]+)(?:\[(.*?)\])?", requirement).groups()  # type: ignore[union-attr]
        inner = {n for extra in (bracket or "").split(",") if extra for n in meant(project, extra)}
        names |= inner if name == OURS else {name.lower()}
    return names


def name_of(block: str) -> str:
    """Return the distribution that a block of the lock pins; empty for the head of the file."""
    found = re.match(r"[A-Za-z0-9._-]+(?===)", block)
    return found.group() if found else ""


def askers(block: str) -> set[str]:
    """Return the names of those that require a block's distribution, listed after `# via`, without this project."""
    _, _, via = block.partition("# via")
    return set(re.findall(r"[a-z][a-z0-9._-]*", re.sub(r"\(.*?\)", "", via))) - {OURS}


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    sys.stdout.write(subset(text, pyproject["project"], sys.argv[1:]))
