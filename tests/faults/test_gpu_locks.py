"""One real GPU is given to one training of the whole machine: real shims of two folders, and locks of other users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import gpu_locks
from tests.fakes.shim_client import running_shim, trainer
from tests.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
TAKE = """
import os, sys
from sidecar import gpu_locks
os.setuid(int(sys.argv[2]))
os.umask(0o077)
print(gpu_locks.take_lock(sys.argv[1]) is not None, flush=True)
input()
"""
# A training with a worker in a session of its own.
FORKS = """
import os, sys, time
from reshape_hooks import plain
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
stop = plain.StopFlag(plain.environment().announce)
open("forked-" + os.environ["RESHAPE_GENERATION"], "w").close()
while not stop.stopping:
    time.sleep(0.05)
sys.exit(143)
"""


@pytest.fixture
def gpu() -> Iterator[str]:
    """A GPU that no machine has."""
    name = f"GPU-{uuid.uuid4()}"
    yield name
    Path(gpu_locks.path_of(name)).unlink(missing_ok=True)


def taker(gpu: str, user: int) -> subprocess.Popen[str]:
    """A process of another user that takes the lock and holds it until its input ends."""
    command = [sys.executable, "-c", TAKE, gpu, str(user)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def took(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "True\n"


def test_the_trainings_of_two_folders_are_never_on_one_real_gpu(tmp_path: Path, gpu: str) -> None:
    with (
        running_shim(tmp_path / "one", trainer("counts"), gpus="nvml") as one,
        running_shim(tmp_path / "two", trainer("counts"), gpus="nvml") as two,
    ):
        assert one.client.start(1, [gpu])["status"]["trainer"] == "running"
        status = two.client.start(1, [gpu])["status"]
        assert (status["trainer"], status["trainer_pid"]) == ("exited", None)
        assert status["taken"].startswith(f"GPU {gpu} is used by process {one.process.pid} (")
        assert not two.output.exists() or two.output.read_text() == ""
        one.client.stop(2)
        one.client.wait("exited")
        assert two.client.start(2, [gpu])["status"]["taken"] == ""
        assert two.client.wait("running")["gpu_ids"] == [gpu]


def test_emulated_gpus_and_those_that_a_kubelet_gives_are_not_locked(tmp_path: Path, gpu: str) -> None:
    for more in ({"gpus": "emulated"}, {"gpus": "nvml", "pod": True, "output": str(tmp_path / "out")}):
        with running_shim(tmp_path / str(len(more)), trainer("counts"), **more) as shim:
            shim.client.start(1, [gpu])
            shim.client.wait("running")
            assert gpu_locks.holder(gpu) is None
            shim.client.stop(2)
            shim.client.wait("exited")


def test_a_gpu_stays_locked_while_a_process_of_a_killed_shim_lives(tmp_path: Path, gpu: str) -> None:
    with running_shim(tmp_path, trainer("forks_setsid"), gpus="nvml") as shim:
        shim.client.start(1, [gpu])
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.process.kill()
        shim.process.wait()
        (left,) = eventually(lambda: found if len(found := shim.left()) == 1 else None, "its child alone lives") or []
        assert gpu_locks.take_lock(gpu) is None
        os.kill(left, signal.SIGKILL)
        lock = eventually(lambda: gpu_locks.take_lock(gpu), "nothing of it lives")
        assert lock is not None
        os.close(lock)


def test_it_stays_locked_also_where_the_training_began_in_an_interpreter_that_had_waited(
    tmp_path: Path, gpu: str
) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, "forks.py"]
    env = {"RESHAPE_WARM": "0.2", "PYTHONPATH": "", "PYTHONSAFEPATH": ""}
    with running_shim(tmp_path, command, gpus="nvml", hooks=True, workdir=str(tmp_path), env=env) as shim:
        shim.client.start(1, [gpu])
        eventually(lambda: shim.client.status()["warm"].startswith("ready"), "an interpreter waits")
        shim.client.stop(1)
        shim.client.wait("exited")
        shim.client.start(2, [gpu])
        eventually(lambda: (tmp_path / "forked-2").exists(), "it trains")
        assert not shim.client.status()["cold"]
        shim.process.kill()
        shim.process.wait()
        eventually(lambda: len(shim.left()) == 1, "its child alone lives")
        assert gpu_locks.take_lock(gpu) is None
        for left in shim.left():
            os.kill(left, signal.SIGKILL)
        lock = eventually(lambda: gpu_locks.take_lock(gpu), "nothing of it lives")
        assert lock is not None
        os.close(lock)


def test_a_lock_holds_against_any_user(gpu: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as two users")
    first = taker(gpu, user=65534)
    try:
        assert took(first)
        assert gpu_locks.take_lock(gpu) is None
        assert gpu_locks.holder(gpu) == first.pid
        assert gpu_locks.described(first.pid).endswith(" of nobody")
        other = taker(gpu, user=65533)
        assert not took(other)
        other.communicate("\n")
    finally:
        first.communicate("\n")
    last = taker(gpu, user=65533)  # though the file is another user's
    assert took(last)
    last.communicate("\n")


def test_the_user_who_made_the_file_of_a_lock_cannot_remove_it_while_root_holds_it(gpu: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as two users")
    first = taker(gpu, user=65534)
    assert took(first)
    first.communicate("\n")
    lock = gpu_locks.take_lock(gpu)
    assert lock is not None
    removes = [sys.executable, "-c", "import os, sys; os.setuid(65534); os.unlink(sys.argv[1])", gpu_locks.path_of(gpu)]
    removed = subprocess.run(removes, capture_output=True, text=True, check=False)
    assert "PermissionError" in removed.stderr
    again = taker(gpu, user=65534)
    assert not took(again)
    again.communicate("\n")
    os.close(lock)


def test_a_file_that_is_removed_just_before_it_is_locked_is_no_lock(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = gpu_locks._opened
    removed: list[str] = []

    def removed_then(path: str) -> int:
        file = opened(path)
        if not removed:
            removed.append(path)
            Path(path).unlink()
        return file

    monkeypatch.setattr(gpu_locks, "_opened", removed_then)
    lock = gpu_locks.take_lock(gpu)
    assert lock is not None
    assert gpu_locks.holder(gpu) == os.getpid()
    os.close(lock)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_somebody_puts_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, gpu: str, kind: str) -> None:
    path, target = Path(gpu_locks.path_of(gpu)), tmp_path / "target"
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    try:
        with pytest.raises(gpu_locks.Unusable, match=rf"{path}.*remove it"):
            gpu_locks.take_lock(gpu)
        assert not target.exists()
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
