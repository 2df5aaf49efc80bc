"""A checkpoint gets its name only once all of it is on the disk, so that a power cut leaves a whole one or none.

Read from the calls themselves, in their order: what a kernel would lose cannot be tried out here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks.plain import MANIFEST, Checkpoints

Calls = list[tuple[str, str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every fsync and rename, with the paths as they are then and, of a file, how long it is then."""
    found: Calls = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(number: int) -> None:
        fsync(number)
        path = str(Path(f"/proc/self/fd/{number}").readlink())
        found.append(("fsync", path, "" if Path(path).is_dir() else str(Path(path).stat().st_size)))

    def noted_rename(source: Any, target: Any, **more: Any) -> None:
        rename(source, target, **more)
        found.append(("rename", os.fspath(source), os.fspath(target)))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    return found


def test_every_file_and_its_folder_are_forced_to_disk_before_the_checkpoint_has_its_name_and_that_after(
    tmp_path: Path, calls: Calls
) -> None:
    folder = tmp_path / "checkpoints"
    name = Checkpoints(folder, "job", 3).save(
        5, {"weights": b"w" * 1000, "state": lambda path: Path(path).write_bytes(b"s" * 10)}
    )
    final = str(folder / str(name))
    (at,) = [n for n, call in enumerate(calls) if call[0] == "rename" and call[2] == final]
    half = calls[at][1]
    before, after = calls[:at], calls[at + 1 :]
    for file in ("weights", "state", MANIFEST):
        size = str((folder / str(name) / file).stat().st_size)
        assert ("fsync", f"{half}/{file}", size) in before, f"all of {file} is on the disk"
    assert ("fsync", half, "") in before, "and that these files are in it"
    assert before.index(("fsync", half, "")) > max(n for n, c in enumerate(before) if c[1].startswith(half + "/"))
    assert ("fsync", str(folder), "") in after, "and its name"
