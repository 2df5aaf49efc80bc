"""Loops in JAX: on another number of devices, and those that Elastic refuses."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.test_resumed_exactly import SCRIPTS, STARTUP, WITHIN_S
from tests.interpreters import python_with

PYTHON = python_with("jax")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="JAX is not installed: make test-frameworks")


def started(folder: Path, script: str, *arguments: str, generation: int = 1, **more: str) -> subprocess.Popen[str]:
    given = {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(STARTUP), "JAX_PLATFORMS": "cpu",
        "RESHAPE_JOB_ID": "jax", "RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_GENERATION": str(generation),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_MTBF_S": "0", **more,
    }  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(PYTHON), str(SCRIPTS / script), *arguments], cwd=folder, env=given, text=True, **pipes)


def test_arrays_over_all_devices_go_on_over_those_that_there_are_now(tmp_path: Path) -> None:
    ends = []
    for generation, (devices, stop) in enumerate(((4, "2"), (2, "")), 1):
        flags = f"--xla_force_host_platform_device_count={devices}"
        process = started(tmp_path, "jax_sharded.py", generation=generation, XLA_FLAGS=flags, STOP_AT=stop)
        printed, errors = process.communicate(timeout=WITHIN_S)
        ends.append(process.returncode)
    assert ends == [143, 0], errors
    assert "measured 28.0 8.0 [2, 2] 8" in printed.splitlines(), "what is large and in no dictionary goes on, too"


def test_processes_that_have_met_by_jax_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    both = [started(tmp_path, "jax_processes.py", port, str(number)) for number in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=WITHIN_S)
        assert process.returncode != 0
        assert "because its processes have met by jax.distributed, through which they cannot stop together" in errors
    assert not (tmp_path / "announce").exists()
