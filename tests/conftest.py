"""For all tests: how many states Hypothesis draws, which tests `make test-deep` runs once more, which stay together.

Also has Ctrl-C reach what they start."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.depth import DEEP, EXAMPLES

ROOT = Path(__file__).parents[1]

# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No database: what a run finds must not depend on the one before it. No deadline: nothing is judged by its time.
settings.register_profile(
    "drawn", max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, print_blob=True
)
settings.load_profile("drawn")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as deep what draws many states."""
    for item in items if DEEP else ():
        by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if by_hypothesis or item.get_closest_marker("drawn"):
            item.add_marker(pytest.mark.deep)


class BySharedFixture(LoadScopeScheduling):
    """Gives each test to the next free worker, but those of a file with a fixture for all of it to one.

    Takes the place of xdist's own scheduler under `--dist loadgroup`, whose groups pytest 9.2 does not see.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if shares_fixture(ROOT / file) else nodeid


@cache
def shares_fixture(file: Path) -> bool:
    return 'scope="module"' in file.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return BySharedFixture(config, log) if config.getoption("dist") == "loadgroup" else None
