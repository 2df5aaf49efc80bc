"""Reads tables that others published, from the folder that RESHAPE_DATA names.

Called by workloads and by validation.
"""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from pathlib import Path

from simulator.scenario import NoWorkload


@cache
def table(data: Path | None, name: str, what: str = "this needs a folder of tables") -> tuple[dict[str, str], ...]:
    """Read the rows of a CSV file with a header, plain or gzip. Raises `NoWorkload` if it is missing.

    `what`: the beginning of the error message if no folder was named.
    """
    if data is None:
        raise NoWorkload(f"{what}; set RESHAPE_DATA to the folder that holds {name}.")
    path = data / name
    try:
        raw = path.read_bytes()
    except OSError as error:
        what_to_do = f"name a folder that has {name} with --data, or set RESHAPE_DATA to it"
        raise NoWorkload(f"{path} cannot be read ({error.strerror}); {what_to_do}.") from error
    return tuple(csv.DictReader(io.StringIO((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode())))
