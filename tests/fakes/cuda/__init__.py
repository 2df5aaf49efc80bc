"""Builds a driver's library without a GPU (`libcuda.c`), as `libcuda.so.1` in a folder for LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "libcuda.c"


def build(folder: Path) -> Path:
    """Compile it into this folder, and return that. Raises AssertionError where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "tests of GPU memory need a C compiler: install gcc"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    return folder
