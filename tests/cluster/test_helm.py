"""The chart on a cluster, as a platform engineer has it: installed, upgraded, rolled back and uninstalled.

All under one running training, which keeps its pod and each of its steps. Runs after the other tests: it takes over
what they installed by kustomize, as those do who change from one to the other.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coordinator.adapters.clock import SystemClock
from launcher.admission import certificates, setup
from tests.cluster.bed_kubectl import Cluster, Object, until
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import LONG, again, alive, lost_steps, now, ready, steps_on, trains, uid, violations
from tests.cluster.helm import CHART, HelmRefused, helm
from tests.cluster.installed import PARTS, START_S, SYSTEM, Installed, answered, is_ready
from tests.patience import patient

Doc = dict[str, Any]

VALUES: Doc = {
    "image": {"registry": "reshape.local", "repository": "reshape", "tag": "test", "pullPolicy": "Never"},
    "store": {"type": "external"},
    "emulatedGPUs": {"node-a": "4xV100", "node-b": "4xV100"},
    "queues": [{"name": "reshape"}],
    "settings": {
        "RESHAPE_HEARTBEAT_S": 1,
        "RESHAPE_LEASE_S": 120,
        "RESHAPE_GRACE_S": 3,
        "RESHAPE_KILL_S": 2,
        "RESHAPE_TERM_S": 6,
        "RESHAPE_POLL_S": 0.5,
        "RESHAPE_FIRST_STEP_TIMEOUT_S": 5,
        "RESHAPE_RETRY_S": 0.5,
        "RESHAPE_COOLDOWN_FACTOR": 0,
    },
}
WEBHOOK = "reshape-inject"
ASKS: Doc = {  # a pod that asks for a sidecar, as a Volcano Job's
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "generateName": "asks-",
        "labels": {"volcano-reshape.io/inject": "true", "volcano.sh/job-name": "asks"},
        "ownerReferences": [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": "asks",
                "uid": "asks",
                "controller": True,
            }
        ],
    },
    "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "nothing", "command": ["true"]}]},
}


class Release:
    """The release `reshape` of our chart on the bed."""

    def __init__(self, on: Installed) -> None:
        self.on = on
        self.cluster = on.cluster

    def do(self, verb: str, *options: str, values: Doc | None = None) -> str:
        """Run a command of Helm for it."""
        given = self.on.bed.folder / "helm-values.json"
        given.write_text(json.dumps(values or VALUES))
        what = [str(CHART), "--values", str(given)] if verb in ("install", "upgrade") else []
        return helm(
            verb, "reshape", *what, "--namespace", SYSTEM, *options, kubeconfig=self.cluster.kubeconfig, within_s=300
        )

    def acts(self) -> None:
        """Wait until all parts are those of the newest revision and one coordinator acts."""
        until("all our parts are ready", lambda: all(is_ready(self.cluster, part) for part in PARTS), START_S)
        answered("the coordinator acts", lambda: self.on.client.health()["ok"], START_S)

    def setting(self, name: str) -> str | None:
        found = self.cluster.get("configmap", "reshape-settings", SYSTEM) or {}
        return dict(found["data"]).get(name)

    def uids(self) -> set[str]:
        """Return the uids of the pods of coordinators and launchers."""
        return {uid(pod) for part in ("coordinator", "launcher") for pod in ready(self.on, part)}


@pytest.fixture(scope="module")
def release(installed: Installed) -> Iterator[Release]:
    yield Release(installed)
    about = installed.bed.folder / "nodes" / "installed.json"
    about.unlink(missing_ok=True)  # the next run installs by kustomize again


@pytest.fixture(scope="module")
def job(installed: Installed) -> Iterator[str]:
    """One training, through all that follows."""
    made = installed.insert("under-helm", LONG, [2])
    trains(installed, made, 2)
    yield made
    installed.end(made)


@contextmanager
def undisturbed(on: Installed, job_id: str, figures: Doc) -> Iterator[None]:
    """Check that what happens inside leaves the training its pod and its process, and costs no step."""
    before = alive(on, job_id)
    steps_on(on, job_id)
    began = now()
    yield
    figures["took_s"] = now() - began
    steps_on(on, job_id)
    after = alive(on, job_id)
    figures |= {
        "pod_uid_unchanged": uid(after) == uid(before),
        "steps_again": again(on, job_id),
        "lost_steps": lost_steps(on, job_id),
        "generation": on.gpus.uses(job_id)[-1]["generation"],
    }
    assert figures["pod_uid_unchanged"], figures
    assert (figures["steps_again"], figures["lost_steps"]) == (0, 0), figures
    assert violations(on, job_id) == []


def sidecar_of(on: Installed, job_id: str) -> Object:
    (found,) = [c for c in alive(on, job_id)["spec"]["initContainers"] if c["name"] == "reshape-sidecar"]
    return dict(found)


def gets_a_sidecar(cluster: Cluster) -> bool:
    """Return whether a pod that asks for one would get it now; BedError if it is refused."""
    made = cluster.kubectl("create", "-f", "-", "--dry-run=server", "-o", "json", text=json.dumps(ASKS))
    return "reshape-sidecar" in [each["name"] for each in json.loads(made)["spec"].get("initContainers", [])]


def test_helm_takes_over_what_kustomize_installed_and_the_training_goes_on(
    release: Release, job: str, report: Report
) -> None:
    with report.scenario("helm install over kustomize, under a training") as figures:
        with undisturbed(release.on, job, figures):
            said = release.do("install", "--take-ownership", "--force-conflicts", "--wait=legacy")
            release.acts()
        assert "reshape doctor --wait 180" in said
        assert gets_a_sidecar(release.cluster)
        labels = (release.cluster.get("deployment", "reshape-launcher", SYSTEM) or {})["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_an_upgrade_changes_a_setting_and_keeps_what_the_launcher_wrote(
    release: Release, job: str, report: Report
) -> None:
    """Above all the queues that are labelled by hand: Helm would have to overwrite them, and is refused that."""
    cluster = release.cluster
    name = "by-hand"
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "spec": {"weight": 1, "reclaimable": True},
        "metadata": {"name": name, "labels": {"volcano-reshape.io/inject": "true"}},
    }
    cluster.apply(queue)
    until("the webhook looks at it", lambda: name in selected(cluster), 30)
    with report.scenario("helm upgrade under a training") as figures:
        before = release.uids()
        changed = {**VALUES, "settings": {**VALUES["settings"], "RESHAPE_RETRIES": 7}}
        with undisturbed(release.on, job, figures):
            release.do("upgrade", "--wait=legacy", values=changed)
            assert name in selected(cluster)
            release.acts()
        assert release.setting("RESHAPE_RETRIES") == "7"
        assert not before & release.uids(), "pods that have not read the new setting"
        setups = [
            each["metadata"]["name"] for each in cluster.list("job", SYSTEM) if "setup-" in each["metadata"]["name"]
        ]
        assert len(setups) == 1, "one of each revision: the one before is gone"
        assert gets_a_sidecar(cluster)


def selected(cluster: Cluster) -> list[str]:
    found = cluster.get("mutatingwebhookconfiguration", WEBHOOK, SYSTEM) or {}
    (by_queue,) = [hook for hook in found["webhooks"] if hook["name"] == "queue.volcano-reshape.io"]
    return [name for each in by_queue["objectSelector"]["matchExpressions"] for name in each["values"]]


def test_an_upgrade_with_a_wrong_value_changes_nothing(release: Release, job: str) -> None:
    wrong = {**VALUES, "image": {**VALUES["image"], "pullPolicy": "Sometimes"}}
    before = release.uids()
    with pytest.raises(HelmRefused, match="value must be one of 'Always', 'IfNotPresent', 'Never'"):
        release.do("upgrade", values=wrong)
    assert release.uids() == before
    assert release.setting("RESHAPE_RETRIES") == "7"


def test_a_rollback_brings_the_setting_back(release: Release, job: str, report: Report) -> None:
    with report.scenario("helm rollback under a training") as figures:
        with undisturbed(release.on, job, figures):
            release.do("rollback", "1", "--wait=legacy", "--force-conflicts")
            release.acts()
        assert release.setting("RESHAPE_RETRIES") is None
        until("the launcher has mended the list of queues", lambda: "by-hand" in selected(release.cluster), 30)
        assert gets_a_sidecar(release.cluster)


def test_a_certificate_of_our_users_own_is_served(release: Release, job: str) -> None:
    """A company's authority issues it, in place of the one that setup made."""
    cluster = release.cluster
    own = certificates.make(setup.WEBHOOK_NAMES, SystemClock().wall())
    content = {"ca.crt": own.authority, "tls.crt": own.certificate, "tls.key": own.key}
    cluster.patch("secret", setup.TLS, {"stringData": content}, SYSTEM)
    now_own = {"certificate": {"from": "secret"}, "podAnnotations": {"certificate": "own"}}  # new pods read it at once
    release.do("upgrade", values={**VALUES, **now_own})
    release.acts()
    until("a pod gets a sidecar by it", lambda: trusted(cluster) == own.authority and gets_a_sidecar(cluster), 60)


def trusted(cluster: Cluster) -> str:
    """The authorities by which the API server knows the webhook."""
    found = cluster.get("mutatingwebhookconfiguration", WEBHOOK, SYSTEM) or {}
    (bundle,) = {hook["clientConfig"]["caBundle"] for hook in found["webhooks"]}
    return base64.b64decode(bundle).decode()


def test_an_uninstall_takes_the_webhook_first_and_stops_no_training(release: Release, job: str, report: Report) -> None:
    on = release.on
    cluster = release.cluster
    with report.scenario("helm uninstall and install under a training") as figures:
        answers: list[str] = []
        with undisturbed(on, job, figures):
            with asked_all_the_time(cluster, answers):
                release.do("uninstall", "--wait=legacy")
                until("our pods are gone", lambda: not ours(cluster))
            figures |= {"pods": len(answers), "refused": sum(text not in ("sidecar", "plain") for text in answers)}
            assert [text for text in answers if text not in ("sidecar", "plain")] == []
            assert (answers[0], answers[-1]) == ("sidecar", "plain")
            assert cluster.get("mutatingwebhookconfiguration", WEBHOOK, SYSTEM) is None
            steps_on(on, job)  # with nobody there
            for kind, name in KEPT:
                assert cluster.get(kind, name, SYSTEM) is not None, name
            release.do("install")
            release.acts()
            answered("the job is known to train", lambda: on.job(job)["state"] == "running", 60)
        until("setup has told whom to trust", lambda: gets_a_sidecar(cluster), 60)
        on.until_on(job, 2)


KEPT = [
    ("customresourcedefinition", "slamls.sla-operator.dcn.com"),
    ("queue", "reshape"),
    ("secret", setup.KEYS),
    ("secret", setup.STORE),
    ("secret", setup.TLS),
]


def ours(cluster: Cluster) -> list[str]:
    found = cluster.list("pods", SYSTEM, "app.kubernetes.io/part-of=volcano-reshape")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def asked_all_the_time(cluster: Cluster, answers: list[str]) -> Iterator[None]:
    """Pods that ask for a sidecar are made again and again meanwhile: `sidecar`, `plain`, or how it was refused."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                answers.append("sidecar" if gets_a_sidecar(cluster) else "plain")
            except Exception as error:
                answers.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    until("the first pod was made", lambda: answers, 30)
    try:
        yield
    finally:
        count = len(answers)
        until("pods were made afterwards", lambda: len(answers) > count + 1, 30)
        over.set()
        asker.join(patient(60))
