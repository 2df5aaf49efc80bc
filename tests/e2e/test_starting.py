"""The scripts of `docs/starting.md` as they stand there: stopped in the middle, run again, each step is done once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.up import ROOT
from tests.interpreters import python_with

STARTUP = ROOT / "reshape_hooks" / "startup"  # which the shim puts there
TEXT = (ROOT / "docs" / "starting.md").read_text()
SCRIPTS = dict(re.findall(r"### (.+?)\n```(?:python|bash)\n(.*?)```", TEXT, re.DOTALL))
WITHIN_S, TOTAL, ENOUGH = 300, 400, 20
NEEDS = {"Keras": "tensorflow", "PyTorch": "torch", "Hugging Face": "transformers", "Lightning": "lightning"}


def started(script: str, folder: Path) -> subprocess.Popen[str]:
    given = {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "PYTHONPATH": str(STARTUP)}
    given |= {"RESHAPE_ANNOUNCE": str(folder / "announce"), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = "bash" if script == "bash" else python_with(NEEDS.get(script, "sys"))
    command = [str(program), "-c", SCRIPTS[script]]
    return subprocess.Popen(command, cwd=folder, env=os.environ | given, stdout=subprocess.PIPE, text=True)


def steps(process: subprocess.Popen[str], stop_after: int | None) -> list[int]:
    """Those that it does; asked to end with SIGTERM once it has done so many."""
    done: list[int] = []
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.match(r"step=(\d+)", line):
            done.append(int(match[1]))
            if len(done) == stop_after:
                process.send_signal(signal.SIGTERM)
    return done


def test_the_table_has_a_script_for_each_kind() -> None:
    kinds = re.findall(r"\| [^|]+ \| \[[^\]]+\]\(#([a-z-]+)\)", TEXT)
    assert sorted(kinds) == sorted(name.lower().replace(" ", "-") for name in SCRIPTS)


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=[pytest.mark.deep] if name == "Keras" else []) for name in SCRIPTS]
)
def test_a_script_that_is_stopped_goes_on_where_it_was(script: str, tmp_path: Path) -> None:
    if script in NEEDS and python_with(NEEDS[script]) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
    (tmp_path / "saved").mkdir()
    first = started(script, tmp_path)
    before = steps(first, ENOUGH)
    assert first.wait(WITHIN_S) == 143
    assert ENOUGH <= len(before) < TOTAL
    assert script == "bash" or (tmp_path / "announce").exists(), "else nobody would know that it resumes"
    second = started(script, tmp_path)
    assert before + steps(second, None) == list(range(1, TOTAL + 1))
    assert second.wait(WITHIN_S) == 0
