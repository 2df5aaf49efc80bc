"""`make bench-cluster`: Volcano's gang, binpack and task-topology, each with and without deadlines (Slaml, 4.7).

Prints the average response time (result minus request), failed and rescheduled jobs; build/bench-cluster.json holds
more. A trend on one small machine, not a reproduction: the paper prints no number, and says neither how many jobs there
were nor how they arrived. Brings the test bed up where it is not up already, and ends it then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.cluster_deadlines import runs
from benchmarks.cluster_deadlines.runs import ALGORITHMS, LIMIT_S, ClusterOutcome
from benchmarks.cluster_deadlines.workload import MnistJob, drawn
from benchmarks.result import machine, versions
from reshape.output.tables import table
from tests.cluster.bed import Bed
from tests.cluster.bed_processes import BedError
from tests.cluster.installed import Installed, install

REPORT = Path("build/bench-cluster.json")
SIDES = {"both": (False, True), "without": (False,), "with": (True,)}
HEAD = ("ALGORITHM", "DEADLINES", "ART", "DONE", "IN TIME", "FAILED", "RESCHEDULED", "WHOLE RUN")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    jobs, outcomes = drawn(options.seed, options.jobs, options.stretch), list[ClusterOutcome]()
    try:
        with _installed() as on, runs.loaded(on, options.stretch) as left:
            print(f"{options.jobs} jobs, seed {options.seed}; cores left by the dummies: {left}", flush=True)
            for algorithm in options.only or ALGORITHMS:
                for deadlines in SIDES[options.deadlines]:
                    outcomes.append(runs.run(on, algorithm, deadlines, jobs, options.limit))
                    _write(outcomes, jobs, left, options.seed)
                    print(" ".join(_cells(outcomes[-1], len(jobs))), flush=True)
    except BedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nA trend, not a reproduction ({REPORT} holds more):\n")
    print(table(HEAD, [_cells(each, len(jobs)) for each in outcomes]))
    for each in outcomes:
        for why in each.failed:
            print(f"{each.algorithm}, {_with(each)} deadlines: {why}")
    return 0


@contextmanager
def _installed() -> Iterator[Installed]:
    bed = Bed()
    keep = bed.is_up()
    bed.up()
    try:
        yield install(bed)
    finally:
        if not keep:
            bed.down()


def _cells(outcome: ClusterOutcome, jobs: int) -> list[str]:
    art = "-" if outcome.art_s is None else f"{outcome.art_s:.1f} s"
    done = len(outcome.response_s)
    counts = (f"{done} of {jobs}", str(outcome.in_time), str(len(outcome.failed)), str(outcome.rescheduled))
    return [outcome.algorithm, _with(outcome), art, *counts, f"{outcome.whole_s:.0f} s"]


def _with(outcome: ClusterOutcome) -> str:
    return "with" if outcome.deadlines else "without"


def _write(outcomes: Sequence[ClusterOutcome], jobs: Sequence[MnistJob], left: dict[str, float], seed: int) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    found = [{**asdict(each), "art_s": each.art_s} for each in outcomes]
    doc = {"machine": machine(), "versions": versions(), "seed": seed, "cores_left": left, "runs": found}
    REPORT.write_text(json.dumps({**doc, "jobs": [asdict(job) for job in jobs]}, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_deadlines", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5, help="how many jobs arrive in each run (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of sizes, arrivals and targets (default 0)")
    stretch = "how many times as long tasks take, and jobs come apart: launching weighs less then (default 1)"
    parser.add_argument("--stretch", type=int, default=1, help=stretch)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, help="only these algorithms")
    parser.add_argument("--deadlines", choices=SIDES, default="both", help="only the runs with them, or without")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds of one run at most (default %(default).0f)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
