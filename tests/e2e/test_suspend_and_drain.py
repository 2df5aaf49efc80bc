"""What operators suspend and drain, under a real `reshape up`: no step is lost, and no GPU has two users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.test_live_cluster import events
from tests.e2e.test_lost_work import PLAIN
from tests.e2e.up import Up, digits, of_folder, running, wait_for

SUSPENDING = ("after:stop", "before:yielded", "after:yielded", "after:free", "after:remove", "after:put down")


def command(up: Up, *words: str) -> tuple[int, str, str]:
    """Exit code, output and complaint of a `reshape` of its own process."""
    line = [sys.executable, "-m", "reshape", "--state", str(up.state), *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def trainers(up: Up, job_id: str) -> list[str]:
    return [line for line in of_folder(up.state).values() if f"jobs/{job_id}" in line or "numpy_digits" in line]


def test_a_suspended_job_gives_its_gpus_to_others_and_goes_on_without_losing_a_step(tmp_path: Path) -> None:
    with running(tmp_path / "s", "2xV100") as up:
        up.client.submit(digits("one", 400, [2]))
        up.until("one", "running")
        wait_for(lambda: up.job("one")["iters_done"] > 5, what="it trains")
        code, out, _ = command(up, "suspend", "one")
        assert (code, out) == (0, "Job one saves, gives its GPUs up and waits until `reshape resume one`.\n")
        up.until("one", "submitted")
        wait_for(lambda: [g["state"] for g in up.client.gpus()] == ["idle", "idle"], what="its GPUs are free")
        wait_for(lambda: not trainers(up, "one"), what="nothing of it runs")
        up.client.submit(digits("two", 20, [2]))
        up.until("two", "completed")
        assert up.job("one")["state"] == "submitted" and "is suspended by an operator" in up.job("one")["message"]
        assert command(up, "suspend", "one")[1] == "Job one is not started until `reshape resume one`.\n"
        assert command(up, "resume", "one")[0] == 0
        done = up.until("one", "completed")
        assert (done["launch"], done["preempts"], up.steps("one")) == (2, 0, list(range(1, 401)))
        assert up.violations() == []
        assert command(up, "resume", "one")[::2] == (1, "Job one is completed: there is nothing to change.\n")


def test_a_suspension_comes_to_its_end_though_each_step_of_it_is_a_crash(tmp_path: Path) -> None:
    with running(tmp_path / "s", "2xV100") as up:
        up.client.submit(digits("one", 300, [2]))
        up.until("one", "running")
        wait_for(lambda: up.job("one")["iters_done"] > 5, what="it trains")
        up.kill()
        up.start(SUSPENDING[0])  # before it is suspended: else the stop may have been sent by one that does not crash
        up.client.suspend("one")
        wait_for(lambda: up.gone, what=f"{SUSPENDING[0]} is reached")
        for seam in SUSPENDING[1:]:
            up.start(seam)
            wait_for(lambda: up.gone, what=f"{seam} is reached")
        up.start()
        up.until("one", "submitted")
        wait_for(lambda: [g["state"] for g in up.client.gpus()] == ["idle", "idle"], what="its GPUs are free")
        up.client.resume("one")
        up.until("one", "completed")
        assert up.steps("one") == list(range(1, 301)), "no step was lost or done twice"
        assert up.violations() == []


def test_a_drained_node_is_left_by_what_resumes_and_what_does_not_is_named_and_trains_on(tmp_path: Path) -> None:
    with running(tmp_path / "s", ["a=2xV100", "b=1xV100"]) as up:
        plain = [sys.executable, "-c", PLAIN, str(tmp_path / "plain")]
        up.client.submit({"job_id": "plain", "command": plain, "optional_num_gpus": [1], "node": "a"})
        up.until("plain", "running")
        up.client.submit(digits("fills", 100_000, [1], node="b"))
        up.until("fills", "running")
        up.client.submit(digits("moves", 600, [1]))
        assert up.until("moves", "running")["node"] == "a"
        code, out, _ = command(up, "drain", "a")
        assert code == 0 and out.startswith("Node a takes no new work until `reshape undrain a`.\n")
        assert "as soon as there is room: moves;" in out
        assert "Job plain keeps its 1 GPU until it ends: it has not shown that it can save and resume" in out
        wait_for(lambda: "it leaves when one has" in up.job("moves")["message"], what="it says why it is still there")
        assert " drained\n" in command(up, "nodes")[1]
        up.client.cancel("fills")
        moved = wait_for(lambda: events(up, "moves", "moved"), what="it has moved")[0]
        assert (moved["from_node"], moved["to_node"]) == ("a", "b")
        up.client.submit(digits("new", 20, [1]))
        wait_for(lambda: up.job("new")["message"], what="a new one waits")
        assert up.job("new")["state"] == "submitted", "the idle GPU of the drained node is not used"
        assert command(up, "undrain", "a")[1] == "Node a takes jobs again.\n"
        up.until("new", "completed")
        up.until("moves", "completed")
        steps = [int(line) for line in (tmp_path / "plain").read_text().split()]
        assert up.steps("moves") == list(range(1, 601)) and steps == list(range(1, len(steps) + 1))
        assert up.job("plain")["generation"] == 1 and up.violations() == []
        assert command(up, "drain", "z")[::2] == (1, "There is no node 'z'; `reshape nodes` lists all.\n")
