"""`python -m benchmarks [NAME…]`: run benchmarks, print what they found. `make bench` calls this.

Each prints both sides measured in this one run, their ratio, and the floor of its goal beside it. A goal that was
missed is printed, not hidden; only a wrong answer makes the run fail.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Sequence

from benchmarks.result import Result, WrongAnswer, heading, machine, versions
from coordinator.errors import ReshapeError

NAMES = {
    "gap": "R1: how long training stands still in a reshape, beside a plain kill and re-exec of the same script",
    "overhead": "what sidecar and shim take of a core beside a training that nothing disturbs, per step",
    "round_trips": "C3: round trips to MongoDB per reshape and per 1,000 heartbeats",
    "decide": "D1: one decision from 10 to 10,000 jobs, beside one NumPy scan of the same table",
    "scale": "what heartbeats, turns of the loop and looks at a job cost by the number of jobs, and the past",
    "cluster_size": "a turn of the launcher beside 5,000 nodes and 100,000 pods of others, beside one plain count",
    "extender": "what a session of Volcano's scheduler waits for us, beside a bare handler that parses the same",
    "launches": "what a launch costs: the command, and jobs submitted at once, beside plain ansible-playbook",
    "checkpoints": "R3: a checkpoint saved, verified and loaded, beside the same with SHA-256 and a read for each",
    "simulate": "the simulator: workload S on 20 seeds under 3 policies, and 10,000 jobs of a Philly trace",
    "sharing": "rights among users beside none: the longest wait of a user beside a busy one, simulated",
    "peers": "O6: the planner beside the paper's rules and peers' on crowded clusters, simulated",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:<12} {what}" for name, what in NAMES.items()))
        return 0
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.gpu and options.names != ["gap"]:
        parser.error("--gpu is of gap alone: python -m benchmarks gap --gpu")
    if not options.gpu and (options.models or options.rounds or options.most_s):
        parser.error("--models, --rounds and --most-s are of gap --gpu")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a SIGTERM here ends the trainings, too
    where, what = machine(), versions()
    if not options.json:
        print(heading(where, what, emulated=not options.gpu), flush=True)
    results: list[Result] = []
    for name in options.names or NAMES:
        try:
            module = "gap_on_gpus" if options.gpu else name
            result = importlib.import_module(f"benchmarks.{module}").run(options)
        except (WrongAnswer, ReshapeError) as wrong:
            print(f"{name}: {wrong}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        results.append(result)
        if not options.json:
            print(f"\n{result.as_text()}", flush=True)
    if options.json:
        print(json.dumps({"machine": where, "versions": what, "benchmarks": [r.as_json() for r in results]}))
    return 1 if any(result.wrong for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure volcano-reshape.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; default all")
    parser.add_argument("--list", action="store_true", help="say what there is and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="smallest sizes, gap without Keras and PyTorch: shows that it works, the numbers say little",
    )
    on_gpu = parser.add_argument_group("gap on a real GPU")
    on_gpu.add_argument(
        "--gpu",
        action="store_true",
        help="large models on a real GPU: kill and run again, cold start, waiting interpreter, state held on the GPU",
    )
    on_gpu.add_argument(
        "--models",
        metavar="NAMES",
        help="some of resnet50, 124m, 350m, 1.3b, tiny (also on the CPU), with commas between; -cpu behind a name: "
        "the script makes it on the CPU; default resnet50,124m,350m,1.3b,1.3b-cpu",
    )
    on_gpu.add_argument("--rounds", type=_count, metavar="N", help="stops and starts of each, at most; default 3")
    on_gpu.add_argument(
        "--most-s", type=_count, metavar="SECONDS", help="end after so long with what was measured; default never"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
