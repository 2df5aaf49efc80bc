"""What sidecar and shim cost beside a training that nothing disturbs: CPU time, beside the time of its steps.

The NumPy example on emulated GPUs prints five lines a second under a real coordinator; the kernel counts the CPU time
of its sidecar and of its shim, threads included, once an interpreter waits and all is quiet. The same script as a
plain process, paced alike, shows what a step takes without them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import gap
from benchmarks.cluster import WITHIN_S, Cluster, running
from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.stores.opening import open_store
from sidecar.shim import CALM_S

STEP_S = 0.2  # a line each
FLOOR = 0.001  # of a core, and so of the time of a step that needs all cores
SETTLED, FEWEST = 25, 5  # steps that are not counted, and that are


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process, of its living threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def step_s(side: gap.MeasuredSide) -> float:
    """The median time from one step to the next of the present shape, seconds; waits for the steps that this needs."""
    deadline = time.monotonic() + WITHIN_S
    while len(times := [at for _, at in gap.shapes(side.output())[-1].steps][SETTLED:]) < FEWEST:
        if time.monotonic() > deadline:
            raise WrongAnswer(f"the training did not make {SETTLED + FEWEST} steps within {WITHIN_S:.0f} s")
        time.sleep(STEP_S)
    return median(b - a for a, b in pairwise(times))


def measure(
    cluster: Cluster, folder: Path, calm_s: float, wall_s: float
) -> tuple[dict[str, float], tuple[float, float]]:
    """The shares of a core of sidecar and shim; seconds of a step beside them, and of a plain process."""
    trainer = gap.Trainer("numpy", sys.executable, {})
    job = gap.InPlace(cluster, "overhead", trainer, gap.ENDLESS)
    job.wait_started()
    with gap.plain(folder / "plain-overhead", trainer, gap.ENDLESS, dict.fromkeys(gap.PACE, STEP_S)) as plain:
        for side in (job, plain):
            gap.settle(side)
        job.wait_ready()
        status = gap.shim_status(cluster.launch_folder("overhead"))
        (event,) = [e for e in cluster.api.history.events_after(job.began, 1000) if e["type"] == "started"]
        pids = {"sidecar": event["sidecar_pid"], "shim": status["shim_pid"]}
        time.sleep(calm_s)
        began, before = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}
        time.sleep(wall_s)
        took = time.monotonic() - began
        shares = {name: (cpu_s(pid) - before[name]) / took for name, pid in pids.items()}
        steps = step_s(job), step_s(plain)
    cluster.api.operator.cancel("overhead")
    return shares, steps


def run(options: argparse.Namespace) -> Result:
    calm_s, wall_s = (0.0, 6.0) if options.tiny else (CALM_S, 60.0)
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        store = open_store(f"sqlite:///{folder / 'reshape.sqlite'}")
        try:
            with running(folder / "state", store, 4, dict.fromkeys(gap.PACE, STEP_S), gap.JOB_TYPE) as cluster:
                shares, (ours, plain) = measure(cluster, folder, calm_s, wall_s)
        finally:
            store.close()
    both = sum(shares.values())
    rows = [
        Row("CPU of sidecar and shim beside a core, per step", both * ours, ours, both, "s", FLOOR),
        Row("median time of a step, beside a plain process", ours, plain, ours / plain, "s", 1.0 + FLOOR),
    ]
    shown = [[name, f"{100 * share:.3f} %", f"{1000 * share * ours:.3f} ms"] for name, share in shares.items()]
    sizes = {"seconds": wall_s, "lines per second": 1 / STEP_S}
    return Result(
        "overhead", "C4", "what sidecar and shim take from an undisturbed training", "one core", sizes, rows,
        [Table("CPU", ["", "OF A CORE", "PER STEP"], shown)],
    )  # fmt: skip
