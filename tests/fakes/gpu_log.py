"""What trainings wrote down themselves of their use of GPUs (`reshape_hooks/locks.py`): the judge of all e2e tests.

Read from outside the coordinator, whose books may be wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reshape_hooks import locks
from reshape_hooks.locks import violations

Use = dict[str, Any]


class GpuLog:
    """The folder that trainings found in RESHAPE_GPU_LOCKS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def uses(self, job_id: str) -> list[Use]:
        """Every step of a job on every GPU, in order of time."""
        return locks.uses(self.folder, job_id)

    def shapes(self, job_id: str) -> list[int]:
        """How many GPUs the job trained on, shape after shape; 0 is never one of them."""
        gpus: dict[tuple[int, int], set[str]] = {}
        for use in self.uses(job_id):
            gpus.setdefault((use["generation"], use["pid"]), set()).add(use["gpu"])
        return [len(found) for found in gpus.values()]

    def steps(self, job_id: str) -> list[int]:
        """Step numbers in the order in which they were done, each once per process."""
        return locks.steps(self.folder, job_id)

    def violations(self) -> list[Use]:
        return violations(self.folder)
