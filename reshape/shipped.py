"""Finds the playbooks and example scripts that come with the package.

In a wheel they are inside this package, in a checkout beside it.
"""

from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """`playbooks` or `examples`."""
    here = Path(__file__).resolve().parent
    inside = here / f"_{name}"
    return inside if inside.is_dir() else here.parent / name
