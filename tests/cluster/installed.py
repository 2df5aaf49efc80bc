"""The bed with our product installed in it as a user would, and what tests ask of it: fixture `installed`.

Quick when all of it is there already: a developer runs a test again and again on one bed. Images are imported, and our
pods started anew, when what is built has changed. Imported by conftest.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pymongo
import pytest

from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from tests.cluster import built_images, steps_job
from tests.cluster.bed import Bed
from tests.cluster.bed_kubectl import Cluster, Object, until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_processes import BedError
from tests.fakes.gpu_log import GpuLog
from tests.patience import patient

Doc = dict[str, Any]
T = TypeVar("T")

SYSTEM = "reshape-system"
MANIFESTS = Path(__file__).parent / "manifests"
EXTENDER = f"http://reshape-coordinator.{SYSTEM}.svc:8080/v1/extender"
ENDED = ("completed", "failed", "cancelled")
PARTS = ("daemonset", "deployment")
START_S = 120.0


class Installed:
    """Our product on the bed: its API, its store, and what trainings wrote of their GPUs."""

    def __init__(self, bed: Bed, shared: Path) -> None:
        self.bed, self.cluster, self.shared = bed, bed.cluster, shared
        self.gpus = GpuLog(shared / "gpu-locks")

    @property
    def client(self) -> Client:
        service = self.cluster.get("service", "reshape-coordinator", SYSTEM) or {}
        return Client(f"http://{service['spec']['clusterIP']}:8080", self.secret("reshape-keys", "api.token"))

    def secret(self, name: str, key: str, namespace: str = SYSTEM) -> str:
        found = self.cluster.get("secret", name, namespace) or {}
        return base64.b64decode(found["data"][key]).decode().strip()

    @contextlib.contextmanager
    def table(self, name: str) -> Iterator[Any]:
        """A table of the store, by pymongo, as whoever inserts job documents has it."""
        service = self.cluster.get("service", "reshape-mongodb", SYSTEM) or {}
        uri = urlsplit(self.secret("reshape-store", "uri"))
        login, at, _ = uri.netloc.rpartition("@")
        address = uri._replace(netloc=f"{login}{at}{service['spec']['clusterIP']}:27017").geturl()
        with pymongo.MongoClient[Doc](address, directConnection=True) as client:
            yield client.get_default_database("reshape")[name]

    def set_coordinator(self, *variables: str) -> None:
        """Set variables of the coordinators (`NAME=value`) or take them away (`NAME-`); return once a new one acts."""
        self.cluster.kubectl("set", "env", "deployment/reshape-coordinator", *variables, "-n", SYSTEM)
        until("the coordinators are new", lambda: all(is_ready(self.cluster, part) for part in PARTS), START_S)
        answered("the coordinator acts", lambda: self.client.health()["ok"], START_S)

    # jobs

    def insert(self, job_id: str, total: int, counts: list[int], **more: Any) -> str:
        """Door (a): a document in the table. Its id, which no other run has had."""
        job_id = f"{job_id}-{uuid.uuid4().hex[:6]}"
        with self.table("jobs") as jobs:
            jobs.insert_one(steps_job.record(job_id, total, counts, self.shared, **more))
        return job_id

    def import_speeds(self) -> None:
        """Tell it how fast these jobs train, as a test that starts them expects."""
        about = {"job_type": steps_job.JOB_TYPE, "gpu_type": "V100"}
        speeds = steps_job.SPEEDS.items()
        self.client.import_profiles(
            "speed_profiles", [{**about, "num_gpus": n, "seconds_per_iteration": seconds} for n, seconds in speeds]
        )

    def job(self, job_id: str) -> Doc:
        return self.client.job(job_id)

    def until(self, job_id: str, state: str, within_s: float = 60.0) -> Doc:
        """The job, once it is in this state and nothing is left to do for it. Fails at once if it ends otherwise."""
        client, last = self.client, Doc()

        def there() -> Doc | None:
            last.update(client.job(job_id))
            assert last["state"] == state or last["state"] not in ENDED, last
            settled = last["closed"] if state in ENDED else not last["reshape"]
            return dict(last) if last["state"] == state and settled else None

        try:
            return answered(f"job {job_id} is {state}", there, within_s)
        except BedError as error:
            raise BedError(f"{error}: {json.dumps(last)}") from None

    def until_on(self, job_id: str, gpus: int, within_s: float = 60.0) -> Doc:
        """The job, once it trains on so many GPUs and nothing is left to do for it."""
        client = self.client

        def so() -> Doc | None:
            job = client.job(job_id)
            return job if job["num_gpus"] == gpus and job["state"] == "running" and not job["reshape"] else None

        return answered(f"job {job_id} trains on {gpus} GPUs", so, within_s)

    def pods(self, job_id: str) -> list[Object]:
        """All pods of a job that are there, oldest first."""
        found = self.cluster.list("pods", None, "volcano-reshape.io/job")
        mine = [p for p in found if p["metadata"].get("annotations", {}).get("volcano-reshape.io/job-id") == job_id]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, job_id: str) -> Object:
        """Its one pod."""
        (pod,) = self.pods(job_id)
        return pod

    def end(self, *job_ids: str) -> None:
        """Cancel them, all at once, as each takes some seconds to end; wait until nothing of them is left on GPUs."""
        client = self.client
        known = [each for each in job_ids if answered(f"job {each} is to end", lambda j=each: [cancel(client, j)])[0]]
        for job_id in known:
            answered(f"job {job_id} is over", lambda j=job_id: client.job(j)["closed"], 60)

    def events(self, job_id: str, kind: str, times: int = 1) -> list[Doc]:
        """All events of a job, oldest first, once this one has happened so often: they are written after the job is."""
        found: list[Doc] = []

        def there() -> bool:
            with self.table("events") as events:
                found[:] = sorted(events.find({"job_id": job_id}), key=lambda each: each["_id"])  # nx sorts as text
            return sum(each["type"] == kind for each in found) >= times

        answered(f"event {kind} of job {job_id}", there)
        return found

    def explained(self, job_id: str) -> list[str]:
        """What `reshape explain` prints of each decision about a job, oldest first."""
        return command_line(self, "explain", job_id).strip().split("\n\n")

    def told(self, job_id: str) -> str:
        """All that its trainings have printed, as `reshape logs` has it."""
        text, offset, client = b"", 0, self.client
        while (more := client.logs(job_id, offset))[0]:
            text, offset = text + more[0], more[1]
        return text.decode()

    def words(self, part: str, lines: int = 60) -> str:
        """The last lines of the log of all pods of a part, for whoever looks at a test that failed."""
        options = ("-l", f"app.kubernetes.io/component={part}", f"--tail={lines}", "--prefix", "--ignore-errors")
        with contextlib.suppress(BedError):
            return self.cluster.kubectl("logs", "-n", SYSTEM, *options)
        return ""


def command_line(installed: Installed, *words: str) -> str:
    """What `reshape …` prints, for a user elsewhere."""
    client = installed.client
    variables: dict[str, Any] = {
        "RESHAPE_URL": client.url,
        "RESHAPE_TOKEN": installed.secret("reshape-keys", "api.token"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "reshape", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answered(what: str, look: Callable[[], T], within_s: float = 60.0) -> T:
    """`until`, while coordinators may come and go."""

    def asked() -> T | None:
        try:
            return look()
        except CoordinatorUnreachable:
            return None
        except CoordinatorRefused as refusal:
            if refusal.status in (404, 503):  # not read yet; nobody acts now
                return None
            raise

    return until(what, asked, within_s)  # type: ignore[return-value]


def cancel(client: Client, job_id: str) -> bool:
    """Cancel a job that has not ended; False if there is none. Raises if nobody acts now."""
    try:
        if client.job(job_id)["state"] not in ENDED:
            client.cancel(job_id)
    except CoordinatorRefused as refusal:
        if refusal.status == 503:
            raise
        return False
    return True


def install(bed: Bed, manifests: Path = MANIFESTS) -> Installed:
    """All of it, or nothing to do."""
    shared = bed.folder / "nodes" / "shared"
    for name in ("gpu-locks", "checkpoints"):
        (shared / name).mkdir(parents=True, exist_ok=True)
        (shared / name).chmod(0o777)
    bed.provide_images()
    _apply(bed, manifests)
    bed.cluster.apply(steps_job.objects(shared))
    bed.volcano.add_extender(EXTENDER)
    found = Installed(bed, shared)
    answered("the coordinator acts", lambda: found.client.health()["ok"], START_S)
    answered("GPUs of both nodes are known", lambda: {g["node"] for g in found.client.gpus()} == set(NODES), START_S)
    found.import_speeds()
    _end_what_is_left(found)
    return found


def _end_what_is_left(found: Installed) -> None:
    """Of a run that was killed: it would keep GPUs from ours."""
    with found.table("jobs") as jobs:
        left = [each["job_id"] for each in jobs.find({"namespace": steps_job.NAMESPACE, "closed": False})]
    found.end(*left)


def _apply(bed: Bed, manifests: Path) -> None:
    """As a user would; only what differs from the last time. A new image of the same name needs new pods."""
    about = bed.folder / "nodes" / "installed.json"
    before = json.loads(about.read_text()) if about.exists() else {}
    now = {
        "manifests": bed.cluster.kubectl("kustomize", str(manifests)),
        "image": built_images.archive("reshape").stat().st_mtime_ns,
    }
    if before.get("manifests") != now["manifests"]:
        until("the manifests apply", partial(_applied, bed.cluster, manifests), 30)
    if before.get("image", now["image"]) != now["image"]:
        bed.cluster.kubectl(
            "rollout",
            "restart",
            "deployment/reshape-coordinator",
            "deployment/reshape-launcher",
            "daemonset/reshape-agent",
            "-n",
            SYSTEM,
        )
    about.write_text(json.dumps(now))
    until("all our parts are ready", lambda: all(is_ready(bed.cluster, part) for part in PARTS), START_S)


def _applied(cluster: Cluster, manifests: Path) -> bool:
    cluster.apply(manifests)
    return True


def is_ready(cluster: Cluster, part: str) -> bool:
    """Of coordinators one is ready: the one that acts."""
    return all(_is_ready(each) for each in cluster.list(part, SYSTEM))


def _is_ready(each: Object) -> bool:
    status, replicas = each.get("status", {}), each["spec"].get("replicas", 1)
    if status.get("observedGeneration") != each["metadata"]["generation"]:
        return False
    if each["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        return 0 < wanted == status.get("numberReady") == status.get("updatedNumberScheduled")
    ready = status.get("readyReplicas", 0)
    return bool(status.get("updatedReplicas", 0) == replicas == status.get("replicas") and ready >= 1)


@pytest.fixture(scope="session")
def installed(bed: Bed) -> Installed:
    """Ours, installed in the bed and ready."""
    return install(bed)


@pytest.fixture
def jobs(installed: Installed) -> Iterator[Callable[..., str]]:
    """`jobs(name, steps, [1, 2, 4], …)` inserts a job document; what it inserted is ended afterwards."""
    made: list[str] = []

    def insert(name: str, total: int, counts: list[int], **more: Any) -> str:
        made.append(installed.insert(name, total, counts, **more))
        return made[-1]

    yield insert
    print(installed.words("coordinator"), installed.words("launcher"))
    installed.end(*made)


if __name__ == "__main__":
    install(Bed())
