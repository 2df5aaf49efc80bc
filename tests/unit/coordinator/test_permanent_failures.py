"""Ends of a training that would only come again fail the job at once, with the line that says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model.gang import GangFailure
from coordinator.reconcile.actions import WriteJob
from coordinator.reconcile.gang_scaling import recover_gang
from coordinator.reconcile.permanent_failures import SOON_S
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.coordinator.situations import job, mine, seen, world, written

PARSES = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--rate', required=True); p.parse_args()"


def crashed(code: int, tail: str, steps: int = 0, ran_s: float = 1.0, **of: Any) -> Any:
    """A job of one GPU whose training ended so after so long; `of`: what else is written of it."""
    beat = seen("exited", steps=steps, exit_code=code, exit_at=50.0 + ran_s, output_tail=tail)
    if steps:
        beat.progress.first_step_at = 50.5
    return world(job(s.RUNNING, "a", **of), beat, mine("a"))


def ended(folder: Path, *command: str) -> tuple[int, str]:
    """What a real program does with it: its exit code and its last words."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ([sys.executable, "nope.py"], "can't open file"),
        ([sys.executable, "-c", "import nope_nope"], "ModuleNotFoundError: No module named 'nope_nope'"),
        ([sys.executable, "-c", "from os import nope_nope"], "ImportError: cannot import name 'nope_nope'"),
        ([sys.executable, "-c", "def"], "SyntaxError: invalid syntax"),
        ([sys.executable, "-m", "nope_nope"], "No module named nope_nope"),
        ([sys.executable, "-m", "nope_nope.train"], "No module named 'nope_nope'"),
        ([sys.executable, "."], "can't find '__main__' module"),
        ([sys.executable, "-c", PARSES], "the following arguments are required: --rate"),
        (["sh", "-c", "no-such-program-here"], "not found"),
        (["sh", "-c", "/etc/passwd"], "denied"),
        (["sh", "no-such-script.sh"], "no-such-script.sh"),
    ],
)
def test_what_no_other_start_can_mend_fails_at_once_with_its_last_line(
    tmp_path: Path, command: list[str], word: str
) -> None:
    message = written(crashed(*ended(tmp_path, *command)), "failed")["message"]
    assert word in message and message.endswith("not tried again, as it would only end so again")


@pytest.mark.parametrize(
    ("code", "tail"),
    [
        (1, "ValueError: no such dataset: cifar-11"),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'"),
        (1, "ModuleNotFoundError: No module named 'x'\nCUDA error: device busy"),
        (1, "saw ImportError: once"),
        (2, "the licence server does not answer"),
        (1, "train.py: error: port 2222 is in use"),
        (1, ""),
    ],
)
def test_any_other_crash_is_tried_again(code: int, tail: str) -> None:
    assert written(crashed(code, tail), "restart")["retries"] == 1


def test_what_has_trained_once_is_tried_again_whatever_it_says() -> None:
    missing = "ModuleNotFoundError: No module named 'plugin'"
    assert written(crashed(1, missing, steps=3), "restart"), "in this run"
    assert written(crashed(1, missing, iters_done=70), "restart"), "in an earlier one"
    assert written(crashed(1, missing, ran_s=SOON_S + 1), "restart"), "for long, and nobody could read its steps"
    assert written(crashed(127, "sh: 1: upload: not found", steps=3), "restart")


def test_a_gang_fails_at_once_too() -> None:
    w, why = crashed(1, "ImportError: libcuda.so.1: no"), "the training in pod 1 ended: ImportError: libcuda.so.1: no"
    step = recover_gang(w, GangFailure(why, own=True))
    assert isinstance(step, WriteJob) and step.name == "failed" and why in step.changes["message"]


def test_such_a_job_lets_go_of_its_gpus_after_one_start() -> None:
    w = World()
    w.submit("one", [1], Behaviour(exits=[1] * 9, output_tail="ModuleNotFoundError: No module named 'nope'"))
    w.run(lambda w: w.at_rest())
    assert (w.job("one").state, w.job("one").retries) == ("failed", 0)
    assert sum(count for command, count in w.machines.executed.items() if command.endswith(":start")) == 1
