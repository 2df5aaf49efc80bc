"""A recording holds the loss by shares of the work of a training process, or says why there is none."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reshape.cli.main import run
from reshape_papers.recordings.recording import RecordingFailed, TrainingSample, cpu_s, curve, keep, record

TRAINING = """#!{python}
import fcntl, sys, termios, time
for step in range(1, 5):
    print(f"step={{step}} total=4 loss={{2.0 / step}} accuracy=0.5", flush=True)
    while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):  # until it was read
        time.sleep(0.001)
    worked = time.process_time()
    while time.process_time() - worked < 0.05:
        pass
sys.exit({code})
"""


def python(folder: Path, code: int = 0) -> str:
    """A program in the place of Python, that trains whatever script it is given."""
    program = folder / "python"
    program.write_text(TRAINING.format(python=sys.executable, code=code))
    program.chmod(0o755)
    return str(program)


def test_a_training_is_measured_from_its_first_loss_to_its_last(tmp_path: Path) -> None:
    found = record("gru", "keras", python(tmp_path), ["--epochs", "2"])
    assert (found.model, found.framework, found.options, found.iterations) == ("gru", "keras", ["--epochs", "2"], 4)
    assert found.memory > 1_000_000 and found.machine and found.date
    assert found.loss[0] > found.loss[-1] == 0.5


def test_work_is_the_cpu_time_of_the_process_not_the_time_that_passed() -> None:
    assert cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.5)


def test_a_training_that_fails_gives_no_recording_but_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match=r"keras gru did not train to its end(?s:.*)loss=0\.5"):
        record("gru", "keras", python(tmp_path, code=3), [])


def test_a_curve_has_the_mean_of_each_part_of_the_work_whatever_the_clock_says() -> None:
    samples = [TrainingSample(wall, cpu, value) for wall, cpu, value in ((9, 1.0, 8.0), (10, 1.2, 6.0), (99, 2.9, 2.0))]
    assert curve(samples, 2) == [7.0, 2.0]
    assert curve(samples, 4) == [7.0, 7.0, 7.0, 2.0], "a part without a value goes on with the one before"


def test_a_newer_recording_of_a_model_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    file, first = tmp_path / "recorded.json", record("gru", "keras", python(tmp_path), [])
    keep(first, file)
    keep(replace(first, framework="torch"), file)
    keep(replace(first, cpu_s=7.0), file)
    rows = json.loads(file.read_text())
    assert [(row["framework"], row["cpu_s"]) for row in rows] == [("keras", 7.0), ("torch", first.cpu_s)]


@pytest.mark.parametrize("more", [[], ["--saving"]])
def test_python_may_be_named_by_a_path_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    python(tmp_path, code=7)
    monkeypatch.chdir(tmp_path)
    assert run(["record", "gru", "--python", "./python", *more]) != 0
    assert "loss=" in capsys.readouterr().err, "it ran"


def test_a_training_that_fails_leaves_no_file_that_was_not_there(tmp_path: Path) -> None:
    file = tmp_path / "recordings.json"
    assert run(["record", "gru", "--python", python(tmp_path, code=7), "--into", str(file)]) != 0
    assert not file.exists()


@pytest.mark.parametrize("held", ["not JSON", '{"model": "gru"}', None])
def test_a_file_that_cannot_take_a_recording_is_refused_before_anything_trains(
    tmp_path: Path, held: str | None
) -> None:
    file = tmp_path / ("recordings.json" if held else "missing/recordings.json")
    if held:
        file.write_text(held)
    words = ["record", "gru", "--python", python(tmp_path, code=7), "--into", str(file)]
    assert run(words) == 2
    assert held is None or file.read_text() == held
