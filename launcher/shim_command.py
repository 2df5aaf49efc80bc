"""Starts and ends the shim of one launch on this machine, each by one command that may be repeated.

Promises: the shim gets no environment, open file, terminal or working folder of ours; on a shared machine it has the
rights of its owner alone; a command that hangs is killed, and a start that is not wanted any more, but never a shim
that has detached; an end that nobody waits for any more goes on, as it may not have reached the shim yet; a failure is
one sentence with the command's own last words. `local.py` calls it for each launch. An operator runs the same by hand:
 `python -P -m launcher.shim_command launch FOLDER`, or `playbooks/launch_local.yml`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from coordinator.errors import Transient
from coordinator.model.last_words import last_words, quoted
from launcher import as_owner
from launcher.launch_group import group_of, is_shared
from launcher.launch_queue import Verb
from sidecar import protocol

SHIM = Path(protocol.__file__).parent / "shim.py"
OPTION = {"launch": "--detach", "remove": "--end"}
DOES = {"launch": "start", "remove": "end"}  # in sentences
LOOKS_S = 0.3  # between two looks whether the command is still wanted
DIES_S = 5.0  # for a killed command; one that the kernel cannot end now is left to it
MOST_OUTPUT = 64 * 1024  # bytes: as much as a pipe holds, so that no user's process fills our memory
SENTENCE_LENGTH = 400  # characters of the command's last words


def run(
    verb: Verb,
    launch: Path,
    owner: int | None = None,
    timeout_s: float = math.inf,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Start (`launch`) or end (`remove`) the shim of the folder `launch`; return once it listens, or has ended.

    `owner`: the uid of the folder's owner on a shared machine, else None. `Transient` when the command failed, took
    longer than `timeout_s`, or `cancelled()` became true.
    """
    try:
        # Nothing of ours: what the processes of a job see is in launch.json. `/`: no folder that somebody may remove.
        process = subprocess.Popen(
            _command_line(verb, launch, owner),
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise Transient(f"its shim did not {DOES[verb]}: {error.strerror}") from error
    assert process.stdout is not None
    with process.stdout:
        why = _stop_reason(process, timeout_s, cancelled)
        if why:
            if verb == "launch" or not cancelled():
                _kill_group(process)
        elif process.returncode != 0:
            why = f": {_last_words(process.stdout) or f'the command ended with {process.returncode}'}"
    if why:
        raise Transient(f"its shim did not {DOES[verb]}{why}")


def _command_line(verb: Verb, launch: Path, owner: int | None) -> list[str]:
    """Return the command. On a shared machine it gives up the rights of root first: nothing of a job has them."""
    python = [sys.executable, "-I", "-S"]
    shim = [*python, str(SHIM), "--folder", str(launch), OPTION[verb]]
    if owner is None:
        return shim
    entrance = group_of(launch).make() if verb == "launch" else ""
    return [*python, as_owner.__file__, str(owner), entrance, *shim]


def _stop_reason(process: subprocess.Popen[bytes], timeout_s: float, cancelled: Callable[[], bool]) -> str:
    """Wait until the command has ended; return why it has to be stopped before that, empty if it ended by itself."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            process.wait(max(0.0, min(LOOKS_S, until - time.monotonic())))
            return ""
        except subprocess.TimeoutExpired:
            if cancelled():
                return ": the command was stopped"
            if time.monotonic() >= until:
                return f" within {timeout_s:g} s"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and what it has started; a shim that has detached is in a session of its own."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(DIES_S)
    except subprocess.TimeoutExpired:
        return


def _last_words(output: IO[bytes]) -> str:
    """Return the last words of a command that has ended, without waiting for whoever still holds its output."""
    os.set_blocking(output.fileno(), False)
    try:
        said = os.read(output.fileno(), MOST_OUTPUT)
    except BlockingIOError:
        return ""
    return quoted(last_words(said.decode("utf-8", "replace")), SENTENCE_LENGTH)


def main() -> int:
    """Run one command by hand, for the owner of the folder where the machine is shared."""
    parser = argparse.ArgumentParser(prog="python -P -m launcher.shim_command", description="Start or end a shim.")
    parser.add_argument("verb", choices=OPTION)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of the launch: STATE/jobs/JOB-lNUMBER")
    given = parser.parse_args()
    launch = given.folder.absolute()
    try:
        run(given.verb, launch, launch.lstat().st_uid if is_shared(launch) else None)
    except (Transient, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
