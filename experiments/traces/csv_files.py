"""Tables and documents of a trace, from the folder that the user names.

Promises one sentence, naming the file and what is expected of it, where a file is missing or is not what it should
be. Called by the readers.
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
    """Where to look: the folder, a file in it where the user names one, and the nodes where there are any."""

    folder: Path
    file: str = ""
    nodes: tuple[Node, ...] = ()

    def find(self, *usual: str) -> Path:
        """The file that is named, else the first of the usual ones. NoWorkload if there is none."""
        names = (self.file,) if self.file else usual
        for name in names:
            if (self.folder / name).is_file():
                return self.folder / name
        raise NoWorkload(f"{self.folder} has no {' or '.join(names)}; name the folder that has it with --data.")


@dataclass(frozen=True, slots=True)
class CsvTable:
    """One CSV file, of which these columns are read. Bad cells raise NoWorkload with file, line and column."""

    path: Path
    rows: tuple[Line, ...]

    @classmethod
    def read(cls, path: Path, columns: Sequence[str], header: Sequence[str] | None = None) -> CsvTable:
        """`header`: of a file that has none. NoWorkload where a column is missing."""
        lines = csv.DictReader(io.StringIO(text(path)), fieldnames=header)
        missing = [name for name in columns if name not in (lines.fieldnames or ())]
        if missing:
            raise NoWorkload(f"{path} has no column {missing[0]}; expected are {', '.join(columns)}.")
        return cls(path, tuple(lines))

    def __iter__(self) -> Iterator[tuple[int, CsvRow]]:
        """Line number, from 1 for the first row, and its cells."""
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
        """`missing` for an empty cell."""
        value = self.text(name)
        if not value:
            return 0.0 if self.row.get(name) == 0 else missing
        try:
            return float(value)
        except ValueError:
            raise NoWorkload(f"{self.where}: {name} must be a number, not {value!r}.") from None

    def whole(self, name: str) -> int:
        """0 for an empty cell."""
        return int(self.number(name, 0.0))

    def moment(self, name: str) -> float:
        """Seconds since 1970 of a `2017-10-09 07:01:55`; NaN for an empty cell or `None`, as logs write it."""
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
    """The objects of a JSON list, or of a file with one object a line."""
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
    """Of a file that may be packed by gzip."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise NoWorkload(f"{path} cannot be read: {error}.") from error
