"""Runs `reshape doctor` on one machine: checks what `reshape up` and its trainings need, and says what is missing.

Promises to change nothing, and to end with 1 if anything is missing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.errors import Rejected
from reshape import foreign
from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from reshape.doctor import Finding, Level, show
from reshape.services.detached import runs
from reshape.services.private_state import open_to_others
from sidecar import device_filter
from sidecar.resources.gpus import list_gpus, short_type

SHM = Path("/dev/shm")
FEW_FILES = 4_096  # open at once; each sidecar keeps a connection
LITTLE, TOO_LITTLE = 2**30, 100 * 2**20  # bytes of disk
LITTLE_MEMORY = 256 * 2**20
SKEW_S = 60.0


def run(state: Path) -> int:
    """Print what was found; the exit code."""
    return show(list(examine(state)), "docs/starting.md")


def examine(state: Path) -> Iterator[Finding]:
    yield Finding("well", f"Python {platform.python_version()}, {sys.executable}.")
    yield from _packages()
    yield from _gpus()
    yield from _open_files()
    yield from _memory()
    yield from _folder(state)
    yield from _rights_of_others(state)
    yield from _clock(state)
    yield from _up(state)


def _packages() -> Iterator[Finding]:
    try:
        foreign.check()
        yield Finding("well", "No other distribution hides or has changed its packages.")
    except click.ClickException as found:
        yield Finding("missing", found.message)


def _gpus() -> Iterator[Finding]:
    if found := [short_type(gpu.gpu_type) for gpu in list_gpus()]:
        kinds = ", ".join(f"{found.count(kind)} {kind}" for kind in dict.fromkeys(found))
        yield Finding("well", f"GPUs that NVML finds: {kinds}.")
        yield _device_filter()
    elif not Path("/dev/nvidiactl").exists():
        yield Finding("warning", "No NVIDIA GPU is here: `reshape up --gpus 4xV100` emulates some.")
    elif importlib.util.find_spec("pynvml") is None:
        yield Finding("missing", "GPUs cannot be read without nvidia-ml-py: pip install '.[gpu]' in the checkout.")
    else:
        yield Finding("missing", "The NVIDIA driver is loaded, but NVML finds no GPU: does nvidia-smi list them?")


def _device_filter() -> Finding:
    """Try one, and remove it again."""
    if why := device_filter.unable():
        return Finding("warning", f"A script that chooses GPUs itself can use those of other jobs: {why}.")
    return Finding("well", "The kernel can keep each job from the GPUs of others (device filter).")


def _open_files() -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEW_FILES:
        why = "and each training keeps a connection: raise the hard limit (ulimit -Hn)"
        yield Finding("warning", f"A process may have at most {most:,} files open, {why}.")
    else:
        yield Finding("well", "A process may have enough files open (ulimit -Hn).")


def _memory() -> Iterator[Finding]:
    """Where reshapes save first."""
    lost = "so a reshaped training stands still until its checkpoint is on the disk"
    if not os.access(SHM, os.W_OK):
        yield Finding("warning", f"{SHM} cannot be written, {lost}.")
    elif (free := shutil.disk_usage(SHM).free) < LITTLE_MEMORY:
        yield Finding("warning", f"{SHM} has only {_size(free)} free, {lost}.")
    else:
        yield Finding("well", f"{SHM} has {_size(free)} free, where reshapes save first.")


def _folder(state: Path) -> Iterator[Finding]:
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield Finding("missing", f"The state folder {state} cannot be written: choose another one with --state.")
        return
    free = shutil.disk_usage(there).free
    level: Level = "missing" if free < TOO_LITTLE else "warning" if free < LITTLE else "well"
    room = "" if level == "well" else ": checkpoints will not fit; make room, or choose another one with --state"
    yield Finding(level, f"The state folder {state} is on a disk with {_size(free)} free{room}.")


def _rights_of_others(state: Path) -> Iterator[Finding]:
    try:
        for path, _ in open_to_others(state):
            yield Finding("warning", f"Other users can read or change {path}: the next `reshape up` closes it to them.")
    except Rejected as error:
        yield Finding("missing", str(error))


def _clock(state: Path) -> Iterator[Finding]:
    """Compare it with when the state was written last."""
    written = [path.stat().st_mtime for path in state.glob("*") if path.is_file()] if state.is_dir() else []
    ahead_s = max(written, default=0.0) - time.time()
    if ahead_s > SKEW_S:
        yield Finding("warning", f"The clock is {ahead_s:.0f} s behind the newest file of {state}: set it right.")
    else:
        yield Finding("well", "The clock is not behind what was written last.")


def _up(state: Path) -> Iterator[Finding]:
    if not runs(state):
        yield Finding("well", f"No `reshape up` runs with the state folder {state}.")
        yield from _port(state)
        return
    try:
        client = Client.find(state)
        health = client.health()
        jobs = client.jobs()
        shares = client.shares()
    except (CoordinatorUnreachable, CoordinatorRefused) as error:
        yield Finding("missing", f"`reshape up` runs with the state folder {state}, but does not answer: {error}")
        return
    if health["ok"]:
        yield Finding("well", f"`reshape up` runs at {client.url} and answers.")
    else:
        yield Finding("missing", f"`reshape up` runs at {client.url}, but cannot work: {health['sentence']}")
    if shares["problem"]:
        yield Finding("warning", shares["problem"])
    yield from _waiting_interpreters(jobs)


def _port(state: Path) -> Iterator[Finding]:
    """Trainings that run on while it is down report to its old port."""
    try:
        port = int(json.loads((state / "up.json").read_text("utf-8"))["url"].rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OverflowError:  # no port, written by somebody else
        return
    except OSError:
        what = "trainings that still run report there, so free it before the next `reshape up`"
        yield Finding("warning", f"Another program has taken port {port} of the last `reshape up`: {what}.")


def _waiting_interpreters(jobs: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    running = [job for job in jobs if job["state"] == "running"]
    for job in running:
        if "the next one is cold" in (job.get("restart") or ""):
            yield Finding("warning", f"A reshape of job {job['job_id']} will take longer: {job['restart']}.")
    if warm := [job for job in running if "the next one is warm" in (job.get("restart") or "")]:
        yield Finding("well", f"An interpreter waits beside {len(warm)} of {len(running)} running jobs.")


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
