"""`reshape simulate --validate`: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reshape_papers.commands import validate
from reshape_papers.validation.rows import ComparedFigure


def test_the_table_has_every_row_its_error_and_why_one_misses() -> None:
    rows = [
        ComparedFigure("a.makespan_s", "paper, table 1", 100.0, 104.0, 0.05),
        ComparedFigure("b.makespan_s", "paper, table 2", 100.0, 80.0, 0.1, "its restarts cost more"),
        ComparedFigure("c.epoch", "log", 10.0, 20.0),
    ]
    text = validate.as_table([dict(row.as_document()) for row in rows])
    cells = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:2] in ("a.", "c.")}
    assert cells["a.makespan_s"] == ["100", "104", "+4.0%", "5%", "yes"]
    assert cells["c.epoch"] == ["10", "20", "+100.0%", "-", "-"]
    assert "1 of 2 rows" in text
    assert "b.makespan_s: its restarts cost more" in text
    assert "paper, table 2" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "--validate"], "name its folder with --data or RESHAPE_DATA"),
        (["simulate", "--validate", "-o", "csv"], "take -o table or -o json"),
        (["simulate"], "--validate"),
    ],
)
def test_what_cannot_be_validated_is_told_in_a_sentence(reshape: Any, arguments: list[str], says: str) -> None:
    done = reshape(*arguments)
    assert done.code != 0
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_folder_without_the_figures_is_named(reshape: Any, tmp_path: Path) -> None:
    done = reshape("simulate", "--validate", "--data", str(tmp_path))
    assert done.code != 0
    assert "cannot be read" in done.err
    assert str(tmp_path) in done.err
