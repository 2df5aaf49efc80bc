"""What is shown live on a terminal: drawn again, ended by Ctrl-C without a trace; once where there is no terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.coordinator_api import Live
from tests.fakes.terminal import Terminal, environment
from tests.patience import eventually

SUBMIT = {"job_id": "digits-7", "command": "x", "optional_num_gpus": [1]}


@pytest.mark.parametrize("verb", [("top",), ("jobs", "--watch")])
def test_changes_are_drawn_and_ctrl_c_leaves_the_terminal_as_it_was(
    verb: tuple[str, ...], state: Path, live: Live
) -> None:
    terminal = Terminal(environment(state), *verb)
    try:
        eventually(lambda: terminal.shows("\x1b[?1049h"), "it draws")
        assert "digits-7" not in terminal.text
        live.coordinator.submit(SUBMIT)
        eventually(lambda: terminal.shows("digits-7"), "it draws what is new")
        live.coordinator.trouble = "The store does not answer: the disk is full: free some space."
        eventually(lambda: terminal.shows("What is shown may be old: The store"), "it says that it may be old")
        live.coordinator.store_down = True
        eventually(lambda: terminal.shows("The store does not answer; try again soon."), "it waits for the store")
        terminal.process.send_signal(signal.SIGINT)
        eventually(lambda: terminal.process.poll() is not None, "it ends")
        terminal.shows("")
        assert terminal.text.endswith("\x1b[?25h\x1b[?1049l") and "Traceback" not in terminal.text
        assert terminal.process.returncode in (0, 130)
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_without_a_terminal_it_is_printed_once(process: object, state: Path, live: Live) -> None:
    live.coordinator.submit(SUBMIT)
    for verb in (("top",), ("jobs", "--watch")):
        command = [sys.executable, "-m", "reshape", *verb]
        done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr, "\x1b" in done.stdout, "digits-7" in done.stdout) == (0, "", False, True)
