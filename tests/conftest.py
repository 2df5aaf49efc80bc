"""For all tests: how many states Hypothesis draws, and which tests `make test-deep` runs once more with many states."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.depth import DEEP, EXAMPLES

# No database: what a run finds must not depend on the one before it. No deadline: nothing is judged by its time.
settings.register_profile(
    "drawn", max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, print_blob=True
)
settings.load_profile("drawn")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What draws states is deep too where many are drawn."""
    for item in items if DEEP else ():
        by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if by_hypothesis or item.get_closest_marker("drawn"):
            item.add_marker(pytest.mark.deep)
