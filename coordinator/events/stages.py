"""Computes the duration of each stage of a reshape or start, for events, learned overheads and metrics. Pure.

The sidecar's times are on the clock of its machine, the coordinator's on its own; only differences of times from one
clock are taken, except for `signal` on one machine. The two machines of a move are joined by the coordinator's clock:
by the times at which it sent the stop and the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptive_scheduler.models import pause
from coordinator.model.progress import state_of
from coordinator.model.records import Operation
from sidecar.protocol import Heartbeat

Seconds = dict[str, float]


@dataclass
class Marks:
    """Moments of one operation on the coordinator's clock."""

    decide_s: float | None = None
    at: dict[str, float] = field(default_factory=dict)


def reshape_stages(op: Operation, beat: Heartbeat, marks: Marks) -> Seconds:
    """Stages of a reshape: decide, newcomer ready, signal, checkpoint, exit, spawn, first step."""
    stopped: Mapping[str, Any] = op.doc.get("stopped") or {}
    stop_at, exit_at, saved_at = stopped.get("stop_at"), stopped.get("exit_at"), stopped.get("checkpoint_at")
    if saved_at is not None and stop_at is not None and saved_at < stop_at:
        saved_at = None  # an earlier checkpoint: this stop made none that was announced
    ready = marks.at.get("stop sent", marks.at.get("newcomer ready"))  # it may import, too, before it gets GPUs
    awaited = op.launch is not None or "newcomer ready" in marks.at
    spans = {
        "decide": marks.decide_s,
        "newcomer ready": span(marks.at.get("decided"), ready) if awaited else None,
        "signal": None if op.kind == "move" else span(marks.at.get("stop sent"), stop_at),
        "checkpoint": span(stop_at, saved_at),
        "exit": span(saved_at or stop_at, exit_at),
        "spawn": _between(op, marks) if op.kind == "move" else span(exit_at, beat.shim.spawn_at),
        "first step": span(beat.shim.spawn_at, beat.progress.first_step_at),
    }
    return {k: v for k, v in spans.items() if v is not None}


def start_stages(beat: Heartbeat, marks: Marks) -> Seconds:
    """Stages of a start: decide, launch (early initialization), wait for GPUs, first step."""
    spans = {
        "decide": marks.decide_s,
        "launch": span(marks.at.get("launch"), marks.at.get("initialized")),
        "wait for GPUs": span(marks.at.get("initialized"), marks.at.get("start sent")),
        "first step": span(beat.shim.spawn_at, beat.progress.first_step_at),
    }
    return {k: v for k, v in spans.items() if v is not None}


def _between(op: Operation, marks: Marks) -> float | None:
    """Seconds from the end of a move's training on the old node to its start on the new one."""
    said, ended = span(marks.at.get("stop sent"), marks.at.get("start sent")), _apart(op.stopped, "stop_at", "exit_at")
    return None if said is None or ended is None else max(0.0, said - ended)


def _apart(times: Mapping[str, Any], begin: str, end: str) -> float | None:
    return None if times.get(begin) is None or times.get(end) is None else float(times[end] - times[begin])


def moved_gap_s(op: Operation, beat: Heartbeat, marks: Marks) -> float | None:
    """The same as `gap_s` for a move, whose two steps are on two machines."""
    said = span(marks.at.get("stop sent"), marks.at.get("start sent"))
    trained_on, begun = _apart(op.stopped, "stop_at", "last_step_at"), beat.progress.first_step_at
    if said is None or trained_on is None or begun is None or beat.shim.spawn_at is None:
        return None
    return max(0.0, said - trained_on + begun - beat.shim.spawn_at)


def gap_s(op: Operation, beat: Heartbeat) -> float | None:
    """Seconds without training: from the last step of the old shape to the first of the new.

    A new launch's sidecar does not know the old one's steps, so those written at the stop are used.
    """
    stopped: Mapping[str, Any] = op.doc.get("stopped") or {}
    return span(beat.progress.previous_last_step_at or stopped.get("last_step_at"), beat.progress.first_step_at)


def learned(op: Operation, beat: Heartbeat, marks: Marks) -> dict[str, float | None]:
    """The overheads of `algorithms.md` 1.5 that this operation measured.

    `proc_init` is a start in a new launch. `proc_restart`, beside the same shim, runs from the old process being gone,
    so that the three parts of a reshape add up to the gap.
    """
    if op.kind == "start":
        return {
            "k8s_init": span(marks.at.get("launch"), marks.at.get("initialized")),
            "proc_init": _cold_s(beat),
        }
    stages = reshape_stages(op, beat, marks)
    alone = op.how != "in place" and op.launch is None  # its stages include the launch
    if "spawn" not in stages or "first step" not in stages or alone:
        return {}
    return {
        "ckpt": stages.get("checkpoint", 0.0),
        "proc_term": stages.get("exit"),
        "proc_restart" if op.how == "in place" else "proc_init": stages["spawn"] + stages["first step"],
        **_of_state(op, beat),
    }


def _of_state(op: Operation, beat: Heartbeat) -> dict[str, float | None]:
    """The seconds that `pause.py` expects of a state of this size, so that another size is predicted by it, too."""
    size, path = state_of(beat, relaunches=op.how != "in place")
    return {"ckpt_state": pause.save_s(size, path), "restart_state": pause.load_s(size, path)} if size else {}


def _cold_s(beat: Heartbeat) -> float | None:
    """Seconds that a first start takes where nothing is imported before it gets its GPUs."""
    first_step_s = span(beat.shim.spawn_at, beat.progress.first_step_at)
    return None if first_step_s is None else first_step_s + (beat.shim.warm_s or 0.0)


def direction(op: Operation) -> str:
    if op.kind == "move":
        return "move"
    return "up" if len(op.to) > len(op.origin) else "down"


def span(begin: float | None, end: float | None) -> float | None:
    """Seconds between two moments of one clock; None if one is missing."""
    return None if begin is None or end is None else max(0.0, end - begin)
