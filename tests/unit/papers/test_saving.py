"""What saving and resuming takes is measured of processes that are stopped by SIGTERM and started again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reshape.cli import main
from reshape_papers.recordings import saving
from reshape_papers.recordings.recording import RecordingFailed
from reshape_papers.workloads import saving_times

TRAINING = """#!{python}
import os, signal, sys, time
from pathlib import Path
saved = Path(os.environ["RESHAPE_CHECKPOINTS"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
stops = os.environ["STOPS"].split()[int(os.environ["RESHAPE_GENERATION"]) - 1 :]
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 11):
    print(f"step={{step}} total=10 loss={{1 / step}}", flush=True)
    while stops and step == int(stops[0]) and not asked:
        time.sleep(0.001)
    if asked:
        saved.write_text(str(step))
        sys.exit({code})
"""


def python(folder: Path, code: int = 143) -> str:
    """A program in the place of Python, that trains whatever script it is given."""
    program = folder / "python"
    program.write_text(TRAINING.format(python=sys.executable, code=code))
    program.chmod(0o755)
    return str(program)


@pytest.fixture(autouse=True)
def stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps at which the training's processes wait for SIGTERM, one after the other."""
    monkeypatch.setenv("STOPS", "3 7")


def test_each_stop_has_a_time_to_save_and_one_to_resume(tmp_path: Path) -> None:
    found = saving.measure("gru", "torch", python(tmp_path), ["--epochs", "1"], [0.25, 0.7])
    assert (found.model, found.framework, found.at) == ("gru", "torch", [0.3, 0.7])
    for times in (found.save_s, found.resume_s, found.save_cpu_s, found.resume_cpu_s):
        assert len(times) == 2
    assert all(seconds > 0 for seconds in (*found.save_s, *found.resume_s))
    assert all(cpu_s < 5 for cpu_s in (*found.save_cpu_s, *found.resume_cpu_s))


def test_a_training_that_does_not_stop_as_asked_gives_no_times_but_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match=r"process 1 ended with 1(?s:.*)step=3 total=10"):
        saving.measure("gru", "torch", python(tmp_path, code=1), [], [0.3])


def test_one_that_ends_before_it_could_be_stopped_gives_none_either(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match=r"process 3 ended with 0\); a longer training"):
        saving.measure("gru", "torch", python(tmp_path), [], [0.3, 0.7, 1.1])


def test_the_command_stops_it_at_every_tenth_and_keeps_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPS", "1 2 3 4 5 6 7 8 9")
    file = tmp_path / "times.json"
    options = ["--framework", "torch", "--python", python(tmp_path), "--saving", "--into", str(file)]
    assert main.run(["--state", str(tmp_path), "record", "gru", *options]) == 0
    (row,) = json.loads(file.read_text())
    assert row["at"] == [tenths / 10 for tenths in range(1, 10)]
    assert len(saving_times.both(row)) == len(saving_times.both(row, "_cpu_s")) == 9


def test_what_is_shipped_is_of_every_stop_whole() -> None:
    for row in saving_times.rows():
        assert row["at"] == sorted(row["at"]) and len(row["at"]) == 9
        assert all(len(row[name]) == len(row["at"]) for name in ("save_s", "resume_s", "save_cpu_s", "resume_cpu_s"))
        assert len(saving_times.cells(row)) == len(saving_times.HEAD)
    assert len(saving_times.rows()) == 18, "nine models in two frameworks"
