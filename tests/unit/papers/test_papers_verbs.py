"""The verbs of reshape-papers: found by its entry points, and explained where they are missing or broken."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import click
import pytest

from reshape.cli import main, papers_verbs
from tests import wheels
from tests.fakes.terminal import ROOT

VERBS = {"simulate", "paper", "record", "import-trace"}


def listed(group: click.Group) -> dict[str, click.Command | None]:
    """Return by name each command of a group that the product itself does not have, as it is resolved here."""
    context = click.Context(group)
    found = (name for name, command in group.commands.items() if isinstance(command, papers_verbs.PapersVerb))
    return {name: group.get_command(context, name) for name in found}


def test_each_entry_point_is_a_verb_and_each_such_verb_has_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "reshape_papers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    resolved = listed(main.cli) | listed(main.profile)
    assert set(project["entry-points"][papers_verbs.ENTRY_POINTS]) == set(resolved) == VERBS
    for name, command in resolved.items():
        assert command is not None and not isinstance(command, papers_verbs.PapersVerb)
        assert command.name == name


def test_without_the_distribution_each_verb_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    for words in (["paper", "all", "--live"], ["simulate", "--validate"], ["record", "vae"]):
        assert main.run(words) == 1
        told = capsys.readouterr().err
        assert told == f"Error: `reshape {words[0]}` is not available. {papers_verbs.NOT_INSTALLED}\n"
    assert main.run(["profile", "import-trace", "google"]) == 1
    assert "`reshape profile import-trace` is not available" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no_such_package.verbs:paper", "No module named 'no_such_package'"),
        ("reshape_papers.commands:no_such_verb", "module 'reshape_papers.commands' has no attribute 'no_such_verb'"),
    ],
)
def test_a_distribution_that_cannot_be_imported_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, why: str
) -> None:
    broken = metadata.EntryPoint("paper", place, papers_verbs.ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: (broken,))
    assert main.run(["paper", "all"]) == 1
    assert f"cannot be imported ({why}): run `pip" in capsys.readouterr().err
    assert main.run(["--help"]) == 0
    assert "cannot be imported" in capsys.readouterr().out


def test_its_wheel_holds_all_its_modules_and_data_and_nothing_of_the_product(tmp_path: Path) -> None:
    unpacked = wheels.unpacked(ROOT / "reshape_papers", "reshape_papers", tmp_path)
    files = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    (metadata_folder,) = {path.parts[0] for path in files} - {"reshape_papers"}
    assert metadata_folder.endswith(".dist-info")
    ours = (path for kind in ("*.py", "*.json") for path in (ROOT / "reshape_papers").rglob(kind))
    assert {path for path in files if path.parts[0] == "reshape_papers"} == {path.relative_to(ROOT) for path in ours}
