"""Reads the form in which a browser submits a job, and makes a job document of it. Pure.

What is wrong with a document the coordinator says itself; here only what no document can be made of is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Rejected

FOR_A_SHELL = re.compile(r"[|&;<>()$`*?~\n]")
TEXTS = {
    "name": "job_id",
    "code": "code",
    "deadline": "sla",
    "time_limit": "time_limit",
    "gpu_type": "gpu_type",
    "image": "image",
    "namespace": "namespace",
}


def document(fields: Mapping[str, str]) -> dict[str, Any]:
    """The job document of a filled-in form; empty fields are left out. `Rejected` with a sentence, else."""
    given = {name: text.strip() for name, text in fields.items()}
    counts = gpu_counts(given.get("gpus", ""))
    named = {field: given[name] for name, field in TEXTS.items() if given.get(name)}
    return {**named, "command": words_of(given.get("command", "")), "optional_num_gpus": counts}


def words_of(command: str) -> list[str]:
    """A command as words; what only a shell understands is given to one."""
    if not command:
        raise Rejected("Write the command that trains, such as python train.py.")
    if FOR_A_SHELL.search(command):
        return ["sh", "-c", command]
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Rejected(f"The command cannot be read: {str(error).lower()}.") from None


def gpu_counts(text: str) -> list[int]:
    """The counts that it can run on, as `1,2,4`; 0 alone is a job on CPU."""
    if not re.fullmatch(r"[0-9]{1,5}( *[, ] *[0-9]{1,5}){0,63}", text):
        raise Rejected(
            f"GPUs: {text!r} are no counts; write those that it can run on, such as 1,2,4, or 0 for a CPU job."
        )
    return sorted({int(count) for count in re.split(r"[, ]+", text)})
