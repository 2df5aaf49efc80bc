"""What a rehearsal copies of the folder of a training before it runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from reshape.rehearsal import kept_copy


def test_pipes_and_sockets_are_left_out_and_all_else_is_copied(tmp_path: Path) -> None:
    """As of a demo that ran in the same folder, which README has people run first."""
    folder = tmp_path / "folder"
    state = folder / "reshape-demo" / "state"
    state.mkdir(parents=True)
    (folder / "train.py").write_text("train")
    (state / "log").write_text("log")
    (state / "gone").symlink_to("nowhere")
    os.mkfifo(state / "reports")
    os.mknod(state / "shim.sock", stat.S_IFSOCK | 0o600)
    assert kept_copy(folder, tmp_path / "copy")
    copied = tmp_path / "copy" / "reshape-demo" / "state"
    assert (tmp_path / "copy" / "train.py").read_text() == "train"
    assert (copied / "log").read_text() == "log"
    assert sorted(path.name for path in copied.iterdir()) == ["gone", "log"]
