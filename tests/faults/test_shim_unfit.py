"""What a shim says of its command before anybody asks it to start that: only what is certain."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.shim_client import running_shim


def unfit(folder: Path, command: list[str], **launch: Any) -> str:
    with running_shim(folder / "f", command, **launch) as shim:
        return str(shim.client.status()["unfit"])


def program(path: Path, first: str, mode: int = 0o755) -> str:
    path.write_text(f"{first}\necho step=1\n")
    path.chmod(mode)
    return str(path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    missing = str(tmp_path / "absent")
    assert unfit(tmp_path, ["true"], workdir=missing) == f"no such folder: {missing}; correct the job's `code`"


@pytest.mark.parametrize(
    ("word", "where"), [("./nope", "in {}"), ("no-such-program", "on its PATH"), ("/no/such/python3", "in {}")]
)
def test_a_program_that_is_not_there_is_said(tmp_path: Path, word: str, where: str) -> None:
    sentence = f"no such file: {word} ({where.format(tmp_path)}); correct the job's command"
    assert unfit(tmp_path, [word], workdir=str(tmp_path)) == sentence


def test_a_program_without_its_interpreter_or_right_is_said(tmp_path: Path) -> None:
    gone = program(tmp_path / "gone", "#!/no/such/interpreter -u")
    assert unfit(tmp_path / "1", [gone]).startswith(f"no such file: /no/such/interpreter (asked for by {gone})")
    gone = program(tmp_path / "env", "#!/usr/bin/env no-such-interpreter")
    assert unfit(tmp_path / "2", [gone]).startswith(f"no such file: no-such-interpreter (asked for by {gone})")
    plain = program(tmp_path / "plain", "#!/bin/sh", 0o644)
    assert unfit(tmp_path / "3", [plain]).startswith(f"{plain} is not executable")


@pytest.mark.parametrize("first", ["#!/bin/sh", "#! /usr/bin/env sh", "#!/usr/bin/env -S sh -e", "echo", "#!", ""])
def test_a_program_that_may_start_passes(tmp_path: Path, first: str) -> None:
    program(tmp_path / "go", first)
    assert unfit(tmp_path / "1", ["./go"], workdir=str(tmp_path)) == ""


def test_the_path_of_the_job_is_searched(tmp_path: Path) -> None:
    program(tmp_path / "train-it", "#!/bin/sh")
    assert unfit(tmp_path / "1", ["train-it"]).startswith("no such file: train-it (on its PATH)")
    assert unfit(tmp_path / "2", ["train-it"], env={"PATH": f"{tmp_path}:{os.defpath}"}) == ""
    assert unfit(tmp_path / "3", [sys.executable]) == ""
