"""What fault tests do to the bed, and what they read of it from outside: processes of pods, pauses, objects ever made.

Every fault is a context manager that mends what it broke. Used by test_faults*.py. Not a test.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from coordinator.config import Config, from_environment
from reshape_hooks.plain import boottime
from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, condition, until
from tests.cluster.bed_network import NODES
from tests.cluster.installed import SYSTEM, Installed, answered

Doc = dict[str, Any]

KEPT = {"checkpoint_claim": steps_job.CLAIM}  # checkpoints that outlive their pod
LONG = 100_000  # steps: ends when it is ended
PLAYBOOK, WARM_ANSIBLE = b"launcher/warm_client.py", b"launcher.warm_ansible"


# processes


def main_pid(on: Installed, pod: Object, container: str) -> int:
    """The first process of a container, as the host numbers it."""
    status = pod["status"]
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    (name,) = [each["containerID"].removeprefix("containerd://") for each in every if each["name"] == container]
    tasks = on.bed.nodes[pod["spec"]["nodeName"]].ctr("task", "ls")
    (pid,) = [line.split()[1] for line in tasks.splitlines() if line.startswith(name)]
    return int(pid)


def below(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def running(pid: int, words: bytes) -> list[int]:
    """The processes below `pid` that have these words in their command line."""
    found = []
    for each in below(pid):
        with suppress(OSError):
            if words in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextmanager
def kubelet_away(on: Installed, node: str) -> Iterator[None]:
    on.bed.kill_kubelet(node)
    try:
        yield
    finally:
        on.bed.start_kubelet(node)


@contextmanager
def cut_off(on: Installed, node: str) -> Iterator[None]:
    on.bed.cut_link(node)
    try:
        yield
    finally:
        on.bed.mend(node)


# our own parts


def times(on: Installed) -> Config:
    """The times that our parts on the bed work with."""
    deployment = on.cluster.get("deployment", "reshape-coordinator", SYSTEM) or {}
    (source,) = deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    found = on.cluster.get("configmap", source["configMapRef"]["name"], SYSTEM) or {}
    return from_environment(Config, found["data"])


def part(on: Installed, name: str) -> Object:
    """The pod of a part of ours that is ready: of coordinators, the one that acts."""
    return until(f"a {name} that is ready", lambda: next(iter(ready(on, name)), None))


def ready(on: Installed, name: str) -> list[Object]:
    pods = on.cluster.list("pods", SYSTEM, f"app.kubernetes.io/component={name}")
    return [pod for pod in pods if condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]]


def acting_launcher(on: Installed) -> int:
    """Its first process: both launchers are ready, one has the term."""

    def found() -> int | None:
        with on.table("terms") as terms:
            holder = (terms.find_one({"_id": "launcher"}) or {}).get("machine", "")
        pids = [main_pid(on, pod, "launcher") for pod in ready(on, "launcher")]
        return next((pid for pid in pids if holder.endswith(str(Path(f"/proc/{pid}/ns/pid").readlink()))), None)

    return until("a launcher acts", found, 30)


def lonely_node(on: Installed) -> str:
    """A node that may be lost without our parts: what of them must act is made to be on the other one."""
    store = part(on, "store")["spec"]["nodeName"]
    (node,) = NODES.keys() - {store}
    on.cluster.kubectl("cordon", node)
    try:
        for name in ("launcher", "coordinator"):
            part(on, name)
            while here := [pod for pod in ready(on, name) if pod["spec"]["nodeName"] == node]:
                on.cluster.delete("pod", here[0]["metadata"]["name"], SYSTEM)
                part(on, name)
    finally:
        on.cluster.kubectl("uncordon", node)
    return node


def scale(on: Installed, name: str, replicas: int) -> None:
    on.cluster.kubectl("scale", "deployment", f"reshape-{name}", "-n", SYSTEM, f"--replicas={replicas}")


# jobs


def trains(on: Installed, job_id: str, gpus: int, within_s: float = 60.0) -> Object:
    """Its pod, once it trains on so many GPUs."""
    on.until_on(job_id, gpus, within_s)
    return alive(on, job_id)


def alive(on: Installed, job_id: str) -> Object:
    """Its one pod that is there to stay, once the kubelet has told that it runs."""

    def look() -> Object | None:
        there = [pod for pod in on.pods(job_id) if "deletionTimestamp" not in pod["metadata"]]
        running = [pod for pod in there if pod["status"]["phase"] == "Running"]
        return running[0] if len(running) == 1 else None

    return until(f"one pod of job {job_id} runs", look)  # type: ignore[return-value]


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def steps_on(on: Installed, job_id: str, more: int = 5, within_s: float = 30.0) -> None:
    """Until it has made so many more steps."""
    before = len(on.gpus.steps(job_id))
    until(f"job {job_id} trains on", lambda: len(on.gpus.steps(job_id)) >= before + more, within_s)


def last_use(on: Installed, job_id: str) -> float:
    """When it last used a GPU (CLOCK_BOOTTIME), by its own log."""
    return max(use["boottime_out"] for use in on.gpus.uses(job_id))


def processes(on: Installed, job_id: str) -> list[list[Doc]]:
    """What each training process of the job did, in order."""
    found: dict[tuple[int, int], list[Doc]] = {}
    for use in on.gpus.uses(job_id):
        found.setdefault((use["generation"], use["pid"]), []).append(use)
    return sorted(found.values(), key=lambda uses: uses[0]["boottime_in"])


def overlap_s(on: Installed, job_id: str) -> float:
    """For how long two training processes of the job trained at once, on whatever GPUs."""
    spans = [(uses[0]["boottime_in"], uses[-1]["boottime_out"]) for uses in processes(on, job_id)]
    return sum(max(0.0, before[1] - after[0]) for before, after in pairwise(spans))


def violations(on: Installed, *jobs: str) -> list[Doc]:
    """Uses of one GPU by two at once in which one of these jobs had a part."""
    found = on.gpus.violations()
    return [each for each in found if any(f'"{job}"' in json.dumps(each) for job in jobs)]


def lost_steps(on: Installed, job_id: str) -> int:
    """Steps that were left out; 0 wherever training went on from a checkpoint of its own."""
    done = set(on.gpus.steps(job_id))
    return max(done) - len(done)


def again(on: Installed, job_id: str) -> int:
    """Steps that were done more than once."""
    done = on.gpus.steps(job_id)
    return len(done) - len(set(done))


def volcano_jobs(on: Installed, job_id: str) -> list[Object]:
    """The Volcano Jobs that were made for a record, oldest first."""
    found = on.cluster.list("jobs.batch.volcano.sh", steps_job.NAMESPACE, "volcano-reshape.io/job")
    mine = [one for one in found if one["metadata"]["name"].startswith(f"{job_id}-")]
    return sorted(mine, key=lambda one: str(one["metadata"]["creationTimestamp"]))


@contextmanager
def theirs(on: Installed, name: str, counts: list[int], node: str = "", **spec: Any) -> Iterator[tuple[str, str]]:
    """A user's own Volcano Job: the id of its job record, and the name of its pod."""
    name = f"{name}-{uuid.uuid4().hex[:6]}"
    made = steps_job.volcano(name, LONG, counts, on.shared, **KEPT)
    made["spec"] |= spec
    if node:
        made["spec"]["tasks"][0]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    job = f"{steps_job.NAMESPACE}.{name}"
    on.cluster.apply(made)
    try:
        yield job, f"{name}-trainer-0"
    finally:
        on.cluster.delete("jobs.batch.volcano.sh", name, steps_job.NAMESPACE, "--wait=false")
        answered(f"job {job} is over", lambda: on.job(job)["closed"])


class Witness:
    """All pods that were ever seen of a job, by uid: looked at whenever somebody asks."""

    def __init__(self, on: Installed, job_id: str) -> None:
        self._on, self._job_id = on, job_id
        self.uids: set[str] = set()

    def look(self) -> int:
        self.uids |= {pod["metadata"]["uid"] for pod in self._on.pods(self._job_id)}
        return len(self.uids)

    def until(self, what: str, so: Callable[[], Any], within_s: float = 60.0) -> Any:
        """Wait for something, and count pods meanwhile."""

        def both() -> Any:
            self.look()
            return so()

        return answered(what, both, within_s)


def relaunched(on: Installed, job_id: str, before: Doc) -> Callable[[], Doc | None]:
    """For `until`: the job trains on as many GPUs as `before`, in another launch."""

    def look() -> Doc | None:
        job = on.job(job_id)
        so = job["launch"] > before["launch"] and job["num_gpus"] == before["num_gpus"]
        return job if so and job["state"] == "running" and not job["reshape"] else None

    return look


def unpin(on: Installed, job_id: str) -> None:
    """Its user no longer minds where it runs."""
    with on.table("jobs") as jobs:
        jobs.update_one({"_id": job_id}, {"$set": {"pinned": None}, "$inc": {"version": 1}})


def now() -> float:
    return boottime()


def pause(seconds: float) -> None:
    time.sleep(seconds)
