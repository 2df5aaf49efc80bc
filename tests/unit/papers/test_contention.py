"""What trainings lose beside each other is measured of real processes bound to the same CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reshape.cli.main import run
from reshape_papers.recordings import contention
from reshape_papers.recordings.recording import RecordingFailed
from tests.e2e.up import of_folder
from tests.patience import eventually

CPU = max(os.sched_getaffinity(0))
TRAINING = """#!{python}
import os, sys, time
from pathlib import Path
here = Path(os.getcwd()).parent
(here / ("saw-" + str(os.getpid()))).write_text(str(sorted(os.sched_getaffinity(0))))
for step in range(1, {steps}):
    # As slow as others run beside it: a core-second of one beside another is worth half.
    stats = [Path("/proc") / saw.name[4:] / "stat" for saw in here.glob("saw-*")]
    running = [stat for stat in stats if stat.read_text().rpartition(")")[2].split()[0] != "T"]
    until = time.process_time() + 0.001 * len(running)
    while time.process_time() < until:
        pass
    print(f"step={{step}} total=1000000 loss={{2.0 / step}}", flush=True)
assert {cpus} == sorted(os.sched_getaffinity(0))
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "MEASURED_CPU_S", 0.1)
    monkeypatch.setattr(contention, "ROUNDS", 2)


def python(folder: Path, steps: int = 1_000_000) -> str:
    """A program in the place of Python, that trains whatever script it is given."""
    program = folder / "python"
    program.write_text(TRAINING.format(python=sys.executable, steps=steps, cpus=[CPU]))
    program.chmod(0o755)
    return str(program)


def test_the_speed_lost_to_others_on_the_same_cpu_is_measured_in_cpu_time(tmp_path: Path) -> None:
    found = contention.measure("gru", "torch", python(tmp_path), ["--samples", "64"], 3, [CPU])
    assert (found.model, found.framework, found.cpus, found.beside) == ("gru", "torch", [CPU], [2, 3])
    assert len(found.alone) == contention.ROUNDS
    assert found.lost == [pytest.approx(1 / 2, abs=0.15), pytest.approx(2 / 3, abs=0.15)]
    assert found.contention == pytest.approx(0.43, abs=0.12)
    assert "CPU time" in found.how and found.machine and found.date


def test_each_further_training_costs_the_same_share_of_what_is_left() -> None:
    assert contention.per_job([2, 3, 4], [0.1, 0.19, 0.271]) == pytest.approx(0.1)
    assert contention.per_job([2, 3], [0.0, 0.0]) == 0.0


def test_a_training_that_ends_before_it_is_measured_gives_no_recording_but_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(RecordingFailed, match=r"did not train on(?s:.*)step=3 total"):
        contention.measure("gru", "torch", python(tmp_path, steps=4), [], 2, [CPU])


def test_nothing_of_the_trainings_is_left_and_this_process_may_use_its_cpus_again(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(RecordingFailed):
        contention.measure("gru", "torch", python(tmp_path, steps=4), [], 2, [CPU])
    assert os.sched_getaffinity(0) == before
    assert of_folder(tmp_path) == {}


def test_a_command_that_is_ended_leaves_no_training_behind_not_even_a_stopped_one(tmp_path: Path) -> None:
    words = ["record", "gru", "--python", python(tmp_path), "--beside", "3"]
    variables = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "reshape", *words], env=variables, stderr=subprocess.DEVNULL
    ) as command:
        eventually(lambda: "T" in states_of(tmp_path), "one is stopped while others are measured", 60)
        command.terminate()
    assert command.returncode != 0
    assert of_folder(tmp_path) == {}


def states_of(folder: Path) -> set[str]:
    """Return what the kernel says of each process that names the folder: one letter, `T` for a stopped one."""
    found = set()
    for pid in of_folder(folder):
        with contextlib.suppress(OSError):  # it has ended
            found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_the_command_keeps_it_and_refuses_options_that_mean_nothing_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "contention.json"
    words = ["record", "gru", "--python", python(tmp_path), "--beside", "2", "--into", str(file)]
    assert run(words) == 0
    (row,) = json.loads(file.read_text())
    assert (row["model"], row["beside"], row["cpus"]) == ("gru", [2], [CPU])
    assert run([*words, "--saving"]) == run([*words, "--epochs", "2"]) == 2
    assert run(["record", "gru", "--cpus", "2"]) == 2
    assert run([*words, "--cpus", "4096"]) == 2
    assert "this process may use" in capsys.readouterr().err
