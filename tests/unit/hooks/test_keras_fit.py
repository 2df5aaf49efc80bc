"""A plain `model.fit` that is stopped at any batch and started again ends as if it had never been stopped.

Bit for bit on CPU: weights, optimizers, History, what callbacks wrote; each row of each epoch was trained on once. The
fits are in `fits.py`; a process runs all of them, as each start of TensorFlow takes seconds.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshape_hooks
from reshape_hooks import claims, plain
from tests.interpreters import python_with

HERE = Path(__file__).parent
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
PYTHON = python_with("tensorflow")
pytestmark = [pytest.mark.deep, pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")]

# Way -> where it is stopped first and where when it has been resumed: fit, epoch and batch, all from 0.
STOPS = {
    "arrays": ([0, 0, 2], [0, 2, 5]),
    "seeded_arrays": ([0, 1, 5], [0, 2, 0]),
    "dataset": ([0, 1, 1, "validation"], [0, 3, 3]),
    "repeated": ([0, 2, 1], [0, 4, 3]),
    "unknown_length": ([0, 0, 3], [0, 2, 5]),
    "py_dataset": ([0, 1, 2], [0, 3, 0]),
    "threads": ([0, 1, 3], [0, 2, 5]),
    "several_steps": ([0, 1, 3], [0, 3, 7]),
    "fine_tuning": ([0, 0, 2], [1, 1, 3]),
    "own_step": ([0, 1, 1], [0, 2, 5]),
    "replicas": ([0, 1, 2], [0, 2, 5]),
    "half_precision": ([0, 0, 3], [0, 1, 1]),
    "beside": ([0, 1, 3], [0, 2, 1, "validation"]),
}


def drawn(way: str) -> list[list[int]]:
    """Two batches of its five epochs of six, in order; not the first one, before whose end nothing is answered."""
    return [[0, *divmod(batch, 6)] for batch in sorted(random.Random(way).sample(range(1, 29), 2))]


# On 4, 1 and 2 replicas, of which the script makes its batch; sums over replicas are rounded in another order.
RESHAPED = {way: drawn(way) for way in ("resized", "resized_dataset")}
ROUNDING = 1e-5
EVERY_ROW = {"arrays": 4, "seeded_arrays": 3, "dataset": 4, "unknown_length": 4, "py_dataset": 4, "threads": 3}
EVERY_ROW |= dict.fromkeys(RESHAPED, 5)


BEGUN_ANEW = "this training begins at its first step"


def trainer(folder: Path, *command: str, generation: int = 1, mtbf: str = "", stops: str = "") -> subprocess.Popen[str]:
    """Start a script as the shim does. `mtbf`: if it is tiny, it saves after each batch without being asked."""
    given = {
        "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "job", "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_GENERATION": str(generation),
        "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1",
        "RESHAPE_MTBF_S": mtbf, "STOPS": stops,
        "PYTHONFAULTHANDLER": "1",  # says where TensorFlow crashed, as it once did
    }  # fmt: skip
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([str(PYTHON), *command], cwd=folder, env=os.environ | given, text=True, **output)


def run_fits(folder: Path, generation: int, stops: dict[str, Any], mtbf: str = "") -> None:
    folder.mkdir(exist_ok=True)
    command = [str(HERE / "fits.py"), str(folder)]
    process = trainer(folder, *command, generation=generation, mtbf=mtbf, stops=json.dumps(stops))
    output, _ = process.communicate()
    assert process.returncode == 0, output[-5000:]
    assert BEGUN_ANEW not in output


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the fits that were never stopped, and of those that were stopped and save all the time."""
    folder = tmp_path_factory.mktemp("fits")
    whole, broken = folder / "whole", folder / "broken"

    def stopped() -> None:
        for generation in (1, 2, 3):
            ways = {**STOPS, **RESHAPED}.items()
            chosen = {way: at[generation - 1] for way, at in ways if generation <= len(at)}
            run_fits(broken, generation, chosen, "1e-9")

    with ThreadPoolExecutor(2) as both:
        for one in [both.submit(run_fits, whole, 1, {}), both.submit(stopped)]:
            one.result()
    return whole, broken


def load(folder: Path, way: str) -> Any:
    return pickle.loads((folder / way / "ended").read_bytes())


@pytest.mark.parametrize("way", STOPS)
def test_a_fit_that_was_stopped_twice_ends_bit_for_bit_as_one_that_was_not(ended: tuple[Path, Path], way: str) -> None:
    whole, broken = (load(folder, way) for folder in ended)
    assert [w.tobytes() for w in broken.pop("weights")] == [w.tobytes() for w in whole.pop("weights")]
    assert repr(broken) == repr(whole)


@pytest.mark.parametrize("way", RESHAPED)
def test_a_fit_that_was_reshaped_ends_as_one_that_was_not_but_for_rounding(ended: tuple[Path, Path], way: str) -> None:
    whole, broken = (load(folder, way) for folder in ended)
    for one, other in zip(broken["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=ROUNDING)
    for (epochs, history), (all_epochs, all_history) in zip(broken["history"], whole["history"], strict=True):
        assert epochs == all_epochs and history.keys() == all_history.keys()
        for name, values in history.items():
            np.testing.assert_allclose(values, all_history[name], atol=ROUNDING)


@pytest.mark.parametrize("way", EVERY_ROW)
def test_each_row_is_trained_on_once_in_each_epoch(ended: tuple[Path, Path], way: str) -> None:
    assert set(np.ravel(load(ended[1], way)["rows"])) == {EVERY_ROW[way]}


@dataclass(frozen=True)
class Ended:
    code: int
    output: str

    @property
    def last(self) -> str:
        return self.output.splitlines()[-1]


def stop_after(process: subprocess.Popen[str], line: str, *signals: int) -> Ended:
    """Send the signals, one after the other, when a line begins so; wait for the end."""
    read = []
    waiting = list(signals)
    assert process.stdout is not None
    for text in process.stdout:
        read.append(text)
        if waiting and text.startswith(line):
            process.send_signal(waiting.pop(0))
    return Ended(process.wait(), "".join(read))


def run(folder: Path, *arguments: str, generation: int = 1, line: str = "", signals: tuple[int, ...] = ()) -> Ended:
    folder.mkdir(exist_ok=True)
    process = trainer(folder, str(HERE / "plain_fit.py"), *arguments, generation=generation)
    return stop_after(process, line, *signals)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    yield run(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The folder and the end of a first generation that was stopped."""
    folder = tmp_path_factory.mktemp("first")
    return folder, run(folder, line="step=", signals=(signal.SIGTERM,))


@pytest.fixture
def stopped(first: tuple[Path, Ended], tmp_path: Path) -> Path:
    """A copy of that folder."""
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_script_that_is_stopped_before_it_trains_just_ends(tmp_path: Path) -> None:
    begun = run(tmp_path, line="begins", signals=(signal.SIGTERM,))
    assert (begun.code, (tmp_path / "announce").exists()) == (-signal.SIGTERM, False)


def test_a_script_without_seeds_that_is_stopped_from_outside_ends_with_the_same_weights(
    undisturbed: Ended, first: tuple[Path, Ended], stopped: Path
) -> None:
    before, again = first[1], (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)
    assert before.code == 143 and (stopped / "announce").exists()
    second = run(stopped, generation=2, line="step=", signals=again)
    assert second.code == 143 and second.output.count("checkpoint=") == 2
    third = run(stopped, generation=3)
    assert third.code == 0
    assert third.last == undisturbed.last
    saved = [
        int(step) for step in re.findall(r"checkpoint=\S+ step=(\d+)", before.output + second.output + third.output)
    ]
    assert saved == sorted(set(saved))


def test_a_resumed_fit_traces_its_step_once_and_makes_no_iterator_of_epochs_that_are_done(tmp_path: Path) -> None:
    ends = []
    for generation in (1, 2):
        process = trainer(tmp_path, str(HERE / "counted_fit.py"), generation=generation)
        ends.append(stop_after(process, "never"))
    assert [one.code for one in ends] == [143, 0], [one.output for one in ends]
    # Keras itself traces twice: TensorFlow throws the first trace away, in which metrics and optimizer were made.
    (first,), (second,) = (re.findall(r"traces=(\d+) iterators=(\d+)", one.output) for one in ends)
    assert (first[0], second[0]) == ("2", "1")
    assert first[1] == second[1]


def test_a_checkpoint_of_other_data_is_refused_with_a_sentence(stopped: Path) -> None:
    (stopped / "other-data").touch()
    other = run(stopped, generation=2)
    assert other.code == 1
    assert "the data of this fit are not those that it was saved with" in other.last


def rewritten(folder: Path, change: Any) -> str:
    """Save the newest checkpoint once more, with other files and another state, and return its name."""
    checkpoints = plain.Checkpoints(folder / "checkpoints", "job", 2)
    saved = checkpoints.newest()
    assert saved is not None
    files = {path.name: path.read_bytes() for path in saved.path.iterdir() if path.name != plain.MANIFEST}
    state = pickle.loads(files["fits.pickle"])
    change(files, state)
    return checkpoints.save(saved.step, {**files, "fits.pickle": pickle.dumps(state)})


def test_a_position_of_another_version_is_refused_with_a_sentence_and_kept(stopped: Path) -> None:
    older = rewritten(stopped, lambda _, state: state.pop("format"))
    ended = run(stopped, generation=3)
    assert ended.code == 1 and "Traceback" not in ended.output
    assert f"checkpoint {older} was saved by another version of volcano-reshape" in ended.last
    kept = plain.Checkpoints(stopped / "checkpoints", "job", 3).newest()
    assert kept is not None and kept.name == older


def test_what_a_version_that_knew_fits_by_their_order_has_saved_goes_on(undisturbed: Ended, stopped: Path) -> None:
    def as_before(files: dict[str, bytes], state: dict[str, Any]) -> None:
        (one,) = state.pop("fits").values()
        new = ("ended", "known_by")
        state.update(format=2, ended={}, running={name: value for name, value in one.items() if name not in new})
        files["running.npz"] = files.pop("fit-0.npz")

    rewritten(stopped, as_before)
    (stopped / "checkpoints" / claims.INDEX).unlink()
    ended = run(stopped, generation=3)
    assert (ended.code, ended.last) == (0, undisturbed.last)


def test_what_cannot_be_resumed_exactly_is_told_once_and_never_announced(tmp_path: Path) -> None:
    process = trainer(tmp_path, str(HERE / "left_alone.py"))
    output, _ = process.communicate()
    assert process.returncode == 0, output[-5000:]
    assert "was announced" not in output
    told = [line.partition("because ")[2] for line in output.splitlines() if line.startswith("reshape:")]
    assert told == [
        "its data come from a generator or loader that cannot be set back; use tf.data or a PyDataset",
        "its tf.data pipeline calls Python",
        "it is shuffled without a seed inside its tf.data pipeline",
        "its tf.data pipeline keeps data beyond an epoch (CacheDataset)",
        "its tf.data pipeline does not keep an order",
        "it runs eagerly",
        "its training step has a state that cannot be saved (RandomUniform)",
        "its layers are split among GPU:0, GPU:1, and may not run on another number of them",
        "it trains under MultiWorkerMirroredStrategy",
        "it trains in several processes; a loop that stops them together is in examples/keras_gang.py",
        "it trains under ParameterServerStrategy",
        "its tf.data pipeline changes variables",
        "its PyDataset is read by other processes",
        "its PyDataset has attributes that cannot be saved (left)",
        "it is not called by the main thread",
        "the script has a handler for SIGTERM of its own",
    ]


def test_what_a_stop_changes_in_a_fit_is_no_more_than_is_said(tmp_path: Path) -> None:
    for generation in (1, 2):
        process = trainer(tmp_path, str(HERE / "changed_fit.py"), str(tmp_path), generation=generation)
        output, _ = process.communicate()
        assert process.returncode == 0, output[-5000:]
        assert BEGUN_ANEW not in output
    lines = [line.split(maxsplit=2)[1:] for line in output.splitlines() if line.startswith("found ")]
    assert {name: json.loads(found) for name, found in lines} == {
        "drawn_in_a_map": {"rows": [3.0], "begins": 1},
        "other_steps": {"epochs": 2},
        "backed_up": {"rows": [3.0], "epochs": [0, 1, 2]},
        "beside_callbacks": {"epochs": [0, 1, 2]},
        "asked_between": {"epochs": [[0, 1], [0, 1, 2]], "rows": [2.0]},
        "trained_outside": {"before": 6, "after": 11},
    }
    assert "22 steps per epoch instead of 6" in output


def test_a_fit_of_another_backend_is_left_alone_with_a_sentence(tmp_path: Path) -> None:
    given = {"PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "j", "RESHAPE_CHECKPOINTS": str(tmp_path / "saved")}
    given |= {"RESHAPE_ANNOUNCE": str(tmp_path / "announce")}
    code = "import types; from reshape_hooks.keras_fit import adapter; "
    code += "adapter.adapt(types.ModuleType('keras.src.backend.torch.trainer'))"
    ended = subprocess.run(
        [str(PYTHON), "-c", code], env=os.environ | given, capture_output=True, text=True, check=True
    )
    assert "`fit` is resumed with the TensorFlow backend only, not torch: it is left alone" in ended.stderr
