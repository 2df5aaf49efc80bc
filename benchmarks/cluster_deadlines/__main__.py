"""`make bench-cluster`: the Slaml paper's PyTorch jobs under Volcano's gang, binpack and task-topology (Slaml, 4.7).

Each algorithm runs with and without deadlines. Prints the average response time (result minus request), failed and
rescheduled jobs, then paper and simulation beside it; build/bench-cluster.json holds more, and build/live.json what
docs/papers.md shows. A trend on one small machine, not a reproduction: the paper prints no number, and says neither how
many jobs there were nor how they arrived. Brings the test bed up where it is not up already, and ends it then.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.cluster_deadlines import figures, runs
from benchmarks.cluster_deadlines.runs import ALGORITHMS, ClusterOutcome
from benchmarks.cluster_deadlines.workload import SCALE, Alone, drawn
from benchmarks.result import machine, versions
from reshape.output.tables import table
from reshape_papers.papers import results
from tests.cluster.bed import Bed
from tests.cluster.bed_processes import BedError
from tests.cluster.built_images import BuildFailed
from tests.cluster.installed import Installed, install

BUILD = Path("build")
REPORT, LIVE = BUILD / "bench-cluster.json", BUILD / results.LIVE
SIDES = {"both": (False, True), "without": (False,), "with": (True,)}
HEAD = ("ALGORITHM", "DEADLINES", "SEED", "ART", "DONE", "IN TIME", "FAILED", "RESCHEDULED", "WHOLE RUN")


def main(arguments: Sequence[str] | None = None) -> int:
    options, outcomes = _parser().parse_args(arguments), list[ClusterOutcome]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the dummies go, too
    try:
        with _installed() as on:
            alone = runs.measured(on, options.scale)
            for size, seconds in alone.items():
                print(f"{size}: its tasks take {', '.join(f'{s:.1f} s' for s in seconds)} alone", flush=True)
            with runs.only_deadlines(on), runs.loaded(on, alone) as left:
                print(f"{options.jobs} jobs a run; cores left by the dummies: {left}", flush=True)
                for outcome in _outcomes(on, options, alone):
                    outcomes.append(outcome)
                    _write(outcomes, alone, left, options)
                    print(" ".join(_cells(outcome)), flush=True)
    except (BedError, BuildFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nA trend, not a reproduction ({REPORT} holds more):\n")
    print(table(HEAD, map(_cells, outcomes)))
    for each in outcomes:
        for why in each.failed:
            print(f"{each.algorithm}, {_with(each)} deadlines, seed {each.seed}: {why}")
    print("\nThe paper prints no number: by its Figure 4 response times fall.\n")
    print(table(figures.HEAD, figures.beside(figures.figures(outcomes))))
    return 0


def _outcomes(on: Installed, options: argparse.Namespace, alone: Alone) -> Iterator[ClusterOutcome]:
    for seed in options.seeds:
        jobs = drawn(seed, options.jobs, options.scale, alone)
        for algorithm in options.only or ALGORITHMS:
            for deadlines in SIDES[options.deadlines]:
                yield runs.run(on, ClusterOutcome(algorithm, deadlines, seed), jobs, alone)


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


def _cells(outcome: ClusterOutcome) -> list[str]:
    art = "-" if outcome.art_s is None else f"{outcome.art_s:.1f} s"
    done, failed = len(outcome.response_s), len(outcome.failed)
    counts = (f"{done} of {done + failed}", str(outcome.in_time), str(failed), str(outcome.rescheduled))
    return [outcome.algorithm, _with(outcome), str(outcome.seed), art, *counts, f"{outcome.whole_s:.0f} s"]


def _with(outcome: ClusterOutcome) -> str:
    return "with" if outcome.deadlines else "without"


def _write(
    outcomes: Sequence[ClusterOutcome], alone: Alone, left: dict[str, float], options: argparse.Namespace
) -> None:
    BUILD.mkdir(exist_ok=True)
    found = [{**asdict(each), "art_s": each.art_s} for each in outcomes]
    doc = {"machine": machine(), "versions": versions(), "scale": options.scale, "alone_s": alone, "cores_left": left}
    jobs = {seed: [asdict(job) for job in drawn(seed, options.jobs, options.scale, alone)] for seed in options.seeds}
    REPORT.write_text(json.dumps({**doc, "runs": found, "jobs": jobs}, indent=2) + "\n")
    LIVE.write_text(json.dumps(figures.figures(outcomes), indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_deadlines", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5, help="how many jobs arrive in each run (default 5)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="N", help="of sizes, arrivals and targets (default 0)"
    )
    scale = (
        f"times the epochs, of which a large job has the paper's (default {SCALE:g}, with which a job trains for "
        "longer than its containers take to start; take 0.2 with MNIST itself, whose epochs are 40 times as long)"
    )
    parser.add_argument("--scale", type=float, default=SCALE, help=scale)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, help="only these algorithms")
    parser.add_argument("--deadlines", choices=SIDES, default="both", help="only the runs with them, or without")
    return parser


if __name__ == "__main__":
    sys.exit(main())
