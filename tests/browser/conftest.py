"""Tests in a real browser: `make test-browser` runs them; elsewhere they are skipped, as they need Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chrome import Chrome, chrome

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if os.environ.get("RESHAPE_TEST_BROWSER") != "1":
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs Chromium: make test-browser"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    with chrome() as tab:
        yield tab


@pytest.fixture
def tab(browser: Chrome) -> Iterator[Chrome]:
    """The browser on an empty page; whatever a page complains of fails the test."""
    browser.open("about:blank")
    browser.complaints.clear()
    yield browser
    browser.open("about:blank")  # ends the stream of the last page before its server ends
    assert browser.complaints == []
