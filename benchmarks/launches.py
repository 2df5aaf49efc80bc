"""What a launch costs: the launcher's command beside the playbook that runs it, and jobs submitted at once beside such.

Both sides end a launch of which nothing runs, as many at a time as the launcher does. Then real jobs are submitted at
once to the real coordinator, until the sidecar of each has reported: that holds decisions, commands, and the starts of
shims and sidecars.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster import running
from benchmarks.result import Result, Row, WrongAnswer
from coordinator.stores.opening import open_store
from launcher import playbook, shim_command
from launcher.launch_queue import AT_ONCE
from reshape import shipped
from sidecar.shim import LIBC, PR_SET_CHILD_SUBREAPER

JOBS, PLAYS, TINY = 100, 20, 2
GOAL_S = 0.5  # of one core, for a command
GOAL_WHOLE_S = 40.0  # until all sidecars have reported
COMMAND = ["sh", "-c", "echo step=1 total=1"]
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one command, playbook or job, in seconds."""

    wall: float
    cpu: float


def run(options: argparse.Namespace) -> Result:
    jobs, plays = (TINY, TINY) if options.tiny else (JOBS, PLAYS)
    with tempfile.TemporaryDirectory(prefix="bench-launches-") as name:
        folder = Path(name)
        ended = folder / "ended-l1"
        ended.mkdir()
        ours = _cost(lambda _: shim_command.run("remove", ended), plays)
        theirs = _cost(lambda _: _play_by_hand(ended), plays)
        whole = _submitted(folder, jobs)
    plain_s, whole_s = theirs.wall * jobs, whole.wall * jobs
    return Result(
        "launches", "issue 15", "what a launch costs", "ansible-playbook", {"jobs": jobs, "commands": plays},
        rows=[
            Row("processor time of a command", ours.cpu, theirs.cpu, ours.cpu / theirs.cpu, "s", GOAL_S / theirs.cpu),
            Row(f"{jobs} commands, {AT_ONCE} at a time", ours.wall * jobs, plain_s, ours.wall / theirs.wall, "s"),
            Row(
                f"{jobs} jobs until all sidecars report", whole_s, plain_s, whole_s / plain_s, "s",
                GOAL_WHOLE_S / plain_s,
            ),
            Row("processor time of one of these jobs", whole.cpu, theirs.cpu, whole.cpu / theirs.cpu, "s"),
        ],
        notes=[f"{plays} commands were run. Beside the jobs stand playbooks alone, without shims and sidecars."],
    )  # fmt: skip


def _cost(end_launch: Callable[[int], None], plays: int) -> Cost:
    began, busy = time.monotonic(), _cpu_s()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(end_launch, range(plays)))
    return Cost((time.monotonic() - began) / plays, (_cpu_s() - busy) / plays)


def _play_by_hand(launch: Path) -> None:
    """End a launch as an operator does, by the playbook that runs the launcher's command."""
    program = shutil.which("ansible-playbook", path=playbook.search_path())
    play = shipped.folder("playbooks") / "remove_local.yml"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(launch.parent / "home")}
    command = [str(program), "-i", "localhost,", "-e", f"folder={launch}", str(play)]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WrongAnswer(f"ansible-playbook failed: {done.stdout[-1000:]}")


def _submitted(folder: Path, jobs: int) -> Cost:
    """Return what a job costs from the first submission until the sidecar of the last one has reported."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # shims are detached, and their time and their sidecars' counts, too
    with running(folder, open_store(f"sqlite:///{folder / 'reshape.sqlite'}"), jobs, {1: 0.01}, "launches") as cluster:
        names = [f"job-{number}" for number in range(jobs)]
        first = cluster.api.history.last_event()
        began = time.monotonic()
        busy = _cpu_s()
        for name in names:
            cluster.submit({"job_id": name, "job_type": "launches", "command": COMMAND, "num_gpus": 1})
        for name in names:
            cluster.until("initialized", name, first)
        return Cost((time.monotonic() - began) / jobs, (_cpu_s() - busy) / jobs)


def _cpu_s() -> float:
    """Return processor seconds of this process and of all below it, also of those that they have waited for."""
    parents, used = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15])) / TICKS
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours)
