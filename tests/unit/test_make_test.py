"""`make test` and `make test-deep` run both their halves, whatever the first finds, and fail if either failed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
printf '%s\\n' "$RESHAPE_TEST_DEPTH: $*" >> "$0.calls"
case "$*" in *--ignore=*) exit {computing} ;; esac
exit {training}
"""
CHOSEN = {"test": ": .*-m not deep ", "test-deep": "deep: .*-m deep "}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", CHOSEN)
@pytest.mark.parametrize(("computing", "training"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_both_halves_always_run_and_it_fails_if_either_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, computing: int, training: int
) -> None:
    monkeypatch.delenv("RESHAPE_TEST_DEPTH", raising=False)
    fake = tmp_path / "pytest"
    fake.write_text(FAKE.format(computing=computing, training=training))
    fake.chmod(0o755)
    made = subprocess.run(
        ["make", "--old-file=install", target, f"BIN={tmp_path}", "ARGS="],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    halves = fake.with_name("pytest.calls").read_text().splitlines()
    assert ["--ignore=tests/e2e" in half for half in halves] == [True, False]
    assert [re.match(CHOSEN[target], half) is not None for half in halves] == [True, True], halves
    assert (made.returncode != 0) == bool(computing or training), made.stderr
