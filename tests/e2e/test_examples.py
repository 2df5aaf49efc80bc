"""The example trainings as real processes: stopped at arbitrary steps and resumed, they end as if never stopped."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshape_hooks.locks import violations
from reshape_hooks.plain import boottime
from tests.patience import patient

ROOT = Path(__file__).parents[2]
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow here")
NUMPY, KERAS = "numpy_digits.py", "keras_digits.py"


class Run:
    """One training process, as the shim would start it."""

    def __init__(self, folder: Path, script: str, *options: str, **variables: str) -> None:
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "RESHAPE_JOB_ID": "job",
            "RESHAPE_GENERATION": "1",
            "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
            "RESHAPE_GPU_LOCKS": str(folder / "locks"),
        }
        self.begun = boottime()
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / script), *options],
            env=env | variables, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
        )  # fmt: skip
        self.lines: list[str] = []

    def read_to(self, pattern: str) -> str:
        """Read up to the first line that holds the pattern; pytest's timeout bounds it."""
        for line in self.process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"ended without {pattern!r}:\n{''.join(self.lines)[-3000:]}")

    def read_to_step(self, step: int) -> None:
        """Up to this step or, where it was done before, to the first one."""
        while int(field(self.read_to("^step="), "step")) < step:
            pass

    def ended(self) -> int:
        self.lines.extend(self.process.stdout)
        return self.process.wait(patient(60))

    def steps(self) -> list[int]:
        return [int(found[1]) for line in self.lines if (found := re.match(r"step=(\d+) ", line))]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Run]]:
    started: list[Run] = []

    def begin(script: str, *options: str, **variables: str) -> Run:
        started.append(Run(tmp_path, script, *options, **variables))
        return started[-1]

    yield begin
    for run in started:
        run.process.kill()
        run.process.communicate()


def field(line: str, name: str) -> str:
    return re.search(rf"(?:^| ){name}=(\S+)", line)[1]


def emulated(**speeds: float) -> dict[str, str]:
    return {"RESHAPE_EMULATED_SPEED": json.dumps({key.strip("n"): value for key, value in speeds.items()})}


def interrupted(start, script: str, stops: list[int], *options: str) -> Run:
    """Train to the end, with SIGTERM once each of these steps was seen. Slow enough to be stopped in time."""
    last, generation = 0, 0
    for generation, stop in enumerate(stops, 1):
        run = start(script, *options, RESHAPE_GENERATION=str(generation), **emulated(n2=0.02))
        run.read_to_step(stop)
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 143, "".join(run.lines[-20:])
        steps = run.steps()
        assert steps == list(range(last + 1, steps[-1] + 1)), "a step was repeated or left out"
        last = steps[-1]
    run = start(script, *options, RESHAPE_GENERATION=str(generation + 1))
    assert run.ended() == 0, "".join(run.lines[-20:])
    assert run.steps()[0] == last + 1
    return run


def test_numpy_interrupted_at_random_steps_ends_with_the_same_weights_bit_for_bit(start, tmp_path):
    stops = sorted(random.sample(range(1, 100), 5))  # a failure shows them
    weights = field(interrupted(start, NUMPY, stops, "--iterations", "200").lines[-1], "weights")
    whole = start(NUMPY, "--iterations", "200", RESHAPE_CHECKPOINTS=str(tmp_path / "whole"))
    assert whole.ended() == 0
    assert field(whole.lines[-1], "weights") == weights
    assert violations(tmp_path / "locks") == []


def test_numpy_killed_without_warning_goes_on_from_its_last_checkpoint_to_the_same_weights(start, tmp_path):
    options = ("--iterations", "300", "--save-every", "25")
    run = start(NUMPY, *options, **emulated(n2=0.01))
    run.read_to_step(60)
    run.process.kill()
    run.ended()
    again = start(NUMPY, *options, RESHAPE_GENERATION="2")
    assert again.ended() == 0
    assert again.steps()[0] in range(51, 300, 25)
    whole = start(NUMPY, *options, RESHAPE_CHECKPOINTS=str(tmp_path / "whole"))
    assert whole.ended() == 0
    assert field(again.lines[-1], "weights") == field(whole.lines[-1], "weights")


def test_numpy_begins_at_the_checkpoint_that_it_was_told(start):
    assert start(NUMPY, "--iterations", "60", "--save-every", "30").ended() == 0
    run = start(NUMPY, "--iterations", "60", RESHAPE_GENERATION="2", RESHAPE_CHECKPOINT="g1-s30")
    assert run.ended() == 0
    assert run.steps()[0] == 31


def test_a_complete_training_started_again_ends_at_once(start):
    first, again = start(NUMPY, "--iterations", "50"), None
    assert first.ended() == 0
    again = start(NUMPY, "--iterations", "50", RESHAPE_GENERATION="2")
    assert again.ended() == 0
    assert again.steps() == []
    assert field(again.lines[-1], "weights") == field(first.lines[-1], "weights")


def test_it_validates_as_often_as_it_is_told_and_trains_as_well_as_without(start, tmp_path):
    looking = start(NUMPY, "--iterations", "60", "--evaluate-every", "20")
    blind = start(NUMPY, "--iterations", "60", RESHAPE_CHECKPOINTS=str(tmp_path / "blind"))
    assert (looking.ended(), blind.ended()) == (0, 0)
    seen = [i for i, line in enumerate(looking.lines) if line.startswith("val_accuracy=")]
    assert [field(looking.lines[i - 1], "step") for i in seen] == ["20", "40", "60"]
    assert field(looking.lines[-1], "weights") == field(blind.lines[-1], "weights")


def test_numpy_saves_without_ending_where_it_announced_that_it_can(start, tmp_path):
    run = start(NUMPY, "--iterations", "4000", RESHAPE_ANNOUNCE=str(tmp_path / "announce"), **emulated(n2=0.004))
    run.read_to_step(3)
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1 ")
    run.process.send_signal(signal.SIGUSR1)
    saved = int(field(run.read_to("^checkpoint="), "step"))
    assert saved >= 3
    assert int(field(run.read_to("^step="), "step")) == saved + 1
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 143


def test_emulated_gpus_pace_the_steps_by_their_number_and_every_report_says_so(start):
    for gpus, seconds in (("a", 0.04), ("a,b", 0.02)):
        run = start(
            NUMPY, "--iterations", "40", CUDA_VISIBLE_DEVICES=gpus, RESHAPE_GENERATION=str(len(gpus)),
            RESHAPE_CHECKPOINTS=f"by-{len(gpus)}", **emulated(n1=0.04, n2=0.02),
        )  # fmt: skip
        assert run.ended() == 0
        reports = [line for line in run.lines if line.startswith("step=")]
        assert all("emulated=yes" in line for line in reports)
        # Only the lower bound is a promise: a busy machine may be slower.
        assert float(field(reports[-1], "time")) - run.begun > 40 * seconds


def test_damaged_checkpoints_end_the_example_with_a_sentence_and_exit_code_1(start, tmp_path):
    assert start(NUMPY, "--iterations", "5").ended() == 0
    (tmp_path / "checkpoints" / "g1-s5" / "weights.npy").write_bytes(b"junk")
    for _ in range(2):
        run = start(NUMPY, "--iterations", "50", RESHAPE_GENERATION="2")
        assert run.ended() == 1
        assert "refusing to start from zero" in run.lines[-1]
        assert "Traceback" not in "".join(run.lines)


def test_two_examples_on_one_gpu_are_a_violation_and_both_train_on(start, tmp_path):
    one = start(NUMPY, "--iterations", "4000", CUDA_VISIBLE_DEVICES="a,b", **emulated(n2=0.004))
    one.read_to_step(1)
    two = start(
        NUMPY, "--iterations", "20", CUDA_VISIBLE_DEVICES="b,c", RESHAPE_JOB_ID="two",
        RESHAPE_CHECKPOINTS="two", **emulated(n2=0.004),
    )  # fmt: skip
    assert two.ended() == 0
    one.read_to_step(one.steps()[-1] + 20)
    kinds = {(v["kind"], v["gpu"]) for v in violations(tmp_path / "locks")}
    assert kinds == {("refused lock", "b"), ("overlap", "b")}


@pytest.mark.parametrize("name", ["job-numpy.json", "job-keras.json"])
def test_the_job_documents_name_scripts_and_options_that_exist(name):
    job = json.loads((ROOT / "examples" / name).read_text())
    assert job["state"] == "submitted"
    script, flag, iterations = job["command"][1:]
    assert (ROOT / "examples" / job["code"] / script).exists()
    assert (flag, int(iterations)) == ("--iterations", job["iterations"])


def keras_weights(folder: Path) -> list[list[float]]:
    import h5py

    with zipfile.ZipFile(folder / "model.keras") as packed, packed.open("model.weights.h5") as file:
        found: list[list[float]] = []
        weights = h5py.File(io.BytesIO(file.read()))
        weights.visititems(lambda _, item: found.append(item[()].ravel().tolist()) if hasattr(item, "shape") else None)
        return found


@pytest.mark.deep
@needs_tensorflow
def test_keras_interrupted_in_the_middle_of_epochs_ends_as_if_never_interrupted(start, tmp_path):
    options = ("--iterations", "170")  # 46 steps an epoch: stops in the first and the second of four
    last = interrupted(start, KERAS, [17, 60], *options)
    whole = start(KERAS, *options, RESHAPE_CHECKPOINTS=str(tmp_path / "whole"))
    assert whole.ended() == 0
    assert whole.steps() == list(range(1, 171))
    for name in ("val_loss", "val_accuracy"):
        assert float(field(last.lines[-1], name)) == pytest.approx(float(field(whole.lines[-1], name)), abs=1e-5)
    one, other = keras_weights(tmp_path / "checkpoints" / "g3-s170"), keras_weights(tmp_path / "whole" / "g1-s170")
    assert len(one) == len(other) >= 8  # weights and momenta
    for mine, theirs in zip(one, other, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert violations(tmp_path / "locks") == []


@pytest.mark.deep
@needs_tensorflow
def test_keras_prints_nothing_but_its_reports(start):
    run = start(KERAS, "--iterations", "3", "--evaluate-every", "2")
    assert run.ended() == 0
    assert [re.split("[= ]", line)[0] for line in run.lines] == [
        "job",
        "step",
        "step",
        "val_accuracy",
        "step",
        "checkpoint",
        "finished",
    ]
