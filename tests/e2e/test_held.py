"""A training that does not start again after a reshape that nobody asked for is held, under a real `reshape up`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.test_live_cluster import events
from tests.e2e.test_suspend_and_drain import command
from tests.e2e.up import Up, digits, of_folder, running, wait_for

MAKES_A_FOLDER = """
import os, sys, time
import reshape_hooks
folder, log = sys.argv[1:]
state = reshape_hooks.Elastic(counter={})
if os.path.exists(folder):
    raise FileExistsError(17, "File exists", folder)
os.makedirs(folder)
for step in state.steps(100_000):
    with open(log, "a") as done:
        done.write(f"{step}\\n")
    time.sleep(0.02)
"""
WHY = "the training process ended with exit code 1: FileExistsError: [Errno 17] File exists: "


def submit(up: Up, script: Path, folder: Path) -> Path:
    """Job one, which begins by making an output folder; the file of the steps that it has done."""
    script.write_text(MAKES_A_FOLDER)
    log = folder.with_name("log")
    line = [sys.executable, str(script), str(folder), str(log)]
    up.client.submit({"job_id": "one", "command": line, "optional_num_gpus": [1, 2]})
    up.until("one", "running")
    wait_for(lambda: up.job("one")["num_gpus"] == 2 and up.job("one")["iters_done"] > 20, what="it trains on two")
    return log


def test_a_job_that_fails_at_its_second_start_is_held_without_gpus_until_it_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with running(tmp_path / "s", "2xV100") as up:
        log = submit(up, tmp_path / "train.py", folder)
        up.client.submit(digits("two", 100_000, [1]))
        held = wait_for(lambda: job if (job := up.job("one"))["held"] else None, what="it is held")
        assert held["held"] == f"{WHY}{str(folder)!r}"
        assert held["message"] == (
            f"one is held: {held['held']}. Mend this, then `reshape resume one` starts it from what it has saved; "
            "`reshape cancel one` ends it."
        )
        assert (held["state"], held["num_gpus"], held["ends_between"]) == ("submitted", 0, None)
        wait_for(lambda: not any("jobs/one" in line for line in of_folder(up.state).values()), what="nothing runs")
        two = up.until("two", "running")
        told = wait_for(lambda: events(up, "one", "held"), what="the event is written")
        assert [event["sentence"] for event in told] == [held["message"]]
        saved = len(log.read_text().split())

        up.kill()
        up.start()
        wait_for(lambda: sorted(g["state"] for g in up.client.gpus()) == ["idle", "in use"], what="one GPU is free")
        assert " held " in command(up, "jobs", "--state", "held")[1]
        for verb in ("job", "explain"):
            assert f"one is held: {WHY}" in " ".join(command(up, verb, "one")[1].split())
        wait_for(lambda: up.job("two")["iters_done"] > two["iters_done"] + 10, what="the newcomer trains on")
        assert (up.job("two")["generation"], up.job("two")["trainer_pid"]) == (1, two["trainer_pid"])
        assert len(log.read_text().split()) == saved, "it was not started again meanwhile"

        folder.rmdir()
        assert command(up, "resume", "one")[0] == 0
        up.until("one", "running")
        wait_for(lambda: len(log.read_text().split()) > saved + 10, what="it trains on")
        up.client.cancel("one")
        up.until("one", "cancelled")
        steps = [int(line) for line in log.read_text().split()]
        assert steps == list(range(len(steps))), "no step was lost or done twice"
        assert up.violations() == []
