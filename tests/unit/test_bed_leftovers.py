"""Which beds on this machine are dead, so that the next one may remove what they left, and which live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import bed_leftovers
from tests.cluster.bed_processes import BedError, Processes


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """The folder of a bed with one process, named as the one that this machine carries."""
    folder = tmp_path / "clone" / "run"
    processes = Processes(folder)
    folder.mkdir(parents=True)
    processes.start("etcd", ["sleep", "600"])
    (tmp_path / "owner").write_text(str(folder))
    yield folder
    processes.stop(["etcd"], kill=True)


def mounts(folder: Path) -> str:
    of_kubelet = f"{folder}/nodes/node-a/kubelet/pods/1/volumes/kubernetes.io~projected/token"
    of_containerd = f"{folder}/nodes/node-b/state/netns/cni-1"
    return f"proc /proc proc rw 0 0\ntmpfs {of_kubelet} tmpfs rw 0 0\nnsfs {of_containerd} nsfs rw 0 0"


def test_a_bed_of_another_folder_that_lives_is_named_and_goes_on(other: Path, tmp_path: Path) -> None:
    with pytest.raises(BedError, match=r"carries another test bed, in .*clone/run, of which etcd run: end it"):
        bed_leftovers.dead(tmp_path / "mine", "", tmp_path / "owner")
    assert Processes(other).running() == ["etcd"]


def test_a_bed_of_another_folder_whose_processes_were_killed_is_dead(other: Path, tmp_path: Path) -> None:
    Processes(other).stop(["etcd"], kill=True)
    assert bed_leftovers.dead(tmp_path / "mine", "", tmp_path / "owner") == [other]
    assert bed_leftovers.dead(other, "", tmp_path / "owner") == [], "its own remains are not another bed's"


def test_a_bed_that_nothing_names_any_more_is_found_by_its_mounts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    assert bed_leftovers.dead(tmp_path / "mine", mounts(folder), tmp_path / "none") == [], "another cluster's nodes"
    (folder / "processes.json").write_text("{}")
    assert bed_leftovers.dead(tmp_path / "mine", mounts(folder), tmp_path / "none") == [folder]


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    (tmp_path / "owner").write_text(str(gone))
    assert bed_leftovers.dead(tmp_path / "mine", "", tmp_path / "owner") == [gone]
    Processes(gone).stop(["etcd", "kubelet-node-a"])
    assert not gone.exists()
