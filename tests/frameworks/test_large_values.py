"""A variable that holds more than is kept, and that a loop changes, keeps the training from being stopped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.depth import deep
from tests.interpreters import python_with
from tests.unit.hooks.test_elastic import STARTUP
from tests.unit.hooks.test_values_not_kept import last_announced

BEGIN = """
import reshape_hooks
LARGE = (1 << 26) + 1  # numbers of four bytes
"""
LOOPS = {
    "torch": "import torch\nlarge = torch.zeros(LARGE)\n",
    "jax": "import jax.numpy as jnp\nlarge = jnp.zeros(LARGE)\n",
}
DATA_SET = """
import threading
class Data(torch.utils.data.Dataset):
    def __init__(self): self.cached = [threading.Lock()]
    def __len__(self): return 4
    def __getitem__(self, at): self.cached.append(threading.Lock()); return at
data = Data()
"""
END = """
given = {"steps": 0}
state = reshape_hooks.Elastic(given=given)
for step in state.steps(4):
    given["steps"] += 1
    CHANGE
print("end", large.mean().item(), given)
"""


def told_in(folder: Path, library: str, change: str, before: str = "") -> str:
    """Return what a loop with this change is told, which trains to its end."""
    python = python_with(library)
    if python is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    given = {
        "PYTHONPATH": str(STARTUP),
        "RESHAPE_JOB_ID": "job",
        "RESHAPE_GENERATION": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"),
    }
    argv = [python, "-c", BEGIN + LOOPS[library] + before + END.replace("CHANGE", change)]
    done = subprocess.run(argv, cwd=folder, env=os.environ | given, capture_output=True, text=True, check=True)
    assert "'steps': 4" in done.stdout
    return done.stderr


@pytest.mark.parametrize("library", ["torch", deep("jax")])
def test_a_large_variable_that_the_loop_changes_is_named_and_never_announced(library: str, tmp_path: Path) -> None:
    told = told_in(tmp_path, library, "large += step + 1")
    assert (
        "large of <module> changes during training, and a restart would reset it, because it holds more than is kept "
        "of a variable: give it to Elastic in a dictionary, and use it from there only"
    ) in told
    assert last_announced(tmp_path).startswith("withdrawn:")
    assert "SIGUSR1" not in (tmp_path / "announce").read_text()


@pytest.mark.parametrize("library", ["torch", deep("jax")])
def test_one_that_the_loop_only_reads_is_no_reason_to_keep_gpus(library: str, tmp_path: Path) -> None:
    assert "changes during training" not in told_in(tmp_path, library, "made = large + step; made.sum()")
    assert last_announced(tmp_path).startswith("SIGUSR1")


def test_what_a_data_set_has_cached_is_told_and_no_reason_to_keep_gpus(tmp_path: Path) -> None:
    told = told_in(tmp_path, "torch", "data[step]", DATA_SET)
    assert told.count("data of <module> changes during training, and a restart would reset it") == 1
    assert last_announced(tmp_path).startswith("SIGUSR1")
