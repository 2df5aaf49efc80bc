"""A reshape in place keeps its checkpoint in memory first: what is lost then, what not, and what is told as saved."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.checkpoints import newest_good
from tests.fakes.shim_client import ShimProcess, running_shim, trainer
from tests.interpreters import python_of
from tests.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
BULK = 300_000  # bytes


class Training:
    """A shim with a trainer whose state is a chain of digests: each step shows in all that follow."""

    def __init__(self, shim: ShimProcess, folder: Path) -> None:
        self.shim, self.folder, self.disk = shim, folder, folder / "checkpoints"

    def start(self, generation: int, checkpoint: str | None = None) -> None:
        (self.folder / "looked").unlink(missing_ok=True)
        assert self.shim.client.start(generation, ["A"], checkpoint=checkpoint)["ok"]

    def run(self, generation: int, checkpoint: str | None = None) -> tuple[int, str]:
        """Start a generation; return at which step it began and where its checkpoint was, once it has trained on."""
        self.start(generation, checkpoint)
        return self.begun(generation)

    def begun(self, generation: int) -> tuple[int, str]:
        pattern = rf"begins={generation} at=(\d+) path=(\S+)\n(?:step=.*\n){{3}}"
        found = eventually(lambda: re.search(pattern, self.output()), f"generation {generation} trains")
        return int(found[1]), found[2]

    def stop(self, generation: int, in_place: bool = True, **more: Any) -> dict[str, Any]:
        """Stop it and return the status once its end is told."""
        self.shim.client.stop(generation, in_place=in_place, **more)
        status = self.shim.client.wait("exited")
        assert status["exit_code"] == 143, self.output()[-500:]
        return status

    def output(self) -> str:
        return self.shim.output.read_text() if self.shim.output.exists() else ""

    def steps(self) -> list[int]:
        """The steps done, in order. Each one's state is that of a training that nothing has interrupted."""
        found = [(int(step), state) for step, state in re.findall(r"^step=(\d+) state=(\w+)$", self.output(), re.M)]
        states, state = [b""], b""
        for step in range(max((step for step, _ in found), default=0)):
            state = hashlib.sha256(state + str(step).encode()).digest()
            states.append(state)
        assert all(states[step].hex() == shown for step, shown in found)
        return [step for step, _ in found]

    def done_once(self) -> bool:
        steps = self.steps()
        return steps == [*range(1, len(steps) + 1)]

    def saved(self) -> str | None:
        """What a sidecar calls the newest verified checkpoint."""
        found = newest_good(self.disk, "j")
        return found and found.name

    @property
    def memory(self) -> Path:
        pid = self.shim.client.status()["trainer_pid"]
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return Path(next(one for one in variables if one.startswith(b"RESHAPE_MEMORY=")).partition(b"=")[2].decode())

    def writers(self) -> list[int]:
        found = []
        for pid in self.shim.left():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found += [pid] if b"memory.py" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
        return found

    def stop_held(self, generation: int, **more: Any) -> tuple[dict[str, Any], Path, int]:
        """Stop it in place, with a disk that hangs: return status, folder in memory and the writer, which is frozen."""
        memory, hold = self.memory, self.folder / "hold-exit"
        hold.touch()
        self.shim.client.stop(generation, in_place=True, **more)
        (writer,) = eventually(self.writers, "a writer waits")
        os.kill(writer, signal.SIGSTOP)
        hold.unlink()
        return self.shim.client.wait("exited"), memory, writer


@contextlib.contextmanager
def training(folder: Path, bulk: int = BULK, env: dict[str, str] | None = None, **launch: Any) -> Iterator[Training]:
    folder.mkdir(exist_ok=True)
    disk = folder / "checkpoints"
    disk.mkdir(exist_ok=True)
    env = {"RESHAPE_CHECKPOINTS": str(disk), "PYTHONPATH": str(ROOT), **(env or {})}
    command = trainer("chain", str(bulk))
    with running_shim(folder, command, env=env, **{"workdir": str(folder), **launch}) as shim:
        yield Training(shim, folder)


def held(memory: Path) -> list[str]:
    """The copies in memory that are not on the disk."""
    names = [path for path in memory.glob("g*") if not (path / "manifest.json").is_symlink()]
    return sorted(path.name for path in names)


def thawed(writer: int) -> None:
    os.kill(writer, signal.SIGCONT)


def test_the_next_trainer_loads_from_memory_while_the_disk_hangs_and_the_disk_has_it_afterwards(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        name = status["in_memory"]["name"]
        assert (held(memory), one.saved()) == ([name], None)
        assert stat.S_IMODE(memory.stat().st_mode) == 0o700
        assert one.run(2) == (status["in_memory"]["step"], str(memory / name))
        assert one.saved() is None
        thawed(writer)
        eventually(lambda: one.saved() == name, "the disk has it")
        eventually(lambda: not one.writers(), "the writer has ended")
        assert held(memory) == [] and all(file.is_symlink() for file in (memory / name).iterdir())
        assert one.stop(3, in_place=False)["exit_code"] == 143
        assert one.done_once() and one.saved() == f"g2-s{one.steps()[-1]}"
    assert not memory.exists()


def test_a_path_in_memory_stays_good_when_the_memory_is_freed_before_it_is_loaded(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        (one.folder / "hold-load").touch()
        one.start(2)
        eventually((one.folder / "looked").exists, "it has chosen its checkpoint")
        thawed(writer)
        eventually(lambda: one.saved() and not held(memory) and not one.writers(), "the memory is freed")
        (one.folder / "hold-load").unlink()
        assert one.begun(2) == (status["in_memory"]["step"], str(memory / status["in_memory"]["name"]))
        assert one.done_once()


def test_a_start_after_the_disk_has_it_is_not_held_to_an_older_checkpoint_that_the_coordinator_knew(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        one.stop(2, in_place=False)
        old = one.saved()
        one.run(2)
        status = one.stop(3)
        eventually(lambda: one.saved() == status["in_memory"]["name"], "the disk has it")
        assert one.run(3, checkpoint=old)[0] == status["in_memory"]["step"]
        assert one.done_once()


@pytest.mark.parametrize("how", ["not in place", "switched off"])
def test_other_stops_and_jobs_that_do_not_want_it_save_on_the_disk_as_before(tmp_path, how):
    with training(tmp_path / "one", env={"RESHAPE_MEMORY": "0"} if how == "switched off" else {}) as one:
        one.run(1)
        status = one.stop(2, in_place=how != "not in place")
        assert (status["in_memory"], one.writers()) == (None, [])
        assert one.saved() == f"g1-s{one.steps()[-1]}"
        assert one.run(2)[1].startswith(str(one.disk)) and one.done_once()


def test_the_end_of_a_later_stop_is_told_when_the_disk_has_what_was_in_memory(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        one.run(2)
        pid = one.shim.client.status()["trainer_pid"]
        one.shim.client.stop(3, grace_s=1000)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the trainer has ended")
        assert one.shim.client.status()["trainer"] == "stopping"
        thawed(writer)
        one.shim.client.wait("exited")
        assert held(memory) == []
        assert {status["in_memory"]["name"], one.saved()} == {path.name for path in one.disk.glob("g*")}


def test_a_later_stop_waits_no_longer_than_its_grace_for_a_disk_that_hangs(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        one.stop_held(2)
        one.run(2)
        one.stop(3, in_place=False, grace_s=1)
        assert one.saved() == f"g2-s{one.steps()[-1]}" and one.done_once()


def test_two_reshapes_in_a_row_lose_nothing_when_the_first_is_not_on_the_disk_yet(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        _, _, writer = one.stop_held(2)
        one.run(2)
        one.stop(3)
        assert one.saved() == f"g2-s{one.steps()[-1]}"  # saved as without memory, which holds one at a time
        assert one.run(3)[1].startswith(str(one.disk))
        thawed(writer)
        eventually(lambda: not one.writers(), "the first one is written")
        one.stop(4)
        eventually(lambda: (one.saved() or "").startswith("g3-"), "the third one is written")
        assert one.run(4)[0] and one.done_once()


@pytest.mark.parametrize("before", [True, False])
def test_a_copy_that_is_damaged_is_never_loaded_and_never_replaced_by_a_start_from_zero(tmp_path, before):
    with training(tmp_path / "one") as one:
        one.run(1)
        if before:
            one.stop(2, in_place=False)
            one.run(2)
        durable = one.saved()
        status, memory, writer = one.stop_held(3)
        name = status["in_memory"]["name"]
        with (memory / name / "bulk").open("r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        for generation in (3, 4):  # again after a crash, too
            one.start(generation)
            if before:
                assert one.begun(generation)[0] == int(str(durable).partition("-s")[2])
                one.stop(generation + 1, in_place=False, grace_s=0.5)
                durable = one.saved()
            else:
                assert one.shim.client.wait("exited")["exit_code"] == 1
                assert "refusing to start from zero" in one.output()
        thawed(writer)
        eventually(lambda: not one.writers(), "the writer has ended")
        assert (one.disk / f"bad-{name}").is_dir() and not (one.disk / name).exists()
        assert one.saved() == durable
        one.steps()


def test_where_memory_is_short_as_in_a_pod_it_saves_on_the_disk_and_says_nothing(tmp_path):
    small = 'mount -t tmpfs -o size=8m none /dev/shm && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--user", "--mount", "sh", "-c", small, "sh"]
    if os.system(" ".join(prefix[:4]) + " true") != 0:
        pytest.skip("this machine lets nobody mount a small /dev/shm")
    with training(tmp_path / "one", bulk=4_000_000, prefix=prefix) as one:
        one.run(1)
        status = one.stop(2)
        assert status["in_memory"] is None and one.saved() == f"g1-s{one.steps()[-1]}"
        assert "shim:" not in (one.folder / "stderr").read_text()
        assert one.run(2)[1].startswith(str(one.disk)) and one.done_once()


@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_another_user_has_put_there_is_neither_used_nor_touched(tmp_path, what):
    if os.geteuid() != 0:
        pytest.skip("only root can make the folder of another user")
    with training(tmp_path / "one") as one:
        one.run(1)
        memory, target = one.memory, tmp_path / "target"
        target.mkdir(0o700)
        if what == "folder":
            memory.mkdir(0o700)
            os.chown(memory, 12345, 12345)
        else:
            memory.symlink_to(target)
        try:
            assert one.stop(2)["in_memory"] is None
            assert one.saved() and one.run(2)[1].startswith(str(one.disk)) and one.done_once()
            assert list(memory.iterdir()) == list(target.iterdir()) == []
        finally:
            memory.rmdir() if what == "folder" else memory.unlink()


def test_a_writer_that_is_killed_begins_again(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        os.kill(writer, signal.SIGKILL)
        eventually(lambda: one.saved() == status["in_memory"]["name"] and not held(memory), "another one writes it")
        assert one.run(2)[0] == status["in_memory"]["step"] and one.done_once()


def test_a_disk_that_refuses_is_tried_again_until_it_takes_it(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        one.disk.rename(one.folder / "away")
        one.disk.mkdir()
        status, memory, writer = one.stop_held(2)
        one.disk.rmdir()
        one.disk.write_text("no folder")
        thawed(writer)
        one.shim.client.wait("exited")
        eventually(lambda: "in memory only" in (one.folder / "stderr").read_text(), "it is said")
        one.disk.unlink()
        eventually(lambda: one.saved() == status["in_memory"]["name"] and not held(memory), "it is written")


def test_a_trainer_that_is_killed_after_it_has_loaded_from_memory_is_started_from_there_again(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, _ = one.stop_held(2)
        for generation in (2, 3):
            assert one.run(generation) == (status["in_memory"]["step"], str(memory / status["in_memory"]["name"]))
            os.kill(one.shim.client.status()["trainer_pid"], signal.SIGKILL)
            one.shim.client.wait("exited")
        one.steps()


def test_half_a_copy_of_a_killed_trainer_is_nothing(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        one.stop(2, in_place=False)
        durable = one.saved()
        one.run(2)
        memory, hold = one.memory, one.folder / "hold-exit"
        hold.touch()
        one.shim.client.stop(3, in_place=True)
        whole = eventually(lambda: held(memory), "it has saved")[0]
        (memory / whole).rename(memory / f".tmp-{whole}-1")  # as before its last step
        os.kill(one.shim.client.status()["trainer_pid"], signal.SIGKILL)
        assert one.shim.client.wait("exited")["in_memory"] is None
        assert not list(memory.glob(".tmp-*")), "its memory is free again"
        hold.unlink()
        eventually(lambda: not one.writers(), "there is nothing to write")
        assert one.saved() == durable
        assert one.run(3)[0] == int(str(durable).partition("-s")[2])


def test_a_writer_whose_shim_is_killed_goes_on_and_the_launch_is_not_gone_before_it_has_ended(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        one.shim.process.kill()
        one.shim.process.wait()
        lock = (one.folder / "shim.lock").open("rb")
        with lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        thawed(writer)
        eventually(lambda: not memory.exists() and not one.writers(), "it has written and freed the memory")
        assert one.saved() == status["in_memory"]["name"]


@pytest.mark.parametrize("when", ["while it waits", "while it writes"])
def test_what_a_killed_shim_and_its_killed_writer_leave_is_taken_over_by_the_next_launch_of_the_job(tmp_path, when):
    with training(tmp_path / "one") as one:
        one.run(1)
        if when == "while it writes":
            _, memory, writer = one.stop_held(2)
        else:
            memory = one.memory
            (one.folder / "hold-exit").touch()
            one.shim.client.stop(2, in_place=True)
            (writer,) = eventually(one.writers, "a writer waits")
            eventually(lambda: held(memory), "it is in memory")
            os.kill(writer, signal.SIGSTOP)
        (name,) = held(memory)
        one.shim.process.kill()
        one.shim.process.wait()
        os.kill(writer, signal.SIGKILL)
        eventually(lambda: not one.shim.left(), "all has ended")
        at = int(name.rpartition("s")[2])  # what it printed last, its killed shim may not have read
    assert held(memory) == [name]
    env = {"RESHAPE_CHECKPOINTS": str(one.disk)}
    with training(tmp_path / "two", env=env) as two:
        assert two.run(3)[0] == at
        eventually(lambda: newest_good(one.disk, "j"), "the disk has it")
        assert not memory.exists()
        two.stop(4)
    assert not list(Path("/dev/shm").glob(memory.name.rpartition("-")[0] + "*"))


def test_the_next_launch_of_a_job_leaves_the_memory_of_one_that_lives_alone(tmp_path):
    with training(tmp_path / "one") as one:
        one.run(1)
        status, memory, writer = one.stop_held(2)
        with training(tmp_path / "two", env={"RESHAPE_CHECKPOINTS": str(one.disk)}):
            assert held(memory) == [status["in_memory"]["name"]]
        thawed(writer)
        eventually(lambda: one.saved() == status["in_memory"]["name"] and not one.writers(), "it is written as ever")
        assert one.run(2)[0] == status["in_memory"]["step"] and one.done_once()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_job_that_ends_has_its_memory_freed_with_the_disk_written_where_it_does_not_hang(tmp_path, hangs):
    with training(tmp_path / "one", grace_s=1) as one:
        one.run(1)
        if hangs:
            _, memory, _ = one.stop_held(2)
        else:
            memory = one.memory
            one.stop(2)
        one.shim.client.ask("end")
        eventually(lambda: one.shim.process.poll() is not None, "the shim ends")
        assert not memory.exists() and not one.writers()
        lost = "is lost" in (one.folder / "stderr").read_text()
        assert (one.saved() is None, lost) == (hangs, hangs)


def test_a_job_that_ends_while_its_disk_refuses_is_on_the_disk_once_that_takes_it_within_the_grace(tmp_path):
    with training(tmp_path / "one", grace_s=1000) as one:
        one.run(1)
        one.disk.rename(one.folder / "away")
        one.disk.mkdir()
        status, _, writer = one.stop_held(2)
        one.disk.rmdir()
        one.disk.write_text("no folder")
        thawed(writer)

        def refusals() -> int:
            return (one.folder / "stderr").read_text().count("in memory only")

        eventually(refusals, "it is said")
        one.shim.client.ask("end")
        before = refusals()
        eventually(lambda: refusals() > before, "it is tried again before the end")
        one.disk.unlink()
        eventually(lambda: one.shim.process.poll() is not None, "the shim ends")
        assert one.saved() == status["in_memory"]["name"]


def test_shim_and_writer_do_so_on_the_oldest_python(tmp_path):
    with training(tmp_path / "one", python=python_of("3.8")) as one:
        one.run(1)
        status = one.stop(2)
        assert status["in_memory"]
        eventually(lambda: one.saved() == status["in_memory"]["name"], "the disk has it")
        assert one.run(2)[0] == status["in_memory"]["step"] and one.done_once()
