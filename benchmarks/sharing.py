"""Compares rights among users with none, and with taking GPUs back by suspending whole jobs: who waits how long, and
what it costs all. Simulated, so times do not depend on the machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.result import Result, Row, Table
from benchmarks.sharing_figures import POLICIES, Figures, alone_times, measure
from reshape_papers.workloads.owner_workloads import (
    MIXED_TYPES,
    V100_ALONE,
    crowded_philly,
    gavel_on,
    lab,
    starvation,
    three_teams,
)
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.scenario import Workload

SEEDS = 3
TEAM_SEEDS = range(2)
S_JOBS = 50
LONGEST = 0.25
"""Share of the longest wait without rights that is accepted, of the users beside a busy one."""
CLAIM = 0.5
"""Share of the longest wait of a claim without rights that is accepted, of three teams."""
ONE_OPERATION_S = 60.0
"""Seconds from the end of its patience until a claim starts: until the next look, and until others have saved."""
DEARER = 1.03
"""Makespan against that without rights: what is accepted."""
DEARER_OF_TEAMS = 1.05
COLUMNS = (
    "workload",
    "policy",
    "makespan s",
    "mean completion s",
    "worst slow-down",
    "Jain index",
    "longest claim s",
    "suspensions",
)


class Shared(NamedTuple):
    """A workload of several users. `busiest`: the one beside whom others are not to wait; empty: all are alike."""

    name: str
    workload: Workload
    busiest: str = ""


def run(options: argparse.Namespace) -> Result:
    data = os.environ.get("RESHAPE_DATA")
    rows = list[Row]()
    table = list[list[str]]()
    for shared in _workloads(options.tiny, Path(data) if data else None):
        alone = alone_times(shared.workload)
        found = {name: measure(shared.workload, shown, alone) for name, shown in POLICIES.items()}
        rows += _rows(shared, found)
        table += [[shared.name, name, *_cells(one)] for name, one in found.items()]
    notes = [
        "Suspend only: no job shrinks while a job of another owner waits. Longest claim: of a job whose owner was "
        "entitled to its smallest count all the while. Slow-down: against the owner's part of the GPUs, alone there."
    ]
    if not data and not options.tiny:
        notes.append("Published traces were left out: set RESHAPE_DATA to a folder that has them.")
    title = "users beside a busy one, and three teams, simulated"
    by_workload = Table("by workload", COLUMNS, table)
    return Result("sharing", "rights", title, "no rights", {"runs": len(table)}, rows, [by_workload], notes)


def _workloads(tiny: bool, data: Path | None) -> Iterator[Shared]:
    yield Shared("starvation", starvation(hours=2.0 if tiny else 26.0), "ada")
    for seed in range(1 if tiny else SEEDS):
        jobs = S_JOBS // 5 if tiny else S_JOBS
        yield Shared(f"three teams on S, seed {seed}", three_teams(workload_s(seed, count=jobs), seed))
    if tiny:
        return
    for seed in range(SEEDS):
        yield Shared(f"lab of six, seed {seed}", lab(seed), "sweep")
    if data is None:
        return
    yield Shared("three teams, Philly", three_teams(crowded_philly(data, 0), 0))
    for name, kinds in (("Gavel on V100", V100_ALONE), ("Gavel on mixed GPUs", MIXED_TYPES)):
        for seed in TEAM_SEEDS:
            yield Shared(f"three teams, {name}, seed {seed}", three_teams(gavel_on(data, kinds), seed))


def _rows(shared: Shared, found: Mapping[str, Figures]) -> Iterator[Row]:
    ours = found["rights"]
    theirs = found["no rights"]
    if shared.busiest:
        our_wait = longest_wait_of_others(shared.workload, ours, shared.busiest)
        their_wait = longest_wait_of_others(shared.workload, theirs, shared.busiest)
        yield _row(f"{shared.name}: longest wait of the others", our_wait, their_wait, LONGEST)
        yield _row(f"{shared.name}: makespan", ours.makespan, theirs.makespan, DEARER)
    else:
        # A whole job is suspended for a claim only once that has waited its patience: no goal is below that.
        prompt_s = shared.workload.shares.patience_s + ONE_OPERATION_S
        goal = max(CLAIM, prompt_s / theirs.longest_claim) if theirs.longest_claim else CLAIM
        yield _row(f"{shared.name}: longest wait of a claim", ours.longest_claim, theirs.longest_claim, goal)
        yield _row(f"{shared.name}: makespan", ours.makespan, theirs.makespan, DEARER_OF_TEAMS)


def longest_wait_of_others(workload: Workload, figures: Figures, busiest: str) -> float:
    """Return the longest wait of a job that is not the busiest user's, in seconds."""
    return max(figures.waits[job.id] for job in workload.jobs if job.owner != busiest)


def _cells(one: Figures) -> list[str]:
    return [
        f"{one.makespan:.0f}",
        f"{one.mean_jct:.0f}",
        f"{one.worst_slow_down:.2f}",
        f"{one.jain:.3f}",
        f"{one.longest_claim:.0f}",
        str(one.suspensions),
    ]


def _row(what: str, ours: float, theirs: float, floor: float) -> Row:
    return Row(what, ours, theirs, ours / theirs if theirs else 0.0, "s", floor)
