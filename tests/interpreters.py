"""Finds Pythons of this machine: one of a version, one that has a framework."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def python_with(module: str) -> str | None:
    """An interpreter that has it: ours, else the system's, as Debian packages PyTorch; None where there is neither."""
    if importlib.util.find_spec(module):
        return sys.executable
    system = "/usr/bin/python3"
    there = [system, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"]
    return system if os.access(system, os.X_OK) and subprocess.run(there, check=False).returncode == 0 else None


def python_of(version: str) -> str:
    """The Python of that version, such as 3.8; the test is skipped where there is none."""
    found = shutil.which(f"python{version}")
    for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        found = str(path)
    if not found:
        pytest.skip(f"there is no Python {version} on PATH or in pyenv; install it to run this test")
    return found
