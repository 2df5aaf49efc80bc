"""`reshape up --detach` and `reshape down`: `reshape up` in the background, known by the lock of its state folder.

Trainings are not its children: they go on when it ends, and the next `reshape up` finds them again.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from coordinator.config import Config
from coordinator.dashboard.words import listed
from coordinator.errors import Rejected
from launcher.local import disk_trouble, running_jobs
from reshape.client import Client, CoordinatorUnreachable
from reshape.client.connection import refused
from reshape.services import up_log

POLL_S = 0.1
STARTS_S = 120.0  # how long a start may take before it is left to itself
STOPS_S = 60.0  # how long, beyond the usual grace, `reshape up` waits at its end for jobs that were told to stop
RECENT_S = 3600  # of ended jobs, whose processes may still run
ENDS_S = 30.0  # how long it may take to end beyond what it waits for


def start(
    state: Path,
    *,
    gpus: str | None,
    nodes: Sequence[str],
    store: str | None,
    port: int,
    host: str,
    policy: str,
    shared: bool = False,
) -> int:
    """Return once it answers. `Rejected` with its own words if it cannot start."""
    if runs(state):
        raise Rejected(f"`reshape up` already runs with the state folder {state}.")
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    given = ["--host", host, "--port", str(port), "--policy", policy, *(["--gpus", gpus] if gpus else [])]
    command = [sys.executable, "-P", "-m", "reshape", "--state", str(state), "up", *given]
    command += [*(word for node in nodes for word in ("--node", node)), *(["--shared"] if shared else [])]
    up_log.set_aside(state)
    file = state / up_log.LOG
    with file.open("ab") as log:
        began = log.tell()
        environment = {**os.environ, **({"RESHAPE_STORE": store} if store else {})}  # others can read arguments
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    client = _answering(state, process, file, began)
    click.echo(f"Reshape is up at {client.url}, in the background; `reshape down` stops it, its output is in {file}.")
    return 0


def _answering(state: Path, process: subprocess.Popen[bytes], file: Path, began: int) -> Client:
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until:
        if process.poll() is not None:
            with file.open("rb") as log:
                log.seek(began)
                said = log.read().decode("utf-8", "replace").strip().splitlines()
            if runs(state):  # one that was started at the same time; both write into one log
                raise Rejected(f"`reshape up` already runs with the state folder {state}.")
            if trouble := disk_trouble(state):  # then its log may lack the reason
                raise Rejected(f"`reshape up` cannot start: {trouble}, then try again.")
            raise Rejected(said[-1] if said else f"`reshape up` ended with {process.returncode} without saying why.")
        if _written(state).get("pid") == process.pid:
            client = Client.find(state)
            if client.health().get("ok"):
                return client
        time.sleep(POLL_S)
    raise Rejected(f"`reshape up` has not answered within {STARTS_S:.0f} s, but still starts; see {file}.")


def stop(state: Path, cancel_all: bool = False) -> int:
    """Stop it as Ctrl-C would, and return once it has ended. `Rejected` if what was told to stop still runs then."""
    pid = _written(state).get("pid")
    if not runs(state) or not isinstance(pid, int):
        raise CoordinatorUnreachable(_why_nothing_stops(state))
    if not _is_ours(pid):
        raise Rejected(f"`reshape up` with the state folder {state} is just starting; try again in a few seconds.")
    if _is_paused(pid):  # it would answer nothing, and act on no signal
        raise Rejected(
            f"`reshape up` (process {pid}) is paused by a signal, such as Ctrl-Z: resume it with `kill -CONT {pid}`, "
            "then run `reshape down` again."
        )
    client = Client.find(state)
    left = _cancel_all(client) if cancel_all else []
    stopping = _told_to_stop(client)
    if stopping:
        click.echo(f"Waiting for {listed(stopping)} to stop.")
    with suppress(ProcessLookupError):  # another `reshape down` was first
        os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    while runs(state):
        waited_s = time.monotonic() - began
        if waited_s > STOPS_S + Config().grace_s + ENDS_S:
            raise Rejected(f"`reshape up` (process {pid}) has been stopping for {waited_s:.0f} s; wait for it.")
        time.sleep(POLL_S)
    if still := sorted({*stopping} & running_jobs(state)):
        raise Rejected(
            f"Reshape is down, but {listed(still)} still runs though told to stop: it has not come to a step at which "
            "it can save, or it hangs. The next `reshape up` ends it."
        )
    if left:
        raise Rejected(f"Reshape is down. All jobs were cancelled but {listed(left)}.")
    jobs = (
        "All jobs were cancelled." if cancel_all else "Running jobs keep training; the next `reshape up` picks them up."
    )
    click.echo(f"Reshape is down. {jobs}")
    return 0


def _why_nothing_stops(state: Path) -> str:
    nobody = f"No `reshape up` runs with the state folder {state}"
    living = sorted(running_jobs(state))
    if not living:
        return f"{nobody}; there is nothing to stop."
    trains = "are still training" if len(living) > 1 else "is still training"
    cancel = "run `reshape up`, then `reshape down --cancel-all` to cancel every job"
    return f"{nobody}, but {listed(living)} {trains}: {cancel}."


def _cancel_all(client: Client) -> list[str]:
    """Cancel all jobs; returns those that cannot be, with the reason."""
    job_ids = [str(job["job_id"]) for job in client.jobs()]
    return [f"{job_id} ({str(refusal).rstrip('.')})" for job_id, refusal in refused(job_ids, client.cancel)]


def _told_to_stop(client: Client) -> list[str]:
    """Return the jobs that were cancelled or suspended and may still run."""
    try:
        jobs = client.jobs(within_s=RECENT_S)
    except CoordinatorUnreachable:
        return []
    stops = [
        job for job in jobs if job.get("cancel") or (job.get("reshape") or {}).get("kind") in ("requeue", "finish")
    ]
    return sorted(str(job["job_id"]) for job in stops if not job.get("closed"))


def runs(state: Path) -> bool:
    """Return whether a process holds the lock of the state folder."""
    try:
        with (state / "up.lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except BlockingIOError:
        return True
    return False


def _is_ours(pid: int) -> bool:
    """True if the process that `up.json` names is a `reshape up`: its number may be another process's by now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"up" in words


def _is_paused(pid: int) -> bool:
    """True if SIGSTOP or SIGTSTP has stopped the process: state T of proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _written(state: Path) -> dict[str, Any]:
    try:
        found = json.loads((state / "up.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
