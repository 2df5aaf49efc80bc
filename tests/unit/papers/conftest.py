"""Runs the command as a user does who has no published data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reshape.cli import main
from tests.fakes.terminal import Output


@pytest.fixture
def reshape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Output]:
    monkeypatch.delenv("RESHAPE_DATA", raising=False)

    def run(*arguments: str) -> Output:
        code = main.run(["--state", str(tmp_path), *arguments])
        return Output(code, *capsys.readouterr())

    return run
