"""Makes device files that stand for GPUs: those of terminals, which to open does no harm."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from sidecar import device_filter

MAJOR, MINORS = 4, (60, 61)
WHY = device_filter.unable()
needs_device_filter = pytest.mark.skipif(bool(WHY), reason=f"device filters cannot be tried here: {WHY}")


def made(folder: Path) -> list[str]:
    """Make `gpu0` and `gpu1` in a folder, and return their paths; skips a test where they could not be opened."""
    paths = [folder / f"gpu{number}" for number in range(len(MINORS))]
    for path, minor in zip(paths, MINORS, strict=True):
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(MAJOR, minor))
            with contextlib.suppress(OSError):  # there need not be a device behind it
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
        except PermissionError as fault:
            pytest.skip(f"device files cannot be made here: {fault}")
    return [str(path) for path in paths]
