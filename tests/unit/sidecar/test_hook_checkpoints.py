"""Checkpoints that are whole or refused: promise P3 of `reliability.md`, rows 8 and 9 of its section 7."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshape_hooks import plain
from reshape_hooks.adapters import session
from reshape_hooks.plain import CheckpointError, Checkpoints, boottime
from sidecar.memory import write_copies
from sidecar.output.progress import ProgressReader

ROOT = Path(__file__).parents[3]
FILES = {"weights.bin": b"weights" * 10, "velocity.bin": lambda path: Path(path).write_bytes(b"velocity" * 10)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def two_saved(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder, "job", 1)
    checkpoints.save(10, FILES)
    checkpoints.save(20, FILES)
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


# Saving


@pytest.fixture
def memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory as the shim offers it, with room for 1000 bytes."""
    with tempfile.TemporaryDirectory(prefix="reshape-test-", dir="/dev/shm") as there:
        (Path(there) / "room").write_text("1000")
        folder.mkdir()
        monkeypatch.setenv("RESHAPE_CHECKPOINTS", str(folder))
        monkeypatch.setenv("RESHAPE_MEMORY", there)
        yield Path(there)


def test_what_fits_is_kept_in_the_memory_that_is_offered_and_said_to_be_there(folder, memory, capsys):
    checkpoints = Checkpoints(folder, "job", 1)
    checkpoints.save(6, {"a": b"x"})
    checkpoints.save(7, {"a": b"x" * 1000})
    assert names(memory) == ["g1-s7", "room"] and names(folder) == []
    assert capsys.readouterr().out.splitlines()[1].startswith("checkpoint=g1-s7 step=7 in=memory time=")
    assert Checkpoints(folder, "job", 2).newest("g1-s7").path == memory / "g1-s7"
    assert Checkpoints(folder / "training-2", "job", 1).newest() is None


@pytest.mark.parametrize(
    "why", ["too large", "size not known", "larger than the last one", "not offered", "open to others", "a link"]
)
def test_what_may_not_be_kept_in_memory_is_on_the_disk(folder, memory, monkeypatch, why, tmp_path):
    checkpoints, files = Checkpoints(folder, "job", 1), {"a": b"x"}
    if why == "too large":
        files = {"a": b"x" * 1001}
    elif why == "size not known":
        files = {"a": lambda path: Path(path).write_bytes(b"x")}
    elif why == "larger than the last one":
        (memory / "room").rename(memory / "later")
        checkpoints.save(6, {"a": b"x" * 1000})
        (memory / "later").rename(memory / "room")
        files = {"a": lambda path: Path(path).write_bytes(b"x")}
    elif why == "not offered":
        (memory / "room").unlink()
    elif why == "open to others":
        memory.chmod(0o755)
    else:
        (tmp_path / "link").symlink_to(memory)
        monkeypatch.setenv("RESHAPE_MEMORY", str(tmp_path / "link"))
    checkpoints.save(7, files)
    assert "g1-s7" in names(folder) and "g1-s7" not in names(memory)


def test_files_that_a_library_cannot_write_in_memory_it_writes_on_the_disk(folder, memory):
    checkpoints = Checkpoints(folder, "job", 1)
    (folder / "g1-s1").mkdir()
    (folder / "g1-s1" / "of").write_bytes(b"a known size")
    tried: list[Path] = []

    def write(place: Path) -> None:
        tried.append(place.parent)
        (place / "a").write_bytes(b"x")
        if place.is_relative_to(memory):
            raise RuntimeError("as PyTorch says that no space is left")

    written = session.written(checkpoints, 7, write)
    assert tried == [memory, folder] and names(written) == ["a"] and names(memory) == ["room"]


@pytest.mark.parametrize("fault", ["full", "other file system"])
def test_where_a_save_in_memory_fails_the_disk_has_it(folder, memory, tmp_path, fault):
    (folder / "g1-s1").mkdir()
    (folder / "g1-s1" / "of").write_bytes(b"a known size")
    written = tmp_path / "by a library"
    written.write_bytes(b"x")

    def moved(path: str) -> None:
        if fault == "full" and path.startswith("/dev/shm"):
            raise OSError(28, "No space left on device")
        written.replace(path)

    Checkpoints(folder, "job", 1).save(7, {"a": moved})
    assert names(memory) == ["room"]
    assert (folder / "g1-s7" / "a").read_bytes() == b"x"


def test_a_newer_checkpoint_on_the_disk_wins_over_the_one_in_memory(folder, memory):
    Checkpoints(folder, "job", 1).save(7, {"a": b"x"})
    (memory / "room").unlink()
    assert Checkpoints(folder, "job", 2).newest().path == memory / "g1-s7"
    Checkpoints(folder, "job", 1).save(8, {"a": b"x"})
    assert Checkpoints(folder, "job", 2).newest().path == folder / "g1-s8"


def test_a_saved_checkpoint_is_found_again_with_all_its_files(folder):
    assert Checkpoints(folder, "job", 3).save(7, FILES) == "g3-s7"
    saved = Checkpoints(folder, "job", 4).newest()
    assert saved == ("g3-s7", folder / "g3-s7", 3, 7)
    assert (saved.path / "weights.bin").read_bytes() == b"weights" * 10
    assert (saved.path / "velocity.bin").read_bytes() == b"velocity" * 10
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert (manifest["job_id"], manifest["generation"], manifest["step"]) == ("job", 3, 7)
    assert names(folder) == ["g3-s7"]


def test_each_save_says_so_in_a_line_that_the_sidecar_reads(folder, capsys):
    before = boottime()
    Checkpoints(folder, "job", 1).save(7, FILES)
    line = capsys.readouterr().out
    name, step, time, took = line.split()
    assert (name, step) == ("checkpoint=g1-s7", "step=7")
    reader = ProgressReader()
    reader.line(line.strip(), boottime())
    assert reader.progress.save_s == float(took.removeprefix("took=")) <= boottime() - before + 0.001
    assert before <= float(time.removeprefix("time=")) + 1e-6 <= boottime() + 1e-6


def test_files_are_forced_to_disk_before_the_manifest_and_the_manifest_before_the_rename(folder, monkeypatch):
    order: list[str] = []
    real_sync, real_rename = plain._sync, Path.rename
    monkeypatch.setattr(plain, "_sync", lambda *all: (order.extend(one.name for one in all), real_sync(*all))[1])
    monkeypatch.setattr(Path, "rename", lambda self, to: (order.append("rename"), real_rename(self, to))[1])
    Checkpoints(folder, "job", 1).save(7, FILES)
    temporary = f".tmp-g1-s7-{os.getpid()}"
    assert order == ["weights.bin", "velocity.bin", "manifest.json", temporary, "rename", "checkpoints"]


def test_saving_the_same_step_again_keeps_the_good_checkpoint(folder):
    checkpoints = Checkpoints(folder, "job", 1)
    checkpoints.save(7, FILES)
    assert checkpoints.save(7, {"weights.bin": b"other"}) == "g1-s7"
    assert (folder / "g1-s7" / "weights.bin").read_bytes() == b"weights" * 10


def test_saving_a_step_whose_checkpoint_is_damaged_replaces_it(folder):
    checkpoints = two_saved(folder)
    (folder / "g1-s20" / "weights.bin").write_bytes(b"")
    checkpoints.save(20, FILES)
    assert checkpoints.newest().name == "g1-s20"
    assert "bad-g1-s20" in names(folder)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/x", "manifest.json"])
def test_a_file_name_that_leaves_the_checkpoint_is_refused(folder, name):
    with pytest.raises(CheckpointError, match="cannot be a file name"):
        Checkpoints(folder, "job", 1).save(7, {name: b"x"})
    assert names(folder) == []


def test_a_disk_that_fills_up_leaves_the_old_checkpoint_and_nothing_else(folder):
    checkpoints = two_saved(folder)
    script = """
        import resource, sys
        from reshape_hooks.plain import Checkpoints, CheckpointError
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            Checkpoints(sys.argv[1], "job", 1).save(30, {"a": b"x" * 100, "b": b"x" * 100_000})
        except CheckpointError as error:
            print(error)
    """
    out = run(script, folder).stdout
    assert "the checkpoint of step 30 could not be saved" in out
    assert "make room there" in out
    assert names(folder) == ["g1-s10", "g1-s20"]
    assert checkpoints.newest().step == 20


def test_a_library_that_fails_in_the_middle_leaves_the_old_checkpoint_and_nothing_else(folder):
    checkpoints = two_saved(folder)

    def breaks(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("unable to flush")

    with pytest.raises(CheckpointError, match=r"step 30 could not be saved.*unable to flush"):
        checkpoints.save(30, {"a": b"x", "b": breaks})
    assert names(folder) == ["g1-s10", "g1-s20"]


def test_a_writer_that_writes_nothing_is_an_error_not_an_empty_checkpoint(folder):
    with pytest.raises(CheckpointError, match="could not be saved"):
        Checkpoints(folder, "job", 1).save(7, {"a": lambda _path: None})
    assert names(folder) == []


def test_a_read_only_folder_can_be_resumed_from_and_refuses_a_save_in_one_sentence(folder):
    two_saved(folder)
    (folder / "g1-s20" / "weights.bin").write_bytes(b"")
    script = """
        import os, sys, encodings.idna
        from reshape_hooks.plain import Checkpoints, CheckpointError
        os.chdir(sys.argv[1])
        os.chmod(".", 0o555)
        if os.getuid() == 0:
            os.setgid(65534), os.setuid(65534)
        checkpoints = Checkpoints(".", "job", 2)
        print(checkpoints.newest().name)
        try:
            checkpoints.save(30, {"a": b"x"})
        except CheckpointError as error:
            print(error)
    """
    out = run(script, folder).stdout
    folder.chmod(0o755)
    assert "g1-s20 is damaged and was left where it is (Permission denied)" in out
    assert "\ng1-s10\n" in out
    assert "step 30 could not be saved in .: Permission denied; make room there or make it writable" in out


# What killed processes leave


@pytest.mark.parametrize("left", [[], ["weights.bin"], ["weights.bin", "velocity.bin", "manifest.json"]])
def test_a_process_killed_before_the_rename_leaves_the_set_all_old(folder, left):
    checkpoints = two_saved(folder)
    half = folder / ".tmp-g1-s30-4711"
    half.mkdir()
    for name in left:
        (half / name).write_bytes((folder / "g1-s20" / name).read_bytes())
    assert checkpoints.newest().name == "g1-s20"
    checkpoints.prune()
    assert names(folder) == ["g1-s10", "g1-s20"]


def test_a_process_killed_at_any_system_call_of_a_save_leaves_all_old_or_all_new(folder):
    """SIGKILL at each of the file operations, by counting audit events down to it."""
    script = """
        import os, signal, sys
        from reshape_hooks.plain import Checkpoints
        left = int(sys.argv[2])
        def hook(event, args):
            global left
            if event in ("open", "os.rename", "os.mkdir", "os.listdir", "os.scandir"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        checkpoints = Checkpoints(sys.argv[1], "job", 2)
        sys.addaudithook(hook)
        checkpoints.save(30, {"a": b"new" * 9, "b": b"new" * 9})
        checkpoints.prune(keep=2)
    """
    seen = set()
    for point in range(100):
        two_saved(folder / str(point))
        code = run(script, folder / str(point), point).returncode
        saved = Checkpoints(folder / str(point), "job", 3).newest()
        seen.add(saved.name)
        assert saved.name in ("g1-s20", "g2-s30")
        assert not list((folder / str(point)).glob("bad-*"))
        if code == 0:
            break
    assert code == 0
    assert point > 8
    assert seen == {"g1-s20", "g2-s30"}


def test_pruning_keeps_the_newest_and_leaves_what_a_later_generation_is_writing(folder):
    for step in (1, 2, 3, 10):
        Checkpoints(folder, "job", 1).save(step, FILES)
    (folder / ".tmp-g2-s11-99").mkdir()
    (folder / "bad-g1-s0").mkdir()
    Checkpoints(folder, "job", 1).prune(keep=2)
    assert names(folder) == [".tmp-g2-s11-99", "bad-g1-s0", "g1-s10", "g1-s3"]


def test_of_two_jobs_in_one_folder_none_prunes_what_the_other_has_saved(folder: Path) -> None:
    """As after both folders were replaced by links to one on a larger disk."""
    other = Checkpoints(folder, "other", 5)
    for step in (1, 2):
        other.save(step, FILES)
    checkpoints = Checkpoints(folder, "job", 1)
    for step in (10, 20, 30):
        checkpoints.save(step, FILES)
        checkpoints.prune()
    assert names(folder) == ["g1-s20", "g1-s30", "g5-s1", "g5-s2"]


def test_a_stop_that_saves_in_memory_leaves_the_deleting_to_the_writer_of_the_copy(folder, memory):
    on_disk = Checkpoints(folder, "job", 1)
    for step in (1, 2, 3):
        on_disk.save(step, {"a": lambda path: Path(path).write_bytes(b"x" * 2000)})
    on_disk.save(4, {"a": b"x"})
    on_disk.prune()
    assert names(memory) == ["g1-s4", "room"]
    assert names(folder) == [".tmp-g1-s1-old", "g1-s2", "g1-s3"]
    assert on_disk.newest().name == "g1-s4"
    write_copies(plain, str(memory), str(folder), "job")
    assert names(folder) == ["g1-s2", "g1-s3", "g1-s4"]
    on_disk.prune()
    assert names(folder) == ["g1-s3", "g1-s4"]


# Choosing


def test_a_later_generation_counts_as_newer_whatever_its_step(folder):
    Checkpoints(folder, "job", 2).save(5, FILES)
    Checkpoints(folder, "job", 10).save(4, FILES)
    Checkpoints(folder, "job", 9).save(100, FILES)
    assert Checkpoints(folder, "job", 11).newest().name == "g10-s4"


def test_the_checkpoint_that_was_asked_for_is_taken_if_it_is_good(folder):
    assert two_saved(folder).newest("g1-s10").name == "g1-s10"


@pytest.mark.parametrize("prefer", ["g1-s15", "../../etc", "manifest.json", "g1-s15\0"])
def test_a_checkpoint_asked_for_that_is_not_there_gives_the_newest_good_one(folder, prefer, capsys):
    assert two_saved(folder).newest(prefer).name == "g1-s20"
    assert "looking for the newest good one" in capsys.readouterr().out


def test_a_checkpoint_asked_for_that_is_gone_with_all_others_is_refused(folder):
    with pytest.raises(CheckpointError, match="refusing to start from zero"):
        Checkpoints(folder, "job", 2).newest("g1-s15")


def test_no_checkpoint_at_all_is_a_start_from_the_beginning(folder):
    assert Checkpoints(folder, "job", 1).newest() is None
    folder.mkdir()
    assert Checkpoints(folder, "job", 1).newest() is None


# Damage


def every_damage() -> list[tuple[str, str, int]]:
    offsets = [("weights.bin", o) for o in (0, 35, 69)] + [("velocity.bin", o) for o in (0, 40, 79)]
    return [("flip", name, offset) for name, offset in offsets] + [
        ("cut", name, keep) for name in ("weights.bin", "velocity.bin", "manifest.json") for keep in (0, 1, 50)
    ]


@pytest.mark.parametrize(("how", "name", "offset"), every_damage())
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(folder, capsys, how, name, offset):
    checkpoints = two_saved(folder)
    path = folder / "g1-s20" / name
    raw = bytearray(path.read_bytes())
    if how == "flip":
        raw[offset] ^= 1
    else:
        del raw[offset:]
    path.write_bytes(raw)
    assert checkpoints.newest().name == "g1-s10"
    assert names(folder) == ["bad-g1-s20", "g1-s10"]
    assert "g1-s20 is damaged and was set aside as bad-g1-s20: " in capsys.readouterr().out


def test_no_flipped_bit_anywhere_in_a_manifest_lets_changed_content_through(folder):
    checkpoints = two_saved(folder)
    manifest = folder / "g1-s20" / "manifest.json"
    good = manifest.read_bytes()
    for offset in range(len(good)):
        for bit in range(8):
            changed = bytearray(good)
            changed[offset] ^= 1 << bit
            manifest.write_bytes(changed)
            fault = checkpoints._fault("g1-s20")
            assert fault is not None or json.loads(changed)["files"] == json.loads(good)["files"]


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"files": 3}', "\xff", "[" * 100_000, "NaN", '"x"'])
def test_a_manifest_of_nonsense_is_damage_not_a_crash(folder, text):
    checkpoints = two_saved(folder)
    (folder / "g1-s20" / "manifest.json").write_text(text, "latin-1")
    assert checkpoints.newest().name == "g1-s10"


def test_a_missing_manifest_a_missing_file_and_an_extra_file_are_damage(folder):
    checkpoints = two_saved(folder)
    checkpoints.save(30, FILES)
    checkpoints.save(40, FILES)
    (folder / "g1-s40" / "manifest.json").unlink()
    (folder / "g1-s30" / "weights.bin").unlink()
    (folder / "g1-s20" / "more.bin").write_bytes(b"x")
    assert checkpoints.newest().name == "g1-s10"


def test_the_manifest_of_another_job_or_another_step_is_damage(folder):
    checkpoints = two_saved(folder)
    Checkpoints(folder, "other", 2).save(5, FILES)
    (folder / "g1-s20").rename(folder / "g1-s99")
    assert checkpoints.newest().name == "g1-s10"
    assert names(folder) == ["bad-g1-s99", "bad-g2-s5", "g1-s10"]


def test_pipes_links_and_folders_instead_of_files_are_damage_and_never_block(folder):
    checkpoints = two_saved(folder)
    for step, swap in ((30, "pipe"), (40, "link"), (50, "folder")):
        checkpoints.save(step, FILES)
        path = folder / f"g1-s{step}" / "weights.bin"
        path.unlink()
        if swap == "pipe":
            os.mkfifo(path)
        elif swap == "link":
            path.symlink_to(folder / "g1-s20" / "weights.bin")
        else:
            path.mkdir()
    assert checkpoints.newest().name == "g1-s20"


def test_junk_in_the_folder_is_left_alone(folder):
    checkpoints = two_saved(folder)
    junk = ["g", "g1", "g1-s", "g-s1", "gx-s1", "g1-s-5", "lost+found", "g1-s1 copy", "g²-s1", "5", ".nfs01", "😀"]
    for name in junk:
        (folder / name).mkdir()
    (folder / "notes.txt").write_text("x")
    assert checkpoints.newest().name == "g1-s20"
    checkpoints.prune()
    assert set(junk) < set(names(folder))


def test_a_name_of_ours_on_something_else_is_set_aside(folder):
    checkpoints = two_saved(folder)
    (folder / "g7-s1").write_text("a file")
    (folder / "g8-s1").symlink_to("nowhere")
    assert checkpoints.newest().name == "g1-s20"
    assert {"bad-g7-s1", "bad-g8-s1"} < set(names(folder))


def test_when_every_checkpoint_is_damaged_training_refuses_to_begin_from_zero_each_time(folder):
    checkpoints = two_saved(folder)
    for name in ("g1-s10", "g1-s20"):
        (folder / name / "weights.bin").write_bytes(b"junk")
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"every checkpoint is damaged .* refusing to start from zero"):
            checkpoints.newest()


def test_a_second_bad_checkpoint_of_one_name_keeps_the_first(folder):
    checkpoints = two_saved(folder)
    for _ in range(3):
        checkpoints.save(30, FILES)
        (folder / "g1-s30" / "weights.bin").write_bytes(b"")
        assert checkpoints.newest().name == "g1-s20"
    assert names(folder) == ["bad-g1-s30", "bad-g1-s30-2", "bad-g1-s30-3", "g1-s10", "g1-s20"]
