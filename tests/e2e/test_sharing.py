"""Users share the GPUs of a real `reshape up`: trainings shrink or wait for others by right, and lose no step."""

from __future__ import annotations

import time
from pathlib import Path

from tests.e2e.up import digits, running, wait_for

GUARANTEED = """
queues:
  vision: {users: [ada]}
  nlp: {users: [bob], guaranteed: 2}
patience: 1s
min_run: 1s
"""


def test_a_second_user_gets_half_of_the_machine_and_the_first_trains_on(tmp_path: Path) -> None:
    with running(tmp_path / "s", "2xV100") as up:
        up.client.submit(digits("hers", 300, [1, 2], owner="ada"))
        wait_for(lambda: up.job("hers")["num_gpus"] == 2 and up.job("hers")["iters_done"] > 5, what="it trains on both")
        up.client.submit(digits("his", 20, [1, 2], owner="bob"))
        up.until("his", "completed")
        assert up.until("hers", "completed")["preempts"] == 0
        assert up.steps("hers") == list(range(1, 301)), "no step was lost or done twice"
        assert up.violations() == []
        (ada, bob) = up.client.usage()
        assert (ada["user"], ada["shrinks"], bob["user"], bob["shrinks"]) == ("ada", 1, "bob", 0)


def test_a_guarantee_is_taken_back_by_suspending_what_can_resume_and_it_goes_on_after_that(tmp_path: Path) -> None:
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    (state / "shares.yaml").write_text(GUARANTEED)
    with running(state, "2xV100") as up:
        up.client.submit(digits("hers", 200, [2], owner="ada"))
        wait_for(lambda: up.job("hers")["iters_done"] > 5, what="it trains")
        up.client.submit(digits("his", 15, [2], owner="bob"))
        up.until("his", "completed")
        done = up.until("hers", "completed")
        assert (done["preempts"], up.steps("hers")) == (1, list(range(1, 201)))
        assert up.violations() == []
        assert sum(one["suspensions"] for one in up.client.usage()) == 1


def test_a_reservation_shrinks_a_training_in_time_and_a_shell_runs_on_it_while_another_user_waits(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "s", "2xV100") as up:
        up.client.submit(digits("hers", 400, [1, 2], owner="ada"))
        wait_for(lambda: up.job("hers")["num_gpus"] == 2 and up.job("hers")["iters_done"] > 5, what="it trains on both")
        made = up.client.reserve(1, time.time() + 600, user="bob")
        wait_for(lambda: up.job("hers")["num_gpus"] == 1, what="it shrinks for the reservation")
        assert up.client.reservations()[0]["missing"] == 0
        up.client.submit(digits("others", 20, [1], owner="cy"))
        up.client.submit(digits("his", 20, [1], owner="bob", elastic=False))
        up.until("his", "completed")
        assert up.job("others")["start_ts"] is None, "the reserved GPU is not for it"
        assert "reserved for bob" in up.job("others")["message"]
        up.client.unreserve(made["reservation_id"])
        up.until("others", "completed")
        assert up.until("hers", "completed")["preempts"] == 0
        assert up.steps("hers") == list(range(1, 401)), "no step was lost or done twice"
        assert up.violations() == []


def test_a_node_is_empty_for_its_maintenance_and_the_training_goes_on_after_it(tmp_path: Path) -> None:
    with running(tmp_path / "s", "2xV100") as up:
        up.client.submit(digits("hers", 200, [2], owner="ada"))
        wait_for(lambda: up.job("hers")["iters_done"] > 5, what="it trains")
        (node,) = up.client.nodes()
        up.client.drain(node["node"], time.time(), time.time() + 3600)
        wait_for(lambda: up.job("hers")["state"] == "submitted" and not up.job("hers")["num_gpus"], what="it has left")
        assert up.client.nodes()[0]["drained"] is True
        up.client.undrain(node["node"])
        up.until("hers", "completed")
        assert up.steps("hers") == list(range(1, 201)), "no step was lost or done twice"
