"""Tables that others published, from the folder that RESHAPE_DATA names. Called by the modules of this package."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

from adaptive_scheduler.simulator.scenario import NoWorkload


def table(data: Path, name: str) -> list[dict[str, str]]:
    """Rows of a CSV file with a head, also one packed by gzip. Raises `NoWorkload` where there is none."""
    path = data / name
    try:
        raw = path.read_bytes()
    except OSError as error:
        sentence = (
            f"{path} cannot be read ({error.strerror}); name a folder that has {name} with --data or RESHAPE_DATA."
        )
        raise NoWorkload(sentence) from error
    return list(csv.DictReader(io.StringIO((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode())))
