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
    """Look at each process of the machine twice a run, so cheaply: by descriptors, and at its state only if it fits."""
    variable, name, us = f"AWX_ISOLATED_DATA_DIR={folder}/".encode(), mark(folder).encode(), os.geteuid()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208, pathlib takes three times as long here
        with suppress(OSError):  # another user's, or gone meanwhile
            if os.stat(f"/proc/{pid}").st_uid != us:  # noqa: PTH116
                continue
            fits = _content(pid, "comm") == name + b"\n" or variable in _content(pid, "environ")
            if fits and _content(pid, "stat").rpartition(b") ")[2][:1] not in (b"Z", b"X"):
                found.append(int(pid))
    return found


def _content(pid: str, name: str) -> bytes:
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 65_536), b""))
    finally:
        os.close(descriptor)
