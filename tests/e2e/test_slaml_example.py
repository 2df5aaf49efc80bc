"""The Slaml of the examples: the paper's job, and tasks that really hand on to each other, stop and go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from coordinator.scheduling.slaml.slaml_spec import Slaml, documents, problems
from tests.interpreters import python_with
from tests.patience import patient
from tests.test_tidy import ROOT

FOLDER = ROOT / "examples" / "slaml"
PAPER = {
    "ml-task-1": ("data", 1, "2m", "2Mi", None),
    "ml-task-2": ("feature", 3, "3m", "2Mi", None),
    "ml-task-3": ("model", 3, None, "4Mi", "4"),
}


def slaml() -> Slaml:
    _, found = yaml.safe_load_all((FOLDER / "mnist.yaml").read_text(encoding="utf-8"))
    row = {"_id": "u", "namespace": "machine", "name": found["metadata"]["name"], "generation": 1}
    return Slaml.from_row(
        row | {"spec": json.dumps(found["spec"]), "notes": json.dumps(found["metadata"]["annotations"])}
    )


def test_it_is_the_papers_job_and_becomes_seven_jobs() -> None:
    found = slaml()
    assert problems(found) == []
    fields = ("type", "containerReplicas", "CPU", "memory", "GPU")
    assert {part.name: tuple(part.spec.get(f) for f in fields) for part in found.parts} == PAPER
    assert [tuple(p.values()) for p in found.parts[2].params] == [(64, 14, 1e-4), (128, 56, 1e-4), (256, 14, 1e-4)]
    docs = documents(found)
    assert [doc["optional_num_gpus"] for doc in docs] == [[0]] * 4 + [[1, 2, 4]] * 3
    assert {doc["queue"] for doc in docs} == {"reshape"}


class Tasks:
    """The script, by hand."""

    def __init__(self, folder: Path) -> None:
        self.variables = {**os.environ, "PYTHONPATH": str(ROOT), "DATA": str(folder / "data")}

    def start(self, task: str, **more: str) -> subprocess.Popen[str]:
        python = python_with("torch") if task == "train" else sys.executable
        if python is None:
            pytest.skip("PyTorch is not installed: make test-frameworks")
        command = [python, str(FOLDER / "mnist.py"), task]
        return subprocess.Popen(command, env=self.variables | more, stdout=subprocess.PIPE, text=True)

    def run(self, task: str, **more: str) -> str:
        started = self.start(task, **more)
        output, _ = started.communicate(timeout=patient(60))
        assert started.returncode == 0, output
        return output


def epochs(output: str) -> list[str]:
    """The lines of all epochs, with loss and accuracy."""
    return re.findall("^epoch=.*", output, re.MULTILINE)


def _prepared(folder: Path) -> Tasks:
    made = Tasks(folder)
    made.run("prepare")
    for n, again in enumerate(("", ".1ef8d0c2", ".12345678")):
        made.run("extract", RESHAPE_JOB_ID=f"machine.x.ml-task-2.{n}{again}")
    return made


@pytest.mark.deep
def test_the_tasks_hand_on_and_a_stopped_training_ends_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    tasks = _prepared(tmp_path)
    how = {"BATCH_SIZE": "64", "EPOCHS": "40", "LR": "0.003"}
    whole = epochs(tasks.run("train", **how, RESHAPE_CHECKPOINTS=str(tmp_path / "whole")))
    assert len(whole) == 40 and float(whole[-1].partition("val_accuracy=")[2]) > 0.85
    at = {"RESHAPE_CHECKPOINTS": str(tmp_path / "parts")}
    stopped = tasks.start("train", **how, **at)
    assert stopped.stdout is not None
    said = stopped.stdout.readline()  # it has begun
    stopped.send_signal(signal.SIGTERM)
    said += stopped.communicate(timeout=patient(60))[0]
    if stopped.returncode:  # it may have been faster
        assert stopped.returncode == 143
        said += tasks.run("train", **how, **at)
    assert epochs(said) == whole


def test_mnist_itself_is_taken_where_it_is_at_hand(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (30, 28, 28), np.uint8), random.integers(0, 10, 30)
    np.savez(tmp_path / "data" / "mnist.npz", x_train=images, y_train=labels, x_test=images[:5], y_test=labels[:5])
    tasks = _prepared(tmp_path)
    with np.load(tmp_path / "data" / "prepared.npz") as made:
        assert (made["x"].shape, made["y"].shape) == ((35, 784), (35,))
    tasks.run("train", BATCH_SIZE="8", EPOCHS="1", LR="0.1", RESHAPE_CHECKPOINTS=str(tmp_path / "saved"))
