"""One version everywhere: that of `reshape/__init__.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import reshape_hooks
from reshape import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = sorted(path.parent for path in (ROOT / "pyproject.toml", *ROOT.glob("*/pyproject.toml")))


def test_there_are_four_distributions() -> None:
    assert [str(project.relative_to(ROOT)) for project in PROJECTS] == [
        ".",
        "reshape",
        "reshape_hooks",
        "reshape_papers",
    ]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_each_distribution_has_the_version(project: Path) -> None:
    assert ProjectMetadata(str(project), PluginManager()).version == __version__


def test_the_hooks_say_it_too() -> None:
    assert reshape_hooks.__version__ == __version__


def test_the_papers_go_with_the_product_of_the_same_version() -> None:
    project = tomllib.loads((ROOT / "reshape_papers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"volcano-reshape=={__version__}" in project["dependencies"]


def test_the_newest_release_of_the_changelog_is_it_and_unreleased_stands_above() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, second, *_ = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert (first, second) == ("Unreleased", __version__)
    assert re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE)


def test_manifests_and_documents_name_the_image_of_that_version() -> None:
    pages = [ROOT / "manifests" / "base" / "kustomization.yaml", *(ROOT / "docs").rglob("*.md")]
    tags = [
        tag for page in pages for tag in re.findall(r"volcano-reshape:(\d[\w.]*)", page.read_text(encoding="utf-8"))
    ]
    assert tags and set(tags) == {__version__}
    (new_tag,) = re.findall(r"newTag: (\S+)", pages[0].read_text(encoding="utf-8"))
    assert new_tag == __version__
