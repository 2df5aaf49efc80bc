"""`make test` runs both of its halves, whatever the first one finds, and fails if either failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> "$0.calls"
case "$*" in *--ignore=*) exit {computing} ;; esac
exit {training}
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("computing", "training"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_both_halves_always_run_and_it_fails_if_either_failed(tmp_path: Path, computing: int, training: int) -> None:
    fake = tmp_path / "pytest"
    fake.write_text(FAKE.format(computing=computing, training=training))
    fake.chmod(0o755)
    made = subprocess.run(
        ["make", "--old-file=install", "test", f"BIN={tmp_path}", "ARGS="],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    halves = fake.with_name("pytest.calls").read_text().splitlines()
    assert ["--ignore=tests/e2e" in half for half in halves] == [True, False]
    assert (made.returncode != 0) == bool(computing or training), made.stderr
