"""Readers of other people's traces, by name of the format; docs/traces.md says what each reads and assumes.

A reader takes the folder that the user names and gives a `Trace`; `replay` makes a workload of it. Called by
`reshape simulate --trace`, and by benchmarks. Raises `NoWorkload` with one sentence for what is missing or odd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adaptive_scheduler.simulator.scenario import NoWorkload, Workload
from adaptive_scheduler.simulator.traces import (
    alibaba,
    durations,
    elasticflow,
    gavel,
    google,
    helios,
    philly,
    pollux,
    voda,
)
from adaptive_scheduler.simulator.traces.files import Place
from adaptive_scheduler.simulator.traces.trace import Trace, workload
from adaptive_scheduler.snapshot import Node

READERS: Mapping[str, Callable[[Place], Trace]] = {
    "google": google.read,
    "philly": philly.read,
    "alibaba": alibaba.openb,
    "alibaba-pai": alibaba.pai,
    "helios": helios.read,
    "gavel": gavel.read,
    "pollux": pollux.read,
    "voda": voda.read,
    "elasticflow": elasticflow.read,
    "itp": durations.itp,
    "tiresias": durations.tiresias,
}


def replay(name: str, folder: Path | None, count: int | None = None, nodes: Sequence[Node] = ()) -> Workload:
    """`name`: a format, or a format and a file in the folder, such as gavel:traces/debug.csv.

    `count`: only so many jobs, the first; `nodes`: else those of the trace, or as many as it needs.
    """
    kind, _, file = name.partition(":")
    if kind not in READERS:
        raise NoWorkload(f"there is no trace format {kind!r}; take one of {', '.join(READERS)}.")
    if folder is None:
        raise NoWorkload(f"the {kind} trace is read from a folder; name it with --data or RESHAPE_DATA.")
    return workload(READERS[kind](Place(folder, file, tuple(nodes))), count, nodes)
