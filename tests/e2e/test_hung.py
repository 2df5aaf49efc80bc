"""A trainer that hangs is noticed, said and left alone until it makes steps again, under a real `reshape up`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

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


@pytest.mark.deep
def test_a_training_that_does_nothing_after_it_was_asked_to_stop_is_told_and_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "s", "1xV100", RESHAPE_NO_STEP_S="3") as up:
        up.client.submit(digits("one", 400, [1]))
        up.until("one", "running")
        wait_for(lambda: up.steps("one"), what="it makes steps, and so has said that it saves")
        trainer = wait_for(lambda: up.job("one").get("trainer_pid"), what="its process is known")
        os.kill(trainer, signal.SIGSTOP)
        up.client.suspend("one")

        def hung() -> View | None:
            os.kill(trainer, signal.SIGSTOP)
            job = up.job("one")
            return job if job["stalled"] else None

        hangs = wait_for(hung, what="it is noticed")
        assert (hangs["state"], hangs["eta_s"], hangs["trainer_pid"]) == ("adjusting", None, trainer)
        assert hangs["stalled"].startswith("does nothing since it was asked to stop, for ")
        assert "it may hang, and is not killed, as it may still save; `reshape logs one` shows" in hangs["message"]
        assert hangs["stalled"].partition(",")[0] in command(up, "explain", "one")[1]
        assert wait_for(lambda: events(up, "one", "stalled"), what="its event")
        os.kill(trainer, signal.SIGCONT)
        up.until("one", "submitted")
        assert not up.job("one")["stalled"]
        up.client.resume("one")
        up.until("one", "completed")
        assert up.steps("one") == list(range(1, 401)), "no step was lost or done twice"


@pytest.mark.parametrize("frozen", ["sidecar_pid", "shim_pid"])
def test_a_sidecar_or_shim_that_does_not_answer_a_suspension_is_told(tmp_path: Path, frozen: str) -> None:
    with running(tmp_path / "s", "1xV100") as up:
        up.client.submit(digits("one", 400_000, [1]))
        up.until("one", "running")
        pid = wait_for(lambda: up.job("one").get(frozen), what="its process is known")
        os.kill(pid, signal.SIGSTOP)
        up.client.suspend("one")
        told = wait_for(lambda: job if "answer" in (job := up.job("one"))["message"] else None, what="it is told")
        assert told["state"] == "adjusting"
        assert f"(process {told['sidecar_pid']})" in told["message"]
        assert "could not be told to stop for " in command(up, "explain", "one")[1]
        os.kill(pid, signal.SIGCONT)
        up.until("one", "submitted")
        assert "answer" not in up.job("one")["message"]
