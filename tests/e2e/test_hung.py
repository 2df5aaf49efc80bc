"""A trainer that hangs is noticed, said and left alone until it makes steps again, under a real `reshape up`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.test_live_cluster import events
from tests.e2e.test_suspend_and_drain import command
from tests.e2e.up import View, digits, running, wait_for


def test_a_training_that_makes_no_step_has_no_expected_end_and_is_not_stopped_for_another(tmp_path: Path) -> None:
    with running(tmp_path / "s", "2xV100", RESHAPE_NO_STEP_S="3") as up:
        up.client.submit(digits("one", 600, [1, 2]))
        up.until("one", "running")
        trains = wait_for(lambda: job if (job := up.job("one"))["seconds_per_iteration"] else None, what="its speed")
        wait_for(lambda: up.job("one")["eta_s"], what="its end is foreseen")

        def hung() -> View | None:
            os.kill(trains["trainer_pid"], signal.SIGSTOP)  # again: a sidecar lets a trainer go on that it first meets
            job = up.job("one")
            return job if job["stalled"] else None

        hangs = wait_for(hung, what="it is noticed")
        assert (hangs["eta_s"], hangs["ends_between"], hangs["state"]) == (None, None, "running")
        assert hangs["message"].startswith(f"{hangs['stalled']}: it may hang; `reshape logs one` shows what")
        assert "no step for" in command(up, "job", "one")[1]
        assert wait_for(lambda: events(up, "one", "stalled"), what="its event")[0]["sentence"].startswith(
            "no step for "
        )
        up.client.submit(digits("two", 40, [1]))
        wait_for(lambda: up.job("two")["message"], what="the other one says why it waits")
        assert up.job("two")["state"] == "submitted" and up.job("one")["generation"] == 1
        assert "until it makes steps again" in up.job("one")["left_alone"]
        os.kill(trains["trainer_pid"], signal.SIGCONT)
        wait_for(lambda: up.job("one")["stalled"] is None, what="it is taken back")
        wait_for(lambda: events(up, "one", "steps again"), what="and recorded")
        up.until("two", "completed")
        up.until("one", "completed")
        assert up.steps("one") == list(range(1, 601)), "no step was lost or done twice"
        assert up.violations() == []
