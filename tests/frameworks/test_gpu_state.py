"""A state of PyTorch that is held between two trainers is the one that was there: losses are those of one run.

The driver's library is a fake one, PyTorch, shim and holder are real; on a GPU see `tests/e2e/test_real_gpus.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.fakes import cuda
from tests.fakes.shim_client import running_shim
from tests.interpreters import python_with
from tests.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "held_state.py"


def trained(output: str) -> list[str]:
    return re.findall(r"^trained (.*)$", output, re.M)


def test_a_held_state_is_that_of_an_undisturbed_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_with("torch")
    if python is None:
        pytest.skip("there is no PyTorch here")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda.build(tmp_path / "cuda")))
    disk = tmp_path / "checkpoints"
    disk.mkdir()
    gpu = f"GPU-{uuid.uuid4().hex[:8]}"  # its lock is of the whole machine
    env = {"RESHAPE_CHECKPOINTS": str(disk), "PYTHONPATH": str(ROOT)}
    (tmp_path / "steps").write_text("1000000")
    (tmp_path / "held").touch()
    command = [python, str(SCRIPT)]
    with running_shim(tmp_path, command, env=env, gpus="nvml", hooks=True, workdir=str(tmp_path)) as shim:

        def output() -> str:
            return shim.output.read_text() if shim.output.exists() else ""

        checkpoint = None
        for generation in (1, 3, 5):
            done = len(trained(output()))
            assert shim.client.start(generation, [gpu], checkpoint=checkpoint)["ok"]
            eventually(lambda done=done: len(trained(output())) > done + 10, "it trains", within=60)  # type: ignore[misc]
            shim.client.stop(generation + 1, in_place=True, gpu_ids=[gpu], wait=True)
            status = shim.client.wait("exited")
            assert status["exit_code"] == 143, output()[-2000:]
            assert status["on_gpu"].startswith(f"state stays on GPU {gpu}"), output()[-2000:]
            checkpoint = status["in_memory"]["name"]
            on_disk = disk / checkpoint / "manifest.json"
        eventually(on_disk.exists, "it is on the disk")
        lines = trained(output())
        assert output().count("of state taken from GPU memory") == 2
    (tmp_path / "held").unlink()
    (tmp_path / "steps").write_text(str(len(lines) + 5))
    for last in ("disk", "nothing"):  # once more from its file, and all of it by a training that nobody stopped
        env["RESHAPE_CHECKPOINTS"] = str(disk if last == "disk" else tmp_path / "other")
        run = subprocess.run(
            command,
            env={**os.environ, **env, "RESHAPE_JOB_ID": "j", "RESHAPE_GENERATION": "7"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        if last == "disk":
            lines += trained(run.stdout)
    assert trained(run.stdout) == lines
