"""Pollux's own policy, asked line by line: jobs as JSON in, GPUs by job as JSON out. `__main__.py` starts it.

Runs in a Python environment of its own, which has `adaptdl-sched` and old numpy but nothing of this project.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy
from adaptdl_sched.policy.pollux import PolluxPolicy
from adaptdl_sched.policy.utils import JobInfo, NodeInfo
from pymoo.config import Config

GPU = "nvidia.com/gpu"


class FixedCluster(PolluxPolicy):  # type: ignore[misc]  # its package is not installed here
    """Pollux's policy on a cluster of fixed size."""

    def _desired_nodes(self, utilities: object, values: object, nodes: Mapping[str, object]) -> int:
        return len(nodes)


def speed_up(table: Mapping[str, float]) -> Callable[[Any, Any], Any]:
    """Return the speed-up by count; other counts have that of the next smaller allowed one: no more can be used."""
    worth = numpy.zeros(1 + max(int(n) for n in table))
    for count, value in sorted((int(n), value) for n, value in table.items()):
        worth[count:] = value
    return lambda nodes, replicas: worth[numpy.minimum(replicas, len(worth) - 1)]


def main() -> None:
    Config.show_compile_hint = False  # it would print among the answers
    policy = FixedCluster()
    for line in sys.stdin:
        asked = json.loads(line)
        if "seed" in asked:
            numpy.random.seed(asked["seed"])
            continue
        node = NodeInfo({GPU: asked["gpus"], "pods": 1000}, preemptible=False)
        jobs = {
            job["id"]: JobInfo({GPU: 1, "pods": 1}, speed_up(job["speed_ups"]), job["submit_s"], 0, job["most"])
            for job in asked["jobs"]
        }
        has = {job["id"]: ["node"] * job["has"] for job in asked["jobs"]}
        given, _ = policy.optimize(jobs, {"node": node}, has, node)
        print(json.dumps({job: len(on) for job, on in given.items()}), flush=True)


if __name__ == "__main__":
    main()
