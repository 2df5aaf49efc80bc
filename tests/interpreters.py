"""Which Python of this machine has a framework."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys


def python_with(module: str) -> str | None:
    """An interpreter that has it: ours, else the system's, as Debian packages PyTorch; None where there is neither."""
    if importlib.util.find_spec(module):
        return sys.executable
    system = "/usr/bin/python3"
    there = [system, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"]
    return system if os.access(system, os.X_OK) and subprocess.run(there, check=False).returncode == 0 else None
