"""Code that is edited while it trains runs when its user asks for it, and not before, under a real `reshape up`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.test_suspend_and_drain import command
from tests.e2e.up import digits, running, wait_for

SCRIPT = """
import sys, time
import reshape_hooks
from model import VERSION
state = reshape_hooks.Elastic(counter={})
for step in state.steps(100_000):
    with open(sys.argv[1], "a") as done:
        done.write(f"{step} {VERSION}\\n")
    time.sleep(0.02)
"""


def test_a_healthy_job_runs_other_code_only_when_its_user_asks_for_a_stop(tmp_path: Path) -> None:
    script, model, log = tmp_path / "train.py", tmp_path / "model.py", tmp_path / "log"
    script.write_text(SCRIPT)
    model.write_text("VERSION = 1\n")

    def rows() -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in log.read_text().splitlines()]

    # It shrinks for the second job, and does not grow again: it would start with the code that was written meanwhile.
    with running(tmp_path / "s", "2xV100", RESHAPE_MIN_GAIN_FACTOR="1e12") as up:
        line = [sys.executable, str(script), str(log)]
        up.client.submit({"job_id": "one", "command": line, "optional_num_gpus": [1, 2]})
        up.until("one", "running")
        wait_for(lambda: up.job("one")["num_gpus"] == 2 and up.job("one")["iters_done"] > 20, what="it trains on two")
        was = up.until("one", "running")
        model.write_text("VERSION = 2\nif VERSI")
        up.client.submit(digits("two", 20, [1]))
        why = wait_for(lambda: up.job("one")["left_alone"], what="it is left alone")
        assert why == (
            "keeps its 2 GPUs: model.py has changed since it was started; "
            "`reshape suspend one` and `reshape resume one` start it with the new code"
        )
        assert "model.py has changed" in " ".join(command(up, "job", "one")[1].split())
        done = len(rows())
        wait_for(lambda: len(rows()) > done + 50, what="it trains on")
        now = up.job("one")
        assert (now["generation"], now["trainer_pid"], now["num_gpus"]) == (was["generation"], was["trainer_pid"], 2)
        assert up.job("two")["state"] == "submitted", "for which nobody was stopped"

        model.write_text("VERSION = 1\n")
        up.until("two", "completed")
        up.until("one", "running")
        model.write_text("VERSION = 2\n")
        wait_for(lambda: up.job("one")["left_alone"], what="it is left alone again")
        assert command(up, "suspend", "one")[0] == 0
        up.until("one", "submitted")
        assert command(up, "resume", "one")[0] == 0
        wait_for(lambda: rows()[-1][1] == 2, what="the new code trains")
        assert up.job("one")["left_alone"] is None
        up.client.cancel("one")
        up.until("one", "cancelled")
        assert [step for step, _ in rows()] == list(range(len(rows()))), "no step was lost or done twice"
        assert up.violations() == []
