"""What trainings wrote down themselves of their use of GPUs (`reshape_hooks/locks.py`): the judge of all e2e tests.

Read from outside the coordinator, whose books may be wrong.
"""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import Any

from reshape_hooks.locks import plain_name, violations

Use = dict[str, Any]


class GpuLog:
    """The folder that trainings found in RESHAPE_GPU_LOCKS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def uses(self, job_id: str) -> list[Use]:
        """Every step of a job on every GPU, in order of time."""
        mine = f"{glob.escape(plain_name(job_id))}-g*.jsonl"  # all others only cost time, more with each test
        texts = [text for path in self.folder.glob(mine) for text in path.read_text().splitlines()]
        lines = [json.loads(text) for text in texts if text[-1:] == "}"]
        return sorted((u for u in lines if u["job"] == job_id), key=lambda u: (u["boottime_out"], u["gpu"]))

    def shapes(self, job_id: str) -> list[int]:
        """How many GPUs the job trained on, shape after shape; 0 is never one of them."""
        gpus: dict[tuple[int, int], set[str]] = {}
        for use in self.uses(job_id):
            gpus.setdefault((use["generation"], use["pid"]), set()).add(use["gpu"])
        return [len(found) for found in gpus.values()]

    def steps(self, job_id: str) -> list[int]:
        """Step numbers in the order in which they were done, each once per process."""
        done = dict.fromkeys((u["generation"], u["pid"], u["step"]) for u in self.uses(job_id))
        return [step for (_, _, step) in done]

    def violations(self) -> list[Use]:
        return violations(self.folder)
