"""The command line against the real HTTP edge, in this process (`reshape`) or in its own (`process`)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reshape.cli import main
from tests.fakes.coordinator_api import TOKEN, Live, serve
from tests.fakes.terminal import Output, start


@pytest.fixture
def live() -> Iterator[Live]:
    with serve() as running:
        yield running


@pytest.fixture
def state(live: Live, tmp_path: Path) -> Path:
    """A state folder as `reshape up` leaves it."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "up.json").write_text(json.dumps({"url": live.url, "token_file": "token"}))
    return tmp_path


@pytest.fixture
def reshape(state: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Output]:
    def run(*arguments: str) -> Output:
        code = main.run(["--state", str(state), *arguments])
        return Output(code, *capsys.readouterr())

    return run


@pytest.fixture
def process(state: Path) -> Callable[..., subprocess.Popen[str]]:
    return lambda *arguments: start(state, *arguments)


@pytest.fixture
def got(live: Live, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The documents that were submitted."""
    docs: list[dict[str, Any]] = []
    submit = live.coordinator.submit
    monkeypatch.setattr(live.coordinator, "submit", lambda doc: docs.append(doc) or submit(doc))
    return docs
