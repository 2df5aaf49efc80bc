"""Builds a distribution's wheel as its users' pip does, and unpacks it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def built(project: Path, name: str, folder: Path) -> Path:
    """Build the wheel of distribution `name`, whose project file is in `project`, into `folder`; its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def unpacked(project: Path, name: str, folder: Path) -> Path:
    """Build it likewise; the folder below `folder` that it is unpacked into."""
    zipfile.ZipFile(built(project, name, folder)).extractall(folder / "packages")
    return folder / "packages"
