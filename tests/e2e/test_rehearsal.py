"""`reshape rehearse` finds out whether a command resumes, and leaves the speeds that it measured. A real `up`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.depth import deep
from tests.e2e.up import EXAMPLES, ROOT, TRAINERS, WITHIN_S, Up, running, wait_for
from tests.patience import patient

FORGETS = "for i in $(seq 100000); do echo step=$i total=100000; sleep 0.05; done"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("rehearsal") / "state", "2xV100") as started:
        yield started


def reshape(up: Up, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "reshape", "--state", str(up.state), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes)


def rehearsed(up: Up, folder: Path, *command: str, seconds: str = "1") -> tuple[int, dict[str, Any], str]:
    """Exit code, result and messages of a rehearsal on one and two GPUs, a second each."""
    process = reshape(up, folder, "-o", "json", "rehearse", "--gpus", "1,2", "--seconds", seconds, "--", *command)
    out, said = process.communicate(timeout=patient(WITHIN_S))
    return process.returncode, json.loads(out or "{}"), said


def test_a_training_that_resumes_is_measured_on_each_count_and_its_speeds_are_kept(up: Up, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "numpy_digits.py"), "--iterations", "100000000"]
    code, found, said = rehearsed(up, tmp_path, *command)
    assert code == 0, said
    assert found["verdict"] == "It saves and resumes: no work was lost in 1 restart."
    assert sorted(one["gpus"] for one in found["counts"]) == [1, 2]
    assert all(one["seconds_per_iteration"] > 0 and one["value_name"] == "loss" for one in found["counts"])
    assert found["counts"][1]["restart_s"] > 0
    kept = [row for row in up.client.profiles("speed_profiles") if row["job_type"] == found["job_type"]]
    assert sorted(row["num_gpus"] for row in kept) == [1, 2]
    (costs,) = (row for row in up.client.profiles("overheads") if row["job_type"] == found["job_type"])
    assert 0 < found["restarts_s"] == costs["proc_restart"], "decisions and what-if count with it"
    later = up.client.submit({"command": command, "code": str(tmp_path), "optional_num_gpus": [2]})
    derived = wait_for(lambda: up.job(later["job_id"]).get("job_type"), what="it is looked at")
    up.client.cancel(later["job_id"])
    assert derived == found["job_type"], "the next job of this command uses them"


def test_a_loop_that_begins_again_is_found_out_and_exits_with_1(up: Up, tmp_path: Path) -> None:
    code, found, _ = rehearsed(up, tmp_path, "bash", "-c", FORGETS)
    assert code == 1
    assert found["verdict"].startswith("It does not resume: it lost ")
    assert found["counts"][0]["lost"] == "" and found["counts"][1]["lost"].startswith("lost ")


@pytest.mark.deep
def test_a_command_without_visible_progress_is_restarted_and_nothing_is_claimed(up: Up, tmp_path: Path) -> None:
    code, found, _ = rehearsed(up, tmp_path, "sleep", "100000")
    assert code == 0
    assert (
        found["verdict"]
        == "Its progress cannot be seen, so nothing is known of what 1 restart cost (progress_pattern)."
    )


LOSES = """
import functools, os, pathlib, random, subprocess, sys, time
import reshape_hooks
done = {"rows": []}
state = reshape_hooks.Elastic(done=done)
print("begins", flush=True)
@functools.lru_cache
def rows():  # kept in no variable of the loop
    return []
@functools.lru_cache
def source():
    return iter(range(1000))
writes = "import sys; file = open('child.csv', 'w', 1); [file.write(line) for line in sys.stdin]"
child = subprocess.Popen([sys.executable, "-c", writes], stdin=subprocess.PIPE, text=True, bufsize=1)
folder = f"runs/{time.time():.3f}"
os.makedirs(folder)
drawn = open("drawn.csv", "w", 1)
for step in state.steps(120):
    rows().append(random.random())  # without a seed
    pathlib.Path("mine.txt").write_text("\\n".join(map(str, rows())))
    with open("log.csv", "a") as file:
        file.write(f"{step}\\n")
    with open(f"{folder}/log.csv", "a") as file:
        file.write(f"{step}\\n")
    with open("order.csv", "a") as file:
        file.write(f"{next(source())}\\n")
    child.stdin.write(f"{step}\\n")
    drawn.write(f"{step},{os.urandom(4).hex()}1,{time.time()}\\n")
    print("mean", sum(rows()) / len(rows()), flush=True)
    time.sleep(0.02)
child.stdin.close()
child.wait()
print("best", max(rows()), "of", os.getpid(), flush=True)
"""
DIFFERENCES = {
    ("printed lines", "what it prints"),
    ("rows", "child.csv"),
    ("rows", "mine.txt"),
    ("rows", "order.csv"),
    ("rows", "tee.txt"),
}
KEEPS = """
import os, pathlib, random, time
import reshape_hooks
if not os.environ["RESHAPE_CHECKPOINT"]:  # progress is seen before it is announced that it saves
    print("step=40 total=120", flush=True)
    time.sleep(1)
done = {"rows": []}
state = reshape_hooks.Elastic(done=done)
log = open("log.csv", "w", 1)
for step in state.steps(120):
    done["rows"].append(random.random())
    log.write(f"{step},{done['rows'][-1]},{os.urandom(4).hex()}\\n")
    pathlib.Path("mine.txt").write_text("\\n".join(map(str, done["rows"])))
    time.sleep(0.02)
"""


@pytest.mark.deep
def test_a_short_training_is_run_whole_and_what_a_stop_changes_is_said(up: Up, tmp_path: Path) -> None:
    """Each kind of what cannot be kept, in one script; what varies by itself is none of it."""
    (tmp_path / "train.py").write_text(LOSES)
    command = ["bash", "-c", f"{sys.executable} train.py | tee tee.txt"]
    code, found, said = rehearsed(up, tmp_path, *command, seconds="60")
    assert (code, found["stops"] > 0) == (1, True), said
    folders = ("file", f"runs/TIME/log.csv is there {found['stops'] + 1} times, undisturbed 1")
    kinds = {(one["kind"], one["sentence"].partition(":")[0]) for one in found["differences"]}
    assert kinds == {*DIFFERENCES, folders}, found["verdict"]
    told = found["verdict"].splitlines()[1:]
    assert told == [f"{one['kind']}: {one['sentence']}" for one in found["differences"]]
    for place in ("child.csv", "mine.txt", "order.csv", "tee.txt"):
        assert any(line.startswith(f"rows: {place}: ") and " rows missing, such as" in line for line in told), told
    assert any("printed lines twice, such as 'begins'" in line for line in told), told


@pytest.mark.deep
def test_a_training_that_loses_nothing_leaves_the_same_whatever_it_draws(up: Up, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEEPS)
    code, found, said = rehearsed(up, tmp_path, sys.executable, "train.py", seconds="60")
    assert (code, found["stops"] > 0, found["differences"]) == (0, True, []), said
    assert found["verdict"].endswith(", it leaves the same files, rows and printed lines as an undisturbed run.")


STARTS_ONCE = """
import os, sys, time
import reshape_hooks
state = reshape_hooks.Elastic(counter={})
if os.path.exists("out"):
    raise FileExistsError("out is there already")
os.makedirs("out")
for step in state.steps(int(sys.argv[1])):
    time.sleep(0.02)
"""


@pytest.mark.parametrize(("steps", "seconds"), [deep(120, "60", name="short"), pytest.param(100_000, "1", id="long")])
def test_a_training_that_does_not_start_again_is_said_to(up: Up, tmp_path: Path, steps: int, seconds: str) -> None:
    (tmp_path / "train.py").write_text(STARTS_ONCE)
    code, found, said = rehearsed(up, tmp_path, sys.executable, "train.py", str(steps), seconds=seconds)
    why = "not start again after a stop: the training process ended with exit code 1: FileExistsError: out is there"
    assert code == 1
    assert why in (found["verdict"] if found else said)


def test_a_training_that_fails_is_said_to_and_nothing_of_it_is_left(up: Up, tmp_path: Path) -> None:
    code, found, said = rehearsed(up, tmp_path, "bash", "-c", "exit 3")
    assert (code, found) == (1, {})
    assert "The training failed before its rehearsal was over: the training process ended with exit code 3" in said


@pytest.mark.deep
def test_ctrl_c_cancels_the_rehearsal(up: Up, tmp_path: Path) -> None:
    command = [sys.executable, str(TRAINERS / "until_told.py"), str(tmp_path / "never")]
    process = reshape(up, tmp_path, "rehearse", "--gpus", "1", "--seconds", "1000", "--", *command)
    job = wait_for(lambda: next((j for j in up.client.jobs() if j["state"] == "running"), None), what="it trains")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patient(WITHIN_S))
    assert process.returncode == 130
    assert f"The rehearsal ended early; {job['job_id']} is cancelled." in said
    assert up.client.job(job["job_id"])["state"] == "cancelled"
