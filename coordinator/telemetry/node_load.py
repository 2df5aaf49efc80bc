"""Computes the load of each node from a snapshot: jobs, categories, score and use, as Algorithm 2 saw them. Pure.

Made by the loop at each turn; shown by `views.py` and sent in the replies to node agents.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from adaptive_scheduler.policies.specon import score
from adaptive_scheduler.settings import SpeCon
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from sidecar.protocol import NodeJobs

NO_CATEGORIES = Counter[str]()


@dataclass(frozen=True)
class NodeLoad:
    """Load of one node; `cpu_use` and `memory_use` are shares from 0 to 1."""

    jobs: NodeJobs = field(default_factory=NodeJobs)
    score: float = 0.0  # 2.2: contention by the jobs that it trains on CPU
    cpu_use: float = 0.0
    memory_use: float = 0.0


def node_loads(snapshot: ClusterSnapshot, specon: SpeCon) -> dict[str, NodeLoad]:
    """Load by node name."""
    counts = Counter(name for job in snapshot.jobs for name in _nodes(job))
    found = {}
    for node in snapshot.nodes:
        on_cpu = snapshot.on_cpu[node.name]
        of = Counter(job.growth.category for job in on_cpu) if on_cpu else NO_CATEGORIES
        jobs = NodeJobs(counts[node.name], of["PC"], of["WC"], of["CC"])
        found[node.name] = NodeLoad(jobs, score(on_cpu, specon), node.cpu_use, node.memory_use)
    return found


def _nodes(job: Job) -> set[str]:
    spread = {*job.pods, *(worker.node for worker in job.workers)}
    return spread or ({job.node} if job.node is not None else set())
