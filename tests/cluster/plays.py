"""Scenes that are played with jobs of each device mode or framework: a job on four GPUs, a newcomer that wants two,
four again after it; and a job on two GPUs of a node that is full, which goes to the other one as that has four.

What happened on the GPUs is read from what the trainings wrote, what became of pods from the API server. A play is
kept, so that several tests may look at it. Imported by conftest.py; not a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_network import NODES
from tests.cluster.installed import Installed, answered
from tests.fakes.gpu_log import GpuLog

Doc = dict[str, Any]

NODE = "node-a"
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Gap:
    """Between the last step in one shape and the first one in the next."""

    before: int  # GPUs
    after: int
    seconds: float


@dataclass(frozen=True)
class Play:
    job: str
    newcomer: str
    pods: tuple[Object, Object, Object]  # of the job: at the start, with two GPUs, with four again
    events: list[Doc]  # of both jobs, in order
    idle_s: float  # GPU-seconds that the GPUs which changed hands stood idle meanwhile

    steps: list[int]  # of the job, in the order in which they were done
    gaps: list[Gap]  # of the job: down, up

    def first(self, job: str, kind: str) -> int:
        """The place of the first such event of a job among all."""
        return next(i for i, each in enumerate(self.events) if each.get("job_id") == job and each["type"] == kind)


def gaps(log: GpuLog, job_id: str) -> list[Gap]:
    """Between the shapes of a job, in order."""
    shapes: dict[tuple[int, int], list[Doc]] = {}
    for use in log.uses(job_id):
        shapes.setdefault((use["generation"], use["pid"]), []).append(use)
    ordered = sorted(shapes.values(), key=lambda uses: uses[0]["boottime_in"])
    return [
        Gap(len({u["gpu"] for u in old}), len({u["gpu"] for u in new}), new[0]["boottime_in"] - old[-1]["boottime_out"])
        for old, new in pairwise(ordered)
    ]


def identity(pod: Object) -> tuple[str, str, int]:
    """What a reshape in the living pod does not change: uid, node, restarts of any container."""
    status = pod["status"]
    of_all = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return pod["metadata"]["uid"], pod["spec"]["nodeName"], sum(each["restartCount"] for each in of_all)


def in_order(steps: list[int]) -> bool:
    """None lost, none done again."""
    return bool(steps) and steps == list(range(1, len(steps) + 1))


def handed_over_s(log: GpuLog, giver: str, taker: str) -> float:
    """GPU-seconds between the giver's last use and the taker's first one."""
    taken, given = log.uses(taker), log.uses(giver)
    total = 0.0
    for gpu in {use["gpu"] for use in taken}:
        first = min(use["boottime_in"] for use in taken if use["gpu"] == gpu)
        total += first - max(use["boottime_out"] for use in given if use["gpu"] == gpu and use["boottime_out"] <= first)
    return total


def play(installed: Installed, queue: str, newcomers_queue: str, node: str = NODE, **job_is: Any) -> Play:
    """Play the scene on one node; nothing of it runs afterwards. `job_is`: what else the job's document says.

    The other node is closed meanwhile: of two queues each has a right to half of the GPUs, so to two of these four.
    """
    (other,) = set(NODES) - {node}
    claim = {"node": node, "checkpoint_claim": steps_job.CLAIM}
    job = installed.insert("job", ENDLESS, [2, 4], **{"queue": queue, **claim, **job_is})
    newcomer = ""
    installed.client.drain(other)
    try:
        steps_on(installed, job, 4)
        pods = [installed.pod(job)]
        newcomer = installed.insert("newcomer", ENDLESS, [2], queue=newcomers_queue, **claim)
        steps_on(installed, newcomer, 2)
        steps_on(installed, job, 2)
        pods.append(installed.pod(job))
        idle_s = handed_over_s(installed.gpus, job, newcomer)
        installed.end(newcomer)
        steps_on(installed, job, 4)
        pods.append(installed.pod(job))
        with installed.table("events") as events:
            told = list(events.find({"job_id": {"$in": [job, newcomer]}}).sort("_id"))
    finally:
        installed.end(*filter(None, (job, newcomer)))
        installed.client.undrain(other)
    log = installed.gpus
    return Play(job, newcomer, (pods[0], pods[1], pods[2]), told, idle_s, log.steps(job), gaps(log, job))


def steps_on(installed: Installed, job_id: str, gpus: int) -> None:
    """Wait until a job has done steps on so many GPUs, by its own account."""
    installed.until_on(job_id, gpus)
    answered(f"job {job_id} steps on {gpus} GPUs", lambda: installed.gpus.shapes(job_id)[-1:] == [gpus], 120)


@dataclass(frozen=True)
class Moved:
    """A job that grew onto another node (sequence D)."""

    job: str
    before: Object
    after: Object
    event: Doc
    kinds: list[str]  # of its events until then
    why: str  # as `reshape explain` tells it
    gap: Gap

    @property
    def figures(self) -> Doc:
        gpus, ready = f"{self.gap.before} -> {self.gap.after}", self.event["stages_s"]["newcomer ready"]
        return {"downtime_s": self.gap.seconds, "newcomer_ready_s": ready, "gpus": gpus}


def check_moved(installed: Installed, seen: Moved) -> None:
    nodes = seen.before["spec"]["nodeName"], seen.after["spec"]["nodeName"]
    assert (*nodes, seen.gap.before, seen.gap.after) == ("node-a", "node-b", 2, 4)
    launched = [place for place, kind in enumerate(seen.kinds) if kind == "launching"]
    assert launched[1] < seen.kinds.index("stop sent"), "its next pod comes up while it trains on"
    assert in_order(installed.gpus.steps(seen.job)), "no step was lost or done again"
    assert "node-b" in seen.why
    assert installed.gpus.violations() == []


def cross_host(installed: Installed, movers: Mapping[str, Doc]) -> dict[str, Moved]:
    """Two GPUs of node-a are taken for good, so there is more to be had only on node-b. `movers`: their documents."""
    jobs = [
        installed.insert("sitter", ENDLESS, [2], node="node-a"),
        installed.insert("filler", ENDLESS, [4], node="node-b"),
    ]
    found: dict[str, Moved] = {}
    try:
        for each, gpus in zip(jobs, (2, 4), strict=True):
            steps_on(installed, each, gpus)
        for name, document in movers.items():
            job = installed.insert("mover", ENDLESS, [2, 4], checkpoint_claim=steps_job.CLAIM, **document)
            jobs.append(job)
            steps_on(installed, job, 2)
            before = installed.pod(job)
            installed.end(jobs.pop(-2))  # who is on node-b
            steps_on(installed, job, 4)
            until("its old pod is gone", lambda job=job: len(installed.pods(job)) == 1)
            found[name] = _as_moved(installed, job, before)
        return found
    finally:
        print(installed.words("coordinator"), installed.words("launcher"))
        installed.end(*jobs)


def _as_moved(installed: Installed, job: str, before: Object) -> Moved:
    told = installed.events(job, "moved")
    event = next(each for each in told if each["type"] == "moved")
    (why,) = [text for text in installed.explained(job) if f"[{event['decision_id']}]" in text]
    (gap,) = gaps(installed.gpus, job)
    return Moved(job, before, installed.pod(job), event, [each["type"] for each in told], why, gap)


@pytest.fixture(scope="session")
def played(installed: Installed) -> Callable[[str, str], Play]:
    """`played("shared", "recreate")`: a job of one mode, a newcomer of another; played once, looked at by many."""
    kept: dict[tuple[str, str], Play] = {}
    queues = {"shared": steps_job.QUEUE, "recreate": steps_job.RECREATE_QUEUE}

    def get(mode: str, newcomers: str) -> Play:
        if (mode, newcomers) not in kept:
            kept[mode, newcomers] = play(installed, queues[mode], queues[newcomers])
        return kept[mode, newcomers]

    return get
