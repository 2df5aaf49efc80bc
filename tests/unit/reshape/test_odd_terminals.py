"""What a command says and does where its streams, its arguments or its paths are odd: a sentence, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.terminal import environment
from tests.patience import patient

NOWHERE = "No coordinator is known in"


def run(state: Path, *words: str | bytes, ends: str = "") -> subprocess.CompletedProcess[str]:
    """One command line in a shell; `ends`: redirections behind it."""
    command = [sys.executable, "-m", "reshape", "--state", str(state), *words]
    shell = ["sh", "-c", f'exec "$@" {ends}', "sh", *command]
    return subprocess.run(
        shell, env=environment(state), capture_output=True, text=True, check=False, timeout=patient(60)
    )


@pytest.mark.parametrize("ends", [">&-", "<&-", "<&- >&-"])
@pytest.mark.parametrize("words", [["jobs"], ["policy", "-o", "json"], ["submit", "--", "true"]], ids=" ".join)
def test_a_closed_stream_changes_nothing_else(tmp_path: Path, words: Sequence[str], ends: str) -> None:
    done = run(tmp_path / "state", *words, ends=ends)
    assert done.returncode in (1, 3) and NOWHERE in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_store_is_not_opened_in_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    script = (
        "import os, reshape.__main__ as m; m._open_standard_files(); print(os.open('file', os.O_CREAT), flush=True)"
    )
    shell = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", script]
    done = subprocess.run(shell, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) > 2


def test_an_output_that_cannot_be_written_is_told_apart_from_what_was_asked(tmp_path: Path) -> None:
    done = run(tmp_path / "state", "--help", ends="> /dev/full")
    assert done.returncode != 0
    assert done.stderr.startswith(
        "The output cannot be written (No space left on device). The request may have been carried out"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["job", b"\xff"], ["cancel", b"a\xff"], ["submit", "--code", b"\xff", "--", "true"]])
def test_an_argument_that_is_no_utf_8_is_refused(tmp_path: Path, words: Sequence[str | bytes]) -> None:
    done = run(tmp_path / "state", *words)
    assert done.returncode == 2 and "is not valid UTF-8." in done.stderr and "Traceback" not in done.stderr


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    state = run(Path(os.fspath(tmp_path / ("y" * 300))), "up", "--gpus", "1xV100")
    assert state.returncode == 1 and "File name too long" in state.stderr and "Traceback" not in state.stderr
