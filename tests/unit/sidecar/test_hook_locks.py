"""The oracle: two users of one GPU leave evidence (`reliability.md` 7, above the table)."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from reshape_hooks.locks import GpuLocks, uses, violations
from reshape_hooks.plain import environment

ROOT = Path(__file__).parents[3]

HOLDS = """
    import sys
    from reshape_hooks.locks import GpuLocks
    from reshape_hooks.plain import environment
    locks = GpuLocks(environment())
    print("holds", flush=True)
    for step, _ in enumerate(sys.stdin, 1):
        locks.used(step)
        print("used", flush=True)
"""


class Holder:
    """A process that takes GPUs and uses them once per call of `use`."""

    def __init__(self, folder: Path, job: str, gpus: str) -> None:
        env = os.environ | {
            "RESHAPE_GPU_LOCKS": str(folder), "RESHAPE_JOB_ID": job, "CUDA_VISIBLE_DEVICES": gpus,
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        argv = [sys.executable, "-c", textwrap.dedent(HOLDS)]
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "holds\n"

    def use(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "used\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hold(tmp_path):
    started: list[Holder] = []

    def start(job: str, gpus: str) -> Holder:
        started.append(Holder(tmp_path / "locks", job, gpus))
        return started[-1]

    yield start
    for holder in started:
        holder.kill()


def test_two_processes_on_one_gpu_are_seen_by_lock_and_by_log(hold, tmp_path):
    one, two = hold("one", "GPU-a,GPU-b"), hold("two", "GPU-b,GPU-c")
    for _ in range(3):
        one.use()
        two.use()
    found = violations(tmp_path / "locks")
    assert [(v["kind"], v["gpu"]) for v in found] == [("refused lock", "GPU-b"), ("overlap", "GPU-b")]
    assert found[0]["job"] == "two"


def test_one_process_after_the_other_is_no_violation_even_after_sigkill(hold, tmp_path):
    for job in ("one", "two", "one"):
        holder = hold(job, "GPU-a,GPU-b")
        holder.use()
        holder.use()
        holder.kill()
    assert violations(tmp_path / "locks") == []


def test_the_command_line_of_the_oracle_prints_the_violations(hold, tmp_path):
    hold("one", "GPU-a")
    hold("two", "GPU-a")
    argv = [sys.executable, "-m", "reshape_hooks.locks", str(tmp_path / "locks")]
    printed = json.loads(subprocess.run(argv, capture_output=True, check=True, cwd=ROOT).stdout)
    assert [v["kind"] for v in printed] == ["refused lock"]


def test_overlaps_in_logs_alone_are_violations_and_cut_lines_are_skipped(tmp_path):
    def line(job: str, gpu: str, begin: float, end: float) -> str:
        use = {"gpu": gpu, "job": job, "generation": 1, "pid": 1, "boottime_in": begin, "boottime_out": end, "step": 1}
        return json.dumps(use) + "\n"

    (tmp_path / "a.jsonl").write_text(line("a", "x", 0, 5) + line("a", "x", 5, 9) + line("a", "y", 0, 9))
    (tmp_path / "b.jsonl").write_text(line("b", "x", 9, 12) + line("b", "y", 8, 12) + '{"gpu": "x", "jo')
    assert [(v["kind"], v["gpu"]) for v in violations(tmp_path)] == [("overlap", "y")]


def test_without_a_folder_the_oracle_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    locks = GpuLocks(environment({"CUDA_VISIBLE_DEVICES": "a"}))
    locks.used(1)
    locks.close()
    assert list(tmp_path.iterdir()) == []


def test_locks_of_odd_names_are_different_files_inside_the_folder(tmp_path):
    folder = tmp_path / "locks"
    gpus = "../x,.._2f_x,a b,😀"
    locks = GpuLocks(environment({"CUDA_VISIBLE_DEVICES": gpus, "RESHAPE_GPU_LOCKS": str(folder)}))
    assert len(list(folder.glob("*.lock"))) == 4
    assert violations(folder) == []
    with next(folder.glob("*.lock")).open("a") as lock, pytest.raises(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    locks.close()


def test_a_disk_that_is_full_ends_no_training(tmp_path):
    here = environment({"CUDA_VISIBLE_DEVICES": "a", "RESHAPE_JOB_ID": "job", "RESHAPE_GPU_LOCKS": str(tmp_path)})
    (tmp_path / f"job-g{here.generation}-{os.getpid()}.jsonl").symlink_to("/dev/full")
    locks = GpuLocks(here)
    locks.used(1)
    locks.close()


def test_a_line_that_a_full_disk_has_cut_off_hides_no_other(tmp_path):
    here = environment({"CUDA_VISIBLE_DEVICES": "a", "RESHAPE_JOB_ID": "job", "RESHAPE_GPU_LOCKS": str(tmp_path)})
    locks = GpuLocks(here)
    locks.used(1)
    locks.log.write(b'\n{"gpu": "a", "job": "jo')
    locks.used(2)
    locks.close()
    assert [use["step"] for use in uses(tmp_path, "job")] == [1, 2]
