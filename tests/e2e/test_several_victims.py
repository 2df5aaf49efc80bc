"""A newcomer that no single job can make room for gets GPUs from several, through one real `reshape up`.

Promises: each victim trains on without losing a step, no GPU has two users, and the decision names all of them.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.up import TRAINERS, running, wait_for

PACED = "digits-numpy"  # a type whose speed is known, so that plans can be compared
NEWCOMER = {
    "job_id": "new",
    "command": [sys.executable, "-c", "print('step=1 total=1')"],
    "optional_num_gpus": [2],
    "job_type": PACED,
    "iterations": 20,
}


@pytest.mark.timeout(600)
def test_a_newcomer_gets_one_gpu_of_each_of_two_jobs_which_lose_no_step(tmp_path: Path) -> None:
    told = tmp_path / "end"
    command = [sys.executable, str(TRAINERS / "until_told.py"), str(told)]
    more = {"optional_num_gpus": [1, 2], "job_type": PACED, "iterations": 1_000_000, "elastic": True}
    with running(tmp_path / "state", "4xV100") as up:
        for name in ("a", "b"):
            up.client.submit({"job_id": name, "command": command, **more})
        wait_for(lambda: [up.job(name)["num_gpus"] for name in ("a", "b")] == [2, 2], what="both have two GPUs")
        before = {name: up.until(name, "running") for name in ("a", "b")}
        for name in before:
            wait_for(partial(up.steps, name), what=f"{name} trains")
        up.client.submit(NEWCOMER)
        up.until("new", "completed")
        (start,) = [one for one in up.client.decisions("new") if one["kind"] == "start"]
        assert [start["victim"], *(one["job"] for one in start["more_victims"])] == ["a", "b"]
        assert sorted(start["jobs"]) == ["a", "b", "new"]
        for name, then in before.items():
            assert up.until(name, "running")["generation"] > then["generation"]
        told.touch()
        for name in before:
            up.until(name, "completed")
            steps = up.steps(name)
            assert all(later == earlier + 1 for earlier, later in pairwise(steps)), (name, steps)
        assert up.violations() == []
