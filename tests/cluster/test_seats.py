"""Seats on real kubelets: a training that tries every GPU of its node opens its own, and no other one ever.

Device files that the tests make stand for GPUs, and a fake of NVML names them. Agents, seats, control groups and the
kernel's programs on them are real. Beside each training a container of its pod, with a seat of its own, tries all GPUs
from before the training starts until the pod ends, and writes down what opened when.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import device_filter
from tests.cluster import installed as ours
from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, condition, until
from tests.cluster.bed_network import NODES
from tests.cluster.built_images import ROOT
from tests.cluster.installed import Installed, answered
from tests.cluster.plays import ENDLESS, in_order
from tests.cluster.seated_agent import FIRST_MINOR, FOLDER, GPUS, MAJOR, gpu_id

MANIFESTS = Path(__file__).parent / "manifests-seats"
FAKES = ("tests/cluster/seated_agent.py", "tests/fakes/fake_pynvml.py")
SEAT = "volcano-reshape.io/seat"
SPACE = steps_job.NAMESPACE
AGENTS = "app.kubernetes.io/component=agent"
ALL = {gpu_id(node, number) for node in NODES for number in range(GPUS)}


@pytest.fixture(scope="module")
def seats(installed: Installed) -> Iterator[Installed]:
    """The bed with device files for GPUs, and our product with seats; afterwards it is as before."""
    for node in NODES:
        folder = installed.bed.nodes[node].kubelet_folder / Path(FOLDER).name
        folder.mkdir(exist_ok=True)
        for number in range(GPUS):
            minor = FIRST_MINOR[node] + number
            path = folder / f"nvidia{minor}"
            path.unlink(missing_ok=True)
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
            path.chmod(0o666)
    files = {Path(path).name: (ROOT / path).read_text() for path in FAKES}
    about = {"name": "fakes", "namespace": ours.SYSTEM}
    installed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": files})
    ours._apply(installed.bed, MANIFESTS)
    for node in NODES:
        installed.cluster.wait("node", node, offers_seats, within_s=60)
    answered("these GPUs are idle", lambda: idle(installed) >= ALL, 60)
    yield installed
    ours._apply(installed.bed, ours.MANIFESTS)
    emulated = {f"EMULATED-{node}-V100-{number}" for node in NODES for number in range(GPUS)}
    answered("GPUs are emulated again", lambda: idle(installed) >= emulated, 60)


def offers_seats(node: Object) -> bool:
    return bool(node["status"]["allocatable"].get(SEAT, "0") != "0")


def idle(seats: Installed) -> set[str]:
    return {gpu["gpu_id"] for gpu in seats.client.gpus() if gpu["state"] == "idle"}


def container(name: str, command: list[str], **more: Any) -> Object:
    """A container with a seat of its own."""
    mounts = [{"name": "code", "mountPath": "/steps"}, {"name": "gpu-locks", "mountPath": "/gpu-locks"}]
    return {
        "name": name,
        "image": steps_job.IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "resources": {"limits": {SEAT: "1"}},
        "volumeMounts": mounts,
        **more,
    }


class Evil:
    """A training on GPUs of node-a, with a container beside it that tries all of them."""

    def __init__(self, seats: Installed, jobs: Callable[..., str], name: str, counts: list[int], **more: Any) -> None:
        self.seats = seats
        self.file = seats.shared / "gpu-locks" / f"{name}-{os.urandom(3).hex()}.tries"
        pod = steps_job.pod(seats.shared)
        command = ["python3", "/steps/evil.py", "try", f"/gpu-locks/{self.file.name}"]
        pod["initContainers"] = [container("evil", command, restartPolicy="Always")]
        train = ["python3", "/steps/evil.py", "train", str(ENDLESS)]
        self.job = jobs(name, ENDLESS, counts, command=train, pod=pod, node="node-a", **more)

    @property
    def tries(self) -> list[dict[str, Any]]:
        """Return what opened, at each change: {at, seen, opens}."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines() if line.endswith("}")]

    @property
    def shapes(self) -> list[list[int]]:
        """Return which GPUs opened, one after another."""
        return [each["opens"] for each in self.tries]

    def until_opens(self, count: int) -> None:
        until(f"{self.job} opens {count} GPUs", lambda: self.shapes and len(self.shapes[-1]) == count, 30)

    @property
    def own(self) -> list[int]:
        """The GPUs that the coordinator's rows give it."""
        rows = answered("the coordinator tells of GPUs", lambda: self.seats.client.gpus())
        held = [gpu["gpu_id"] for gpu in rows if gpu["held_by"] == self.job]
        return sorted(int(each.rpartition("-")[2]) for each in held)

    def opened_while_used_by(self, other: str) -> list[tuple[int, float]]:
        """Return number and time of each GPU that it could open during a step of another job on it."""
        tries = self.tries
        ends = [each["at"] for each in tries[1:]] + [float("inf")]
        found = []
        for use in self.seats.gpus.uses(other):
            number = int(str(use["gpu"]).rpartition("-")[2])
            for each, end in zip(tries, ends, strict=True):
                meets = each["at"] < use["boottime_out"] and use["boottime_in"] < end
                if meets and number in each["opens"]:
                    found.append((number, use["boottime_in"]))
        return found

    def lost_no_step(self) -> bool:
        row = answered("the coordinator tells of the job", lambda: self.seats.client.job(self.job))
        return in_order(self.seats.gpus.steps(self.job)) and row["lost"] is None


def test_an_evil_training_opens_its_own_gpus_before_during_and_after_a_reshape(seats: Installed, jobs: Any) -> None:
    evil = Evil(seats, jobs, "evil", [1, 2, 4])
    seats.until_on(evil.job, 4)
    evil.until_opens(4)
    assert evil.shapes[0] == [] and evil.tries[0]["seen"] == GPUS, "it saw all GPUs and opened none before its start"
    until("it has made some steps", lambda: len(seats.gpus.steps(evil.job)) > 5)

    newcomer = jobs("newcomer", ENDLESS, [2], node="node-a")
    seats.until_on(newcomer, 2)
    seats.until_on(evil.job, 2)
    evil.until_opens(2)
    assert evil.shapes[-1] == evil.own
    until("the newcomer has made some steps", lambda: len(seats.gpus.steps(newcomer)) > 20)
    assert evil.shapes[-1] == evil.own
    assert evil.opened_while_used_by(newcomer) == []

    seats.end(newcomer)
    seats.until_on(evil.job, 4)
    evil.until_opens(4)
    assert evil.opened_while_used_by(newcomer) == []
    assert evil.lost_no_step()
    seats.end(evil.job)
    assert {len(shape) for shape in evil.shapes} <= {0, 2, 4}


def test_new_agents_and_kubelets_open_nothing_more_and_go_on(seats: Installed, jobs: Any) -> None:
    """Filters lie in the kernel; a new agent takes calls made to it, and registers with a new kubelet."""
    evil = Evil(seats, jobs, "agent-killed", [1, 2])
    seats.until_on(evil.job, 2)
    evil.until_opens(2)
    own = evil.own
    before = {pod["metadata"]["uid"] for pod in seats.cluster.list("pods", ours.SYSTEM, AGENTS)}
    seats.cluster.kubectl("delete", "pods", "-l", AGENTS, "-n", ours.SYSTEM, "--force", "--grace-period=0")
    seats.bed.kill_kubelet("node-a")
    seats.bed.start_kubelet("node-a")
    seats.bed.wait_ready()

    def new_agents() -> bool:
        pods = seats.cluster.list("pods", ours.SYSTEM, AGENTS)
        ready = [pod for pod in pods if condition(pod, "Ready")]
        return len(ready) == len(NODES) and not before & {pod["metadata"]["uid"] for pod in pods}

    until("there are new agents", new_agents, 120)
    assert evil.shapes[-1] == own == evil.own
    newcomer = jobs("after-agents", ENDLESS, [3], node="node-a")
    seats.until_on(newcomer, 3, 120)
    seats.until_on(evil.job, 1)
    evil.until_opens(1)
    assert evil.shapes[-1] == evil.own
    until("the newcomer has made some steps", lambda: len(seats.gpus.steps(newcomer)) > 10)
    assert evil.opened_while_used_by(newcomer) == []
    assert evil.lost_no_step()
    seats.end(newcomer, evil.job)


def test_a_job_waits_for_the_agent_that_opens_its_gpus(seats: Installed, jobs: Any) -> None:
    evil = Evil(seats, jobs, "no-agent", [1, 2])
    seats.until_on(evil.job, 2)
    evil.until_opens(2)
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"none": "such"}}}}}
    seats.cluster.patch("daemonset", "reshape-agent", nowhere, ours.SYSTEM)
    until("no agent is left", lambda: not seats.cluster.list("pods", ours.SYSTEM, AGENTS), 60)
    steps = len(seats.gpus.steps(evil.job))
    until("it trains on", lambda: len(seats.gpus.steps(evil.job)) > steps + 20, 60)
    assert evil.shapes[-1] == evil.own
    again = {"spec": {"template": {"spec": {"nodeSelector": None}}}}
    seats.cluster.patch("daemonset", "reshape-agent", again, ours.SYSTEM)
    until("agents are there again", lambda: ours.is_ready(seats.cluster, "daemonset"), 120)
    seats.end(evil.job)


def test_a_pod_is_closed_while_its_first_containers_start(seats: Installed, jobs: Any) -> None:
    """Its user's init container has no seat, and runs before the one that has."""
    go = seats.shared / "gpu-locks" / f"go-{os.urandom(3).hex()}"
    wait = f"import os, time\nwhile not os.path.exists('/gpu-locks/{go.name}'): time.sleep(0.1)"
    pod = steps_job.pod(seats.shared)
    first = {**container("first", ["python3", "-c", wait]), "resources": {}}
    first["volumeMounts"] = first["volumeMounts"][1:]
    pod["initContainers"] = [first]
    job = jobs("closed-first", ENDLESS, [1], pod=pod, node="node-a")

    def runs() -> bool:
        statuses = [one for each in seats.pods(job) for one in each["status"].get("initContainerStatuses") or []]
        return any(one["name"] == "first" and "running" in one["state"] for one in statuses)

    answered("its first container runs", runs, 90)
    uid = seats.pod(job)["metadata"]["uid"]
    groups = [*Path("/sys/fs/cgroup").glob(f"**/pod{uid}")]
    filters = [device_filter.read_permitted(str(group)) for group in groups if (group / "cgroup.controllers").exists()]
    assert filters == [frozenset()], "every GPU is closed to all of the pod"
    go.touch()
    seats.until_on(job, 1)


def test_a_seat_is_closed_at_each_start_whoever_made_the_pod(seats: Installed, namespace: str) -> None:
    """A pod that nobody decided about sees all GPUs and opens none, also when its container is started again."""
    file = seats.shared / "gpu-locks" / f"stranger-{os.urandom(3).hex()}.tries"
    script = (
        "import glob, json, os, sys\n"
        "def opens(path):\n"
        "    try: os.close(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))\n"
        "    except PermissionError: return False\n"
        "    except OSError: return True\n"
        "    return True\n"
        "files = sorted(glob.glob('/dev/nvidia*'))\n"
        f"with open('/gpu-locks/{file.name}', 'a') as log:\n"
        "    log.write(json.dumps([len(files), [path for path in files if opens(path)]]) + '\\n')\n"
    )
    uses = container("uses", ["python3", "-c", script])
    uses["volumeMounts"] = uses["volumeMounts"][1:]
    volumes = [{"name": "gpu-locks", "hostPath": {"path": str(seats.shared / "gpu-locks")}}]
    spec = {"containers": [uses], "volumes": volumes, "restartPolicy": "Always", "terminationGracePeriodSeconds": 1}
    about = {"name": "stranger", "namespace": namespace}
    seats.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    until("it was started three times", lambda: file.exists() and len(file.read_text().splitlines()) >= 3, 90)
    assert set(file.read_text().splitlines()) == {json.dumps([GPUS, []])}
