"""The workloads that can be simulated by name, drawn from a seed; one module for each seed system.

Called by `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from adaptive_scheduler.simulator.scenario import NoWorkload, Workload
from adaptive_scheduler.simulator.workloads import deadline, deadline_traces, elastic, flowcon, specon

NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {
    **elastic.NAMES,
    **deadline.NAMES,
    **deadline_traces.NAMES,
    **specon.NAMES,
    **flowcon.NAMES,
}
"""By name: from a seed, and a folder with other people's data where it needs any, to a workload."""

FIXED = frozenset({elastic.CASE_STUDY, *deadline_traces.NAMES, specon.FIXED, *flowcon.NOT_DRAWN})
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
