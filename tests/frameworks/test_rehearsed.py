"""`reshape rehearse` finds by itself what the pages call lost, with a real `up`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.depth import deep
from tests.e2e.test_rehearsal import rehearsed
from tests.e2e.up import Up, running
from tests.frameworks.test_resumed_exactly import SCRIPTS

LOST = {
    "environment": "1 of 1 printed lines other, such as 'seen ",
    "cache": "1 of 1 printed lines other, such as 'cached ",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("rehearsed") / "state", "2xV100") as started:
        yield started


@pytest.mark.parametrize("way", ["environment", deep("cache")])
def test_what_the_pages_call_lost_is_found_by_a_rehearsal(up: Up, way: str, tmp_path: Path) -> None:
    code, found, said = rehearsed(up, tmp_path, sys.executable, str(SCRIPTS / "loses.py"), way, seconds="60")
    assert (code, found.get("stops", 0) > 0) == (1, True), said
    assert LOST[way] in found["verdict"]
