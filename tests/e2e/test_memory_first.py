"""A reshape in place under a real `reshape up` goes on from memory, and what a lost machine takes along is told."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

from sidecar.checkpoints import newest_good
from tests.e2e.up import Up, of_folder, running, wait_for
from tests.fakes.shim_client import trainer


def folder(up: Up) -> Path:
    """That of the job, which holds output and checkpoints."""
    (found,) = [path for path in up.state.glob("jobs/*") if (path / "checkpoints").is_dir()]
    return found


def begun(up: Up) -> list[tuple[int, Path]]:
    """At which step each start of the training began, and from which checkpoint."""
    output = next(iter(up.state.glob("jobs/*/*.log")), None) and up.client.logs("chain")[0].decode()
    found = re.findall(r"^begins=\d+ at=(\d+) path=(\S+)\n(?=step=)", output or "", re.M)
    return [(int(step), Path(path)) for step, path in found]


def steps(up: Up) -> list[int]:
    return [int(step) for step in re.findall(r"^step=(\d+) ", up.client.logs("chain")[0].decode(), re.M)]


def reshaped(up: Up) -> tuple[Path, int]:
    """Reshape a training while the disk hangs; return the copy in memory and the frozen process that is to write it."""
    up.client.submit({"job_id": "chain", "command": trainer("chain", "300000"), "optional_num_gpus": [1, 2]})
    up.until("chain", "running")
    wait_for(lambda: len(begun(up)) == 1, what="it trains")
    hold = folder(up) / "hold-exit"
    hold.touch()
    up.client.reshape("chain", 3 - up.job("chain")["num_gpus"])
    (writer,) = wait_for(lambda: [pid for pid, words in of_folder(up.state).items() if "memory.py" in words])
    os.kill(writer, signal.SIGSTOP)
    hold.unlink()
    wait_for(lambda: len(begun(up)) == 2, what="it trains again")
    up.until("chain", "running")
    return begun(up)[1][1], writer


def of_job(up: Up) -> dict[str, Any]:
    return {key: up.job("chain").get(key) for key in ("checkpoint", "lost", "resumes", "state")}


def test_a_reshape_in_place_goes_on_from_memory_and_the_copy_counts_once_the_disk_has_it(tmp_path: Path) -> None:
    with running(tmp_path / "state", "2xV100", RESHAPE_GRACE_S="30") as up:
        copy, writer = reshaped(up)
        assert copy.is_relative_to("/dev/shm") and begun(up)[1][0] == int(copy.name.partition("-s")[2])
        assert of_job(up)["checkpoint"] is None and newest_good(folder(up) / "checkpoints", "chain") is None
        os.kill(writer, signal.SIGCONT)
        wait_for(lambda: newest_good(folder(up) / "checkpoints", "chain"), what="the disk has it")
        up.client.cancel("chain")
        up.until("chain", "cancelled")
        assert of_job(up)["checkpoint"]["generation"] == 2
        assert steps(up) == [*range(1, len(steps(up)) + 1)]
        assert not copy.exists()


def test_a_machine_that_is_lost_before_the_disk_has_the_copy_is_a_fault_that_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "state", "2xV100") as up:
        copy, writer = reshaped(up)
        shim = int(next(iter(up.state.glob("jobs/*/shim.pid"))).read_text())
        shutil.rmtree(copy.parent)
        for pid in (shim, writer):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: up.job("chain")["lost"], what="the loss is told")
        found = of_job(up)
        assert (found["lost"]["agreed"], found["resumes"]) == (True, "hook")
        assert begun(up)[2][0] == 0 and found["lost"]["iterations"] >= begun(up)[1][0]
        up.client.reshape("chain", 3 - up.until("chain", "running")["num_gpus"])  # it may be stopped as before
        wait_for(lambda: len(begun(up)) == 4, what="it is reshaped again")
