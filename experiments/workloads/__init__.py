"""The workloads that can be simulated by name, drawn from a seed; one module for each seed system.

Called by `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.workloads import (
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
"""By name: from a seed, and a folder with other people's data where it needs any, to a workload."""

FIXED = frozenset(
    {sidecar_workloads.CASE_STUDY, *deadline_traces.NAMES, specon_workloads.FIXED, *flowcon_workloads.NOT_DRAWN}
)
"""Those in which nothing is drawn."""


def build(name: str, seed: int, data: Path | None = None) -> Workload:
    """The workload of that name. `data`: the folder that RESHAPE_DATA names.

    Raises `NoWorkload` for a name that is not in `NAMES`, or where the data is not there.
    """
    if name not in NAMES:
        raise NoWorkload(f"there is no workload {name!r}; take one of {', '.join(NAMES)}.")
    return NAMES[name](seed, data)


def is_drawn(name: str) -> bool:
    """Whether another seed gives another workload."""
    return name not in FIXED
