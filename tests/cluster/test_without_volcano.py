"""A cluster without Volcano, and one that loses it: what vanishes cancels nothing, and other kinds work as ever.

Runs after the tests of rights: it takes Volcano out of the bed, and puts it back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reshape.client import CoordinatorRefused
from tests.cluster import steps_job
from tests.cluster.bed import Bed
from tests.cluster.bed_kubectl import Object, condition, until
from tests.cluster.bed_network import NODES
from tests.cluster.helm import CHART, HelmRefused, helm
from tests.cluster.installed import PARTS, START_S, SYSTEM, Installed, answered, install, is_ready
from tests.cluster.plays import ENDLESS, identity, in_order
from tests.cluster.test_helm import VALUES
from tests.cluster.test_install import doctor

Doc = dict[str, Any]

SPACE = steps_job.NAMESPACE
MANIFESTS = Path(__file__).parent / "manifests-without-volcano"
CRD = "jobs.batch.volcano.sh"


def name_of_job() -> str:
    return f"theirs-{uuid.uuid4().hex[:6]}"


def batch_job(name: str, total: int, counts: list[int], shared: Path) -> Doc:
    """A batch Job as somebody writes it who has no Volcano."""
    made = steps_job.batch_job(name, total, counts, shared)
    _forget_volcano(made["spec"]["template"])
    return made


def bare_pod(name: str, total: int, counts: list[int], shared: Path) -> Doc:
    made = steps_job.bare_pod(name, total, counts, shared)
    _forget_volcano(made)
    return made


def _forget_volcano(pod: Doc) -> None:
    del pod["spec"]["schedulerName"]
    del pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"]


KINDS = {"batch": ("job", batch_job), "bare": ("pod", bare_pod)}


def start_volcano_job(on: Installed) -> str:
    """Apply a user's own Volcano Job; its id, once it trains on one GPU."""
    name = name_of_job()
    on.cluster.apply(steps_job.volcano(name, ENDLESS, [1], on.shared))
    on.until_on(f"{SPACE}.{name}", 1)
    return f"{SPACE}.{name}"


@pytest.fixture(scope="module")
def bare(installed: Installed) -> Iterator[Installed]:
    """Our product on a cluster without Volcano; Volcano and the usual installation come back afterwards.

    A Volcano Job trains while Volcano is removed, as by mistake, with all its objects.
    """
    theirs = start_volcano_job(installed)
    try:
        install_without_volcano(installed, theirs)
        yield installed
    finally:
        put_back(installed.bed)


def install_without_volcano(on: Installed, theirs: str) -> None:
    bed = on.bed
    bed.volcano.remove(bed.cluster)
    says(on, "no longer serves the kind Job")
    assert on.job(theirs)["state"] != "cancelled", "it is not certain that it was deleted"
    until("the manifests apply", lambda: [bed.cluster.apply(MANIFESTS)], 30)
    until("all our parts are ready", lambda: all(is_ready(bed.cluster, part) for part in PARTS), START_S)
    answered("the coordinator acts", lambda: on.client.health()["ok"], START_S)
    answered("all GPUs are known", lambda: {g["node"] for g in on.client.gpus()} == set(NODES), START_S)
    assert on.job(theirs)["state"] != "cancelled"
    on.end(theirs)


def put_back(bed: Bed) -> None:
    bed.volcano.start(bed.cluster)
    (bed.folder / "nodes" / "installed.json").unlink(missing_ok=True)
    install(bed)


def serve(on: Installed, served: bool) -> None:
    """Let the API server answer 404 for Volcano Jobs, or not; the objects stay."""
    change = [{"op": "replace", "path": "/spec/versions/0/served", "value": served}]
    on.cluster.kubectl("patch", "crd", CRD, "--type=json", "-p", json.dumps(change))


def steps_go_on(on: Installed, job: str) -> None:
    count = len(on.gpus.steps(job))
    until("it goes on", lambda: len(on.gpus.steps(job)) > count + 3)


def says(on: Installed, words: str) -> None:
    until(f"a launcher says {words!r}", lambda: words in on.words("launcher", 400), 60)


def test_a_kind_that_is_no_longer_served_cancels_nothing(installed: Installed, jobs: Callable[..., str]) -> None:
    volcano_job = start_volcano_job(installed)
    serve(installed, False)
    try:
        says(installed, "no longer serves the kind Job")
        steps_go_on(installed, volcano_job)
        installed.cluster.kubectl("rollout", "restart", "deployment/reshape-launcher", "-n", SYSTEM)
        until("the launchers are new", lambda: is_ready(installed.cluster, "deployment"), START_S)
        says(installed, "its kind is not served now, so that its job is not cancelled")
        steps_go_on(installed, volcano_job)
        assert installed.job(volcano_job)["state"] == "running"
    finally:
        serve(installed, True)
    newcomer = jobs("newcomer", 10, [1])
    installed.until(newcomer, "completed", 120)
    assert installed.job(volcano_job)["state"] == "running"
    installed.end(volcano_job)


def test_the_launcher_starts_and_doctor_says_that_it_is_without_volcano(bare: Installed) -> None:
    ended = doctor(bare.cluster, "--wait", "30")
    assert ended.returncode == 0, ended.stdout
    assert "volcano-reshape is installed without Volcano" in ended.stdout
    assert "A pod that asks for a sidecar gets it." in ended.stdout
    assert ended.stdout.strip().splitlines()[-1] == "All is there."


def their_pods(on: Installed, job: str) -> list[Object]:
    return [pod for pod in on.pods(job) if "deletionTimestamp" not in pod["metadata"]]


@pytest.mark.parametrize("kind", [*KINDS, "record"])
def test_it_is_reshaped_in_its_living_pod_and_ends_when_cancelled(
    bare: Installed, jobs: Callable[..., str], kind: str
) -> None:
    if kind == "record":
        job = jobs("record", ENDLESS, [2, 4])
    else:
        name = name_of_job()
        bare.cluster.apply(KINDS[kind][1](name, ENDLESS, [2, 4], bare.shared))
        job = f"{SPACE}.{name}"
    node = bare.until_on(job, 4)["node"]
    (before,) = their_pods(bare, job)
    assert before["spec"]["schedulerName"] == "default-scheduler"
    steps_go_on(bare, job)
    newcomer = jobs("newcomer", ENDLESS, [2], node=node, owner=bare.job(job)["owner"])
    bare.until_on(newcomer, 2)
    bare.until_on(job, 2)
    bare.end(newcomer)
    bare.until_on(job, 4)
    (after,) = their_pods(bare, job)
    assert identity(before) == identity(after)
    assert in_order(bare.gpus.steps(job)), "each step was done once"
    assert bare.gpus.violations() == []
    bare.end(job)
    assert bare.job(job)["state"] == "cancelled"
    until("its pod is over", lambda: all(pod["status"]["phase"] == "Failed" for pod in their_pods(bare, job)), 60)


def test_each_completes_as_its_kind_does(bare: Installed, jobs: Callable[..., str]) -> None:
    record = jobs("record", 20, [1])
    names = {kind: name_of_job() for kind in KINDS}
    for kind, name in names.items():
        bare.cluster.apply(KINDS[kind][1](name, 20, [1], bare.shared))
    for job in (record, *(f"{SPACE}.{name}" for name in names.values())):
        bare.until(job, "completed", 120)
    for kind, name in names.items():
        until(f"the {kind} is complete", lambda kind=kind, name=name: finished(bare, KINDS[kind][0], name), 60)
    (of_record,) = [each for each in bare.cluster.list("job", SPACE) if each["metadata"]["name"].startswith(record)]
    until("its batch Job is complete", lambda: finished(bare, "job", of_record["metadata"]["name"]), 60)


def finished(on: Installed, kind: str, name: str) -> bool:
    found = on.cluster.get(kind, name, SPACE) or {}
    return condition(found, "Complete") or found.get("status", {}).get("phase") == "Succeeded"


def test_the_example_of_the_page_trains(bare: Installed, namespace: str) -> None:
    example = (CHART.parent / "examples" / "kubernetes" / "count-batch.yaml").read_text()
    bare.cluster.apply(example.replace("python:3.11-slim", steps_job.IMAGE), "-n", namespace)
    answered("it trains", lambda: bare.job(f"{namespace}.count")["state"] == "running", 90)
    (counts,) = their_pods(bare, f"{namespace}.count")
    until("it counts", lambda: "step=" in bare.cluster.logs(counts["metadata"]["name"], namespace, "trainer"), 60)
    bare.end(f"{namespace}.count")


def test_an_object_that_is_deleted_cancels_its_job(bare: Installed) -> None:
    names = {kind: name_of_job() for kind in KINDS}
    for kind, name in names.items():
        bare.cluster.apply(KINDS[kind][1](name, ENDLESS, [1], bare.shared))
    for kind, name in names.items():
        bare.until_on(f"{SPACE}.{name}", 1)
        bare.cluster.delete(KINDS[kind][0], name, SPACE, "--wait=false")
    for kind, what in (("batch", "batch Job"), ("bare", "pod")):
        assert bare.until(f"{SPACE}.{names[kind]}", "cancelled")["message"] == f"its {what} was deleted"


def test_a_record_that_is_suspended_goes_on_from_its_checkpoint_in_another_batch_job(
    bare: Installed, jobs: Callable[..., str]
) -> None:
    job = jobs("record", ENDLESS, [1], checkpoint_claim=steps_job.CLAIM)
    bare.until_on(job, 1)
    (before,) = their_pods(bare, job)
    steps_go_on(bare, job)
    bare.client.suspend(job)
    until("its pod is gone", lambda: not their_pods(bare, job), 60)
    bare.client.resume(job)
    bare.until_on(job, 1, 120)
    (after,) = their_pods(bare, job)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    steps_go_on(bare, job)
    assert in_order(bare.gpus.steps(job)), "it went on from its checkpoint"


def test_a_record_of_several_pods_is_refused_with_what_to_do(bare: Installed, jobs: Callable[..., str]) -> None:
    gang = {"gpus_per_pod": 1, "checkpoint_claim": steps_job.CLAIM}
    document = steps_job.record(f"gang-{uuid.uuid4().hex[:6]}", ENDLESS, [2], bare.shared, **gang)
    del document["_id"]
    with pytest.raises(CoordinatorRefused, match="which needs Volcano, and this installation is without it"):
        bare.client.submit(document)
    with bare.table("jobs") as table:
        inserted = jobs("gang", ENDLESS, [2], **gang)
        until("it is refused", lambda: (table.find_one({"_id": inserted}) or {}).get("problems"))
        assert "leave gpus_per_pod out" in (table.find_one({"_id": inserted}) or {})["problems"][0]
        table.delete_one({"_id": inserted})


def test_the_chart_says_what_to_do_without_volcano(bare: Installed) -> None:
    values = bare.bed.folder / "helm-values.json"
    values.write_text(json.dumps(VALUES))
    dry = ("--dry-run=server", "--take-ownership")  # of what kustomize has installed
    what = ("install", "reshape", *dry, str(CHART), "--values", str(values), "--namespace", SYSTEM)
    with pytest.raises(HelmRefused, match=r"Or set volcano\.enabled=false"):
        helm(*what, kubeconfig=bare.cluster.kubeconfig)
    made = helm(*what, "--set", "volcano.enabled=false", kubeconfig=bare.cluster.kubeconfig)
    assert "It is without Volcano" in made and "kind: Queue" not in made


def test_the_launcher_asks_for_nothing_of_volcanos_and_lacks_no_right(bare: Installed) -> None:
    launcher = f"{SYSTEM}:reshape-launcher"
    for verb, resource in (("list", "jobs.batch.volcano.sh"), ("list", "queues.scheduling.volcano.sh")):
        assert not bare.cluster.may(launcher, verb, resource)
    assert bare.cluster.may(launcher, "create", "jobs.batch", SPACE)
    assert "refuses this account" not in bare.words("launcher", 1000)
