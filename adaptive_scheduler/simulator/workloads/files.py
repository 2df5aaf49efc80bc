"""Tables that others measured, from the folder that RESHAPE_DATA names. Called by the modules of this package."""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from pathlib import Path

from adaptive_scheduler.simulator.scenario import NoWorkload


@cache
def table(data: Path | None, name: str, what: str) -> tuple[dict[str, str], ...]:
    """Rows of a CSV file with a head, also one packed by gzip. Raises `NoWorkload` where there is none."""
    if data is None:
        raise NoWorkload(f"{what}; set RESHAPE_DATA to the folder that holds {name}.")
    path = data / name
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise NoWorkload(f"{path} cannot be read; set RESHAPE_DATA to the folder that holds it.") from error
    return tuple(csv.DictReader(io.StringIO((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode())))
