"""The file of the store is its user's alone: it holds the environments of jobs, so what they keep secret."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coordinator.stores.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[3]
OPEN = """
import os, sys
from coordinator.errors import Rejected
from coordinator.stores.sqlite import SqliteStore
os.setuid(65534)
try:
    SqliteStore(sys.argv[1])
except Rejected as no:
    print(no)
"""


def modes(folder: Path) -> dict[str, str]:
    return {file.name: f"{stat.S_IMODE(file.stat().st_mode):o}" for file in folder.iterdir()}


def test_no_other_user_can_read_it_whatever_folder_and_umask_there_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        store = SqliteStore(str(tmp_path / "store.sqlite"))
        store.insert("jobs", {"_id": "a", "env": {"KEY": "secret"}})
        assert set(modes(tmp_path).values()) == {"600"} and len(modes(tmp_path)) == 3
        store.close()
    finally:
        os.umask(before)


def test_one_that_others_could_read_is_closed_to_them_when_it_is_opened(tmp_path: Path) -> None:
    SqliteStore(str(tmp_path / "store.sqlite")).close()
    (tmp_path / "store.sqlite").chmod(0o644)
    SqliteStore(str(tmp_path / "store.sqlite")).close()
    assert modes(tmp_path)["store.sqlite"] == "600"


def test_another_users_is_refused_with_a_sentence() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory() as folder:  # not below one that is root's alone
        Path(folder).chmod(0o777)
        file = Path(folder) / "store.sqlite"
        SqliteStore(str(file)).close()
        file.chmod(0o666)
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(file)], cwd=ROOT, capture_output=True, text=True, check=True
        )
    assert "belongs to user 0: run as that one, or name another store." in done.stdout
