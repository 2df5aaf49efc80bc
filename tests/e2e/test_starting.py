"""The scripts that show how to become elastic, as they stand in docs: stopped, run again, each step is done once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests import documents
from tests.depth import deep
from tests.e2e.up import ROOT
from tests.interpreters import python_with

ME = "tests/e2e/test_starting.py"
STARTUP = ROOT / "reshape_hooks" / "startup"  # which the shim puts there
PAGES = ("docs/starting.md", *(f"docs/how-to/{name}.md" for name in ("tensorflow", "hugging-face", "pytorch", "jax")))
MARKED = [block for page in PAGES for block in documents.blocks(page) if block.marks.get("run by") == ME]
SCRIPTS = {block.heading: block for block in MARKED}
WITHIN_S, TOTAL, ENOUGH = 300, 400, 20


def needs(script: str) -> str:
    """The module without which it cannot run; `sys` where it needs none."""
    return SCRIPTS[script].marks.get("needs", "sys")


def started(script: str, folder: Path) -> subprocess.Popen[str]:
    given = {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "PYTHONPATH": str(STARTUP)}
    given |= {"RESHAPE_ANNOUNCE": str(folder / "announce"), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = "bash" if script == "bash" else python_with(needs(script))
    command = [str(program), "-c", SCRIPTS[script].text]
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


def test_the_table_leads_to_a_script_for_each_kind() -> None:
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    linked = set(re.findall(r"^\| [^|]+ \| [^|]*\[[^\]]+\]\([\w./-]*#([a-z-]+)\)", page, re.MULTILINE))
    assert {name.lower().replace(" ", "-") for name in SCRIPTS} <= linked
    assert len(SCRIPTS) == len(MARKED) == 7


@pytest.mark.parametrize(
    "script",
    [deep(name) if needs(name) in documents.HEAVY - {"torch"} else name for name in SCRIPTS],
)
def test_a_script_that_is_stopped_goes_on_where_it_was(script: str, tmp_path: Path) -> None:
    if python_with(needs(script)) is None:
        pytest.skip(f"{needs(script)} is not installed")
    (tmp_path / "saved").mkdir()
    first = started(script, tmp_path)
    before = steps(first, ENOUGH)
    assert first.wait(WITHIN_S) == 143
    assert ENOUGH <= len(before) < TOTAL
    assert script == "bash" or (tmp_path / "announce").exists(), "else nobody would know that it resumes"
    second = started(script, tmp_path)
    assert before + steps(second, None) == list(range(1, TOTAL + 1))
    assert second.wait(WITHIN_S) == 0
