"""Times the simulator: workload S, 20 seeds, 3 policies; and jobs of a Philly trace under `decide()`.

Every decision is made and kept with its rejected alternatives. Processor seconds of one core beside the goal's, which
is an absolute time: on a busy machine they are longer. The trace is read from RESHAPE_DATA; without it that row is
left out, and said to be.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.result import Result, Row, WrongAnswer
from reshape_papers.traces import replay
from reshape_papers.workloads import build
from simulator.cluster import SimulatedCluster
from simulator.scenario import PolicySetup, Workload

SEEDS, S_GOAL_S = 20, 60.0
PHILLY_JOBS, PHILLY_GOAL_S = 10_000, 600.0
POLICY = "sidecar"


def run(options: argparse.Namespace) -> Result:
    seeds, jobs = (1, 100) if options.tiny else (SEEDS, PHILLY_JOBS)
    rows = [_row(f"workload S, {seeds} seeds, 3 policies", _workload_s(seeds), S_GOAL_S)]
    notes = ["Theirs is the goal itself, in seconds."]
    if data := os.environ.get("RESHAPE_DATA"):
        workload = replay("philly", Path(data), jobs)
        rows.append(_row(f"{jobs} Philly jobs on {len(workload.nodes)} nodes", _philly(workload), PHILLY_GOAL_S))
    else:
        notes.append("The Philly trace was left out: set RESHAPE_DATA to a folder that has it.")
    return Result(
        "simulate", "issue 4", "processor seconds of a simulation", "the goal", {"seeds": seeds, "jobs": jobs}, rows,
        notes=notes,
    )  # fmt: skip


def _row(what: str, seconds: float, goal_s: float) -> Row:
    return Row(what, seconds, goal_s, seconds / goal_s, "s", floor=1.0)


def _workload_s(seeds: int) -> float:
    """Bounds are no part of it: only what the policies and the world take."""
    workloads = [build("workload-s", seed) for seed in range(seeds)]
    return _seconds((workload, policy_setup) for workload in workloads for policy_setup in workload.policy_setups)


def _philly(workload: Workload) -> float:
    return _seconds((workload, policy_setup) for policy_setup in workload.policy_setups if policy_setup.name == POLICY)


def _seconds(pairs: Iterable[tuple[Workload, PolicySetup]]) -> float:
    pairs, began = list(pairs), time.process_time()
    for workload, policy_setup in pairs:
        outcome = SimulatedCluster(workload, policy_setup).run()
        if any(job.finished_s is None for job in outcome.jobs):
            raise WrongAnswer(f"{policy_setup.name} did not end every job of {workload.name}.")
    return time.process_time() - began
