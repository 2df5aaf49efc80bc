"""What training scripts rely on beside checkpoints: signals, pace, report, environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from reshape_hooks import plain
from reshape_hooks.plain import Pace, StopFlag, environment


@pytest.fixture
def handlers():
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_signals_only_set_flags_and_a_wish_to_save_is_taken_once(tmp_path):
    stop = StopFlag(str(tmp_path / "announce"))
    assert (tmp_path / "announce").read_text() == f"SIGUSR1 {plain.this_process()}\n"
    assert not stop.stopping
    assert not stop.take_save()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.take_save()
    assert not stop.take_save()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.stopping


def test_steps_are_paced_from_due_time_to_due_time_and_a_late_one_is_not_made_up_for(monkeypatch):
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr(plain, "boottime", lambda: now[0])
    monkeypatch.setattr(plain.time, "sleep", sleep)
    pace = Pace(0.5)
    pace.start()
    for work in (0.1, 0.2, 0.9, 0.1):
        now[0] += work
        pace.wait()
    assert slept == [0.4, 0.3, 0.0, 0.4]
    Pace(None).wait()
    assert slept == [0.4, 0.3, 0.0, 0.4]


def test_a_report_is_one_line_of_pairs_with_the_time(capsys):
    plain.say(step=3, total=10, loss=0.25, emulated="yes")
    text = capsys.readouterr().out
    assert text.startswith("step=3 total=10 loss=0.25 emulated=yes time=")
    assert text.count("\n") == 1


def test_the_environment_gives_the_pace_of_the_gpus_that_were_granted():
    here = environment(
        {
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "RESHAPE_JOB_ID": "j",
            "RESHAPE_GENERATION": "4",
            "RESHAPE_CHECKPOINTS": "/c",
            "RESHAPE_CHECKPOINT": "",
            "RESHAPE_EMULATED_SPEED": '{"1": 0.2, "2": 0.12}',
        }
    )
    assert here == ("j", 4, ("GPU-a", "GPU-b"), "/c", None, None, 0.12, None)
    assert here.emulated


@pytest.mark.parametrize(("pods", "seconds"), [("3", 0.1), ("1", 0.5), ("", 0.5), ("1:4", 0.5)])
def test_a_gang_is_paced_by_the_gpus_of_all_its_pods(pods, seconds):
    speeds = {"RESHAPE_EMULATED_SPEED": '{"2": 0.5, "6": 0.1}', "CUDA_VISIBLE_DEVICES": "a,b"}
    assert environment({**speeds, "PET_NNODES": pods}).step_seconds == seconds


def test_by_hand_nothing_is_emulated_and_checkpoints_go_below_the_current_folder():
    here = environment({})
    assert (here.generation, here.gpus, here.prefer, here.emulated) == (0, (), None, False)
    assert here.checkpoints == f"checkpoints/{here.job_id}"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RESHAPE_GENERATION": "two"}, "RESHAPE_GENERATION must be a whole number"),
        ({"RESHAPE_EMULATED_SPEED": "fast"}, "RESHAPE_EMULATED_SPEED must look like"),
        ({"RESHAPE_EMULATED_SPEED": "[1]"}, "RESHAPE_EMULATED_SPEED must look like"),
        ({"RESHAPE_EMULATED_SPEED": '{"1": 0.2}'}, "for 0 GPUs, only for 1"),
        ({"RESHAPE_EMULATED_SPEED": '{"1": NaN, "2": 1}', "CUDA_VISIBLE_DEVICES": "a"}, "for 1 GPUs, only for 1, 2"),
        ({"RESHAPE_EMULATED_SPEED": '{"1": -1}', "CUDA_VISIBLE_DEVICES": "a"}, "for 1 GPUs"),
    ],
)
def test_a_value_that_cannot_be_used_ends_the_script_with_a_sentence(variables, sentence):
    with pytest.raises(SystemExit, match=sentence):
        environment(variables)


def python38() -> str:
    candidates = [*map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python")), shutil.which("python3.8")]
    for python in filter(None, candidates):
        if "3.8" in subprocess.run([python, "--version"], capture_output=True, text=True, check=False).stdout:
            return python
    pytest.skip("no Python 3.8 on this machine")


def test_the_plain_hook_runs_on_the_oldest_python_that_the_shim_supports(tmp_path):
    (tmp_path / "copied.py").write_bytes(Path(plain.__file__).read_bytes())
    script = """
        import copied
        here = copied.environment({"RESHAPE_CHECKPOINTS": "c", "RESHAPE_JOB_ID": "j"})
        checkpoints = copied.Checkpoints(here.checkpoints, here.job_id, here.generation)
        copied.StopFlag(), copied.Pace(0.001).wait(), copied.say(step=1)
        checkpoints.save(1, {"a": b"x"}), checkpoints.prune()
        print(checkpoints.newest().name)
    """
    argv = [python38(), "-c", textwrap.dedent(script)]
    out = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert out.stdout.endswith("g0-s1\n"), out.stderr
