"""The `reshape` command in a process of its own, and what a run of it printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Output:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def doc(self) -> Any:
        return json.loads(self.out)


def environment(state: Path) -> dict[str, str]:
    return {**os.environ, "RESHAPE_STATE": str(state), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def start(state: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "reshape", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env=environment(state),
        stdout=pipe,
        stderr=pipe,
        text=True,
        # A shell that runs the tests in the background has them ignore it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
