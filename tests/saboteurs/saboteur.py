"""Saboteurs: one-line breaks of the code, each with the promise that it breaks and the tests that must then fail.

They are data, in the TOML files beside this module, one table each:

    [[saboteur]]
    name     what the break does
    promise  what it breaks; a promise or row of reliability.md, an id of algorithms.md, or a sentence
    file     the file, from the root of the project
    line     the line, or the part of it, as it stands there now; it must stand there once, so where equal lines
             stand elsewhere in the file the one before or behind it is given, too
    broken   what takes its place
    tests    node ids of pytest, of which at least one must fail

Read by `python -m tests.saboteurs` (`make sabotage`), and by `tests/test_tidy.py`, which holds that each line still
stands in its file and each test exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Outdated(Exception):
    """The saboteur's line does not stand once in its file; the one argument is a sentence."""


@dataclass(frozen=True)
class Saboteur:
    name: str
    promise: str
    file: str
    line: str
    broken: str
    tests: Sequence[str]

    def applied(self, text: str) -> str:
        """The text of its file with the line broken. Raises `Outdated`."""
        if (times := text.count(self.line)) != 1:
            raise Outdated(f"{self.name}: its line stands {times} times in {self.file}, not once: {self.line}")
        return text.replace(self.line, self.broken)


def saboteurs() -> list[Saboteur]:
    """All of them, in the order of their files. Raises ValueError where two have one name."""
    found = [
        Saboteur(**table)
        for path in sorted(HERE.glob("*.toml"))
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["saboteur"]
    ]
    if len({one.name for one in found}) < len(found):
        raise ValueError("two saboteurs have one name: rename one")
    return found
