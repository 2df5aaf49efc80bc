"""`Client.wait` shows how far a job is in a terminal, and writes nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from reshape.client.progress_bar import duration, iterations_done, progress_bar, waiting_given_up
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
JOB = {"job_id": "a", "num_gpus": 0, "iters_done": 5, "iterations": 20, "problems": [], "launch": 1}


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
    assert b"[" + b"-" * 24 + b"]  0/100" in shown and b"\ra cancelled" in shown
    assert shown.endswith(b"\r\n")


def test_anything_else_gets_nothing(live: Live, state: Path, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+b") as errors:
        with waiting(state, errors.fileno()) as process:
            assert cancelled(process)
        errors.seek(0)
        assert errors.read() == b""


def test_a_terminal_is_told_why_a_job_failed_and_nothing_that_changes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    message = "exit code 3: \x1b[2Jno module named x"
    with progress_bar(True) as show:
        show({**JOB, "state": "running", "num_gpus": 1, "eta_s": 40.0})
        show({**JOB, "state": "failed", "message": message})
    running, failed = capsys.readouterr().err.removeprefix("\r").split("\x1b[K\r")
    assert running == "a running on 1 GPU  [######------------------]  5/20  ends in 40 s"
    why = "exit code 3: ?[2Jno module named x. job.logs() shows what it printed."
    assert failed == f"a failed  [######------------------]  5/20  {why}\x1b[K\n"


def test_a_job_that_was_not_accepted_is_told_with_all_its_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(True) as show:
        show({**JOB, "state": "submitted", "launch": 0, "iters_done": None, "problems": ["no image", "no node"]})
    assert capsys.readouterr().err == "\ra not accepted  no image; no node.\x1b[K\n"


@pytest.mark.parametrize(("terminal", "said"), [(True, "Job a keeps running: wait() waits for it again"), (False, "")])
def test_who_gives_up_waiting_in_a_terminal_is_told_that_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, said: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    waiting_given_up("a")
    told = capsys.readouterr().err
    assert told.startswith(said) and bool(told) is terminal


def test_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[list[str]] = []

    class Handle:
        def __init__(self, shown: Any) -> None:
            outputs.append([shown._repr_html_()])

        def update(self, shown: Any) -> None:
            outputs[-1].append(shown._repr_html_())

    ipython = ModuleType("IPython")
    display = ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(display)["display"] = lambda shown, display_id: Handle(shown)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress_bar(True) as show:
        show({**JOB, "state": "submitted", "start_in_s": 700.0})
        show({**JOB, "state": "failed", "message": "<b>"})
    ((waits, failed),) = outputs
    bar = '<progress value="5" max="20"></progress> 5/20'
    assert waits == f"<div>a submitted &nbsp; {bar} &nbsp; starts in 12 min</div>"
    assert failed == f"<div>a failed &nbsp; {bar} &nbsp; &lt;b&gt;. job.logs() shows what it printed.</div>"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (5990, "1 h 40 min"), (11_100, "3 h 05 min")]
)
def test_a_duration_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [(None, 20, ""), (0, None, ""), (0, 20, "0/20"), (1, None, "1 iteration"), (7, None, "7 iterations")],
)
def test_what_is_done_is_told_also_where_the_length_is_not_known(
    done: int | None, total: int | None, text: str
) -> None:
    assert iterations_done({"iters_done": done, "iterations": total}) == text
