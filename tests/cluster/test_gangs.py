"""Jobs of several pods: they grow by a pod and give one back while the pods that stay are not touched.

Trained by `trainers/gang.py`, whose ranks meet where the shim's environment says, or by both frameworks' examples.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import steps_job, training_images
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import KEPT, below, main_pid, relaunched, uid, violations
from tests.cluster.installed import Installed, answered
from tests.cluster.plays import ENDLESS, identity

Doc = dict[str, Any]

GANG: Doc = {
    **KEPT, "gpus_per_pod": 1, "job_type": "gang", "command": ["python3", "/steps/gang.py", str(ENDLESS)],
}  # fmt: skip
SPEEDS = {1: 0.4, 2: 0.2, 3: 0.14}


# what is seen from outside


def members(on: Installed, job_id: str) -> list[Object]:
    """Its pods that are there to stay, pod 0 first."""
    there = [pod for pod in on.pods(job_id) if "deletionTimestamp" not in pod["metadata"]]
    return sorted(there, key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))


def volcano_job(on: Installed, pod: Object) -> Object:
    (owner,) = pod["metadata"]["ownerReferences"]
    found = on.cluster.get("jobs.batch.volcano.sh", owner["name"], steps_job.NAMESPACE)
    assert found is not None
    return found


def size(on: Installed, job_id: str) -> tuple[int, int, int]:
    """Replicas, and how many Volcano counts on: of the job, and of its task."""
    spec = volcano_job(on, members(on, job_id)[0])["spec"]
    (task,) = spec["tasks"]
    return task["replicas"], spec["minAvailable"], task["minAvailable"]


def generations(on: Installed, job_id: str) -> dict[int, list[Doc]]:
    found: dict[int, list[Doc]] = {}
    for use in on.gpus.uses(job_id):
        found.setdefault(use["generation"], []).append(use)
    return dict(sorted(found.items()))


def told(on: Installed, job_id: str, generation: int, rank: int) -> Doc:
    """What the environment of a rank said of the others."""
    path = on.gpus.folder / f"{job_id}-g{generation}-r{rank}.told"
    found: Doc = json.loads(path.read_text())
    return found


def trains_on(on: Installed, job_id: str, gpus: int, within_s: float = 90.0) -> list[Object]:
    """Its pods, once it has made steps on so many GPUs, and Volcano has been told how many pods it has."""
    job = on.until_on(job_id, gpus, within_s)

    def steps() -> bool:
        latest = generations(on, job_id).get(on.job(job_id)["generation"], [])
        return len({use["gpu"] for use in latest}) == gpus and len(latest) >= 3 * gpus

    until(f"all {gpus} ranks of job {job_id} step", steps, 60)
    pods = gpus // job["gpus_per_pod"]
    answered("Volcano knows", lambda: size(on, job_id) == (pods, pods, pods), 30)
    answered("no other pods are left", lambda: len(on.pods(job_id)) == pods, 30)
    return members(on, job_id)


def done(on: Installed, job_id: str) -> list[int]:
    """Steps in order, each once per generation: all ranks make each of them together."""
    return [step for uses in generations(on, job_id).values() for step in dict.fromkeys(use["step"] for use in uses)]


def gaps(on: Installed, job_id: str) -> list[float]:
    """Seconds without a step between two generations."""
    parts = list(generations(on, job_id).values())
    return [new[0]["boottime_in"] - old[-1]["boottime_out"] for old, new in pairwise(parts)]


def in_order(steps: list[int]) -> bool:
    return bool(steps) and steps == list(range(steps[0], steps[0] + len(steps)))


# the scene


@dataclass
class Scene:
    """Both nodes have one GPU for a gang, and then node-b has two more."""

    on: Installed
    insert: Callable[..., str]

    def __post_init__(self) -> None:
        rows = [
            {"job_type": "gang", "gpu_type": "V100", "num_gpus": n, "seconds_per_iteration": s}
            for n, s in SPEEDS.items()
        ]
        self.on.client.import_profiles("speed_profiles", rows)
        self.fillers = {node: self.insert(f"fills-{node}", ENDLESS, [3], node=node) for node in ("node-a", "node-b")}
        for job in self.fillers.values():
            self.on.until_on(job, 3)

    def more_room(self) -> None:
        self.on.end(self.fillers["node-b"])


@pytest.fixture
def scene(installed: Installed, jobs: Callable[..., str]) -> Scene:
    return Scene(installed, jobs)


def wish(on: Installed, job_id: str, gpus: int) -> None:
    on.client.reshape(job_id, gpus)


def told_rightly(on: Installed, job_id: str, pods: list[Object]) -> None:
    """Each rank knew the addresses of all, and its own place among them."""
    generation, addresses = on.job(job_id)["generation"], [pod["status"]["podIP"] for pod in pods]
    for rank in range(len(pods)):
        seen = told(on, job_id, generation, rank)
        cluster = json.loads(seen["TF_CONFIG"])
        assert [worker.rpartition(":")[0] for worker in cluster["cluster"]["worker"]] == addresses
        assert cluster["task"] == {"type": "worker", "index": rank}
        assert None not in seen.values(), seen
        assert seen["MASTER_ADDR"] == seen["PET_MASTER_ADDR"] == addresses[0]
        assert (seen["RANK"], seen["WORLD_SIZE"]) == (str(rank), str(len(pods)))
        assert (seen["PET_NODE_RANK"], seen["PET_NNODES"]) == (str(rank), str(len(pods)))


def test_a_gang_grows_by_a_pod_and_gives_it_back(
    installed: Installed, jobs: Callable[..., str], scene: Scene, report: Report
) -> None:
    on, job = installed, jobs("gang", ENDLESS, [2, 3], **GANG)
    with report.scenario("gang of two pods, three and two again") as figures:
        two = trains_on(on, job, 2)
        assert {pod["spec"]["nodeName"] for pod in two} == {"node-a", "node-b"}
        told_rightly(on, job, two)
        scene.more_room()
        wish(on, job, 3)
        three = trains_on(on, job, 3)
        told_rightly(on, job, three)
        wish(on, job, 2)
        again = trains_on(on, job, 2)
        told_rightly(on, job, again)
        up, down = gaps(on, job)
        figures |= {
            "gap_up_s": up, "gap_down_s": down, "uids_unchanged": [*map(identity, two)] == [*map(identity, again)],
            "steps": len(done(on, job)), "nodes": [pod["spec"]["nodeName"] for pod in three],
        }  # fmt: skip
        assert [identity(pod) for pod in three[:2]] == [identity(pod) for pod in two]
        assert [identity(pod) for pod in again] == [identity(pod) for pod in two]
        assert [identity(pod)[2] for pod in two] == [0, 0]
        reasons = on.explained(job)
        assert any("from 2 to 3 GPUs" in each for each in reasons), reasons
        assert any("from 3 to 2 GPUs" in each and "an operator requested" in each for each in reasons), reasons
        assert in_order(done(on, job)), "each step was done once, by all"
        assert violations(on, job) == []


def kill_trainer(on: Installed, pod: Object) -> None:
    """As the kernel does where memory is short: no time to save."""
    (trainer,) = [pid for pid in below(main_pid(on, pod, "trainer"))[1:] if b"gang.py" in _command(pid)]
    os.kill(trainer, signal.SIGKILL)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_gang_that_loses_a_rank_or_a_pod_goes_back_to_its_checkpoint(
    installed: Installed, jobs: Callable[..., str], scene: Scene, report: Report
) -> None:
    on, job = installed, jobs("gang-breaks", ENDLESS, [2], **GANG)
    with report.scenario("a gang loses a rank, then a pod") as figures:
        before = trains_on(on, job, 2)
        old = on.job(job)
        kill_trainer(on, before[1])
        answered("all of it trains again", lambda: on.job(job)["generation"] > old["generation"], 60)
        same = trains_on(on, job, 2)
        assert [identity(pod) for pod in same] == [identity(pod) for pod in before]
        assert on.job(job)["launch"] == old["launch"]
        figures["rank_killed_gap_s"] = gaps(on, job)[-1]

        old = on.job(job)
        on.cluster.delete("pod", same[1]["metadata"]["name"], steps_job.NAMESPACE, "--wait=false")
        after = answered("it is relaunched", relaunched(on, job, old), 90)
        other = trains_on(on, job, 2)
        assert not {uid(pod) for pod in other} & {uid(pod) for pod in same}
        figures |= {"pod_deleted_gap_s": gaps(on, job)[-1], "launches": after["launch"] - old["launch"]}
        steps = done(on, job)
        assert (after["launch"], set(steps)) == (old["launch"] + 1, set(range(1, max(steps) + 1))), "none was left out"
        assert violations(on, job) == []


def test_a_users_volcano_job_of_two_pods_is_a_gang(
    installed: Installed, scene: Scene, report: Report, request: pytest.FixtureRequest
) -> None:
    """In device mode recreate: pods that stay keep their own GPUs, so they are not made again for others."""
    on, name = installed, f"their-gang-{os.urandom(3).hex()}"
    made = steps_job.volcano(name, ENDLESS, [2, 3], on.shared, steps_job.RECREATE_QUEUE, **KEPT)
    (task,) = made["spec"]["tasks"]
    task["replicas"] = made["spec"]["minAvailable"] = 2
    task["template"]["spec"]["containers"][0]["command"] = GANG["command"]
    job = f"{steps_job.NAMESPACE}.{name}"
    request.addfinalizer(lambda: on.cluster.delete("jobs.batch.volcano.sh", name, steps_job.NAMESPACE, "--wait=false"))
    with report.scenario("a user's Volcano Job of two pods, three and two again") as figures:
        on.cluster.apply(made)
        two = trains_on(on, job, 2)
        told_rightly(on, job, two)
        scene.more_room()
        wish(on, job, 3)
        three = trains_on(on, job, 3)
        wish(on, job, 2)
        again = trains_on(on, job, 2)
        up, down = gaps(on, job)
        figures |= {"gap_up_s": up, "gap_down_s": down, "steps": len(done(on, job))}
        assert [identity(pod) for pod in (*three[:2], *again)] == [identity(pod) for pod in two] * 2
        assert in_order(done(on, job)), "each step was done once, by all"
        assert violations(on, job) == []
    on.cluster.delete("jobs.batch.volcano.sh", name, steps_job.NAMESPACE)
    on.until(job, "cancelled")


def test_a_gang_that_is_done_leaves_a_completed_volcano_job(installed: Installed, jobs: Callable[..., str]) -> None:
    """Two pods with two GPUs each."""
    on, document = installed, {**GANG, "gpus_per_pod": 2, "command": ["python3", "/steps/gang.py", "30"]}
    job = jobs("gang-ends", 30, [4], **document)
    on.until_on(job, 4)
    made = volcano_job(on, members(on, job)[0])["metadata"]["name"]
    on.until(job, "completed")

    def completed() -> bool:
        found = on.cluster.get("jobs.batch.volcano.sh", made, steps_job.NAMESPACE) or {}
        return (found["status"]["state"]["phase"], found["status"].get("succeeded")) == ("Completed", 2)

    until("Volcano completes it", completed, 30)
    assert done(on, job) == list(range(1, 31))
    assert len({use["gpu"] for use in on.gpus.uses(job)}) == 4


@pytest.fixture
def image(installed: Installed, kind: str) -> str:
    """That of a framework, on both nodes."""
    installed.bed.provide(training_images.archive(kind))
    return training_images.name_of(kind)


@pytest.mark.parametrize(
    ("kind", "command", "sizes"),
    [("keras", ["python", "keras_gang.py"], (2, 3, 2)), ("torch", ["torchrun", "torch_digits.py"], (2, 3))],
    ids=["TensorFlow", "PyTorch"],
)
def test_a_gang_of_a_framework_is_reshaped_over_two_nodes(
    installed: Installed, image: str, jobs: Callable[..., str], scene: Scene, report: Report, kind: str,
    command: list[str], sizes: tuple[int, ...],
) -> None:  # fmt: skip
    """MultiWorkerMirroredStrategy, and torch.distributed under torchrun, with as many processes as there are pods."""
    on, document = installed, {
        **GANG, "image": image, "command": [*command, "--iterations", str(ENDLESS)],
    }  # fmt: skip
    with report.scenario(f"gang of {kind}: {', '.join(map(str, sizes))} pods") as figures:
        job = jobs(f"gang-{kind}", ENDLESS, [2, 3], **document)
        seen = [trains_on(on, job, sizes[0], 120)]
        scene.more_room()
        for gpus in sizes[1:]:
            wish(on, job, gpus)
            seen.append(trains_on(on, job, gpus, 120))
        figures |= {
            "gaps_s": gaps(on, job), "steps": len(done(on, job)),
            "uids_unchanged": all([*map(identity, pods[:2])] == [*map(identity, seen[0])] for pods in seen),
            "nodes": [[pod["spec"]["nodeName"] for pod in pods] for pods in seen],
        }  # fmt: skip
        assert [len(pods) for pods in seen] == list(sizes)
        assert {pod["spec"]["nodeName"] for pod in seen[0]} == set(NODES)
        assert figures["uids_unchanged"], figures
        assert in_order(done(on, job)), "each step was done once, by all"
        assert violations(on, job) == []
