"""How many drawn states a test tries: few in `make test`, many in `make test-deep`, which sets RESHAPE_TEST_DEPTH=deep.

Both draw the same states in every run. A test that draws by Hypothesis gets its number from the profile of
`tests/conftest.py`; one that draws in a loop of its own asks `drawn` and is marked `drawn`.

Why 100: runs are repeatable, so they find something new only after a change, and an example of a state machine of
`tests/stateful` takes a third of a second of CPU. 30 examples of one pass 119 pairs of steps, 90 pass 214.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("RESHAPE_TEST_DEPTH") == "deep"
EXAMPLES = 100 if DEEP else 30


def drawn(few: int, many: int) -> int:
    """`few`, or `many` where there is time."""
    return many if DEEP else few
