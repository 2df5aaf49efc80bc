"""`reshape-hooks` is a distribution of its own, whose core runs on the oldest Python that it names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import wheels
from tests.interpreters import python_of

ROOT = Path(__file__).parents[3]

SCRIPT = """
import os, sys
from reshape_hooks import plain
here = plain.environment()
stop = plain.StopFlag(here.announce)
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
saved = checkpoints.newest()
for step in range(saved.step if saved else 0, 5):
    plain.say(step=step + 1, total=5)
    if step == 2 and not saved:
        os.kill(os.getpid(), 15)
    if stop.stopping:
        checkpoints.save(step + 1, {"state": b"x"})
        sys.exit(plain.STOPPED)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the distribution's wheel is unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "reshape_hooks", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    return wheels.unpacked(folder / "source", "reshape_hooks", folder)


def test_it_holds_all_modules(installed: Path) -> None:
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "reshape_hooks").rglob("*.py")}
    assert {str(path.relative_to(installed)) for path in installed.rglob("*.py")} == ours


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_a_script_saves_and_resumes_on_that_python(installed: Path, tmp_path: Path, version: str) -> None:
    python, script = python_of(version), tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run() -> tuple[int, list[str]]:
        argv, env = [python, str(script)], {"PYTHONPATH": str(installed)}
        ended = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.stderr == ""
        return ended.returncode, [line.split()[0] for line in ended.stdout.splitlines() if line.startswith("step=")]

    assert run() == (143, ["step=1", "step=2", "step=3"])
    assert run() == (0, ["step=4", "step=5"])
