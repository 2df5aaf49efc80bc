"""Reads tables and documents of a trace from the folder that the user names.

Promises one sentence, naming the file and what is expected, if a file is missing or malformed. Called by the readers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from adaptive_scheduler.snapshot import Node
from simulator.scenario import NoWorkload

Line = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TraceSource:
    """The trace that a user named: the folder, the file in it or "", and the nodes, if any."""

    folder: Path
    file: str = ""
    nodes: tuple[Node, ...] = ()

    def find(self, *usual: str) -> Path:
        """Return the named file, else the first of `usual` that exists. Raises NoWorkload if there is none."""
        names = (self.file,) if self.file else usual
        for name in names:
            if (self.folder / name).is_file():
                return self.folder / name
        raise NoWorkload(f"{self.folder} has no {' or '.join(names)}; name the folder that has it with --data.")


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The rows of one CSV file. Bad cells raise NoWorkload with file, line and column."""

    path: Path
    rows: tuple[Line, ...]

    @classmethod
    def read(cls, path: Path, columns: Sequence[str], header: Sequence[str] | None = None) -> CsvTable:
        """Read a file with these `columns`.

        Raises NoWorkload without them. `header`: the columns if the file has no header.
        """
        lines = csv.DictReader(io.StringIO(text(path)), fieldnames=header)
        missing = [name for name in columns if name not in (lines.fieldnames or ())]
        if missing:
            raise NoWorkload(f"{path} has no column {missing[0]}; expected are {', '.join(columns)}.")
        return cls(path, tuple(lines))

    def __iter__(self) -> Iterator[tuple[int, CsvRow]]:
        """Yield row number, from 1, and the row."""
        for position, row in enumerate(self.rows, start=1):
            yield position, CsvRow(f"{self.path}, row {position}", row)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row, of a table or a document."""

    where: str
    row: Mapping[str, Any]

    def text(self, name: str) -> str:
        return str(self.row.get(name) or "")

    def number(self, name: str, missing: float = math.nan) -> float:
        """Return the cell as a number; `missing` for an empty cell. Raises NoWorkload for anything else."""
        value = self.text(name)
        if not value:
            return 0.0 if self.row.get(name) == 0 else missing
        try:
            return float(value)
        except ValueError:
            raise NoWorkload(f"{self.where}: {name} must be a number, not {value!r}.") from None

    def whole(self, name: str) -> int:
        """Return the cell as a whole number; 0 for an empty cell."""
        return int(self.number(name, 0.0))

    def moment(self, name: str) -> float:
        """Parse `2017-10-09 07:01:55` to seconds since 1970; NaN for an empty cell or `None`, as logs write it."""
        value = self.text(name)
        if value in ("", "None"):
            return math.nan
        try:
            return (datetime.fromisoformat(value).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
        except ValueError:
            raise NoWorkload(
                f"{self.where}: {name} must be a time such as 2017-10-09 07:01:55, not {value!r}."
            ) from None


def documents(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON list, or of a file with one object per line. Raises NoWorkload for anything else."""
    content = text(path)
    try:
        found = json.loads(content) if content.lstrip().startswith("[") else map(json.loads, content.splitlines())
        for one in found:
            if not isinstance(one, dict):
                raise NoWorkload(f"{path} must be a JSON list of objects, or one object a line.")
            yield one
    except ValueError as error:
        raise NoWorkload(f"{path} must be a JSON list of objects, or one object a line: {error}.") from error


def text(path: Path) -> str:
    """Return a file's text, decompressed if its name ends in `.gz`. Raises NoWorkload if it cannot be read."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise NoWorkload(f"{path} cannot be read: {error}.") from error
