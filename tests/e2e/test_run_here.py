"""`reshape run`: a command in the user's terminal, on GPUs that a job holds until the command has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import ENDED, ROOT, Up, running, wait_for
from tests.patience import patient

HERE = [sys.executable, "-m", "reshape"]
PRINTS = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['RESHAPE_JOB_ID']); raise SystemExit(7)"
WAITS = "import time; print('begun', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("run") / "state", "2xV100") as found:
        yield found


def reshape(up: Up, *words: str, hangs_up: bool = True) -> subprocess.Popen[str]:
    """`hangs_up`: whether SIGHUP ends what it starts, which nobody has told to ignore it."""
    command = [*HERE, "--state", str(up.state), "run", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RESHAPE_URL": ""}
    return subprocess.Popen(
        command,
        cwd=up.state.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL if hangs_up else signal.SIG_IGN),
    )


def all_idle(up: Up) -> bool:
    return all(gpu["state"] == "idle" for gpu in up.client.gpus())


def test_a_command_has_the_granted_gpus_and_its_exit_code_is_ours(up: Up) -> None:
    process = reshape(up, "-it", "--gpus", "2", "--", sys.executable, "-c", PRINTS)
    out, told = process.communicate(timeout=patient(60))
    assert process.returncode == 7, told
    gpus, job = out.split()
    assert sorted(gpus.split(",")) == sorted(gpu["gpu_id"] for gpu in up.client.gpus())
    wait_for(lambda: up.job(job)["state"] == "completed", what="the job ends with the command")
    wait_for(lambda: all_idle(up), what="its GPUs are free")


@pytest.mark.parametrize(("name", "hangs_up"), [("mine", True), ("by-nohup", False)])
def test_a_job_that_is_cancelled_ends_the_command_before_its_gpus_are_free(up: Up, name: str, hangs_up: bool) -> None:
    process = reshape(up, "--name", name, "--", sys.executable, "-c", WAITS, hangs_up=hangs_up)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    up.client.cancel(name)
    _, told = process.communicate(timeout=patient(60))
    assert process.returncode == 128 + (signal.SIGHUP if hangs_up else signal.SIGTERM)
    assert f"Job {name} is ending" in told
    wait_for(lambda: up.job(name)["state"] in ENDED and all_idle(up), what="its GPUs are free")


def test_a_command_ends_at_its_time_limit(up: Up) -> None:
    process = reshape(up, "--time-limit", "5s", "--name", "limited", "--", sys.executable, "-c", WAITS)
    _, told = process.communicate(timeout=patient(60))
    assert process.returncode == 128 + signal.SIGHUP, told
    wait_for(lambda: up.job("limited")["state"] in ENDED and all_idle(up), what="its GPUs are free")
    assert "time limit" in up.job("limited")["message"]


def test_the_gpus_are_held_by_the_command_even_if_reshape_itself_is_killed(up: Up, tmp_path: Path) -> None:
    lives = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); " + WAITS
    process = reshape(up, "--name", "orphan", "--", sys.executable, "-c", lives)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.wait()
    up.client.submit({"job_id": "other", "command": ["true"], "optional_num_gpus": [1]})
    wait_for(lambda: up.job("other")["state"] in ENDED, what="another job has come and gone")
    assert up.job("orphan")["num_gpus"] == 1, "its GPU was given back while the command has it"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    wait_for(lambda: up.job("orphan")["state"] in ENDED and all_idle(up), what="they are free once the command is gone")


def test_who_does_not_want_to_wait_cancels_the_job(up: Up) -> None:
    first = reshape(up, "--name", "first", "--gpus", "2", "--", sys.executable, "-c", WAITS)
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    second = reshape(up, "--name", "second", "--", sys.executable, "-c", WAITS)
    wait_for(lambda: any(job["job_id"] == "second" for job in up.client.jobs()), what="it waits")
    second.send_signal(signal.SIGINT)
    assert second.wait(patient(60)) == 130
    wait_for(lambda: up.job("second")["state"] in ENDED, what="its job is cancelled")
    up.client.cancel("first")
    first.communicate(timeout=patient(60))
    wait_for(lambda: all_idle(up), what="all is idle again")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "9", "--", "sh"], "No node has 9 GPUs; the largest has 2: write --gpus 2 or less."),
        (["--", "no-such-program"], "There is no program no-such-program; is it on PATH?"),
    ],
)
def test_what_cannot_run_is_told_in_a_sentence(up: Up, words: list[str], said: str) -> None:
    process = reshape(up, *words)
    _, told = process.communicate(timeout=patient(60))
    assert process.returncode == 1
    assert said in told
    wait_for(lambda: all_idle(up), what="nothing is held")
