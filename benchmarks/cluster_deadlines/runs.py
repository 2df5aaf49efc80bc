"""One of the six runs: Volcano's configuration, dummy pods that hold most of the CPU, and the stream of jobs.

Without deadlines each task is a Volcano Job that is submitted once the one before is completed, as a workflow engine
would: Volcano's own `dependsOn` only waits until pods run. With deadlines each job is a Slaml, as the paper has it.
How long each task takes alone is measured first.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import yaml

from benchmarks.cluster_deadlines.workload import JOB, LIMIT, MEMORY, SIZES, Alone, MnistJob, MnistTask, history
from launcher.cluster.pods import foreign_usage
from launcher.cluster.pods.limit_rules import amount
from tests.cluster import training_images
from tests.cluster.bed import Bed
from tests.cluster.bed_kubectl import until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_processes import BedError
from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.installed import EXTENDER, Installed
from tests.cluster.steps_job import CLAIM, NAMESPACE

Doc = dict[str, Any]

ALGORITHMS = ("gang", "binpack", "task-topology")
LEFT = 0.4  # cores of each node that dummies, and all that stands there anyway, leave: a tenth of the paper's 4 vCPU
DUMMIES = 3  # on each node
MOST = 4.0  # of one run: times what its jobs take alone one after another; what has not ended by then has failed
ALONE_S = 600.0  # within which a job alone ends
LOOK_S = 0.5
IMAGE = training_images.name_of("torch")
MNIST = Path.home() / ".keras" / "datasets" / "mnist.npz"  # where Keras has downloaded it; else digits take its place
LABEL = "benchmark"
BAD = ("Failed", "Aborted", "Terminated", "Cancelled", "Refused")


@dataclass
class ClusterOutcome:
    """Seconds from request to result of each job that was done, and what became of the others."""

    algorithm: str
    deadlines: bool
    seed: int = 0
    response_s: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    rescheduled: int = 0
    in_time: int = 0
    whole_s: float = 0.0

    @property
    def art_s(self) -> float | None:
        """The average response time of the jobs that were done."""
        return sum(self.response_s.values()) / len(self.response_s) if self.response_s else None


class ClusterSide(Protocol):
    """One side of the comparison: submits the jobs and observes them."""

    def submit(self, job: MnistJob) -> None: ...

    def phases(self) -> dict[str, str]:
        """Return the phase of each submitted job: Completed, one of `BAD`, or anything else while it is under way."""
        ...

    def rescheduled(self) -> int:
        """Return how often a task was put back or its pods were recreated."""
        ...


class PlainVolcano:
    """Volcano alone."""

    def __init__(self, on: Installed) -> None:
        self._on = on
        self._stage: dict[str, int] = {}  # of each job: which of its tasks is under way
        self._jobs: dict[str, MnistJob] = {}
        self._restarts: dict[str, int] = {}
        self.turns: dict[str, list[float]] = {}  # of each job: when it was submitted and when each task was completed

    def submit(self, job: MnistJob) -> None:
        self._jobs[job.name], self._stage[job.name], self.turns[job.name] = job, 0, [time.monotonic()]
        self._on.cluster.apply(self._document(job, job.tasks[0]))

    def phases(self) -> dict[str, str]:
        found = self._on.cluster.list("vcjob", NAMESPACE, LABEL)
        states = {each["metadata"]["name"]: each.get("status", {}) for each in found}
        self._restarts |= {name: int(status.get("retryCount", 0)) for name, status in states.items()}
        return {name: self._phase(job, states) for name, job in self._jobs.items()}

    def _phase(self, job: MnistJob, states: dict[str, Doc]) -> str:
        stage = self._stage[job.name]
        phase = str(states.get(f"{job.name}-{job.tasks[stage].name}", {}).get("state", {}).get("phase"))
        if phase != "Completed":
            return phase
        self.turns[job.name].append(time.monotonic())
        if stage == len(job.tasks) - 1:
            return phase
        self._stage[job.name] += 1
        self._on.cluster.apply(self._document(job, job.tasks[stage + 1]))
        return "Running"

    def rescheduled(self) -> int:
        return sum(self._restarts.values())

    def _document(self, job: MnistJob, task: MnistTask) -> Doc:
        """Each replica has an environment of its own, as by a Slaml, so each is a task of the Volcano Job."""
        base = pod(job)
        (trainer,) = base["containers"]
        asked = {**trainer["resources"], "requests": {"cpu": f"{task.millicores}m", "memory": MEMORY}}
        whole = {**trainer, "image": IMAGE, "command": command(task), "resources": asked}
        names = [f"trainer-{number}" for number in range(task.replicas)]
        made = volcano_job(f"{job.name}-{task.name}", {})
        made["metadata"] |= {
            "namespace": NAMESPACE, "labels": {LABEL: job.name},
            "annotations": {"volcano.sh/task-topology-affinity": ",".join(names)},  # its replicas to one node
        }  # fmt: skip
        made["spec"]["minAvailable"] = task.replicas
        made["spec"]["tasks"] = [
            {"name": name, "replicas": 1, "template": pod_template(
                {**whole, "env": [*trainer["env"], *_environment(job, task, number)]}, volumes=base["volumes"])}
            for number, name in enumerate(names)
        ]  # fmt: skip
        return made


def _environment(job: MnistJob, task: MnistTask, replica: int) -> list[Doc]:
    """What our parts give to each replica of a Slaml."""
    given = {"RESHAPE_JOB_ID": f"{job.name}.{task.name}.{replica}"}
    given["RESHAPE_CHECKPOINTS"] = f"/data/{JOB}/{job.name}/saved-{replica}"
    if task.params:
        given |= {name.upper().replace("-", "_"): str(value) for name, value in task.params[replica].items()}
    return [{"name": name, "value": value} for name, value in given.items()]


def pod(job: MnistJob) -> Doc:
    """What the pods of a job need beside image and command: the folder in which its tasks hand on."""
    trainer = {
        "name": "trainer", "imagePullPolicy": "Never", "env": [{"name": "DATA", "value": f"/data/{JOB}/{job.name}"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}], "resources": {"limits": {"cpu": f"{LIMIT}m"}},
    }  # fmt: skip
    return {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}], "containers": [trainer]
    }  # fmt: skip


def command(task: MnistTask) -> list[str]:
    return ["python", "mnist.py", task.name]


class DeadlineVolcano:
    """Slamls, and behind them the coordinator with all its systems."""

    def __init__(self, on: Installed) -> None:
        self._on = on

    def submit(self, job: MnistJob) -> None:
        image, _, tag = IMAGE.rpartition(":")
        more = {"job_type": JOB, "checkpoint_claim": CLAIM, "pod": pod(job)}
        tasks = [
            {
                "taskName": task.name, "type": task.type, "containerImage": image, "containerTag": tag,
                "containerReplicas": task.replicas, "CPU": f"{task.millicores}m", "memory": str(MEMORY),
                "command": command(task), "job": more, **({"modelParams": task.params} if task.params else {}),
            }
            for task in job.tasks
        ]  # fmt: skip
        self._on.cluster.apply({
            "apiVersion": "sla-operator.dcn.com/v1alpha1", "kind": "Slaml",
            "metadata": {"name": job.name, "namespace": NAMESPACE, "labels": {LABEL: job.name}},
            "spec": {"isSla": True, "slaTarget": job.target_s, "tasks": tasks},
        })  # fmt: skip

    def phases(self) -> dict[str, str]:
        found = self._on.cluster.list("slaml", NAMESPACE, LABEL)
        return {each["metadata"]["name"]: str(each.get("status", {}).get("state")) for each in found}

    def rescheduled(self) -> int:
        found = self._on.cluster.list("slaml", NAMESPACE, LABEL)
        uids = {each["metadata"]["uid"] for each in found}
        with self._on.table("jobs") as jobs:
            docs = [doc for doc in jobs.find() if (doc.get("slaml") or {}).get("uid") in uids]
        return sum(max(0, int(doc.get("launch") or 1) - 1) for doc in docs)


def measured(on: Installed, scale: float) -> Alone:
    """Run a job of each size alone on Volcano; return the seconds that each of its tasks took. Raises `BedError`."""
    on.bed.provide(training_images.archive("torch"))
    side, found = PlainVolcano(on), dict[str, list[float]]()
    try:
        for size in SIZES:
            job, outcome = MnistJob(f"{JOB}-{size}", size, scale=scale), ClusterOutcome("gang", False)
            _provide(on, [job])
            _play(side, [job], outcome, ALONE_S)
            if outcome.failed:
                raise BedError(f"a job alone on the cluster did not end: {outcome.failed[0]}")
            found[size] = [round(end - begun, 1) for begun, end in pairwise(side.turns[job.name])]
    finally:
        tidy(on)
    return found


def run(on: Installed, outcome: ClusterOutcome, jobs: Sequence[MnistJob], alone: Alone) -> ClusterOutcome:
    """Fill it in and return it; nothing of the run remains afterwards."""
    on.bed.volcano.set_conf(configuration(on.bed, outcome.algorithm, outcome.deadlines))
    side: ClusterSide = DeadlineVolcano(on) if outcome.deadlines else PlainVolcano(on)
    limit_s = MOST * sum(sum(alone[job.size]) for job in jobs)
    try:
        _provide(on, jobs)
        _play(side, jobs, outcome, limit_s)
        outcome.rescheduled = side.rescheduled()
    finally:
        tidy(on)
    return outcome


def _play(side: ClusterSide, jobs: Sequence[MnistJob], outcome: ClusterOutcome, limit_s: float) -> None:
    began, waiting, under_way = time.monotonic(), list(jobs), dict[str, tuple[MnistJob, float]]()
    while (waiting or under_way) and time.monotonic() - began < limit_s:
        while waiting and time.monotonic() - began >= waiting[0].arrives_s:
            job = waiting.pop(0)
            under_way[job.name] = (job, time.monotonic())
            side.submit(job)
        phases = side.phases()
        for name in [name for name in under_way if phases.get(name) in ("Completed", *BAD)]:
            job, asked_at = under_way.pop(name)
            if phases[name] != "Completed":
                outcome.failed.append(f"{name}: {phases[name]}")
                continue
            outcome.response_s[name] = time.monotonic() - asked_at
            outcome.in_time += outcome.response_s[name] <= job.target_s * 1.05
        time.sleep(LOOK_S)
    outcome.failed += [
        f"{name}: not done within {limit_s:.0f} s" for name in [*under_way, *(job.name for job in waiting)]
    ]
    outcome.whole_s = time.monotonic() - began


def _provide(on: Installed, jobs: Sequence[MnistJob]) -> None:
    """Make the folder of each job, writable for the user of its image, with MNIST itself where this machine has it."""
    for job in jobs:
        folder = on.shared / "checkpoints" / JOB / job.name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if MNIST.is_file():
            shutil.copy2(MNIST, folder)


def tidy(on: Installed) -> None:
    for kind in ("slaml", "vcjob"):
        on.cluster.kubectl("delete", kind, "-n", NAMESPACE, "-l", LABEL, "--ignore-not-found", within_s=120)
    until("no pod of these jobs runs", lambda: not any(map(_is_ours, on.cluster.list("pods", NAMESPACE))), 120)
    shutil.rmtree(on.shared / "checkpoints" / JOB, ignore_errors=True)


def _is_ours(pod: Doc) -> bool:
    """Those that have ended hold nothing, and go with what the launcher keeps of ended launches."""
    ours = re.match(f"({NAMESPACE}-)?{JOB}-", pod["metadata"]["name"])
    return bool(ours) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def configuration(bed: Bed, algorithm: str, deadlines: bool) -> str:
    """Volcano's own, with this one of the three plugins; with deadlines also its `sla` and our extender."""
    if deadlines:
        bed.volcano.add_extender(EXTENDER)
    conf = yaml.safe_load(bed.volcano.conf.read_text() if deadlines else bed.volcano.default_conf())
    first, second = (tier["plugins"] for tier in conf["tiers"])
    for plugins in (first, second):
        plugins[:] = [each for each in plugins if each["name"] not in ALGORITHMS]
    (first if algorithm == "gang" else second).append({"name": algorithm})
    if deadlines:
        first.append({"name": "sla"})
    return str(yaml.safe_dump(conf, sort_keys=False))


# the coordinator and the load


@contextmanager
def only_deadlines(on: Installed) -> Iterator[None]:
    """Of our systems only that of the paper acts, as in the simulation: the test bed's SpeCon moves after seconds."""
    try:
        on.set_coordinator("RESHAPE_SYSTEMS=deadline")
        yield
    finally:
        on.set_coordinator("RESHAPE_SYSTEMS-")


@contextmanager
def loaded(on: Installed, alone: Alone) -> Iterator[dict[str, float]]:
    """Dummies hold what is to be held; yields the cores that each node has left."""
    left = {node: _hold(on, node) for node in NODES}
    on.client.import_profiles("observations", history(alone))
    try:
        until("the dummies run", lambda: _dummies_run(on), 60)
        yield left
    finally:
        on.cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", "dummy", "--grace-period=1", within_s=120)
        on.bed.volcano.add_extender(EXTENDER)


def _hold(on: Installed, node: str) -> float:
    """Cores that are left then."""
    found = on.cluster.get("node", node) or {}
    all_of_it = cores(found["status"]["allocatable"]["cpu"])
    pods = [pod for pod in on.cluster.list("pods", None) if pod["spec"].get("nodeName") == node]
    there = sum(map(requested, pods))
    each = int(1000 * max(0.0, all_of_it - LEFT - there) / DUMMIES)
    on.cluster.apply([_dummy(node, number, each) for number in range(DUMMIES)])
    return round(all_of_it - there - DUMMIES * each / 1000, 3)


def _dummies_run(on: Installed) -> bool:
    pods = on.cluster.list("pods", NAMESPACE, "dummy")
    return len(pods) == DUMMIES * len(NODES) and all(pod["status"]["phase"] == "Running" for pod in pods)


def _dummy(node: str, number: int, millicores: int) -> Doc:
    container = {
        "name": "dummy", "image": "reshape.local/pause:1", "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": f"{millicores}m"}},
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"dummy-{node}-{number}", "namespace": NAMESPACE, "labels": {"dummy": node}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }  # fmt: skip


def requested(pod: Doc) -> float:
    """Return the cores that a pod requests; 0 once it has ended."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return 0.0 if ended else foreign_usage.requested(pod["spec"], "cpu")


def cores(quantity: str) -> float:
    """Return the value of a CPU quantity; 0 if it cannot be read."""
    return float(amount(quantity) or 0)
