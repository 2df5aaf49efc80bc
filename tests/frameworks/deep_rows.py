"""Rows of parameters that only `make test-frameworks` runs, not CI.

Each imports a library several times, which takes seconds, and resembles a row that CI runs.
"""

from __future__ import annotations

from typing import Any

import pytest


def deep(*row: object, name: str | None = None) -> Any:
    """Return a row of parameters marked as deep. `name`: its id."""
    return pytest.param(*row, id=name, marks=pytest.mark.deep)
