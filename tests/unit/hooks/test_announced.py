"""A training is announced once it was saved, and the announcement is withdrawn as long as a stop would cost work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import reshape_hooks
from reshape_hooks import plain
from tests.interpreters import python_of

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
# Each step does what stands for it in the dictionary `at`, then says what is announced.
BEGIN = """
import os, pathlib, reshape_hooks, signal, sys
from reshape_hooks import announced
announced.AGAIN_S = announced.AGAIN_STOPPING_S = 0.0
announced.AGAIN_SHARE = 0
saved = pathlib.Path(os.environ["RESHAPE_CHECKPOINTS"])
def block():
    saved.rename(f"{saved}-aside")
    saved.write_text("no folder")
def unblock():
    saved.unlink()
    pathlib.Path(f"{saved}-aside").rename(saved)
def said():
    file = pathlib.Path(os.environ["RESHAPE_ANNOUNCE"])
    print("said", file.read_text().splitlines()[-1] if file.exists() else None, flush=True)
def send(number):
    os.kill(os.getpid(), number)
part = {}
"""
LOOP = """
state = reshape_hooks.Elastic(part=part)
for step in state.steps(6):
    said()
    at.get(step, lambda: None)()
print("end")
"""


class Ended(NamedTuple):
    status: int
    said: list[str]  # what was announced when each step began
    errors: str
    lines: list[str]  # of the announcement
    printed: str


def run(folder: Path, script: str, python: str = sys.executable, generation: int = 1) -> Ended:
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "loop", "RESHAPE_MTBF_S": "0"}
    given |= {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_ANNOUNCE": str(folder / "announce")}
    given |= {"RESHAPE_GENERATION": str(generation)}
    (folder / "announce").unlink(missing_ok=True)
    (folder / "train.py").write_text(BEGIN + script)
    command = [python, "train.py"]
    ended = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
    said = [without_process(line[5:]) for line in ended.stdout.splitlines() if line.startswith("said ")]
    file = folder / "announce"
    lines = file.read_text().splitlines() if file.exists() else []
    return Ended(ended.returncode, said, ended.stderr, [without_process(line) for line in lines], ended.stdout)


def without_process(line: str) -> str:
    return re.sub(r" \d+@\d+$", "", line)


@pytest.mark.parametrize("python", ["3.8", "ours"])
def test_it_is_announced_once_its_first_step_was_saved_and_at_once_where_it_was_resumed(
    tmp_path: Path, python: str
) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    first = run(tmp_path, "at = {3: lambda: send(15)}" + LOOP, program)
    assert (first.status, first.said) == (143, ["None", *["SIGUSR1 143"] * 3]), first.errors
    second = run(tmp_path, "at = {}" + LOOP, program, 2)
    assert (second.status, second.said) == (0, ["SIGUSR1 143"] * 2), second.errors


def test_what_cannot_be_saved_is_never_announced_and_a_stop_does_not_end_it(tmp_path: Path) -> None:
    ended = run(tmp_path, "part['compute'] = lambda: 0\nat = {3: lambda: send(15)}" + LOOP)
    assert ended.status == 0
    assert [one.split()[0] for one in ended.said] == ["None", *["withdrawn:Can't"] * 5]
    assert "pickle" in ended.lines[0]
    assert ended.lines[1:] == ["ended"]
    assert "this training could not be saved and goes on" in ended.errors


def test_a_disk_that_takes_nothing_withdraws_it_and_one_that_takes_it_again_announces_it(tmp_path: Path) -> None:
    at = "at = {1: lambda: (block(), send(10)), 3: unblock}"
    ended = run(tmp_path, at + LOOP)
    assert ended.status == 0, ended.errors
    words = ["None", "SIGUSR1", "withdrawn:the", "withdrawn:the", *["SIGUSR1"] * 2]
    assert [one.split()[0] for one in ended.said] == words
    assert "the checkpoint of step 2 could not be saved" in " ".join(ended.said[2].split())
    assert (len(ended.lines), ended.lines[-1]) == (4, "ended"), "told once each time"


def test_a_stop_that_finds_a_full_disk_goes_on_and_ends_once_it_was_saved(tmp_path: Path) -> None:
    at = "at = {1: lambda: (block(), send(15)), 3: unblock}"
    ended = run(tmp_path, at + LOOP)
    assert (ended.status, len(ended.said)) == (143, 4), ended.errors
    assert sorted(path.name for path in (tmp_path / "saved").glob("g*")) == ["g1-s1", "g1-s4"]


def test_a_handler_that_the_script_sets_later_withdraws_it_until_it_is_taken_back(tmp_path: Path) -> None:
    at = "before = []\nat = {1: lambda: before.append(signal.signal(15, lambda *_: print('theirs'))), "
    at += "3: lambda: signal.signal(15, before[0])}"
    ended = run(tmp_path, at + LOOP)
    assert ended.status == 0
    words = ["None", "SIGUSR1", "withdrawn:the", "withdrawn:the", *["SIGUSR1"] * 2]
    assert [one.split()[0] for one in ended.said] == words
    assert "handler for SIGTERM of its own" in " ".join(ended.said[2].split())
    assert ended.errors.count("keeps its GPUs from now on, because the script has set a handler") == 1


def test_a_handler_that_ends_with_0_before_the_next_step_has_not_finished_the_training(tmp_path: Path) -> None:
    at = "at = {1: lambda: (signal.signal(15, lambda *_: sys.exit(0)), send(15))}"
    ended = run(tmp_path, at + LOOP)
    assert (ended.status, len(ended.said)) == (0, 2)
    assert ended.lines == ["SIGUSR1 143", "stopped", "ended"]


def test_a_process_that_the_script_forks_says_nothing_of_it(tmp_path: Path) -> None:
    fork = "def fork():\n    if not os.fork():\n        sys.exit()\n    os.wait()\n"
    ended = run(tmp_path, fork + "at = {2: fork}" + LOOP)
    assert (ended.status, ended.lines) == (0, ["SIGUSR1 143", "ended"]), ended.errors


def test_a_training_that_is_left_alone_withdraws_what_an_earlier_one_has_announced(tmp_path: Path) -> None:
    alone = (
        LOOP + "from reshape_hooks.adapters import session\nsession.tell_left_alone(session.LeftAlone('of a reason'))\n"
    )
    ended = run(tmp_path, "at = {}" + alone + "print('theirs', signal.getsignal(15) is signal.SIG_DFL)\nsaid()")
    assert " ".join(ended.said[-1].split()) == "withdrawn:of a reason"
    assert ended.status == 0
    reports = [line for line in ended.printed.splitlines() if "time=" in line]
    assert [line.startswith(plain.REPORTS_END) for line in reports] == [False] * (len(reports) - 1) + [True]


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [("0", True), ("GPU-a,GPU-c", True), ("GPU-b", False), ("GPU-b,GPU-a", False), ("", False), ("-1", False)],
)
def test_a_script_that_chooses_gpus_it_was_not_given_keeps_those_it_has_and_is_told(
    tmp_path: Path, chosen: str, kept: bool
) -> None:
    at = f"os.environ['RESHAPE_GPUS'] = 'GPU-a,GPU-b'\nos.environ['CUDA_VISIBLE_DEVICES'] = {chosen!r}\nat = {{}}"
    ended = run(tmp_path, at + LOOP)
    assert ended.status == 0, ended.errors
    if not kept:
        assert ended.said[-1] == "SIGUSR1 143"
        return
    why = "the script has set CUDA_VISIBLE_DEVICES itself, to GPUs that the job was not given; remove that line"
    assert ended.said[-1].replace("\u00a0", " ") == f"withdrawn:{why}"
    assert ended.errors.count(f"reshape: this training keeps its GPUs from now on, because {why}") == 1
