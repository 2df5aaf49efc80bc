"""Builds workloads by name, drawn from a random seed; one module per system.

Called by `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from reshape_papers.workloads import (
    deadline_traces,
    deadline_workloads,
    flowcon_workloads,
    sidecar_workloads,
    specon_workloads,
)
from simulator.scenario import NoWorkload, Workload

NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {
    **sidecar_workloads.NAMES,
    **deadline_workloads.NAMES,
    **deadline_traces.NAMES,
    **specon_workloads.NAMES,
    **flowcon_workloads.NAMES,
}
"""By name: builds a workload from a random seed and, where needed, the data folder."""

FIXED = frozenset(
    {sidecar_workloads.CASE_STUDY, *deadline_traces.NAMES, specon_workloads.FIXED, *flowcon_workloads.NOT_DRAWN}
)
"""Workloads in which nothing is drawn."""


def build(name: str, seed: int, data: Path | None = None) -> Workload:
    """Return the workload of that name. `data`: the folder that RESHAPE_DATA names.

    Raises `NoWorkload` for a name that is not in `NAMES`, or if the data is missing.
    """
    if name not in NAMES:
        raise NoWorkload(f"there is no workload {name!r}; take one of {', '.join(NAMES)}.")
    return NAMES[name](seed, data)


def is_drawn(name: str) -> bool:
    """Return whether another seed gives another workload."""
    return name not in FIXED
