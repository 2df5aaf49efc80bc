"""Each training of a job has checkpoints of its own and finds them again, however the job makes its trainings.

Each job runs undisturbed, and stopped at any place and started again: what it writes must be the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reshape_hooks
from reshape_hooks import claim_place, claims
from tests.interpreters import python_of

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
# Trains with a rate for some steps, of which each depends on the one before, and writes what came out.
TRAIN = """
import os, random, reshape_hooks, sys
def train(rate, steps=4, name=None):
    weights = {"sum": 1.0}
    state = reshape_hooks.Elastic(weights=weights)
    for step in state.steps(steps):
        weights["sum"] += weights["sum"] * float(rate) * (step + 1) + random.random()
        if os.environ["STOP"] in (f"{rate} {step}", f"{name} {step}"):
            os.kill(os.getpid(), 15)
    with open(f"result-{name or rate}", "w") as file:
        file.write(repr(weights))
"""
# The same by a script that saves by itself.
ALONE = """
import os, random, sys
from reshape_hooks import plain
def train(rate, steps=4, name=None):
    here = plain.environment()
    stop = plain.StopFlag(here.announce)
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    saved = checkpoints.newest(here.prefer)
    value = float((saved.path / "value").read_text()) if saved else random.Random(f"{rate} {name}").random()
    for step in range(saved.step if saved else 0, steps):
        value += value * float(rate) * (step + 1)
        plain.say(step=step + 1, total=steps)
        if os.environ["STOP"] in (f"{rate} {step}", f"{name} {step}"):
            os.kill(os.getpid(), 15)
        if stop.stopping:
            checkpoints.save(step + 1, {"value": repr(value).encode()})
            sys.exit(plain.STOPPED)
    checkpoints.save(steps, {"value": repr(value).encode()})
    with open(f"result-{name or rate}", "w") as file:
        file.write(repr(value))
"""
BY_ARGUMENT = TRAIN + "train(sys.argv[1])"
BY_VARIABLE = TRAIN + "train(os.environ['RATE'])"
IN_A_LOOP = TRAIN + "for rate in (0.1, 0.01, 0.001): train(rate)"
SKIPS = (
    TRAIN
    + """
for number, rate in enumerate((0.1, 0.01, 0.1, 0.001)):
    if not os.path.exists(f"result-trial{number}"):
        random.seed(number)
        train(rate, name=f"trial{number}")
"""
)
ALIKE_BUT_SKIPPED = (
    TRAIN
    + """
def trial(number):
    if not os.path.exists(f"result-trial{number}"):
        random.seed(number)
        train(0.1, name=f"trial{number}")
for number in range(3): trial(number)
"""
)
FIRST_AND_SECOND = (
    TRAIN
    + """
random.seed(1)
if not os.path.exists("result-first"):
    train(0.1, name="first")
random.seed(2)
train(0.1, name="second")
"""
)
BY_SUBPROCESS = """
import subprocess, sys
for rate in ("0.1", "0.01", "0.001"):
    if subprocess.call([sys.executable, "train.py", rate]): sys.exit(143)
"""
FORKS = (
    TRAIN
    + """
import multiprocessing
def child(rate):
    random.seed(3)
    train(rate)
for rate in (0.1, 0.01, 0.001):
    process = multiprocessing.get_context("fork").Process(target=child, args=(rate,))
    process.start()
    process.join()
    if process.exitcode: sys.exit(143)
"""
)


def ended(folder: Path, generation: int, command: str, stop: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a job as the shim does, to its end."""
    folder.mkdir(exist_ok=True)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(STARTUP), "STOP": stop,
        "RESHAPE_JOB_ID": "sweep", "RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_MTBF_S": "0",
        "RESHAPE_GENERATION": str(generation), "RESHAPE_ANNOUNCE": str(folder / "announce"), **more,
    }  # fmt: skip
    return subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False)


def run(folder: Path, generation: int, command: str, stop: str = "", **more: str) -> int:
    """Run a job as the shim does, which is told nothing; return its exit status."""
    job = ended(folder, generation, command, stop, **more)
    assert "reshape:" not in job.stderr, job.stderr
    return job.returncode


def results(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("result-*"))}


SHELL = "set -e; for rate in 0.1 0.01 0.001; do python train.py $rate; done"
VARIABLE = "set -e; for rate in 0.1 0.01 0.001; do RATE=$rate python train.py; done"
SKIPPING = "set -e; for rate in 0.1 0.01 0.001; do [ -e result-$rate ] || python train.py $rate; done"
VARIABLE_SKIPPING = "set -e; for rate in 0.1 0.01 0.001; do [ -e result-$rate ] || RATE=$rate python train.py; done"
JOBS = {
    "shell": (SHELL, BY_ARGUMENT, "0.01 2"),
    "variable": (VARIABLE, BY_VARIABLE, "0.01 2"),
    "variable-skips": (VARIABLE_SKIPPING, BY_VARIABLE, "0.01 1"),
    "shell-skips": (SKIPPING, BY_ARGUMENT, "0.01 1"),
    "subprocess": ("python sweep.py", BY_ARGUMENT, "0.001 0"),
    "loop": ("python train.py", IN_A_LOOP, "0.01 3"),
    "loop-skips": ("python train.py", SKIPS, "trial2 1"),
    "alike-but-skipped": ("python train.py", ALIKE_BUT_SKIPPED, "trial1 1"),
    "two-calls": ("python train.py", FIRST_AND_SECOND, "second 2"),
    "forks": ("python train.py", FORKS, "0.01 1"),
}


def two_folders(tmp_path: Path, script: str) -> tuple[Path, Path]:
    """Return a folder for the undisturbed run, and one for the run that is stopped."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
        (folder / "train.py").write_text(script)
        (folder / "sweep.py").write_text(BY_SUBPROCESS)
    return whole, parts


def undisturbed_and_stopped(tmp_path: Path, command: str, script: str, stop: str) -> None:
    whole, parts = two_folders(tmp_path, script)
    assert run(whole, 1, command) == 0
    alone = results(whole)
    assert len(alone) > 1 and len(set(alone.values())) == len(alone), "each has a result of its own"
    assert run(parts, 1, command, stop) == 143
    assert len(results(parts)) < len(alone)
    assert run(parts, 2, command) == 0
    assert results(parts) == alone


@pytest.mark.parametrize("way", JOBS)
def test_a_job_of_many_trainings_ends_after_a_stop_as_it_does_undisturbed(tmp_path: Path, way: str) -> None:
    undisturbed_and_stopped(tmp_path, *JOBS[way])


@pytest.mark.parametrize("way", JOBS)
def test_so_it_does_on_another_number_of_gpus(tmp_path: Path, way: str) -> None:
    command, script, stop = JOBS[way]
    whole, parts = two_folders(tmp_path, script)
    assert run(whole, 1, command) == 0
    assert run(parts, 1, command, stop, CUDA_VISIBLE_DEVICES="0,1") == 143
    assert run(parts, 2, command, CUDA_VISIBLE_DEVICES="0") == 0
    assert results(parts) == results(whole)


@pytest.mark.parametrize("way", JOBS)
def test_so_does_a_job_of_many_trainings_that_save_by_themselves(tmp_path: Path, way: str) -> None:
    command, script, stop = JOBS[way]
    undisturbed_and_stopped(tmp_path, command, script.replace(TRAIN, ALONE), stop)


def test_trainings_that_save_by_themselves_and_leave_at_once_are_told_apart(tmp_path: Path) -> None:
    script = ALONE + "train(os.environ['RATE'])\nplain.leave(0)"
    undisturbed_and_stopped(tmp_path, VARIABLE, script, "0.01 2")
    assert run(tmp_path / "parts", 3, f"{VARIABLE} > log") == 0
    assert not re.findall(r"^step=\d+ total", (tmp_path / "parts" / "log").read_text(), re.M), "none is done again"


def test_two_that_save_by_themselves_side_by_side_keep_their_states_apart(tmp_path: Path) -> None:
    script = """
open(f"here-{sys.argv[1]}", "w").close()
while not os.path.exists("here-a") or not os.path.exists("here-b"): pass
train(0.1, name=sys.argv[1])
"""
    both = "python train.py a & first=$!; python train.py b & second=$!; wait $first; one=$?; wait $second && exit $one"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
        (folder / "train.py").write_text(ALONE + script)
    assert run(whole, 1, both) == 0
    assert run(parts, 1, both, "a 1") == 143
    assert run(parts, 2, both) == 0
    assert results(parts) == results(whole)
    assert len(set(results(whole).values())) == 2


def test_what_a_version_that_shared_one_folder_has_saved_by_itself_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        ALONE.replace("here.generation)", "here.generation, shared=True)") + "train(0.1)"
    )
    assert run(tmp_path, 1, "python train.py", "0.1 1") == 143
    assert not (tmp_path / "saved" / ".claims.json").exists()
    (tmp_path / "train.py").write_text(ALONE + "train(0.1)")
    assert run(tmp_path, 2, "python train.py > log") == 0
    assert re.findall(r"^step=(\d) total", (tmp_path / "log").read_text(), re.M) == ["3", "4"]


READS = """
from reshape_hooks import plain
here = plain.environment()
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation{})
print(checkpoints.newest(here.prefer), flush=True)
"""


def test_a_script_that_evaluates_reads_what_the_one_before_it_has_saved_and_is_told_how_to_say_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ALONE + "train(0.1)")
    (tmp_path / "look.py").write_text(READS.format(""))
    command = "python train.py && python look.py > log 2> said"
    assert run(tmp_path, 1, command) == 0
    assert "Saved(name='g1-s4'" in (tmp_path / "log").read_text()
    said = (tmp_path / "said").read_text()
    assert "look.py has saved nothing in this job and reads what train.py has saved" in said
    assert "shared=True" in said
    (tmp_path / "look.py").write_text(READS.format(", shared=True"))
    assert run(tmp_path, 2, command) == 0
    assert "Saved(name='g2-s4'" in (tmp_path / "log").read_text()
    assert (tmp_path / "said").read_text() == ""


TRAINS = {
    "flag before": "plain.StopFlag(plain.environment().announce)" + READS,
    "flag behind": READS + "plain.StopFlag(here.announce)",
    "no flag": READS + "checkpoints.save(5, {{'value': b''}})",
    "no look": READS.replace("print(checkpoints.newest(here.prefer), flush=True)", "")
    + "checkpoints.save(5, {{'value': b''}})",
}


@pytest.mark.parametrize("way", TRAINS)
def test_a_script_says_whether_it_trains_on_from_what_another_one_has_saved(tmp_path: Path, way: str) -> None:
    trains = "from reshape_hooks import plain\n" + TRAINS[way]
    (tmp_path / "train.py").write_text(ALONE + "train(0.1)")
    (tmp_path / "tune.py").write_text(trains.format(""))
    assert run(tmp_path, 1, "python train.py && python tune.py 2> said") == 1
    said = (tmp_path / "said").read_text()
    assert "CheckpointError: tune.py has saved nothing in this job, but train.py has" in said
    assert "shared=True) to go on from the first of these, shared=False to begin with its own" in said
    (tmp_path / "tune.py").write_text(trains.format(", shared=False"))
    assert run(tmp_path, 2, "python tune.py > log") == 0
    assert "Saved" not in (tmp_path / "log").read_text()
    assert not list((tmp_path / "saved").glob("g?-s5")), "it is beside what is of the first one"
    (tmp_path / "tune.py").write_text(trains.format(", shared=True"))
    assert run(tmp_path, 3, "python tune.py > log") == 0
    assert ("Saved(name='g1-s4'" in (tmp_path / "log").read_text()) == (way != "no look")


def test_scripts_that_a_version_with_one_folder_ran_one_after_the_other_lose_nothing(tmp_path: Path) -> None:
    """The checkpoint in that folder may be of any of them: the second one asks instead of beginning anew."""
    trains = ALONE.replace("here.generation)", "here.generation, shared=True)")
    trains = trains.replace(
        "    checkpoints.save(steps,", "    if not saved or saved.step < steps: checkpoints.save(steps,"
    )
    (tmp_path / "first.py").write_text(trains + "train(0.1)")
    (tmp_path / "second.py").write_text(trains + "train(0.1, 8, sys.argv[1])")
    both = "python first.py && python second.py next > log"
    assert run(tmp_path, 1, both, "next 5") == 143
    assert not (tmp_path / "saved" / ".claims.json").exists()
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace(", shared=True", ""))
    assert run(tmp_path, 2, f"{both} 2> said") == 1
    said = (tmp_path / "said").read_text()
    assert "CheckpointError: second.py has saved nothing in this job, but first.py has" in said
    (tmp_path / "second.py").write_text(trains + "train(0.1, 8, sys.argv[1])")
    assert run(tmp_path, 3, both) == 0
    assert re.findall(r"^step=(\d) total", (tmp_path / "log").read_text(), re.M) == ["7", "8"]


def test_arguments_that_only_evaluate_are_told_that_they_have_no_checkpoint_of_their_own(tmp_path: Path) -> None:
    evaluates = "train(0.1) if sys.argv[1] == 'train' else None\nif sys.argv[1] == 'train': sys.exit()\n"
    (tmp_path / "main.py").write_text(ALONE + evaluates + READS.format(""))
    assert run(tmp_path, 1, "python main.py train && python main.py test > log 2> said") == 0
    assert (tmp_path / "log").read_text() == "None\n"
    assert "main.py test has found no checkpoint of its own in this job" in (tmp_path / "said").read_text()


EACH_CALL = """
import os, random, sys
from reshape_hooks import plain
here = plain.environment()
stop = plain.StopFlag(here.announce)
def load():
    return plain.Checkpoints(here.checkpoints, here.job_id, here.generation).newest(here.prefer)
def save(step, value):
    plain.Checkpoints(here.checkpoints, here.job_id, here.generation).save(step, {"value": repr(value).encode()})
def train(rate, steps=4):
    saved = load()
    value = float((saved.path / "value").read_text()) if saved else 1.0
    for step in range(saved.step if saved else 0, steps):
        value += value * float(rate) * (step + 1)
        if os.environ["STOP"] == f"{rate} {step}":
            os.kill(os.getpid(), 15)
        if stop.stopping:
            save(step + 1, value)
            sys.exit(plain.STOPPED)
        save(step + 1, value)
    with open(f"result-{rate}", "w") as file:
        file.write(repr(value))
"""


def test_a_script_that_makes_its_checkpoints_anew_for_each_call_goes_on_and_each_process_with_its_own(
    tmp_path: Path,
) -> None:
    undisturbed_and_stopped(tmp_path, SHELL, EACH_CALL + "train(sys.argv[1])", "0.01 2")


def test_such_a_script_that_trains_several_times_is_told_that_its_trainings_share_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EACH_CALL + "for rate in (0.1, 0.01): train(rate)")
    assert run(tmp_path, 1, "python train.py 2> said") == 0
    assert "make one plain.Checkpoints for each training" in (tmp_path / "said").read_text()


def test_a_script_that_looks_at_another_place_for_what_it_has_saved_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE + "train(0.1)" + READS.format(""))
    assert run(tmp_path, 1, "python train.py > log 2> said") == 0
    assert "None\n" in (tmp_path / "log").read_text()
    assert "use the plain.Checkpoints by which it has saved them" in (tmp_path / "said").read_text()


def test_other_ranks_find_what_the_first_has_saved_and_do_not_guess_among_several_trainings(tmp_path: Path) -> None:
    looks = (
        ALONE
        + """
here = plain.environment()
try:
    print(plain.Checkpoints(here.checkpoints, here.job_id, here.generation).newest(here.prefer))
except plain.CheckpointError as error:
    sys.exit(str(error))
"""
    )
    (tmp_path / "train.py").write_text(ALONE + "train(sys.argv[1])")
    (tmp_path / "look.py").write_text(looks)
    assert run(tmp_path, 1, "RANK=0 python train.py 0.1", "0.1 1") == 143
    assert run(tmp_path, 2, "RANK=1 python look.py > log") == 0
    assert "Saved(name='g1-s2'" in (tmp_path / "log").read_text()
    assert run(tmp_path, 2, "RANK=0 python train.py 0.1 && RANK=0 python train.py 0.01") == 0
    assert run(tmp_path, 2, "RANK=1 python look.py 2> log") == 1
    assert "let rank 0 alone look for checkpoints and share what it finds" in (tmp_path / "log").read_text()


def test_the_steps_of_trainings_that_a_script_skips_still_count(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SKIPS)
    assert run(tmp_path, 1, "python train.py >> log", "trial2 1") == 143
    assert run(tmp_path, 2, "python train.py >> log") == 0
    steps = re.findall(r"^step=(\d+) total", (tmp_path / "log").read_text(), re.M)
    assert [int(step) for step in steps] == list(range(1, 17)), "none looks as if it were done again"


def test_each_training_of_a_sweep_gives_what_it_gives_alone_and_none_is_done_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_ARGUMENT)
    for rate in ("0.1", "0.01", "0.001"):
        (tmp_path / rate).mkdir()
        (tmp_path / rate / "train.py").write_text(BY_ARGUMENT)
        assert run(tmp_path / rate, 1, f"python train.py {rate}") == 0
        (tmp_path / rate / f"result-{rate}").rename(tmp_path / f"alone-{rate}")
    assert run(tmp_path, 1, SHELL, "0.001 1") == 143
    assert run(tmp_path, 2, SHELL) == 0
    for rate in ("0.1", "0.01", "0.001"):
        assert (tmp_path / f"result-{rate}").read_text() == (tmp_path / f"alone-{rate}").read_text()
    saved = {path.parent.name: path.name for path in sorted((tmp_path / "saved").glob("**/g2-*"))}
    assert saved == {"saved": "g2-s4", "training-2": "g2-s4", "training-3": "g2-s4"}


def test_the_same_command_twice_trains_twice_and_not_again_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_ARGUMENT)
    command = "set -e; for turn in 1 2; do python train.py 0.1 > log-$turn; done"

    def trained() -> list[int]:
        return [(tmp_path / f"log-{turn}").read_text().count(" total=4 ") for turn in (1, 2)]

    assert run(tmp_path, 1, command) == 0
    assert trained() == [4, 4]
    assert run(tmp_path, 2, command, stop="0.1 0") == 0, "a training that has ended does its first step again"
    assert trained() == [4, 4]


TABLE = """
train(sys.argv[1])
with open("table", "a") as table:
    table.write(sys.argv[1] + "\\n")
"""


def test_a_training_of_a_sweep_that_adds_its_row_again_after_a_restart_says_so(tmp_path: Path) -> None:
    """The row is not taken back: others have written below it."""
    (tmp_path / "train.py").write_text(TRAIN + TABLE)
    command = "set -e; for rate in 0.1 0.01; do python train.py $rate; done"
    assert run(tmp_path, 1, command, "0.01 2") == 143
    again = ended(tmp_path, 2, command)
    assert again.returncode == 0
    assert (tmp_path / "table").read_text().split() == ["0.1", "0.1", "0.01"]
    assert [line for line in again.stderr.splitlines() if line.startswith("reshape:")] == [
        f"reshape: {tmp_path}/table may get rows a second time, because this training had ended before this start, and "
        "what the script does after it is done again: let it look first whether they are there"
    ]


SIDE_BY_SIDE = (
    TRAIN
    + """
name = sys.argv[1]
random.seed(name)
open(f"here-{name}", "w").close()
while not os.path.exists("here-a") or not os.path.exists("here-b"): pass
train(0.1, name=name if len(sys.argv) < 3 else sys.argv[2])
"""
)


def test_two_side_by_side_keep_their_states_apart(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    both = "python train.py a & first=$!; python train.py b & second=$!; wait $first && wait $second"
    for folder in (whole, parts):
        folder.mkdir()
        (folder / "train.py").write_text(SIDE_BY_SIDE)
    assert run(whole, 1, both) == 0
    run(parts, 1, both, "a 1")
    run(parts, 1, both, "b 2")  # in the same generation: a script that tries again
    assert run(parts, 2, both) == 0
    assert results(parts) == results(whole)
    assert len(set(results(whole).values())) == 2


HOLDS = (
    TRAIN
    + """
state = reshape_hooks.Elastic(weights={"sum": 1.0})
open(f"here-{os.getpid()}", "w").close()
print(state._checkpoints.number, flush=True)
sys.stdin.read()
"""
)


def test_who_finds_a_claim_held_gets_its_own_and_after_its_end_the_next_one_goes_on_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOLDS)
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "STOP": "", "RESHAPE_JOB_ID": "held",
        "RESHAPE_CHECKPOINTS": str(tmp_path / "saved"), "RESHAPE_GENERATION": "1",
        "RESHAPE_ANNOUNCE": str(tmp_path / "announce"),
    }  # fmt: skip

    def start() -> Any:
        argv = [sys.executable, "train.py"]
        return subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def number(process: Any) -> int:
        return int(process.stdout.readline())

    first = start()
    assert number(first) == 1
    second = start()
    assert number(second) == 2
    first.send_signal(signal.SIGKILL)  # it has not finished
    first.wait()
    third = start()
    assert number(third) == 1
    for process in (second, third):
        process.communicate("")
    fourth = start()
    assert number(fourth) == 3, "the others have ended by themselves"
    fourth.communicate("")


def test_a_checkpoint_of_other_parameters_is_a_new_training_with_a_sentence(tmp_path: Path) -> None:
    script = TRAIN.replace(
        'weights = {"sum": 1.0}\n', 'weights = {"sum": 1.0}\n    more = {} if os.environ.get("MORE") else None\n'
    )
    script = script.replace(
        "Elastic(weights=weights)", "Elastic(weights=weights, **({} if more is None else {'more': more}))"
    )
    (tmp_path / "train.py").write_text(script + "train(0.1)")
    assert run(tmp_path, 1, "python train.py", "0.1 2") == 143
    with pytest.raises(AssertionError, match="this training begins at its first step: it is none of those"):
        run(tmp_path, 2, "python train.py", MORE="1")
    assert run(tmp_path, 3, "python train.py") == 0
    assert {path.name for path in (tmp_path / "saved").glob("g*")} == {"g1-s3", "g3-s4"}, "it was kept and goes on"


@pytest.mark.parametrize("python", ["3.8", "3.13"])
def test_what_a_version_without_claims_has_saved_goes_on(tmp_path: Path, python: str) -> None:
    (tmp_path / "train.py").write_text(IN_A_LOOP)
    command = f"{python_of(python)} train.py"
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.py").write_text(IN_A_LOOP)
    assert run(whole, 1, command) == 0
    assert run(tmp_path, 1, command, "0.01 2") == 143
    (tmp_path / "saved" / claims.INDEX).unlink()
    assert run(tmp_path, 2, command) == 0
    assert results(tmp_path) == results(whole)
    assert not list((tmp_path / "saved" / "training-4").glob("*"))


# Which claim is of a training

ONE = {
    "process": ["train.py"], "site": ["train.py:main:0"], "loops": {}, "trained": "t", "settings": {"lr": "0.1"},
    "arguments": {"0 out": "a"}, "gpus": "1", "weights": 0,
}  # fmt: skip


def known(number: int, state: str = claims.RUNS, **other: Any) -> dict[str, Any]:
    return {**ONE, "number": number, "state": state, "generation": 1, **other}


def on_port(port: str) -> dict[str, Any]:
    """Return what tells a process whose launcher has drawn this port."""
    words = ["train.py", "--master-port", port, f"--port={port}", f"tcp://127.0.0.1:{port}", f"localhost:{port}"]
    return {"process": words}


CHOICES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], int | None]] = {
    "the first of equal ones": (ONE, [known(1), known(2)], 1),
    "the weights break a tie": ({**ONE, "weights": 2}, [known(1, weights=1), known(2, weights=2)], 2),
    "another turn of the loop": ({**ONE, "loops": {"0 lr": "1"}}, [known(1, loops={"0 lr": "2"})], None),
    "another process": ({**ONE, "process": ["b.py"]}, [known(1)], None),
    "another port": ({**ONE, **on_port("40111")}, [known(1, **on_port("29500"))], 1),
    "the same port": (
        {**ONE, **on_port("40111")}, [known(1, **on_port("29500")), known(2, **on_port("40111"))], 2,
    ),
    "another number that is no port": (
        {**ONE, "process": ["train.py", "--report", "64"]}, [known(1, process=["train.py", "--report", "32"])], None,
    ),
    "another range": (
        {**ONE, "process": ["train.py", "rows=0:2000"]}, [known(1, process=["train.py", "rows=0:1000"])], None,
    ),
    "other parameters": ({**ONE, "trained": "u"}, [known(1)], None),
    "another rate": ({**ONE, "settings": {"lr": "0.2"}}, [known(1)], None),
    "a rate that follows the GPUs": ({**ONE, "settings": {"lr": "0.2"}, "gpus": "2"}, [known(1)], 1),
    "a rate that tells apart on other GPUs": (
        {**ONE, "gpus": "2"}, [known(1, settings={"lr": "1"}), known(2, settings={"lr": "0.1"})], 2,
    ),
    "a rate that tells apart and follows the GPUs": (
        {**ONE, "gpus": "2"}, [known(1, settings={"lr": "1"}), known(2, settings={"lr": "2"})], None,
    ),
    "an argument that is another one each time": ({**ONE, "arguments": {"0 out": "b"}}, [known(1)], 1),
    "an argument that tells apart": (
        ONE, [known(1, arguments={"0 out": "b"}), known(2, arguments={"0 out": "a"})], 2,
    ),
    "a result of other arguments": ({**ONE, "arguments": {"0 out": "b"}}, [known(1, claims.FINISHED)], None),
    "a result of other arguments on other GPUs": (
        {**ONE, "arguments": {"0 out": "b"}, "gpus": "2"}, [known(1, claims.FINISHED)], None,
    ),
    "a result whose rate follows the GPUs": (
        {**ONE, "settings": {"lr": "0.2"}, "gpus": "2"}, [known(1, claims.FINISHED)], 1,
    ),
    "a result of these arguments": (ONE, [known(1, claims.FINISHED)], 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_the_claim_of_a_training(case: str) -> None:
    mine, others, number = CHOICES[case]
    found = claims.choose(mine, others)
    assert (found and found["number"]) == number


@pytest.mark.parametrize(
    "text",
    ["runs/2026-11-26_17-24-01", "20261126-172401/x", "Nov26_17-24-01_host", "1795713841.25", "/tmp/tmp8x_abq12/out",
     "5f0c9a4e-1b2c-4d3e-8f90-123456789abc", "<Box at 0x7f31c2a0>"],
)  # fmt: skip
def test_what_is_another_value_at_each_start_is_passed_over(text: str) -> None:
    assert claim_place.short(text) != text and "#" in claim_place.short(text)


@pytest.mark.parametrize("text", ["0.1", "seed=20221", "--epochs=100000", "1e-05", "model_3", "out/trial_12"])
def test_what_tells_trainings_apart_is_kept(text: str) -> None:
    assert claim_place.short(text) == text


def fit() -> Any:
    return claim_place.place("fit")


def fit_of(_rate: float) -> Any:
    return fit()


def test_the_place_is_the_call_and_the_turn_of_its_loops() -> None:
    places = []
    for fold in range(2):
        for rate in [0.1, 0.2]:
            places.append(fit_of(rate / (fold + 1)))
        places.append(fit())
        places.append(fit())
    here = f"{Path(__file__).name}:test_the_place_is_the_call_and_the_turn_of_its_loops"
    at = [next(one for one in place[0] if one.startswith(here)) for place in places]
    assert at[:4] == [f"{here}:0", f"{here}:0", f"{here}:0", f"{here}:1"]
    assert {"2 fold": "0", "2 rate": "0.2"}.items() <= places[1][1].items()
    assert places[1][2]["1 _rate"] == "0.2"
    assert len({json.dumps(place[:2]) for place in places}) == len(places)


TWO_TRAININGS = """
import os
import reshape_hooks
class Part:
    number = 0
    def state_dict(self):
        return {"number": self.number}
    def load_state_dict(self, state):
        self.number = state["number"]
for name in ("first", "second"):
    if os.path.exists(name):
        continue
    part = Part()
    for step in reshape_hooks.Elastic(part=part).steps(5):
        part.number += 1
        if name + str(step) == os.environ["STOP"]:
            os._exit(9)
    open(name, "w").close()
"""


def test_on_another_port_the_steps_of_a_training_that_is_skipped_now_count_as_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_TRAININGS)
    assert "step=7 total=10" in ended(tmp_path, 1, "python train.py --port 4001", stop="second2").stdout
    again = ended(tmp_path, 2, "python train.py --port 4002")
    assert re.findall(r"\bstep=\d+ total=\d+", again.stdout)[-1] == "step=10 total=10"
