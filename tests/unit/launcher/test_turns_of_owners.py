"""Launches and removals take turns, on a shared machine among those of each user."""

from __future__ import annotations

import threading
from typing import Any

from launcher.launch_queue import AT_ONCE, LaunchQueue
from tests.patience import eventually


def test_runs_of_one_user_that_hang_hold_up_no_run_of_another_one() -> None:
    go_on, running, done = threading.Event(), set[str](), set[str]()

    def carry_out(verb: str, doc: dict[str, Any], cancelled: object) -> None:
        running.add(doc["job_id"])
        if doc["owner_uid"] == 1:
            go_on.wait()
        done.add(doc["job_id"])

    queue = LaunchQueue(carry_out, prepare=lambda doc, cancelled: None)
    try:
        for number in range(AT_ONCE + 1):
            queue.request(f"hangs-{number}", "remove", {"job_id": f"hangs-{number}", "owner_uid": 1})
        eventually(lambda: len(running) == AT_ONCE, "all turns of the first user are taken")
        queue.request("other", "launch", {"job_id": "other", "owner_uid": 2})
        eventually(lambda: "other" in done, "the other user's launch is carried out")
        assert len(running) == AT_ONCE + 1, "the first user waits for a turn"
    finally:
        go_on.set()
        queue.stop_all(10.0)
    assert len(done) == AT_ONCE + 2


def test_a_removal_that_was_requested_during_its_launch_is_carried_out_also_when_all_ends() -> None:
    begun = threading.Event()
    done = list[str]()

    def carry_out(verb: str, doc: dict[str, Any], cancelled: object) -> None:
        begun.set()
        if verb == "launch":
            queue.closing.wait()
        done.append(verb)

    queue = LaunchQueue(carry_out)
    queue.request("one", "launch", {})
    begun.wait()
    queue.request("one", "remove", {})
    queue.stop_all(0.0)
    assert done == ["launch", "remove"]
