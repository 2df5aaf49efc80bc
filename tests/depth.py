"""How many drawn states a test tries: few in `make test`, many in `make test-deep`, which sets RESHAPE_TEST_DEPTH=deep.

Both draw the same states in every run. A test that draws by Hypothesis gets its number from the profile of
`tests/conftest.py`; one that draws in a loop of its own, and the four machines of `tests/stateful`, ask `drawn`.

Why 100 and not more: runs are repeatable, so they find something new only after a change. An example of those
machines takes a third of a second of CPU, so they draw 60.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

DEEP = os.environ.get("RESHAPE_TEST_DEPTH") == "deep"
EXAMPLES = 100 if DEEP else 20


def drawn(few: int, many: int) -> int:
    """`few`, or `many` where there is time."""
    return many if DEEP else few


def deep(*row: object, name: str | None = None) -> Any:
    """Return a row of parameters that only `make test-deep` and `make test-frameworks` run, not CI; `name`: its id.

    It takes long, such as for several imports of a heavy library, and resembles a row that CI runs.
    """
    return pytest.param(*row, id=name, marks=pytest.mark.deep)
