"""Tells library code from a script's code; standard library, Python 3.8."""

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
    """Return whether a file, with its module's name, belongs to Python, to an installed package or to us."""
    if file.startswith("<frozen") or module.partition(".")[0] in ("reshape_hooks", "runpy", "builtins"):
        return True
    path = real_path(file)
    return path.startswith(STDLIB) or _is_installed(path)


def is_of_python(file: str) -> bool:
    """Return whether a module's file belongs to Python itself."""
    path = real_path(file)
    return path.startswith(STDLIB) and not _is_installed(path)


def _is_installed(path: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in path for name in PACKAGES)


def real_path(file: str) -> str:
    """Resolve a file's symbolic links, as `os.path.realpath` does.

    Cached by folder: hundreds of modules are inspected before a first step, and they share few folders.
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
