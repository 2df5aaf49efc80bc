"""Trainings of several processes that no hook can stop together are never announced, and say why."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from coordinator.model.gang import rendezvous
from tests.depth import deep
from tests.frameworks.test_resumed_exactly import SCRIPTS, STARTUP, WITHIN_S, Script, run
from tests.interpreters import python_with

ALONE = re.compile(r"reshape: .* because (.*)")


def test_lightning_in_two_processes_is_left_alone_and_trains_to_its_end(tmp_path: Path) -> None:
    ended = run(Script("lightning", "lightning_ddp.py", 0, None), tmp_path, 1)
    assert ended.status == 0, ended.errors
    assert ended.measured == ["measured 8\n"] * 2
    assert {why.partition(";")[0] for why in ALONE.findall(ended.errors)} == {"it trains in several processes"}
    assert not (tmp_path / "announce").exists()


def test_elastic_refuses_a_model_of_which_each_process_has_a_part(tmp_path: Path) -> None:
    ended = run(Script("torch", "torch_sharded.py", 0, None, torchrun=True), tmp_path, 1, gpus=2)
    assert ended.status == 1
    assert "because each process has a part of its state" in ended.errors
    assert not (tmp_path / "announce").exists()


def test_a_fit_of_two_workers_is_left_alone_and_fails_in_keras_itself(tmp_path: Path) -> None:
    """When this fails, Keras has learned it: then the hook can, too."""
    python = python_with("tensorflow")
    if python is None:
        pytest.skip("TensorFlow is not installed")
    workers = []
    for member in range(2):
        given = {
            "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "workers", "RESHAPE_GENERATION": "1", "PYTHONUNBUFFERED": "1",
            "RESHAPE_CHECKPOINTS": str(tmp_path / "saved"), "RESHAPE_ANNOUNCE": str(tmp_path / f"announce-{member}"),
            "CUDA_VISIBLE_DEVICES": "", **rendezvous(["127.0.0.1"] * 2, member, os.getpid() % 1000, 1),
        }  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        argv = [python, str(SCRIPTS / "keras_workers.py")]
        workers.append(subprocess.Popen(argv, cwd=tmp_path, env=os.environ | given, text=True, **pipes))
    for member, worker in enumerate(workers):
        output, _ = worker.communicate(timeout=WITHIN_S)
        assert worker.returncode == 1 and "workers 2\n" in output, output
        # On a busy machine TensorFlow may say behind the error that it no longer hears the other worker.
        said = re.split(r"^E\d{4} .*StartAbort", output, maxsplit=1, flags=re.MULTILINE)[0]
        assert "keras/src" in said and said.splitlines()[-1].endswith("to a Tensor."), output
        (why,) = ALONE.findall(output)
        assert why.startswith("it trains in several processes; a loop that stops them together")
        assert not (tmp_path / f"announce-{member}").exists()


@pytest.mark.parametrize("place", ["lock", deep("clock")])
def test_torchrun_ends_as_its_processes_wherever_it_is_asked_to_stop(place: str, tmp_path: Path) -> None:
    python = python_with("transformers")
    if python is None:
        pytest.skip("PyTorch is not installed: make test-frameworks")
    given = {
        "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "told", "RESHAPE_GENERATION": "1", "CUDA_VISIBLE_DEVICES": "",
        "RESHAPE_CHECKPOINTS": str(tmp_path / "saved"), "RESHAPE_ANNOUNCE": str(tmp_path / "announce"),
    }  # fmt: skip
    torchrun = [python, str(SCRIPTS / "torchrun_told.py"), place, "--standalone", "--shutdown-timeout=0"]
    argv = [*torchrun, str(SCRIPTS / "torchrun_process.py"), "1"]
    more = {"capture_output": True, "text": True, "check": False, "timeout": WITHIN_S}
    ended = subprocess.run(argv, cwd=tmp_path, env=os.environ | given, **more)
    assert ended.returncode == 143, ended.stderr
    assert (tmp_path / "saved").exists(), "it was not killed as it saved"
    assert "Traceback" not in ended.stderr, ended.stderr
