"""`reshape store compact` beside no coordinator: it removes what is too old, and says what is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.stores.opening import open_store
from reshape.cli.main import run


def test_compact_removes_old_jobs_and_makes_the_file_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, wall = tmp_path / "reshape.sqlite", time.time()
    store = open_store(f"sqlite:///{file}")
    for number in range(300):
        doc = {"_id": f"j{number}", "closed": True, "finish_ts": wall - 7200 - number, "command": ["x" * 4000]}
        store.insert("jobs", doc)
    store.close()
    before = file.stat().st_size
    monkeypatch.setenv("RESHAPE_KEEP_JOBS", "7")
    assert run(["--state", str(tmp_path), "store", "compact"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Removed 293 jobs, 0 decisions, 0 events, 0 observations.\n")
    assert file.stat().st_size < before / 4
    store = open_store(f"sqlite:///{file}")
    assert sorted(row["_id"] for row in store.list("jobs", {"closed": True})) == [f"j{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("variable", "said"),
    [("", "There is no store"), ("-1", "RESHAPE_KEEP_JOBS must be"), ("x", "RESHAPE_KEEP_JOBS must be a whole number")],
)
def test_what_cannot_be_compacted_is_one_sentence(
    tmp_path: Path, variable: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if variable:
        monkeypatch.setenv("RESHAPE_KEEP_JOBS", variable)
        open_store(f"sqlite:///{tmp_path / 'reshape.sqlite'}").close()
    assert run(["--state", str(tmp_path), "store", "compact"]) == 1
    assert said in capsys.readouterr().err
    assert variable or not list(tmp_path.iterdir())
