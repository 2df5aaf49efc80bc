"""How files of a checkpoint are digested, and that each is read no more often than it must be."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks import plain
from reshape_hooks.plain import Checkpoints
from sidecar import checkpoints as of_sidecar
from sidecar.checkpoints import CheckpointWatch
from sidecar.protocol import Checkpoint

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "CHUNK", 100)
    monkeypatch.setattr(plain, "PIECE", 30)


def damages() -> dict[str, bytes]:
    flips = {f"bit of byte {at} flipped": CONTENT[:at] + bytes([CONTENT[at] ^ 4]) + CONTENT[at + 1 :] for at in (0, 99)}
    return flips | {
        "torn": CONTENT[:1000],
        "longer": CONTENT + b"\0",
        "empty": b"",
        "zeros": bytes(len(CONTENT)),
        "a chunk of zeros": CONTENT[:200] + bytes(100) + CONTENT[300:],
        "two chunks exchanged": CONTENT[100:200] + CONTENT[:100] + CONTENT[200:],
    }


@pytest.mark.parametrize("damage", damages())
def test_a_digest_of_several_chunks_finds(tmp_path: Path, small_chunks: None, damage: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    good = plain.digest(path)
    assert plain.matches(path, good)
    path.write_bytes(damages()[damage])
    assert not plain.matches(path, good)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1024])
def test_a_file_and_its_bytes_have_one_digest(tmp_path: Path, small_chunks: None, size: int) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:size])
    assert plain.digest(tmp_path / "file") == plain.digest(CONTENT[:size])
    assert plain.digest(CONTENT[:size]).startswith(f"crc32-16m:{size}:")


def test_the_digest_is_the_one_that_the_format_says() -> None:
    """Else no older checkpoint of ours could be read: the number is of an implementation that is not ours."""
    assert plain.digest(b"123456789") == "crc32-16m:9:ee4c6550"  # CRC-32 of cb f4 39 26, which is that of 123456789


def test_a_manifest_of_an_older_version_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpoints(tmp_path, "job", 1).save(7, {"weights": CONTENT})
    manifest = tmp_path / "g1-s7" / "manifest.json"
    old = {"job_id": "job", "generation": 1, "step": 7, "files": {"weights": hashlib.sha256(CONTENT).hexdigest()}}
    manifest.write_text(json.dumps(old))
    saved = Checkpoints(tmp_path, "job", 2).newest()
    assert saved is not None and saved.step == 7
    assert of_sidecar.newest_good(tmp_path, "job") == Checkpoint(name="g1-s7", step=7, generation=1)
    (tmp_path / "g1-s7" / "weights").write_bytes(CONTENT[1:] + b"x")
    assert of_sidecar.newest_good(tmp_path, "job") is None


def test_a_digest_that_is_not_known_is_said_and_not_taken_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (7, 8):
        Checkpoints(tmp_path, "job", 1).save(step, {"weights": CONTENT})
    manifest = tmp_path / "g1-s8" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": {"weights": "xxh9:5"}}))
    found, problems = of_sidecar.find_newest(tmp_path, "job")
    assert found == Checkpoint(name="g1-s7", step=7, generation=1)
    assert (
        len(problems) == 1 and "'xxh9') are not known here: a newer version has written it, or a fault" in problems[0]
    )
    saved = Checkpoints(tmp_path, "job", 2).newest()
    assert saved is not None and saved.step == 7
    assert "set aside as bad-g1-s8: its digests ('xxh9') are not known here" in capsys.readouterr().out


# Passes over the files


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was read to be digested."""
    counts: list[int] = []
    theirs = os.preadv

    def counted(number: int, buffers: Any, at: int) -> int:
        counts.append(theirs(number, buffers, at))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", counted)
    return counts


def test_a_save_reads_what_a_library_has_written_once_and_bytes_never(tmp_path: Path, bytes_read: list[int]) -> None:
    def write(path: str) -> None:
        Path(path).write_bytes(CONTENT * 9)

    Checkpoints(tmp_path, "job", 1).save(7, {"bytes": CONTENT, "by a library": write})
    assert sum(bytes_read) == len(CONTENT) * 9
    assert Checkpoints(tmp_path, "job", 2).newest() is not None
    assert sum(bytes_read) == len(CONTENT) * (9 + 1 + 9)


def watch_of(folder: Path) -> CheckpointWatch:
    watch = CheckpointWatch(folder, "job")
    assert watch.find_newest() == (None, [])
    return watch


def test_a_checkpoint_that_was_written_under_our_eyes_is_not_read_again(tmp_path: Path, bytes_read: list[int]) -> None:
    watch = watch_of(tmp_path)
    Checkpoints(tmp_path, "job", 1).save(7, {"weights": CONTENT})
    seven = Checkpoint(name="g1-s7", step=7, generation=1)
    assert watch.find_newer() == seven
    assert watch.find_newest() == (seven, [])
    assert bytes_read == []


def other_time(folder: Path) -> None:
    status = (folder / "weights").stat()
    os.utime(folder / "weights", ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def other_file(folder: Path) -> None:
    status = (folder / "weights").stat()
    (folder / "copy").write_bytes(CONTENT)
    os.utime(folder / "copy", ns=(status.st_atime_ns, status.st_mtime_ns))
    (folder / "copy").rename(folder / "weights")


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "change",
    [
        other_time,
        other_file,
        lambda folder: edit(
            folder, written={"boot": "another", "stamps": {"weights": plain.stamp(folder / "weights")}}
        ),
        lambda folder: edit(folder, written={"boot": "", "stamps": {"weights": plain.stamp(folder / "weights")}}),
        lambda folder: edit(folder, written={"boot": plain.boot_id(), "stamps": {}}),
        lambda folder: edit(folder, written={"boot": plain.boot_id(), "stamps": 5}),
        lambda folder: edit(folder, written=[]),
    ],
)
def test_all_is_read_where_the_files_are_not_certainly_those_that_were_written_and_only_once(
    tmp_path: Path, bytes_read: list[int], change: Callable[[Path], None]
) -> None:
    watch = watch_of(tmp_path)
    Checkpoints(tmp_path, "job", 1).save(7, {"weights": CONTENT})
    change(tmp_path / "g1-s7")
    assert watch.find_newest()[0] is not None
    assert sum(bytes_read) == len(CONTENT)
    assert watch.find_newer() is not None
    assert sum(bytes_read) == len(CONTENT)


def test_a_sidecar_that_did_not_see_it_being_written_reads_all(tmp_path: Path, bytes_read: list[int]) -> None:
    Checkpoints(tmp_path, "job", 1).save(7, {"weights": CONTENT})
    assert CheckpointWatch(tmp_path, "job").find_newest()[0] is not None
    assert sum(bytes_read) == len(CONTENT)


def test_damage_after_it_was_verified_is_found(tmp_path: Path) -> None:
    watch = watch_of(tmp_path)
    Checkpoints(tmp_path, "job", 1).save(7, {"weights": CONTENT})
    assert watch.find_newest()[0] is not None
    (tmp_path / "g1-s7" / "weights").write_bytes(CONTENT[1:] + b"x")
    found, problems = watch.find_newest()
    assert found is None and problems == ["checkpoint g1-s7 is not used: file 'weights' is not what was written"]
    (tmp_path / "g1-s7" / "weights").unlink()
    assert watch.find_newest()[0] is None


# Threads


def test_what_one_of_several_raises_is_raised_once_all_have_ended() -> None:
    done: list[int] = []

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            if number == 2:
                raise OSError("no")
            done.append(number)
            return number

        return run

    with pytest.raises(OSError, match="no"):
        plain.together([task(number) for number in (1, 2, 3)])
    assert sorted(done) == [1, 3]
    assert plain.together([task(number) for number in (5, 4, 3, 9, 8, 7, 6)]) == [5, 4, 3, 9, 8, 7, 6]
    assert plain.together([]) == []


def test_where_no_thread_can_be_started_all_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert plain.together([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
