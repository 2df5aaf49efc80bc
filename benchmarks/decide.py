"""D1: how long one decision takes, from 10 to 10,000 running jobs, beside one NumPy scan of the same table.

The table holds what every running job would still take on each of its eight allowed counts. Algorithm 1 places one
waiting job, Algorithm 2 gives idle GPUs to a running one: the choice is the search through the arrays alone, the best
first. Beside it, each on a row of its own: working the arrays out from a snapshot, once for both; a decision with its
reasons and its listed alternatives; and `decide`, the whole tick of the loop with dozens of decisions. The scan (each
job's best count) is the least work of any algorithm that reads the whole table.

Before anything is timed, both answers must be as good as the best of all ways, worked out here from that table.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import process_time

import numpy as np

from adaptive_scheduler.cost_table import CostTable as ArrayTable
from adaptive_scheduler.decision import Reshape, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming, schedule_running
from adaptive_scheduler.policies.elastic.expand import GrowthCandidates
from adaptive_scheduler.policies.elastic.shrink import IncomingJob, evaluate
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from benchmarks.result import Result, Row, Table, WrongAnswer

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8)
NODE_GPUS = 8  # shared by two running jobs
TYPES = 7
COSTS = {"k8s_init": 83.0, "k8s_term": 54.0, "proc_init": 25.0, "proc_term": 7.0, "ckpt": 5.0}
RESHAPE_S = COSTS["ckpt"] + COSTS["proc_term"] + COSTS["proc_init"]
FINISH_S = COSTS["ckpt"] + COSTS["proc_term"] + COSTS["k8s_term"]
LAUNCH_S = COSTS["k8s_init"] + COSTS["proc_init"]
FLOOR = 20.0  # of D1, for its 10,000 jobs
NEWCOMER = "new"
SETTINGS = Settings()


@dataclass(frozen=True)
class Case:
    """A cluster, and the seconds each job takes by count: as it is, and reshaped."""

    snapshot: ClusterSnapshot
    keep: np.ndarray  # one per running job
    table: np.ndarray  # running jobs x COUNTS: reshaped to that count
    new: np.ndarray  # COUNTS: the waiting job


def draw(jobs: int, rng: random.Random) -> Case:
    """`jobs` running jobs, two on a node; every tenth node has one idle GPU. One more job waits."""
    speeds = {t: [1 / (1 + rng.uniform(0.5, 0.9) * float(np.log2(n))) for n in COUNTS] for t in range(TYPES)}
    rows = [
        {"job_type": t, "gpu_type": "V100", "num_gpus": n, "seconds_per_iteration": seconds, "origin": "measured"}
        for t, of_type in speeds.items()
        for n, seconds in zip(COUNTS, of_type, strict=True)
    ]
    profiles = Profiles.from_rows(rows, [{"job_type": t, **COSTS} for t in speeds])
    running = [_running(number, rng) for number in range(jobs)]
    nodes = tuple(_node(name, running[2 * name : 2 * name + 2]) for name in range(jobs // 2))
    waiting = Job(NEWCOMER, str(rng.randrange(TYPES)), "submitted", COUNTS, iterations_left=rng.uniform(1000, 5000))
    left = np.array([job.iterations_left for job in running])
    per_step = np.array([speeds[int(job.type)] for job in running])
    table = left[:, None] * per_step + (RESHAPE_S + FINISH_S)
    keep = left * per_step[np.arange(jobs), [job.num_gpus - 1 for job in running]] + FINISH_S
    new = float(waiting.iterations_left or 0) * np.array(speeds[int(waiting.type)]) + LAUNCH_S + FINISH_S
    return Case(ClusterSnapshot(nodes, (*running, waiting), profiles), keep, table, new)


def _running(number: int, rng: random.Random) -> Job:
    node, second = divmod(number, 2)
    first_count = node % (NODE_GPUS - 2) + 1
    count = NODE_GPUS - first_count - (node % 10 == 0) if second else first_count
    left = rng.uniform(1000, 50_000)
    return Job(
        f"job-{number}", str(rng.randrange(TYPES)), "running", COUNTS, num_gpus=count, node=f"n{node}",
        iterations_left=left,
    )  # fmt: skip


def _node(name: int, jobs: list[Job]) -> Node:
    used = [Gpu(f"n{name}-{job.id}-{i}", "in use", job.id, job.id) for job in jobs for i in range(job.num_gpus)]
    return Node(f"n{name}", "V100", (*used, *(Gpu(f"n{name}-idle-{i}") for i in range(NODE_GPUS - len(used)))))


# the best of all ways, from the table


def best_start(case: Case) -> tuple[float, float]:
    """Algorithm 1: the least (makespan, sum), each makespan taken over all jobs anew."""
    return min(_starts(case))


def _starts(case: Case) -> Iterator[tuple[float, float]]:
    jobs, idle = case.snapshot.placed, {node.name: node.idle for node in case.snapshot.nodes}
    for at, count in enumerate(COUNTS):
        new = float(case.new[at])
        if any(count <= free for free in idle.values()):
            yield max(float(case.keep.max()), new), float(case.keep.sum()) + new
        for number, job in enumerate(jobs):
            keeps = job.num_gpus - (count - idle[str(job.node)])
            if count > idle[str(job.node)] and keeps >= 1:
                yield _with(case, number, keeps, new)


def best_growth(case: Case) -> tuple[float, float] | None:
    """Algorithm 2: the same over all growths that gain more than they cost; None if there is none."""
    ways = []
    for number, job in enumerate(case.snapshot.placed):
        idle = case.snapshot.node[str(job.node)].idle
        for count in range(job.num_gpus + 1, min(job.num_gpus + idle, COUNTS[-1]) + 1):
            if case.keep[number] - case.table[number, count - 1] > SETTINGS.min_gain_factor * RESHAPE_S:
                ways.append(_with(case, number, count, 0.0))
    return min(ways, default=None)


def _with(case: Case, number: int, count: int, new: float) -> tuple[float, float]:
    """(makespan, sum) with one running job reshaped and perhaps a new one."""
    seconds = case.keep.copy()
    seconds[number] = case.table[number, count - 1]
    return max(float(seconds.max()), new), float(seconds.sum()) + new


def check(case: Case) -> None:
    """`WrongAnswer` unless both algorithms chose a best way."""
    started = schedule_incoming(case.snapshot, case.snapshot.job[NEWCOMER], 0.0, SETTINGS)
    grown = schedule_running(case.snapshot, 0.0, SETTINGS)
    for name, answer, best in (("1", started, best_start(case)), ("2", grown, best_growth(case))):
        chosen = answer.explanation.candidates[0] if isinstance(answer, Start | Reshape) else None
        got = (chosen.makespan_s, chosen.sum_s) if chosen else None
        if (got is None) != (best is None) or (got and best and not np.allclose(got, best, rtol=1e-9)):
            raise WrongAnswer(f"Algorithm {name} chose (makespan, sum) {got}, the best of all ways is {best}")
    if not any(isinstance(d, Start) and d.job == NEWCOMER for d in decide(case.snapshot, 0.0, SETTINGS)):
        raise WrongAnswer("decide() does not start the waiting job")


# timing


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU seconds of each round, after one that warms up: whatever else runs on this machine does not count."""
    work()
    taken = []
    for _ in range(rounds):
        began = process_time()
        work()
        taken.append(process_time() - began)
    return taken


def works(case: Case) -> dict[str, Callable[[], object]]:
    """Return the operations to time."""
    snapshot = case.snapshot
    waiting, built = snapshot.job[NEWCOMER], arrays(snapshot)
    return {
        "choice of Algorithm 1": lambda: evaluate(IncomingJob(built, waiting)).best(1),
        "choice of Algorithm 2": lambda: GrowthCandidates(built).best(1),
        "building the arrays": lambda: arrays(snapshot),
        "Algorithm 1 with reasons": lambda: schedule_incoming(snapshot, waiting, 0.0, SETTINGS, built),
        "Algorithm 2 with reasons": lambda: schedule_running(snapshot, 0.0, SETTINGS, built),
        "decide()": lambda: decide(snapshot, 0.0, SETTINGS),
    }


def arrays(snapshot: ClusterSnapshot) -> ArrayTable:
    """Return the arrays that both choices read."""
    table = ArrayTable(snapshot, 0.0, SETTINGS)
    table.victims(0.0)
    return table


def run(options: argparse.Namespace) -> Result:
    """Time each size on its own cluster, drawn with a fixed seed."""
    sizes, rounds = ((10, 20), 3) if options.tiny else ((10, 100, 1000, 10_000), 30)
    rng, rows, spread = random.Random(4), list[Row](), list[list[str]]()
    for jobs in sizes:
        case = draw(jobs, rng)
        check(case)
        decisions = len(decide(case.snapshot, 0.0, SETTINGS))
        scan = 1000 * median(timed(partial(case.table.argmin, axis=1), 20 * rounds))
        for name, work in works(case).items():
            whole, choice = name == "decide()", name.startswith("choice")
            taken = [1000 * s for s in timed(work, min(rounds, 3) if whole else rounds * (20 if choice else 1))]
            p99 = quantiles(taken, n=100, method="inclusive")[98]
            more = ", p99" if choice else f", {decisions} decisions" if whole else ""
            ours, floor = (p99 if choice else median(taken)), (FLOOR if choice and jobs == sizes[-1] else None)
            rows.append(Row(f"{jobs} jobs: {name}{more}", ours, scan, ours / scan, "ms", floor))
            spread.append([str(jobs), name, f"{median(taken):.3g}", f"{p99:.3g}", f"{max(taken):.3g}"])
    return Result(
        "decide", "D1", "one decision", "NumPy scan",
        {"counts per job": len(COUNTS), "GPUs per node": NODE_GPUS, "rounds": rounds},
        rows, [Table("CPU milliseconds", ["JOBS", "", "MEDIAN", "P99", "MAX"], spread)],
        ["Checked first: both algorithms' choices equal the best of all ways, worked out from the table in NumPy. "
         "The goal's floor is for the p99 of the choice at 10,000 jobs; below that the scan is too short to compare "
         "with, and what remains is the cost of calling NumPy. All other figures of ours, and the scan, are medians."],
    )  # fmt: skip
