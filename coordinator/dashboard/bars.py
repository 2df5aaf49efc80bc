"""Makes bars of GPU and time from the events of the coordinator: the demo's chart and the dashboard draw them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """A GPU and what it was used for, from `begin` to `end` seconds."""

    gpu: str
    job: str
    begin: float
    end: float
    kind: str = "in use"  # or "reserved": promised, not used; "stopped": its job saves or starts again


def gpu_bars(events: Sequence[Mapping[str, Any]], zero: float, until: float | None = None) -> list[Bar]:
    """Convert the coordinator's `gpu` events to bars; `zero` is the wall time that counts as 0 s.

    A GPU that is still in use at the end is so until `until`, or until the last event.
    """
    open_: dict[str, tuple[str, str, float]] = {}
    bars: list[Bar] = []
    last = zero
    for event in events:
        last = max(last, float(event["at"]))
        if event["type"] != "gpu":
            continue
        gpu, at = str(event["gpu_id"]), float(event["at"]) - zero
        if gpu in open_:
            job, kind, begin = open_.pop(gpu)
            bars.append(Bar(gpu, job, begin, at, kind))
        user = event["held_by"] if event["held_by"] is not None else event["job_id"]
        if user is not None:
            open_[gpu] = (str(user), "in use" if event["held_by"] is not None else "reserved", at)
    last = last if until is None else until
    bars += [Bar(gpu, job, begin, last - zero, kind) for gpu, (job, kind, begin) in open_.items()]
    return [bar for bar in bars if bar.end - bar.begin > 1e-3] + _stops(events, zero)


def all_bars(
    events: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]], zero: float, until: float
) -> list[Bar]:
    """The same, and before them bars of the GPUs that have not changed hands since the first of the events."""
    changed = {str(event["gpu_id"]) for event in events if event["type"] == "gpu"}
    still = [gpu for gpu in gpus if gpu.get("held_by") is not None and str(gpu["gpu_id"]) not in changed]
    always = [Bar(str(gpu["gpu_id"]), str(gpu["held_by"]), 0.0, until - zero) for gpu in still]
    return [*always, *gpu_bars(events, zero, until)]


def _stops(events: Iterable[Mapping[str, Any]], zero: float) -> list[Bar]:
    """Return a bar for each standstill of a reshaped job, on all the GPUs that it then had."""
    stops = []
    holder: dict[str, str] = {}
    for event in events:
        if event["type"] == "gpu":
            holder[str(event["gpu_id"])] = str(event["held_by"])
        elif event["type"] == "reshaped" and event.get("gap_s"):
            at, job = float(event["at"]) - zero, str(event["job_id"])
            held = sorted(gpu for gpu, held_by in holder.items() if held_by == job)
            stops += [Bar(gpu, job, at - float(event["gap_s"]), at, "stopped") for gpu in held]
    return stops


def marks(events: Iterable[Mapping[str, Any]], zero: float, of: str | None = None) -> list[tuple[float, str]]:
    """(seconds, words) of what happened to whole jobs, or to one: arrivals, reshapes, moves, ends."""
    found = []
    for event in events:
        kind, job = event["type"], event.get("job_id")
        if of is not None and str(job) != of:
            continue
        if kind == "submitted":
            found.append((float(event["at"]) - zero, f"job {job} arrives"))
        elif kind == "reshaped":
            gap = f", {event['gap_s']:.1f} s gap" if event.get("gap_s") is not None else ""
            found.append((float(event["at"]) - zero, f"job {job} {event['direction']}{gap}"))
        elif kind == "moved":
            found.append((float(event["at"]) - zero, f"job {job} moves to {event.get('to_node')}"))
        elif kind in ("failed", "cancelled"):
            found.append((float(event["at"]) - zero, f"job {job} {kind}"))
        elif kind == "completed":
            found.append((float(event["at"]) - zero, f"job {job} done"))
    return found
