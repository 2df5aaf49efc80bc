"""The path of a file without its links, found by way of its folder, is the one that Python finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reshape_hooks.library_code import is_library, real_path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mine.py").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "link.py").symlink_to(tmp_path / "real" / "mine.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["real/mine.py", "linked/mine.py", "real/link.py", "linked/../real/link.py", "no/a.py"]
)
@pytest.mark.parametrize("absolute", [True, False])
def test_it_is_what_python_finds(places: Path, name: str, absolute: bool) -> None:
    file = f"{places}/{name}" if absolute else name
    assert real_path(file) == os.path.realpath(file)


@pytest.mark.parametrize("name", ["<string>", "x" * 5000, "/" + "y" * 5000, "", "/", "/alone.py"])
def test_a_name_that_is_no_file_does_no_harm(name: str) -> None:
    assert real_path(name) == os.path.realpath(name)
    assert not is_library(name, "mine")


def test_a_relative_path_follows_the_working_folder(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = real_path("mine.py")
    monkeypatch.chdir(places / "real")
    assert real_path("mine.py") == str(places / "real" / "mine.py") != before


def test_the_standard_library_and_our_own_modules_are_no_scripts() -> None:
    assert is_library(os.__file__, "os")
    assert is_library(pytest.__file__, "pytest")
    assert is_library("/anywhere/reshape_hooks/plain.py", "reshape_hooks.plain")
