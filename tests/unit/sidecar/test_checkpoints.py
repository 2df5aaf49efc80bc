"""Which checkpoint is named as the newest good one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar import checkpoints
from sidecar.checkpoints import CheckpointWatch, find_newest, newest_good
from sidecar.protocol import Checkpoint


def put(folder: Path, name: str, generation: Any, step: Any, job: Any = "j", content: bytes = b"weights") -> Path:
    path = folder / name
    (path / "sub").mkdir(parents=True)
    (path / "model").write_bytes(content)
    (path / "sub" / "more").write_bytes(b"")
    files = {"model": hashlib.sha256(content).hexdigest(), "sub/more": hashlib.sha256(b"").hexdigest()}
    manifest = {"job_id": job, "generation": generation, "step": step, "files": files}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def edit(path: Path, **changes: Any) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_the_highest_generation_then_the_highest_step_wins(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 900)
    put(tmp_path, "b", 2, 5)
    put(tmp_path, "c", 2, 40)
    assert find_newest(tmp_path, "j") == (Checkpoint(name="c", step=40, generation=2), [])


def test_those_of_all_trainings_of_a_job_count_and_are_named_by_their_training(tmp_path: Path) -> None:
    put(tmp_path, "g1-s900", 1, 900)
    put(tmp_path / "training-2", "g2-s5", 2, 5)
    watch = CheckpointWatch(tmp_path, "j")
    assert watch.find_newest() == (Checkpoint(name="training-2:g2-s5", step=5, generation=2), [])
    put(tmp_path / "training-3", "g2-s30", 2, 30)
    assert watch.find_newer() == Checkpoint(name="training-3:g2-s30", step=30, generation=2)
    damaged = put(tmp_path / "training-3", "g3-s40", 3, 40)
    (damaged / "model").write_bytes(b"weigh")
    (tmp_path / "training-2" / ".tmp-g3-s1").mkdir()
    found, problems = watch.find_newest()
    assert found == Checkpoint(name="training-3:g2-s30", step=30, generation=2)
    assert problems == ["checkpoint training-3:g3-s40 is not used: file 'model' is not what was written"]


def test_no_folder_and_an_empty_one_have_none(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "none", "j") == (None, [])
    assert find_newest(tmp_path, "j") == (None, [])


@pytest.mark.parametrize("at", [0, 3, 6])
def test_one_changed_byte_is_found_and_the_one_before_is_used(tmp_path: Path, at: int) -> None:
    put(tmp_path, "old", 1, 1)
    bad = put(tmp_path, "new", 1, 2) / "model"
    content = bytearray(bad.read_bytes())
    content[at] ^= 1
    bad.write_bytes(content)
    found, problems = find_newest(tmp_path, "j")
    assert found == Checkpoint(name="old", step=1, generation=1)
    assert problems == ["checkpoint new is not used: file 'model' is not what was written"]


def test_a_truncated_or_missing_file_is_found(tmp_path: Path) -> None:
    (put(tmp_path, "a", 1, 1) / "model").write_bytes(b"weigh")
    (put(tmp_path, "b", 1, 2) / "sub" / "more").unlink()
    found, problems = find_newest(tmp_path, "j")
    assert found is None and len(problems) == 2 and newest_good(tmp_path, "j") is None


@pytest.mark.parametrize("name", ["../outside", "sub/../../outside"])
def test_a_file_outside_the_checkpoint_is_none_of_it_though_its_digest_is_right(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"weights")
    edit(put(tmp_path, "a", 1, 1), files={name: hashlib.sha256(b"weights").hexdigest()})
    found, problems = find_newest(tmp_path, "j")
    assert found is None and problems == [f"checkpoint a is not used: file name {name!r} leads outside"]


def test_only_what_stands_before_the_good_one_is_verified(tmp_path: Path) -> None:
    (put(tmp_path, "old", 1, 1) / "model").write_bytes(b"damaged")
    put(tmp_path, "new", 1, 2)
    assert find_newest(tmp_path, "j")[1] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "other"},
        {"job_id": None},
        {"generation": -1},
        {"generation": True},
        {"step": 1.5},
        {"step": "7"},
        {"step": 2**70},
        {"files": {}},
        {"files": ["model"]},
        {"files": {"model": 5}},
        {"files": {"../old/model": "0"}},
        {"files": {"/etc/hostname": "0"}},
        {"files": {"": "0"}},
        {"files": {"a\0b": "0"}},
        {"files": {"sub": "0"}},
        {"files": {"x" * 5000: "0"}},
        {"files": {"\ud800": "0"}},
    ],
)
def test_a_manifest_that_cannot_be_is_passed_over_with_a_sentence(tmp_path: Path, changes: dict[str, Any]) -> None:
    put(tmp_path, "old", 1, 1)
    edit(put(tmp_path, "new", 2, 2), **changes)
    found, problems = find_newest(tmp_path, "j")
    assert found is not None and found.name == "old"
    assert len(problems) == 1 and problems[0].startswith("checkpoint new is not used: ")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 20) + b"{}"])
def test_a_manifest_that_is_no_json_object_is_passed_over(tmp_path: Path, text: bytes) -> None:
    (put(tmp_path, "new", 2, 2) / "manifest.json").write_bytes(text)
    assert find_newest(tmp_path, "j")[0] is None


def test_junk_beside_the_checkpoints_hurts_nobody(tmp_path: Path) -> None:
    put(tmp_path, "good", 1, 1)
    put(tmp_path, ".tmp-g9-s9", 9, 9)
    put(tmp_path, "bad-g8-s8", 8, 8)
    put(tmp_path / "elsewhere", "target", 7, 7)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "target")
    (tmp_path / "1e9").mkdir()
    (tmp_path / "a b🙂").mkdir()
    put(tmp_path, "a\nb", 9, 9)
    put(tmp_path, "\udcff", 9, 9)
    (tmp_path / "file").write_text("x")
    found, problems = find_newest(tmp_path, "j")
    assert found is not None and found.name == "good" and len(problems) == 3


def test_a_pipe_among_the_files_does_not_block(tmp_path: Path) -> None:
    path = put(tmp_path, "a", 1, 1)
    (path / "model").unlink()
    os.mkfifo(path / "model")
    (put(tmp_path, "b", 1, 2) / "manifest.json").unlink()
    os.mkfifo(tmp_path / "b" / "manifest.json")
    found, problems = find_newest(tmp_path, "j")
    assert found is None and len(problems) == 2


def test_a_folder_that_is_a_file_is_a_problem_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    found, problems = find_newest(tmp_path / "f", "j")
    assert found is None and problems == ["the checkpoint folder cannot be read: Not a directory"]


def test_a_watch_finds_each_newer_checkpoint_once(tmp_path: Path) -> None:
    watch = CheckpointWatch(tmp_path / "none", "j")
    assert watch.find_newer() is None
    watch = CheckpointWatch(tmp_path, "j")
    put(tmp_path, "a", 1, 10)
    assert watch.find_newer() == Checkpoint(name="a", step=10, generation=1)
    assert watch.find_newer() is None
    put(tmp_path, "older", 1, 5)
    put(tmp_path, "theirs", 9, 9, job="another")
    assert watch.find_newer() is None
    put(tmp_path, "b", 2, 1)
    assert watch.find_newer() == Checkpoint(name="b", step=1, generation=2)


def test_a_watch_knows_the_bytes_of_what_it_has_verified_last(tmp_path: Path) -> None:
    watch = CheckpointWatch(tmp_path, "j")
    assert watch.size == 0
    put(tmp_path, "a", 1, 10, content=b"x" * 1000)
    watch.find_newer()
    assert watch.size == 1000
    put(tmp_path, "b", 1, 20, content=b"x" * 3000)
    (put(tmp_path, "bad", 1, 30, content=b"x" * 5000) / "model").write_bytes(b"torn")
    watch.find_newest()
    assert watch.size == 3000


def test_a_watch_reads_nothing_again_however_many_lie_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(50):
        put(tmp_path, f"s{step}", 1, step)
    read: list[str] = []
    whole = checkpoints.matches
    monkeypatch.setattr(checkpoints, "matches", lambda path, digest: read.append(str(path)) or whole(path, digest))
    watch = CheckpointWatch(tmp_path, "j")
    assert watch.find_newer() == Checkpoint(name="s49", step=49, generation=1)
    assert all("s49" in path for path in read) and len(read) == 2
    assert watch.find_newer() is None and len(read) == 2


def test_a_watch_passes_over_what_is_damaged_or_half_written_until_it_is_complete(tmp_path: Path) -> None:
    watch = CheckpointWatch(tmp_path, "j")
    put(tmp_path, "good", 1, 1)
    (put(tmp_path, "bad", 1, 2) / "model").write_bytes(b"weighty")
    whole = put(tmp_path, "half", 1, 3) / "manifest.json"
    text = whole.read_text()
    whole.write_text(text[:20])
    assert watch.find_newer() == Checkpoint(name="good", step=1, generation=1)
    whole.write_text(text)
    assert watch.find_newer() == Checkpoint(name="half", step=3, generation=1)
