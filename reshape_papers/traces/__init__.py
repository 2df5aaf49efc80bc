"""Reads other people's traces, by name of the format; docs/reference/traces.md says what each reads and assumes.

A reader takes the folder that the user names and returns a `Trace`; `replay` makes a workload of it. Called by `reshape
simulate --trace`, and by benchmarks. Raises `NoWorkload` with one sentence for missing or odd input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adaptive_scheduler.snapshot import Node
from reshape_papers.traces import (
    alibaba_trace,
    durations_trace,
    elasticflow_trace,
    gavel_trace,
    google_trace,
    helios_trace,
    philly_trace,
    pollux_trace,
    voda_trace,
)
from reshape_papers.traces.csv_files import TraceSource
from reshape_papers.traces.trace import Trace, workload
from simulator.scenario import NoWorkload, Workload

READERS: Mapping[str, Callable[[TraceSource], Trace]] = {
    "google": google_trace.read,
    "philly": philly_trace.read,
    "alibaba": alibaba_trace.openb,
    "alibaba-pai": alibaba_trace.pai,
    "helios": helios_trace.read,
    "gavel": gavel_trace.read,
    "pollux": pollux_trace.read,
    "voda": voda_trace.read,
    "elasticflow": elasticflow_trace.read,
    "itp": durations_trace.itp,
    "tiresias": durations_trace.tiresias,
}


def read(name: str, folder: Path | None, nodes: Sequence[Node] = ()) -> Trace:
    """Return a trace.

    `name`: a format, or a format and a file in the folder, such as gavel:traces/debug.csv. `nodes`: the cluster; empty:
    the trace's. Raises `NoWorkload`.
    """
    kind, _, file = name.partition(":")
    if kind not in READERS:
        raise NoWorkload(f"there is no trace format {kind!r}; take one of {', '.join(READERS)}.")
    if folder is None:
        raise NoWorkload(f"the {kind} trace is read from a folder; name it with --data or RESHAPE_DATA.")
    return READERS[kind](TraceSource(folder, file, tuple(nodes)))


def replay(name: str, folder: Path | None, count: int | None = None, nodes: Sequence[Node] = ()) -> Workload:
    """Return the workload of a trace, of its first `count` jobs (None: of all).

    `name`, `folder`: see `read`. `nodes`: the cluster; empty: the trace's, or as many nodes as it needs.
    """
    return workload(read(name, folder, nodes), count, nodes)
