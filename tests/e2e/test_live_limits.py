"""CPU limits (FlowCon) with real processes on one emulated node with two cores, and the cores of emulated nodes.

A training that hardly grows any more is held to a quarter of the node while another one trains there, and released
when that ends; a limit that nobody renews lifts itself and leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.local import cores_of_their_own
from tests.e2e.up import ROOT, TRAINERS, Up, running, wait_for

LIMIT = 0.5  # cores: 1 / (beta x jobs) = a quarter of two
FAST = {
    "RESHAPE_SYSTEMS": "elastic,flowcon", "RESHAPE_FLOWCON_INTERVAL_S": "1", "RESHAPE_FLOWCON_MIN_DT_S": "0.5",
    "RESHAPE_FLOWCON_LIMIT_LASTS_S": "8",
}  # fmt: skip
LONG = 90.0
TICKS = os.sysconf("SC_CLK_TCK")


def on_cpu(job_id: str, steps: int, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(TRAINERS / "curve.py"), "--steps", str(steps), *options]
    return {
        "job_id": job_id, "state": "submitted", "job_type": job_id, "command": command, "num_gpus": 0,
        "env": {"PYTHONPATH": str(ROOT)}, "elastic": True,
    }  # fmt: skip


def usage(up: Up, job_id: str) -> dict[str, Any]:
    return dict(up.job(job_id)["usage"])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def used_cores(pid: int, seconds: float = 2.0) -> float:
    """As the kernel counts, whatever a sidecar says."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def groups(pid: int) -> list[Path]:
    """The control groups that were made to hold it, beside that of its emulated node."""
    rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    root = Path("/sys/fs/cgroup")
    made = [root / names / path.lstrip("/") for _, names, path in rows if "reshape-" in path]
    return [group for group in made if not group.name.startswith("reshape-node-")]


def is_held(pid: int) -> bool:
    """In a group of its own, or caught standing still within two seconds."""
    if groups(pid):
        return True
    for _ in range(80):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.025)
    return False


@contextmanager
def one_is_limited(state: Path, steps_of_two: int) -> Iterator[tuple[Up, int]]:
    """Job slow has become flat and is held, as job young trains beside it; the pid of its trainer."""
    with running(state, ["c=cpu:2"], **FAST) as up:
        up.client.submit(on_cpu("slow", 100_000, "--flat", "10"))
        up.until("slow", "running")
        flat = "its growth has slowed"
        wait_for(lambda: (up.job("slow")["value"] or 1.0) < 1e-6, LONG, flat)
        assert usage(up, "slow")["cpu_limit"] is None, "alone it is never held"
        up.client.submit(on_cpu("young", steps_of_two))
        wait_for(lambda: usage(up, "slow")["cpu_limit"] == LIMIT, LONG, "the slow job is limited")
        yield up, up.job("slow")["trainer_pid"]


def test_a_job_whose_growth_has_slowed_is_held_while_another_trains_and_released_when_that_ends(tmp_path: Path) -> None:
    with one_is_limited(tmp_path / "s", 300) as (up, pid):
        assert usage(up, "slow")["limited_by"] in ("control group v1", "control group v2", "stop and go")
        wait_for(lambda: used_cores(pid) <= 1.3 * LIMIT, LONG, "what it uses falls to its quota")
        wait_for(lambda: (usage(up, "slow")["cpu_cores"] or 9.0) <= 1.3 * LIMIT, LONG, "its sidecar says so, too")
        why = next(each for each in up.client.decisions("slow") if each["kind"] == "limit")
        assert (why["cores"], why["node"]) == (LIMIT, "c")
        assert "slow is limited to 0.5 of the 2 cores of c" in why["sentence"]
        assert usage(up, "young")["cpu_limit"] != LIMIT, "the young one has the rest"
        left = groups(pid)
        up.until("young", "completed", LONG)
        wait_for(lambda: usage(up, "slow")["cpu_limit"] is None, LONG, "the slow job is released")
        wait_for(lambda: not is_held(pid), LONG, "nothing holds it any more")
        assert not any(folder.exists() for folder in left)
        job = up.job("slow")
        assert (job["state"], job["trainer_pid"], job["generation"]) == ("running", pid, 1), "it never noticed more"


def test_a_limit_of_a_killed_coordinator_lifts_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with one_is_limited(tmp_path / "s", 2_000) as (up, pid):
        wait_for(lambda: is_held(pid), LONG, "it is held")
        left = groups(pid)
        up.kill()
        wait_for(lambda: not is_held(pid), LONG, "nothing holds it any more, and nobody told it so")
        assert not any(folder.exists() for folder in left)
        before = cpu_s(pid)
        wait_for(lambda: cpu_s(pid) > before, LONG, "it trains on")
        up.start()
        wait_for(lambda: usage(up, "slow")["cpu_limit"] == LIMIT, LONG, "the next coordinator limits it again")
        assert up.job("slow")["trainer_pid"] == pid


def test_the_trainings_of_an_emulated_node_share_the_cores_that_it_has(tmp_path: Path) -> None:
    if not cores_of_their_own():
        pytest.skip("no control group can be made here")
    with running(tmp_path / "s", ["a=cpu:0.5", "b=cpu:1"]) as up:
        for job_id, node in (("one", "a"), ("two", "b")):
            up.client.submit(on_cpu(job_id, 100_000) | {"node": node})
        entered = {job: cpu_group(up.until(job, "running")["trainer_pid"]) for job in ("one", "two")}
        assert {job: quota(group) for job, group in entered.items()} == {"one": 0.5, "two": 1.0}
        assert all(up.client.cancel(job) for job in entered)
        for job in entered:
            up.until(job, "cancelled")
        up.stop()
        assert not any(group.exists() for group in entered.values()), "nothing of the nodes is left"


def cpu_group(pid: int) -> Path:
    """The control group of a process by which its CPU is counted."""
    rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    names, path = next(row[1:] for row in sorted(rows, reverse=True) if row[1] in ("", "cpu", "cpu,cpuacct"))
    return Path("/sys/fs/cgroup") / names / path.lstrip("/")


def quota(group: Path) -> float:
    """The cores that the kernel allows it."""
    if (group / "cpu.max").exists():
        allowed, period = (group / "cpu.max").read_text().split()
    else:
        allowed, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(allowed) / int(period)
