"""`Client.wait` shows how far a job is in a terminal, and writes nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fakes.coordinator_api import Live
from tests.fakes.terminal import environment
from tests.patience import eventually, patient

SCRIPT = """
import threading
from reshape import Client
client = Client()
client.submit({"job_id": "a", "command": ["true"], "optional_num_gpus": [1]})
threading.Thread(target=lambda: (input(), client.cancel("a")), daemon=True).start()
print(client.wait("a")["state"])
"""


@contextmanager
def waiting(state: Path, error: int) -> Iterator[subprocess.Popen[str]]:
    """The script, which cancels its job once it gets a line."""
    given = {**environment(state), "RESHAPE_URL": "", "TERM": "xterm", "COLUMNS": "100"}
    command, pipe = [sys.executable, "-P", "-c", SCRIPT], subprocess.PIPE
    with subprocess.Popen(command, env=given, stdin=pipe, stdout=pipe, stderr=error, text=True) as process:
        yield process


def cancelled(process: subprocess.Popen[str]) -> bool:
    output, _ = process.communicate("\n", timeout=patient(60))
    return process.returncode == 0 and output == "cancelled\n"


def test_a_terminal_shows_a_bar(live: Live, state: Path) -> None:
    mine, its = os.openpty()
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # once the script has ended
            while True:
                shown.extend(os.read(mine, 10_000))

    reader = threading.Thread(target=read)
    with waiting(state, its) as process:
        os.close(its)
        reader.start()
        eventually(lambda: b"a submitted" in shown, "the bar is shown")
        assert cancelled(process)
    reader.join()
    os.close(mine)
    assert b"0/100" in shown and b"a cancelled" in shown


def test_anything_else_gets_nothing(live: Live, state: Path, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+b") as errors:
        with waiting(state, errors.fileno()) as process:
            assert cancelled(process)
        errors.seek(0)
        assert errors.read() == b""
