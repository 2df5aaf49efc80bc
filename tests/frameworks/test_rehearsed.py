"""`reshape rehearse` finds by itself what the pages call lost. A real `up`, real PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.depth import deep
from tests.e2e.test_rehearsal import rehearsed
from tests.e2e.up import Up, running
from tests.frameworks.test_resumed_exactly import SCRIPTS
from tests.interpreters import python_with

LOST = {
    "torch": "2 of 2 printed lines other, such as 'mean ",
    "jax": "1 of 1 printed lines other, such as 'weights ",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("rehearsed") / "state", "2xV100") as started:
        yield started


@pytest.mark.parametrize("library", ["torch", deep("jax")])
def test_what_the_pages_call_lost_is_found_by_a_rehearsal(up: Up, library: str, tmp_path: Path) -> None:
    python = python_with(library)
    if python is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    code, found, said = rehearsed(up, tmp_path, python, str(SCRIPTS / "loses.py"), library, seconds="60")
    assert (code, found.get("stops", 0) > 0) == (1, True), said
    assert LOST[library] in found["verdict"]
