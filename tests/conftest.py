"""For all tests: how many states Hypothesis draws, which tests `make test-deep` runs once more, which stay together."""

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
    """Mark as deep what draws many states, and group the tests that share a fixture of their module."""
    for item in items:
        by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if DEEP and (by_hypothesis or item.get_closest_marker("drawn")):
            item.add_marker(pytest.mark.deep)
        if shares_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def shares_fixture(item: pytest.Item) -> bool:
    """Return True if a fixture is made once for the test's module: with `--dist loadgroup` one worker makes it."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return any(definition.scope == "module" for definitions in found.values() for definition in definitions)
