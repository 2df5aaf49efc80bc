"""To which state folder the jobs of a store belong, and when another one may take them over."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator.errors import Rejected
from reshape.services.store_folder import ROW, keep_to_folder
from tests.fakes.store import MemoryStore

OURS, THEIRS = b"k" * 64, b"t" * 64


def used(store: MemoryStore, folder: Path, launch: int = 1, closed: bool = False) -> Path:
    """A store of which one job was launched in this folder."""
    folder.mkdir()
    keep_to_folder(store, folder, THEIRS)
    store.insert("jobs", {"_id": "a", "job_id": "a", "uid": "u", "launch": launch, "closed": closed})
    return folder


def owner(store: MemoryStore) -> str:
    return str((store.get("terms", ROW) or {})["path"])


def test_the_same_folder_goes_on(tmp_path: Path) -> None:
    store = MemoryStore()
    folder = used(store, tmp_path / "one")
    keep_to_folder(store, folder, THEIRS)
    assert owner(store) == str(folder)


def test_jobs_that_were_launched_in_another_folder_keep_the_store_there(tmp_path: Path) -> None:
    store = MemoryStore()
    folder = used(store, tmp_path / "one")
    with pytest.raises(Rejected) as refusal:
        keep_to_folder(store, tmp_path / "two", OURS)
    assert str(refusal.value) == (
        f"Jobs of this store that have not ended (a) were launched in the state folder {folder}: "
        f"start with --state {folder}."
    )
    assert owner(store) == str(folder)


@pytest.mark.parametrize(("launch", "closed"), [(0, False), (1, True)], ids=["never launched", "ended"])
def test_jobs_of_which_nothing_is_in_the_other_folder_are_taken_over(tmp_path: Path, launch: int, closed: bool) -> None:
    store = MemoryStore()
    used(store, tmp_path / "one", launch, closed)
    keep_to_folder(store, tmp_path / "two", OURS)
    assert owner(store) == str(tmp_path / "two")


def test_a_folder_that_was_moved_is_known_by_its_key(tmp_path: Path) -> None:
    store = MemoryStore()
    used(store, tmp_path / "one")
    keep_to_folder(store, tmp_path / "two", THEIRS)
    assert owner(store) == str(tmp_path / "two")


def test_a_folder_that_was_deleted_keeps_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    used(store, tmp_path / "one").rmdir()
    keep_to_folder(store, tmp_path / "two", OURS)
    assert owner(store) == str(tmp_path / "two")


def test_a_folder_that_was_made_anew_under_its_name_is_the_same_one(tmp_path: Path) -> None:
    store = MemoryStore()
    folder = used(store, tmp_path / "one")
    (tmp_path / "link").symlink_to(folder)
    keep_to_folder(store, tmp_path / "link", OURS)
    assert owner(store) == str(tmp_path / "link")


def test_of_a_folder_of_another_machine_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    folder = used(store, tmp_path / "one")
    here = socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(Rejected) as refusal:
        keep_to_folder(store, folder, OURS)
    assert f"(a) were launched in the state folder {folder} of machine {here}: start `reshape up` there." in str(
        refusal.value
    )
    assert "`reshape store export` and `reshape store import`" in str(refusal.value)
