"""Nobody's work is lost unasked: ordinary scripts under a real `reshape up`, read from what they wrote themselves.

Each writes a line per step into a file of its own, so that a step that is done twice shows however it came about.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.stores.opening import open_store
from reshape.client import CoordinatorRefused
from tests.e2e.up import Up, digits, running, wait_for

# As anybody writes it: no hook, no checkpoint, and nothing that it knows of us.
PLAIN = """
import sys, time
for epoch in range(1, 100_000):
    print(f"epoch={epoch} step={epoch} total=100000", flush=True)
    with open(sys.argv[1], "a") as done:
        done.write(f"{epoch}\\n")
    time.sleep(0.05)
"""
LOOP = 'i=0; while true; do i=$((i+1)); echo step=$i; echo $i >> "{}"; sleep 0.05; done'


class Ground:
    def __init__(self, up: Up, folder: Path) -> None:
        self.up, self.folder = up, folder

    def submit(self, job_id: str, command: list[str], counts: list[int], **more: Any) -> None:
        self.up.client.submit({"job_id": job_id, "command": command, "optional_num_gpus": counts, **more})
        self.up.until(job_id, "running")
        wait_for(lambda: len(self.steps(job_id)) > 3, what=f"{job_id} trains")

    def plain(self, job_id: str, counts: list[int], **more: Any) -> None:
        self.submit(job_id, [sys.executable, "-c", PLAIN, str(self.folder / job_id)], counts, **more)

    def loop(self, job_id: str, counts: list[int]) -> None:
        self.submit(job_id, ["bash", "-c", LOOP.format(self.folder / job_id)], counts)

    def steps(self, job_id: str) -> list[int]:
        """Every step that it has done, in order."""
        file = self.folder / job_id
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def once(self, job_id: str) -> bool:
        found = self.steps(job_id)
        return found == list(range(1, len(found) + 1))

    def end(self, job_id: str) -> None:
        self.up.client.cancel(job_id)
        self.up.until(job_id, "cancelled")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("lost-work")
    with running(folder / "state", "4xV100") as up:
        yield Ground(up, folder)


def test_a_plain_script_keeps_its_gpu_while_others_are_idle_and_one_with_a_hook_grows(ground: Ground) -> None:
    up = ground.up
    ground.plain("three", [3])
    ground.plain("plain", [1, 2, 4])
    before = up.job("plain")
    assert before["num_gpus"] == 1
    ground.end("three")
    ground.plain("two", [2])
    up.client.submit({k: v for k, v in digits("hooked", 400_000, [1, 2]).items() if k != "elastic"})
    up.until("hooked", "running")
    ground.end("two")
    wait_for(lambda: up.shapes("hooked") == [1, 2], what="the one with a hook has grown")
    now, grown = up.job("plain"), up.job("hooked")
    assert (grown["resumes"], grown["rigid"], grown["left_alone"]) == ("hook", False, None)
    assert "it has not shown that it can save and resume" in now["left_alone"] and now["rigid"]
    ground.end("hooked")
    steps = len(ground.steps("plain"))
    wait_for(lambda: len(ground.steps("plain")) > steps + 20, what="it trains on beside three idle GPUs")
    now = up.job("plain")
    assert (now["num_gpus"], now["generation"]) == (1, before["generation"]) and ground.once("plain")
    ground.end("plain")


def test_a_bash_loop_whose_process_is_killed_is_not_started_twice(ground: Ground) -> None:
    ground.loop("loop", [1])
    os.kill(ground.up.job("loop")["trainer_pid"], signal.SIGKILL)
    failed = ground.up.until("loop", "failed")
    assert "killed by signal 9" in failed["message"]
    assert "not started again: it is not known what running it twice would do" in failed["message"]
    assert ground.once("loop")


def test_a_bash_loop_whose_shim_is_killed_is_not_launched_twice(ground: Ground) -> None:
    ground.loop("orphan", [1])
    os.kill(ground.up.job("orphan")["shim_pid"], signal.SIGKILL)
    failed = ground.up.until("orphan", "failed")
    assert "its processes are gone; not started again" in failed["message"]
    assert (failed["launch"], ground.once("orphan")) == (1, True)


def test_an_operators_wish_that_loses_work_is_refused_until_it_is_forced(ground: Ground) -> None:
    up = ground.up
    ground.plain("asked", [1, 2])
    was = up.job("asked")["num_gpus"]
    other = {1: 2, 2: 1}[was]
    with pytest.raises(CoordinatorRefused, match=r"begin again from the start: .*--force"):
        up.client.reshape("asked", other)
    assert up.job("asked")["num_gpus"] == was and ground.once("asked")
    up.client.reshape("asked", other, force=True)
    wait_for(lambda: up.job("asked")["reshapes"], what="it is reshaped")
    now = up.job("asked")
    assert (now["num_gpus"], now["rigid"]) == (other, True)
    wait_for(lambda: ground.steps("asked").count(2) == 2, what="it has begun again, as was agreed to")
    lost = wait_for(lambda: up.job("asked")["lost"], what="what was lost is told")
    assert lost["agreed"] and lost["sentence"].startswith("lost "), lost
    ground.end("asked")


def test_a_training_lives_on_without_a_coordinator_and_one_whose_document_went_meanwhile_is_ended(
    tmp_path: Path,
) -> None:
    """With a lease of seconds, which ends nothing here; what frees the GPU of the deleted one is its shim's lock."""
    with running(tmp_path / "state", "2xV100", RESHAPE_LEASE_S="5") as up:
        ground = Ground(up, tmp_path)
        for name in ("kept", "deleted"):
            ground.plain(name, [1])
        was = up.job("kept")
        up.stop()
        since, steps = time.monotonic(), len(ground.steps("kept"))
        wait_for(lambda: time.monotonic() - since > 8 and len(ground.steps("kept")) > steps + 20, what="it trains on")
        store = open_store(f"sqlite:///{up.state / 'reshape.sqlite'}")
        (doc,) = store.list("jobs", {"job_id": "deleted"})
        store.delete("jobs", doc["_id"])
        store.close()
        up.start()
        wait_for(lambda: [gpu["state"] for gpu in up.client.gpus()].count("idle") == 1, what="one GPU is free")
        done = ground.steps("deleted")
        now = wait_for(lambda: j if (j := up.job("kept")).get("trainer_pid") else None, what="the other is heard")
        assert (now["trainer_pid"], now["generation"]) == (was["trainer_pid"], was["generation"])
        more = len(ground.steps("kept"))
        wait_for(lambda: len(ground.steps("kept")) > more + 20, what="it trains on")
        assert ground.steps("deleted") == done and ground.once("kept"), "what is ended does no more steps"
