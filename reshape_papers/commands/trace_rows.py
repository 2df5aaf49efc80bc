"""Makes rows of `observations` of the jobs of a trace, for `reshape profile import-trace` (Slaml: P and P_GPU)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.errors import Rejected
from reshape_papers import traces
from reshape_papers.commands.simulate import as_nodes
from simulator.scenario import NoWorkload

PIECE = 2_000  # rows of one request: far below the largest body


def read(name: str, folder: Path, count: int, nodes: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Return at most `count` rows, evenly over the trace, and how many jobs it has. `Rejected` with a sentence."""
    try:
        jobs = traces.read(name, folder, as_nodes(nodes)).jobs
    except NoWorkload as refused:
        raise Rejected(f"No row was imported: {refused}") from refused
    least = max(count, len(jobs))
    kept = [job for place, job in enumerate(jobs) if place * count // least != (place - 1) * count // least]
    kind = name.partition(":")[0]
    rows = [
        {
            "job_id": job.id, "cores": job.cores, "memory": job.memory, "gpus": job.gpus, "execution_s": job.duration_s,
            "origin": kind,
        }
        for job in kept
    ]  # fmt: skip
    return rows, len(jobs)
