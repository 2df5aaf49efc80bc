"""Tells the code of libraries from that of a script; the standard library, Python 3.8."""

from __future__ import annotations

import contextlib
import functools
import os
import sysconfig
from pathlib import Path

PACKAGES = ("site-packages", "dist-packages")
STDLIB = tuple({os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib")})


@functools.lru_cache(4096)
def is_library(file: str, module: str) -> bool:
    """Return True for a file, and the name of its module, of Python, of a package that is installed, or of ours."""
    if file.startswith("<frozen") or module.partition(".")[0] in ("reshape_hooks", "runpy", "builtins"):
        return True
    path = real_path(file)
    return path.startswith(STDLIB) or any(f"{os.sep}{name}{os.sep}" in path for name in PACKAGES)


def real_path(file: str) -> str:
    """Return the path of a file without symbolic links, as `os.path.realpath` does.

    Hundreds of modules are looked at before a first step, and they share some folders.
    """
    folder, separator, name = file.rpartition(os.sep)
    if not folder.startswith(os.sep) or _is_link(file):
        return os.path.realpath(file)
    return _real_folder(folder) + separator + name


def _is_link(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError):  # code may name anything as its file
        return Path(file).is_symlink()
    return False


@functools.lru_cache(1024)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
