"""`python -m benchmarks.peer_pollux`: Pollux's own policy from PyPI on workload S, beside ours and our rebuilt Pollux.

Makes a Python environment for it (once, `--venv`): `adaptdl-sched` 0.2.11 without its dependencies, with numpy below
1.24, as it uses `np.int` and `np.float`. Where that cannot be installed it says so and stops without a failure. All
three change jobs at the same costs; batches are fixed; Pollux decides in rounds, ours at each event.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from reshape_papers import report
from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest, speed_up
from reshape_papers.comparison_policies.pollux import Pollux
from reshape_papers.comparison_policies.round_policies import RoundPolicy, RoundScheduler
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.cluster import SimulatedCluster
from simulator.scenario import Planner, PolicySetup, Workload

PACKAGES = ("adaptdl-sched==0.2.11", "numpy==1.23.5", "scipy==1.10.1", "pymoo==0.5.0", "autograd==1.5", "future==1.0.0")
ANSWERS = Path(__file__).with_name("answers.py")


class PeerUnavailable(Exception):
    """The peer cannot be installed; the text says why."""


class Peer:
    """Pollux's own policy in a process. No job gets more than twice the GPUs it has had, as in its simulator."""

    def __init__(self, python: Path, seed: int) -> None:
        self._process = subprocess.Popen(
            [python, ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._most: dict[str, int] = {}
        self._tell({"seed": seed})

    def __call__(self, jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
        self._most = {job.id: max(job.has, self._most.get(job.id, 0)) for job in jobs}
        if not jobs:
            return {}
        self._tell({"gpus": gpus, "jobs": [self._as_json(job) for job in jobs]})
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise PeerUnavailable(
                f"Pollux's policy ended with status {self._process.wait()}; run {ANSWERS} by hand to see."
            )
        given: dict[str, int] = json.loads(answer)
        return {job: count for job, count in given.items() if count}

    def close(self) -> None:
        """End the process: it ends when its input is closed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _as_json(self, job: AllotmentRequest) -> dict[str, object]:
        most = min(job.counts[-1], max(job.counts[0], 2 * self._most[job.id]))
        speed_ups = {count: speed_up(job, count) for count in job.counts}
        return {"id": job.id, "submit_s": job.submit_s, "has": job.has, "most": most, "speed_ups": speed_ups}

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)


def install(folder: Path) -> Path:
    """The Python of an environment that has the peer. Raises `PeerUnavailable`."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", *PACKAGES]
        done = subprocess.run([*command, "--no-binary", "autograd,future,pymoo"], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise PeerUnavailable(f"Pollux from PyPI cannot be installed here ({last}); the comparison is skipped.")
        (folder / "ready").touch()
    return python


def rows(python: Path, seeds: int, jobs: int, round_s: float) -> list[report.Row]:
    """Return for each seed our policy's result, that of our Pollux, and the peer's."""
    found = []
    for seed in range(seeds):
        workload, peer = workload_s(seed, count=jobs), Peer(python, seed)
        ours, bounds = workload.policy_setups[-1], report.bounds_of(workload)
        for name, plan in _plans(workload, peer, round_s).items():
            outcome = SimulatedCluster(
                workload, PolicySetup(name, plan, ours.costs, ours.profiles, ours.settings)
            ).run()
            found.append(report.row(name, workload, outcome, bounds, None))
            print(_line(found[-1]), flush=True)
        peer.close()
    return found


def _plans(workload: Workload, peer: Peer, round_s: float) -> dict[str, Planner]:
    ours = workload.policy_setups[-1]
    return {
        ours.name: ours.plan,
        "pollux-rebuilt": RoundScheduler("pollux-rebuilt", RoundPolicy(Pollux, round_s), workload),
        "pollux-pypi": RoundScheduler("pollux-pypi", RoundPolicy(lambda: peer, round_s), workload),
    }


def _line(row: report.Row) -> str:
    return (
        f"seed {row['seed']:>2}  {row['policy']:<15}  makespan {row['makespan_s']:>8.0f} s  "
        f"mean JCT {row['mean_jct_s']:>7.0f} s  reshapes {row['adds'] + row['removes']:>4}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_pollux", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--round", type=float, default=120.0, help="seconds between two decisions of Pollux")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "volcano-reshape" / "peer-pollux"
    parser.add_argument("--venv", type=Path, default=cache, help="where the peer is installed")
    options = parser.parse_args(arguments)
    try:
        python = install(options.venv)
        found = rows(python, options.seeds, options.jobs, options.round)
    except PeerUnavailable as why:
        print(why)
        return 0
    for name in dict.fromkeys(row["policy"] for row in found):
        mean = report.mean([row for row in found if row["policy"] == name])
        print(_line({**mean, "seed": "-"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
