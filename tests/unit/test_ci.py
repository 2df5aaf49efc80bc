"""What `.ci/run` promises: it runs all it should, says last what failed, and keeps /dev/null a device for everybody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import interpreters

CI = Path(__file__).resolve().parents[2] / ".ci"
FAKE = """#!/bin/sh
echo "$0 $*" >> "$CALLS"
echo "this is how $* ended"
case "$*" in $FAILS) exit 1 ;; esac
"""
STEPS = ("check", "docs", "frameworks", "test", "test-browser", "test-frameworks", "test-cluster")


def run(folder: Path, fails: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """`.ci/run` where make and Python only write down what they were asked; what ends like `fails` (a glob) fails."""
    (folder / ".ci").mkdir()
    shutil.copy(CI / "run", folder / ".ci" / "run")
    programs = [folder / "bin" / name for name in ("make", "python3.11", "chromium")]
    for program in [*programs, folder / ".venv" / "bin" / "python", folder / ".ci" / "null_device"]:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(FAKE)
        program.chmod(0o755)
    (folder / "build").mkdir()
    (folder / "build" / "cluster-trouble.txt").write_text("of an earlier run")
    given = {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), "FAILS": fails,
    }  # fmt: skip
    ended = subprocess.run(["bash", folder / ".ci" / "run"], env=given, capture_output=True, text=True, check=False)
    return ended, (folder / "calls").read_text().splitlines()


def test_it_runs_all_checks_and_tests(tmp_path: Path) -> None:
    ended, calls = run(tmp_path, "no such step")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("== all passed\n")
    made = {call.partition("/make ")[2].partition(" ")[0] for call in calls}
    assert set(STEPS) - made == set()


@pytest.mark.parametrize(
    ("fails", "named", "not_run"),
    [
        ("-m tests.cluster.bed_build", "outcome_of bed", "make test-cluster"),
        ("-m tests.cluster.training_images", "outcome_of images", None),
        ("test-frameworks*", "outcome_of test-frameworks", None),
        ("test", "make test", None),
    ],
)
def test_what_failed_is_said_last_with_the_end_of_its_output(
    tmp_path: Path, fails: str, named: str, not_run: str | None
) -> None:
    ended, calls = run(tmp_path, fails)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"== failed: {named} (")
    last_words = ended.stdout[ended.stdout.rindex(f"== {named}") :]
    assert f"this is how {fails.rstrip('*')} " in last_words or named == "make test"
    assert not_run is None or not any(call.endswith(not_run) for call in calls)
    assert "of an earlier run" not in ended.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
@pytest.mark.parametrize("wrong", ["a file", "mode 600", "mode 644", "another device", "nothing"])
def test_the_null_device_is_mended_if_it_is_no_device_or_not_for_everybody(tmp_path: Path, wrong: str) -> None:
    null = tmp_path / "null"
    device = {"another device": 5}.get(wrong, 3)
    if wrong == "a file":
        null.write_text("what was thrown away")
    elif wrong != "nothing":
        os.mknod(null, 0o020666, os.makedev(1, device))
        null.chmod(int(wrong.partition("mode ")[2] or "666", 8))
    told = subprocess.run([CI / "null_device", "by a test", null], capture_output=True, text=True, check=True).stderr
    assert "it was changed by a test" in told
    found = null.stat()
    assert (found.st_mode, found.st_rdev) == (0o020666, os.makedev(1, 3))
    again = subprocess.run([CI / "null_device", "by a test", null], capture_output=True, text=True, check=True)
    assert again.stderr == "", "it is well, and nothing is said"


def test_no_test_of_a_listed_framework_is_skipped_where_the_frameworks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.symlink_to(sys.executable)
    monkeypatch.setattr(interpreters, "FRAMEWORKS", tmp_path / "requirements.txt")
    interpreters.FRAMEWORKS.write_text("# of a test\nframework_of_a_test==1\n")
    monkeypatch.delenv("RESHAPE_FRAMEWORKS", raising=False)
    assert interpreters.python_with("framework_of_a_test") is None
    monkeypatch.setenv("RESHAPE_FRAMEWORKS", str(bare))
    with pytest.raises(AssertionError, match="has no framework_of_a_test: make frameworks"):
        interpreters.python_with("framework_of_a_test")
    assert interpreters.python_with("no_framework_of_a_test") is None
