"""From whichever place of an epoch a DataLoader goes on, it gives what it would have given without a stop.

Whatever it shuffles by, and also where its sampler draws random numbers within an epoch or at its end.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interpreters import python_with

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "torch_places.py"
WITHIN_S = 300


def test_from_each_place_of_an_epoch_all_later_batches_and_random_numbers_are_those_without_a_stop() -> None:
    python = python_with("torch")
    if python is None:
        pytest.skip("torch is not installed: make test-frameworks")
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["stops"] > 100
    assert found["wrong"] == []
