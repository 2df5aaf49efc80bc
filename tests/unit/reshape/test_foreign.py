"""A foreign package under one of our names is named at the start, in one sentence. Real interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from reshape import foreign
from tests.fakes.terminal import ROOT


def started(folder: Path, path: tuple[Path, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words in that folder, with `path` on PYTHONPATH before ours."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT]))}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def up(folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """`reshape up` in that folder; it fails before it starts anything."""
    return started(folder, path, "-m", "reshape", "--state", str(folder / "state"), "up", "--gpus", "1xV100")


@pytest.mark.parametrize("name", ["coordinator", "launcher", "sidecar"])
def test_a_package_that_hides_ours_is_named_before_anything_starts(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "site" / name
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("")
    done = up(tmp_path, tmp_path / "site")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: The package {name} in {theirs} hides that of volcano-reshape in {ROOT}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_a_folder_of_that_name_where_one_stands_is_named(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("")
    assert f"The package launcher in {tmp_path / 'launcher'} hides" in up(tmp_path).stderr


@pytest.mark.parametrize(("files", "named"), [("sidecar/x.py,sha256=a,1\n", True), ("sidecar_2/x.py,,\n", False)])
def test_a_distribution_that_writes_into_our_packages_is_named(tmp_path: Path, files: str, named: bool) -> None:
    for folder, name in (("theirs-1.dist-info", "theirs"), ("volcano_reshape-1.dist-info", "volcano-reshape")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (tmp_path / folder / "RECORD").write_text(files)
    found = list(foreign._mixed(foreign.SERVICES, tmp_path))
    assert bool(found) is named
    assert all("The distribution theirs has put a package sidecar of its own into" in sentence for sentence in found)


def test_our_own_packages_are_found_where_they_are() -> None:
    foreign.check()


def test_a_package_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"is missing in .*: install volcano-reshape again"):
        foreign.check(["no_package_of_that_name"], tmp_path)
