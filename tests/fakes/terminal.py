"""The `reshape` command in a process of its own, and what a run of it printed or shows on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
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
    return subprocess.Popen(command, env=environment(state), stdout=pipe, stderr=pipe, text=True)


class Terminal:
    """A `reshape` on a pseudo-terminal of its own."""

    def __init__(self, variables: dict[str, str], *arguments: str) -> None:
        self._master, child = pty.openpty()
        command = [sys.executable, "-m", "reshape", *arguments]
        self.process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=variables | {"COLUMNS": "90", "LINES": "24"},
        )  # fmt: skip
        os.close(child)
        self.text = ""

    def shows(self, words: str) -> bool:
        while select.select([self._master], [], [], 0)[0]:
            try:
                piece = os.read(self._master, 65_536)
            except OSError:  # its other end is closed
                break
            if not piece:
                break
            self.text += piece.decode(errors="replace")
        return words in self.text

    def has_ended(self) -> bool:
        """Return whether it has ended, with all that it wrote in `text`. Reads on, as an end waits for that."""
        ended = self.process.poll() is not None
        self.shows("")
        return ended
