"""Compiles drivers' libraries without a GPU: the one that holds states (`libcuda.c`), and what other fakes bring."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "libcuda.c"
NAME = "libcuda.so.1"


def compiled(source: Path, folder: Path, *options: str) -> Path:
    """Compile a source as the driver's library into this folder, and return that library.

    Raises AssertionError where there is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "tests of GPU memory need a C compiler: install gcc"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / NAME
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *options, "-o", str(library), str(source)], check=True)
    return library


def build(folder: Path) -> Path:
    """Compile `libcuda.c` into this folder, for LD_LIBRARY_PATH, and return the folder."""
    return compiled(SOURCE, folder).parent
