"""Writes a snapshot of nodes, jobs on GPUs and settings so that a client can simulate what would happen. Pure.

Only what differs from the default of its field is written. Read by `coordinator/forecasts/live_state.py`; profiles
have an address of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import msgspec

from adaptive_scheduler.profiles.growth import Efficiency, Growth
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot

LEFT_OUT = (Growth, Efficiency)
"""Kinds of fields of a job that only jobs trained on CPU need."""


def snapshot_view(
    snapshot: ClusterSnapshot,
    now: float,
    settings: Settings,
    relaunches: bool,
    silent_s: Mapping[str, float],
    held: Container[str] = (),
) -> dict[str, Any]:
    """`now` is on the clock of all times in it; `relaunches`: a reshape is another launch.

    `silent_s`: by running job, the seconds since its last report, which its progress is of. `held`: jobs that something
    else than the scheduler keeps from starting.
    """
    return {
        "now": now,
        "relaunches": relaunches,
        "settings": sparse(settings),
        "nodes": [sparse(node) for node in snapshot.nodes],
        "jobs": [sparse(job) for job in snapshot.jobs if not job.uses_cpu and job.id not in held],
        "left_out": [job.id for job in snapshot.jobs if job.uses_cpu or job.id in held],
        "silent_s": dict(silent_s),
        "shares": msgspec.to_builtins(snapshot.shares),
        "used": [[*owner, use] for owner, use in snapshot.used.items()],
        "spent": dict(snapshot.spent),
        "reservations": msgspec.to_builtins(snapshot.reservations),
    }


def sparse(value: Any) -> Any:
    """Return a dataclass as a dict of the fields that are not as by default, with those in it alike."""
    if isinstance(value, tuple):
        return [sparse(one) for one in value]
    if not is_dataclass(value):
        return value
    values = ((f, getattr(value, f.name)) for f in fields(value))
    return {
        f.name: sparse(found)
        for f, found in values
        if not isinstance(found, LEFT_OUT) and (f.default is MISSING or found != f.default)
    }
