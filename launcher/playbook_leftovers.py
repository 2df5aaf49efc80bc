"""Finds and ends the processes of playbook runs by the folder that they work in.

Promises: found is each process that was started with ansible-runner's variable of that folder, and each that was forked
with the folder's mark as its name; never a job's shim, which has neither. Ansible's workers are in sessions of their
own, so they survive their run (ansible-runner issue 973). Called by `playbook.py` and by `warm_ansible.py`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "play-"
NAME_LENGTH = 15  # bytes that Linux keeps of a process's name
PAUSE_S = 0.01
PATIENCE_S = 5.0  # for a process that the kernel cannot end now


def mark(folder: Path) -> str:
    """Return the name of the forked processes of a run in `folder`, as in /proc/PID/comm."""
    return PREFIX + hashlib.sha256(os.fsencode(folder)).hexdigest()[: NAME_LENGTH - len(PREFIX)]


def end(folder: Path) -> None:
    """Kill the processes of a run in `folder`, also those that they fork meanwhile; return when none runs."""
    until = time.monotonic() + PATIENCE_S
    while (found := _living(folder)) and time.monotonic() < until:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _living(folder: Path) -> list[int]:
    variable, name = f"AWX_ISOLATED_DATA_DIR={folder}/".encode(), mark(folder)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if process.stat().st_uid != os.geteuid():
                continue
            _, _, about = (process / "stat").read_text(errors="replace").partition("(")
            called, _, rest = about.rpartition(") ")
            if rest[0] not in "ZX" and (called == name or variable in (process / "environ").read_bytes()):
                found.append(int(process.name))
    return found
