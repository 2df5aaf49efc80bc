"""A training that evaluates or saves for longer than the grace loses nothing to a stop that nobody asked for.

Real trainings with our hook of the standard library, under a real `reshape up`. Each step writes a line into a file of
the script's own, so that one that is done twice shows.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import ROOT, Up, running, wait_for

GRACE_S = 1.0
SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from reshape_hooks import plain

here, folder = plain.environment(), Path(sys.argv[1])
stop = plain.StopFlag(here.announce, only_143=True)
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
found = checkpoints.newest(here.prefer)
step = found.step if found else 0

def hold(name):
    (folder / name).touch()
    while not (folder / "go").exists():
        time.sleep(0.02)

def write(path):
    if (folder / "slow save").exists():
        hold("saves")
    Path(path).write_text(str(step))

while True:
    if (folder / "slow evaluation").exists():
        hold("evaluates")
    time.sleep(0.05)
    step += 1
    with (folder / "steps").open("a") as steps:
        steps.write(f"{{step}}\\n")
    plain.say(step=step)
    if stop.stopping:
        checkpoints.save(step, {{"state": write}})
        sys.exit(plain.STOPPED)
"""


class Slow:
    """One training and the folder by which the test holds it."""

    def __init__(self, up: Up, folder: Path, job_id: str) -> None:
        self.up, self.folder, self.job_id = up, folder / job_id, job_id
        self.folder.mkdir()
        command = [sys.executable, "-c", SCRIPT.format(root=str(ROOT)), str(self.folder)]
        record = {"job_id": job_id, "command": command, "optional_num_gpus": [1, 2], "env": {"RESHAPE_MEMORY": "0"}}
        up.client.submit(record)
        up.until(job_id, "running")
        wait_for(lambda: up.job(job_id)["iters_done"] > 3, what=f"{job_id} trains")

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def reached(self, name: str) -> None:
        wait_for((self.folder / name).exists, what=f"{self.job_id} {name}")

    def steps(self) -> list[int]:
        return [int(line) for line in (self.folder / "steps").read_text().split()]

    def outlives_the_grace(self) -> None:
        """It is there long after the grace, as the same process."""
        pid = wait_for(lambda: self.up.job(self.job_id)["trainer_pid"], what="its process is known")
        time.sleep(4 * GRACE_S)
        os.kill(pid, 0)

    def lost_nothing(self) -> bool:
        return self.steps() == list(range(1, len(self.steps()) + 1))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("slow") / "s", "4xV100", RESHAPE_GRACE_S=str(GRACE_S)) as one:
        yield one
        assert one.violations() == []


def test_a_reshape_waits_for_an_evaluation_and_then_loses_no_step(up: Up, tmp_path: Path) -> None:
    one = Slow(up, tmp_path, "evaluates")
    one.touch("slow evaluation")
    one.reached("evaluates")
    was = up.job("evaluates")["num_gpus"]
    up.client.reshape("evaluates", 3 - was)
    wait_for(lambda: up.job("evaluates")["state"] == "adjusting", what="it is told to stop")
    one.outlives_the_grace()
    one.touch("go")
    wait_for(lambda: up.job("evaluates")["num_gpus"] == 3 - was, what="it has its new GPUs")
    before = len(one.steps())
    wait_for(lambda: len(one.steps()) > before + 3, what="it trains on")
    assert one.lost_nothing() and not up.job("evaluates")["lost"]
    up.client.cancel("evaluates")
    up.until("evaluates", "cancelled")


def test_a_suspension_waits_for_a_slow_save_and_then_loses_no_step(up: Up, tmp_path: Path) -> None:
    one = Slow(up, tmp_path, "saves")
    one.touch("slow save")
    up.client.suspend("saves")
    one.reached("saves")
    one.outlives_the_grace()
    one.touch("go")
    up.until("saves", "submitted")
    up.client.resume("saves")
    up.until("saves", "running")
    before = len(one.steps())
    wait_for(lambda: len(one.steps()) > before + 3, what="it trains on")
    assert one.lost_nothing()
    up.client.cancel("saves")
    up.until("saves", "cancelled")


@pytest.mark.parametrize("killed", ["shim_pid", "trainer_pid"])
def test_a_kill_in_a_save_that_was_asked_for_ends_no_reshaping(up: Up, tmp_path: Path, killed: str) -> None:
    """See that a loss by the kill does not show that the training cannot save."""
    job_id = f"killed-{killed.removesuffix('_pid')}"
    one = Slow(up, tmp_path, job_id)
    one.touch("slow save")
    was = up.job(job_id)["num_gpus"]
    up.client.reshape(job_id, 3 - was)
    one.reached("saves")
    stopping = wait_for(lambda: job if (job := up.job(job_id)).get(killed) else None, what="its process is known")
    os.kill(stopping[killed], signal.SIGKILL)
    wait_for(lambda: up.job(job_id)["lost"], what="what was lost is told")
    lost = up.until(job_id, "running")
    assert lost["num_gpus"] == 3 - was
    assert (lost["lost"]["agreed"], lost["rigid"], lost["left_alone"]) == (True, False, None)
    one.touch("go")
    up.client.reshape(job_id, was)
    wait_for(lambda: up.job(job_id)["reshapes"] == 2, what="it is reshaped again")
    up.client.cancel(job_id)
    up.until(job_id, "cancelled")


def test_a_cancellation_waits_no_longer_than_the_grace_even_for_one_that_was_waited_for(up: Up, tmp_path: Path) -> None:
    one = Slow(up, tmp_path, "held")
    one.touch("slow evaluation")
    one.reached("evaluates")
    up.client.suspend("held")
    wait_for(lambda: up.job("held")["state"] == "adjusting", what="it is told to stop")
    one.outlives_the_grace()
    up.client.cancel("held")
    up.until("held", "cancelled")
