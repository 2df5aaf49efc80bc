"""Turns a job document into the fields of launch.json that every platform writes. Pure.

Shim and sidecar read them. Called by `local_spec` and `job_spec`, which add the fields of their platform.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from coordinator.model import grace, requirements
from coordinator.model.records import JobRecord
from coordinator.model.schema import dataset_fields
from coordinator.model.tables import JobRow


class LaunchTimes(Protocol):
    """The times that a launch needs, in seconds (`reliability.md` 5)."""

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def lease_s(self) -> float: ...

    @property
    def grace_s(self) -> float: ...

    @property
    def kill_s(self) -> float: ...


def fields(job: JobRecord, coordinator: str, times: LaunchTimes) -> dict[str, Any]:
    """Return the fields of a job that has passed intake. `coordinator`: the base URL that heartbeats go to."""
    return {
        "job_id": job.id,
        "uid": job.uid,
        "launch": job.launch,
        "lease_s": times.lease_s,
        "grace_s": grace_s(job, times),
        "kill_s": times.kill_s,
        "heartbeat_s": times.heartbeat_s,
        "coordinator": coordinator,
        "progress": progress(job.doc),
        "hooks": job.doc.get("hooks") is not False,
    }


def grace_s(job: JobRecord, times: LaunchTimes) -> float:
    """Return how long it may take to save where no stop says it: at the end of its lease or its launch.

    At most half the lease, so that a longer one of the record leaves time to train.
    """
    return max(times.grace_s, min(grace.at_least_s(job, times.grace_s), times.lease_s / 2))


def progress(doc: JobRow) -> dict[str, Any]:
    """Return where the sidecar reads progress, and which value the job's target refers to."""
    target = requirements.target(doc)
    never = "" if target is None or target.name else "loss" if target.above else "acc"
    return {
        "pattern": doc.get("progress_pattern"),
        "file": doc.get("progress_file"),
        "measure": target.name if target else "",
        "never": never,
    }


def variables(doc: JobRow, checkpoints: str, datasets: str) -> dict[str, str]:
    """Return our environment variables for the trainer; the shim adds those that change with each generation.

    `datasets`: the folder of those that are fetched.
    """
    place = dataset_fields.place(doc)
    ours = {
        "RESHAPE_CHECKPOINTS": checkpoints,
        "RESHAPE_DATASET": f"{datasets}/{place}" if place else doc.get("dataset"),
        "RESHAPE_EMULATED_SPEED": json.dumps(doc["emulated_speed"]) if doc.get("emulated_speed") else None,
    }
    return {name: str(value) for name, value in ours.items() if value}


def argv(command: Any) -> list[str]:
    """Return the argv of a command: a list as it is, a string as an argument of `sh -c`."""
    return ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
