"""Situations to ask `next_step` about: a job as it is written, what was last seen of it, who has which GPU.

`victim` is job one, which shall give the GPUs a and b to job two, the `newcomer`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from coordinator.model import states as s
from coordinator.model.records import Doc, GpuRecord, JobRecord
from coordinator.reconcile.actions import Wait, WriteGpu, WriteJob
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ObservedState
from sidecar.protocol import Checkpoint, Heartbeat, Progress, ShimStatus, command_id
from tests.fakes.world import SHORT

WALL = 1_000.0


def job(state: str, *gpus: str, name: str = "one", op: Doc | None = None, **more: Any) -> JobRecord:
    doc = {
        "_id": name, "job_id": name, "uid": "u", "closed": False, "version": 7, "state": state, "generation": 1,
        "launch": 1, "up": 1, "gpu_ids": list(gpus) or None, "num_gpus": len(gpus), "reshape": op,
        "optional_num_gpus": [1, 2, 3, 4], "elastic": True,
    }  # fmt: skip
    return JobRecord({**doc, **more})


def start_of(*to: str, generation: int = 1, **more: Any) -> Doc:
    return {"kind": "start", "from": [], "to": list(to), "generation": generation, "victims": [], **more}


def reshape_of(origin: tuple[str, ...], to: tuple[str, ...], generation: int = 2, **more: Any) -> Doc:
    return {
        "kind": "reshape", "from": list(origin), "to": list(to), "generation": generation, "for": None, **more
    }  # fmt: skip


def gpu(name: str, owner: str | None = None, held_by: str | None = None, state: str | None = None) -> GpuRecord:
    usual = "idle" if owner is None else "in use" if owner == held_by else "reserved"
    return GpuRecord({"_id": name, "state": state or usual, "job_id": owner, "held_by": held_by, "version": 1})


def mine(*names: str, owner: str = "one") -> list[GpuRecord]:
    return [gpu(name, owner, owner) for name in names]


def seen(
    trainer: str = "running", generation: int = 1, verb: str = "start", steps: int = 10, name: str = "one", **more: Any
) -> Heartbeat:
    """A report in which the trainer has made its first step one second after it was spawned."""
    status = {
        "trainer": trainer, "generation": generation, "command_id": command_id(name, generation, verb),
        "spawn_at": None if trainer == "none" else 50.0, "shim_pid": 2,
    }  # fmt: skip
    shim = msgspec.convert({**status, **more}, ShimStatus)
    first = 51.0 if trainer in ("running", "stopping") and steps else None
    progress = Progress(iterations=steps, first_step_at=first, last_step_at=first and first + steps)
    return Heartbeat(
        job_id=name, launch=1, seq=1, url="u", sidecar_pid=3, shim=shim, progress=progress,
        checkpoint=Checkpoint("g1-s10", 10, 1) if trainer == "exited" else None,
    )  # fmt: skip


def fresh(name: str = "one") -> Heartbeat:
    """A launch that has just come up."""
    shim = ShimStatus(shim_pid=2)
    return Heartbeat(job_id=name, launch=1, seq=1, url="u", sidecar_pid=3, shim=shim)


def world(
    of: JobRecord, beat: Heartbeat | None, gpus: list[GpuRecord], *others: JobRecord, **more: Any
) -> ObservedState:
    return ObservedState(
        job=of, jobs={j.id: j for j in (of, *others)}, gpus={g.id: g for g in gpus}, wall=WALL, seen=beat,
        **{"config": SHORT, **more},
    )  # fmt: skip


RELAUNCH = replace(SHORT, reshape_by="relaunch")
LATE = replace(SHORT, early_initialization=False)


def written(w: ObservedState, name: str) -> dict[str, Any]:
    step = next_step(w)
    assert isinstance(step, WriteJob | WriteGpu), step
    assert step.name == name, step
    return dict(step.changes)


def waits(w: ObservedState, why: str = "") -> Wait:
    step = next_step(w)
    assert isinstance(step, Wait), step
    assert why in step.why
    return step


def newcomer(state: str = s.INITIALIZING, **more: object) -> JobRecord:
    op = start_of("a", "b", victims=[{"job": "one", "generation": 1, "keeps": ["c", "d"]}])
    return job(state, "a", "b", name="two", op=op, generation=0, **{"up": None, **more})


def victim(state: str = s.ADJUSTING, **more: object) -> JobRecord:
    op = reshape_of(("c", "d", "a", "b"), ("c", "d"), **{"for": "two"})
    return job(state, "c", "d", "a", "b", **{"op": op, **more})


BOOKED = [gpu("a", "two", "one"), gpu("b", "two", "one"), *mine("c", "d")]
EXITED = seen("exited", generation=2, verb="stop", stop_asked=True, exit_code=143, stop_at=60.0, exit_at=61.0)
