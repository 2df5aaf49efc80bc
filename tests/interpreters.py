"""Finds Pythons of this machine: one of a version, one that has a framework."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FRAMEWORKS = Path(__file__).parent / "frameworks" / "requirements.txt"


def python_with(module: str) -> str | None:
    """An interpreter that has it: ours, else the one that RESHAPE_FRAMEWORKS names (`make test-frameworks`), else the
    system's, as Debian packages PyTorch.

    None where there is none; but AssertionError where RESHAPE_FRAMEWORKS is set and its list names the module: tests
    of it that were skipped then would be missed by nobody.
    """
    if importlib.util.find_spec(module):
        return sys.executable
    there = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    for python in (os.environ.get("RESHAPE_FRAMEWORKS"), "/usr/bin/python3"):
        if python and os.access(python, os.X_OK) and subprocess.run([python, "-c", there], check=False).returncode == 0:
            return python
    promised = os.environ.get("RESHAPE_FRAMEWORKS") and module in re.findall(r"(?m)^\w+", FRAMEWORKS.read_text())
    assert not promised, f"{os.environ['RESHAPE_FRAMEWORKS']} has no {module}: make frameworks"
    return None


def python_of(version: str) -> str:
    """The Python of that version, such as 3.8; the test is skipped where there is none."""
    found = shutil.which(f"python{version}")
    for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        found = str(path)
    if not found:
        import pytest  # benchmarks find Pythons on machines without it

        pytest.skip(f"there is no Python {version} on PATH or in pyenv; install it to run this test")
    return found
