"""A real training of the zoo converges, is categorised by SpeCon and moves to another node, where it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_live_cluster import events, on_cpu
from tests.e2e.up import EXAMPLES, running, wait_for
from tests.interpreters import python_with

PYTHON = python_with("tensorflow")
COLD_S = 300.0  # TensorFlow's import, twice, on a machine with other things to do
TIMES = {
    "RESHAPE_SYSTEMS": "elastic,specon", "RESHAPE_SPECON_INTERVAL_S": "1", "RESHAPE_FIRST_STEP_TIMEOUT_S": "120",
    "RESHAPE_GRACE_S": "30",
}  # fmt: skip
ENDLESS = 100_000  # epochs: the test cancels it


@pytest.mark.deep
@pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")
def test_a_model_of_the_zoo_converges_moves_and_goes_on_where_it_was(tmp_path: Path) -> None:
    script = str(EXAMPLES / "zoo" / "keras_zoo.py")
    model = {
        "job_id": "gru", "state": "submitted", "job_type": "zoo", "num_gpus": 0, "elastic": True,
        "command": [PYTHON, script, "gru", "--epochs", str(ENDLESS), "--samples", "256"],
    }  # fmt: skip
    with running(tmp_path / "s", ["c=cpu:2", "d=cpu:2"], **TIMES) as up:
        up.client.submit(model)
        wait_for(lambda: up.job("gru").get("category") == "CC", COLD_S, "its loss has flattened")
        before = up.job("gru")
        assert before["node"] == "c" and before["moves"] == 0, "alone on its node it has no reason to move"
        for name in ("one", "two"):
            up.client.submit(on_cpu(name, 100_000, iterations=100_000, node="c"))
        moved = wait_for(lambda: events(up, "gru", "moved"), COLD_S, "the converged model has moved")[0]
        assert (moved["from_node"], moved["to_node"]) == ("c", "d")
        there = up.job("gru")
        wait_for(lambda: up.job("gru")["iters_done"] > there["iters_done"] + 100, COLD_S, "it trains on node d")
        after = up.job("gru")
        assert after["iters_done"] > before["iters_done"] and not after["lost"]
        assert after["value"] < 0.05, "a GRU that had begun again would have a loss of 0.2"
