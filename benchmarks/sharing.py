"""Compares rights among users with none: who waits how long, and what it costs all. Simulated, so times do not depend
on the machine. Without rights all jobs are of one owner, and the shortest goes first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.result import Result, Row, Table
from experiments.workloads.owner_workloads import lab, starvation, without_owners
from simulator.cluster import SimulatedCluster
from simulator.scenario import Workload

SEEDS = 3
LONGEST = 0.25
"""Share of the longest wait without rights that is accepted."""
DEARER = 1.03
"""Makespan against that without rights: what is accepted."""


class Waits(NamedTuple):
    """Figures of one run, in seconds. `others`: waits of the users beside the busiest one."""

    makespan: float
    mean_jct: float
    others: tuple[float, ...]


def run(options: argparse.Namespace) -> Result:
    hours, seeds = (4.0, 1) if options.tiny else (26.0, SEEDS)
    workloads = [("starvation", "ada", starvation(hours=hours))]
    workloads += [(f"lab, seed {seed}", "sweep", lab(seed)) for seed in range(seeds)]
    rows = list[Row]()
    table = list[list[str]]()
    for name, busiest, workload in workloads:
        ours, theirs = measure(workload, busiest), measure(without_owners(workload), busiest, workload)
        rows.append(_row(f"{name}: longest wait of the others", max(ours.others), max(theirs.others), LONGEST))
        rows.append(_row(f"{name}: makespan", ours.makespan, theirs.makespan, DEARER))
        for which, one in (("rights", ours), ("no rights", theirs)):
            mean = f"{statistics.mean(one.others):.0f}"
            table.append([name, which, f"{one.mean_jct:.0f}", f"{max(one.others):.0f}", mean])
    columns = ["workload", "policy", "mean completion s", "others' longest wait s", "others' mean wait s"]
    sizes = {"hours of the stream": hours, "seeds of the lab": seeds}
    return Result(
        "sharing",
        "issue 3",
        "waits of users beside a busy one, simulated",
        "no rights",
        sizes,
        rows,
        [Table("by workload", columns, table)],
    )


def measure(workload: Workload, busiest: str, owners: Workload | None = None) -> Waits:
    """Simulate a workload. `owners`: the same one with the owners by whom waits are told; by default itself."""
    outcome = SimulatedCluster(workload, workload.policy_setups[0]).run()
    owner = {job.id: job.owner for job in (owners or workload).jobs}
    ends = [(job.finished_s or 0.0, job.given.arrival_s) for job in outcome.jobs]
    others = (job for job in outcome.jobs if owner[job.given.id] != busiest)
    return Waits(
        makespan=max(end for end, _ in ends),
        mean_jct=statistics.mean(end - arrival for end, arrival in ends),
        others=tuple(_waited(((job.began_s or 0.0), job.given.arrival_s) for job in others)),
    )


def _waited(times: Iterable[tuple[float, float]]) -> Iterable[float]:
    return (began - arrival for began, arrival in times)


def _row(what: str, ours: float, theirs: float, floor: float) -> Row:
    return Row(what, ours, theirs, ours / theirs if theirs else 0.0, "s", floor)
