"""`reshape doctor` says what is missing and what to do, and never calls well what it could not look at."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.errors import Fatal, Transient
from launcher.admission import setup
from reshape import doctor
from reshape.cli.main import run
from tests.unit.launcher.test_setup import NOW, YEAR, Memory

CONF = """
tiers:
- plugins: [{name: priority}]
- plugins:
  - name: overcommit
  - name: extender
    arguments:
      extender.urlPrefix: http://reshape-coordinator.reshape-system.svc:8080/v1/extender
      extender.ignorable: true
configurations: [{name: allocate, arguments: {predicateErrorCacheEnable: false}}]
"""
METRICS = b'reshape_gpus{state="idle"} 6.0\nreshape_gpus{state="in use"} 2.0\n'


def nested(keys: list[str], last: Any) -> Any:
    for key in reversed(keys):
        last = {"items": last} if key == "items" else {"properties": {key: last}}
    return last


def crd(sidecars: bool = True) -> dict[str, Any]:
    keys = ["spec", "tasks", "items", "template", "spec", "initContainers", "items"]
    schema = nested([*keys, "restartPolicy"], {}) if sidecars else nested(keys, {})
    return {"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}}


class Healthy(Memory):
    """A cluster on which all is well; tests break one thing each."""

    def __init__(self) -> None:
        super().__init__()
        list(setup.set_up(self, NOW))
        pod = {"spec": {"containers": [{"image": "volcanosh/vc-scheduler:v1.10.0"}]}}
        self.objects |= {
            **{("CustomResourceDefinition", name): crd() for name in doctor.KINDS_NEEDED},
            ("Deployment", "volcano-scheduler"): {"spec": {"template": pod}},
            ("ConfigMap", doctor.SCHEDULER_CONF): {"data": {"volcano-scheduler.conf": CONF}},
            ("Secret", "reshape-store"): {"data": {}},
            ("Deployment", "reshape-coordinator"): {"status": {"readyReplicas": 1}},
            ("Deployment", "reshape-launcher"): {"spec": {"replicas": 2}, "status": {"readyReplicas": 2}},
            ("DaemonSet", "reshape-agent"): {"status": {"numberReady": 2, "desiredNumberScheduled": 2}},
        }
        self.lists: dict[str, list[dict[str, Any]]] = {
            "Queue": [{"metadata": {"name": "reshape"}}],
            "Node": [{"metadata": {"name": "node-a"}, "status": {"allocatable": {"cpu": "8"}}}],
            "Pod": [{"spec": {"nodeName": "node-a"}}],
        }
        self.extender: Callable[[str, bytes], bytes] = VolcanoExtender({}.get, dict).answer
        self.answers: dict[str, bytes | Exception] = {"/metrics": METRICS}
        self.kubernetes = "v1.34.3"
        self.parts = {"pods/resize"}
        self.made: dict[str, Any] | Exception = {"spec": {"initContainers": [{"name": "reshape-sidecar"}]}}

    def list(self, kind: str, namespace: str | None = None, labels: str | None = None) -> Any:
        return SimpleNamespace(items=copy.deepcopy(self.lists[kind]))

    def rehearse(self, doc: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made

    def through_service(self, namespace: str, service: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        if body is not None:
            return self.extender(path.rpartition("/")[2], json.dumps(body).encode())
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def serves(self, part: str) -> bool:
        return part in self.parts

    def version(self) -> str:
        return self.kubernetes


@pytest.fixture
def api() -> Healthy:
    return Healthy()


def found(api: Healthy, level: str, now: float = NOW) -> str:
    return "\n".join(f.sentence for f in doctor.examine(api, now) if f.level == level)


def test_nothing_is_missing_where_all_is_well(api: Healthy) -> None:
    assert found(api, "missing") == ""
    assert found(api, "warning") == ""
    assert "NetworkPolicies" in found(api, "unknown")
    assert "8 GPUs are known." in found(api, "well")


def test_it_asks_the_extender_in_the_shape_of_each_volcano(api: Healthy) -> None:
    """A coordinator that reads one shape only lets every job start at once where Volcano writes the other."""
    assert "as Volcano 1.10 to 1.13 and as 1.14 and newer ask" in found(api, "well")
    true = api.extender

    def reads_flat_ones_only(verb: str, raw: bytes) -> bytes:
        return true(verb, raw) if b'"metadata"' not in raw else b'{"status": 0}'

    api.extender = reads_flat_ones_only
    assert "where Volcano is 1.14 and newer, jobs start before they are decided" in found(api, "missing")

    def is_kept_out(verb: str, raw: bytes) -> bytes:
        raise Transient("a network policy")

    api.extender = is_kept_out
    assert "Whether waiting jobs are held back cannot be seen from here: a network policy." in found(api, "unknown")
    assert found(api, "missing") == ""


def test_a_configuration_that_still_asks_for_scores_is_to_be_changed(api: Healthy) -> None:
    more = CONF.replace("ignorable: true", "ignorable: true\n      extender.prioritizeVerb: prioritize")
    api.objects["ConfigMap", doctor.SCHEDULER_CONF] = {"data": {"volcano-scheduler.conf": more}}
    assert "Take `extender.prioritizeVerb` out" in found(api, "warning")
    assert found(api, "missing") == ""


@pytest.mark.parametrize(
    "has",
    [
        {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
        {"status": {"capacity": {"nvidia.com/mig-1g.10gb": "7"}}},
        {"status": {"capacity": {"amd.com/gpu": "4"}}},
        {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}},
    ],
)
def test_a_node_with_gpus_and_no_agent_is_named(api: Healthy, has: dict[str, Any]) -> None:
    """A taint keeps the agent away, and the DaemonSet counts such nodes neither as wanted nor as missing."""
    tainted = {"metadata": {"name": "gpu-9", **has.get("metadata", {})}, "status": has.get("status", {})}
    api.lists["Node"].append(tainted)
    assert "No agent runs on gpu-9, so that GPUs there are not used" in found(api, "missing")
    api.lists["Pod"].append({"spec": {"nodeName": "gpu-9"}})
    assert found(api, "missing") == ""


def test_a_node_without_gpus_needs_no_agent(api: Healthy) -> None:
    api.lists["Node"].append(
        {"metadata": {"name": "cpu-1"}, "status": {"capacity": {"cpu": "8", "nvidia.com/gpu": "0"}}}
    )
    assert found(api, "missing") == ""


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("CustomResourceDefinition", "queues.scheduling.volcano.sh", "Volcano is not installed"),
        ("Secret", "reshape-keys", "Secret reshape-keys is not there"),
        ("Secret", "reshape-store", "name your MongoDB"),
        ("Secret", "reshape-webhook-tls", "Secret reshape-webhook-tls is not there"),
        ("Deployment", "reshape-launcher", "Deployment reshape-launcher is not there"),
        ("DaemonSet", "reshape-agent", "DaemonSet reshape-agent is not there"),
        ("MutatingWebhookConfiguration", "reshape-inject", "reshape-inject is not there"),
    ],
)
def test_what_is_not_there_is_named(api: Healthy, kind: str, name: str, sentence: str) -> None:
    del api.objects[kind, name]
    assert sentence in found(api, "missing")


def test_where_pods_cannot_be_resized_it_is_said_what_falls_away(api: Healthy) -> None:
    api.parts, api.kubernetes = set(), "v1.32.1"
    assert "v1.32.1 cannot resize living pods" in found(api, "warning")
    assert found(api, "missing") == ""


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ("tiers: []", "does not ask us"),
        ("not: [yaml", "does not ask us"),
        (CONF.replace("reshape-coordinator", "someone-else"), "does not ask us"),
        (CONF.replace("ignorable: true", 'ignorable: "true"'), "without quotes"),
        (CONF.replace("      extender.ignorable: true", ""), "without quotes"),
    ],
)
def test_a_scheduler_that_does_not_ask_us_or_would_stop_with_us(api: Healthy, conf: str, sentence: str) -> None:
    api.objects["ConfigMap", doctor.SCHEDULER_CONF] = {"data": {"volcano-scheduler.conf": conf}}
    assert sentence in found(api, "missing")


def test_a_launcher_without_its_second_pod_is_a_warning(api: Healthy) -> None:
    api.objects["Deployment", "reshape-launcher"]["status"]["readyReplicas"] = 1
    assert "Only 1 of 2 pods of Deployment reshape-launcher are ready" in found(api, "warning")


def test_the_shipped_scheduler_configuration_passes(api: Healthy) -> None:
    from tests.test_tidy import ROOT

    text = (ROOT / "manifests" / "volcano" / "volcano-scheduler.conf").read_text()
    assert yaml.safe_load(text)["actions"] == "enqueue, allocate, backfill"
    api.objects["ConfigMap", doctor.SCHEDULER_CONF] = {"data": {"volcano-scheduler.conf": text}}
    assert "asks our extender" in found(api, "well")
    assert "several pods" not in found(api, "warning")
    text = text.replace("predicateErrorCacheEnable: false", "")
    api.objects["ConfigMap", doctor.SCHEDULER_CONF] = {"data": {"volcano-scheduler.conf": text}}
    assert "predicateErrorCacheEnable: false" in found(api, "warning")


def test_old_versions_are_told(api: Healthy) -> None:
    api.kubernetes = "v1.27.16"
    pod = api.objects["Deployment", "volcano-scheduler"]["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "volcanosh/vc-scheduler:v1.9.0"
    assert "Kubernetes v1.27.16 is too old" in found(api, "missing")
    assert "Volcano v1.9.0 is too old" in found(api, "missing")


def test_an_image_without_a_version_is_unknown_not_well(api: Healthy) -> None:
    pod = api.objects["Deployment", "volcano-scheduler"]["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "localhost:5000/vc-scheduler@sha256:abc"
    assert "cannot be told" in found(api, "unknown")


def test_a_volcano_that_drops_sidecars_is_told(api: Healthy) -> None:
    api.objects["CustomResourceDefinition", "jobs.batch.volcano.sh"] = crd(sidecars=False)
    assert "drops `restartPolicy`" in found(api, "missing")


def test_parts_that_are_not_ready(api: Healthy) -> None:
    api.objects["Deployment", "reshape-coordinator"]["status"] = {}
    api.objects["DaemonSet", "reshape-agent"]["status"]["numberReady"] = 1
    missing = found(api, "missing")
    assert "reshape-coordinator has no pod that is ready" in missing
    assert "Only 1 of 2 agents" in missing


def test_a_coordinator_out_of_the_api_servers_reach_is_unknown_not_missing(api: Healthy) -> None:
    """A network policy may let in only those who must come."""
    api.answers["/metrics"] = Transient("the API server cannot work now (503)")
    assert "cannot be seen from here" in found(api, "unknown")
    assert found(api, "missing") == ""


def test_no_gpu_at_all(api: Healthy) -> None:
    api.answers["/metrics"] = b""
    assert "No GPU is known" in found(api, "missing")


def test_a_webhook_that_nobody_trusts_or_that_refuses(api: Healthy) -> None:
    hooks = api.objects["MutatingWebhookConfiguration", "reshape-inject"]["webhooks"]
    del hooks[0]["clientConfig"]["caBundle"]
    api.made = Fatal('failed calling webhook "label.volcano-reshape.io": connection refused.')
    missing = found(api, "missing")
    assert "trusts no certificate of ours" in missing
    assert missing.splitlines()[-1].endswith("connection refused.")


def test_a_pod_that_gets_no_sidecar(api: Healthy) -> None:
    api.made = {"spec": {}}
    assert "gets none" in found(api, "missing")


def test_a_certificate_near_its_end_is_a_warning_and_after_it_missing(api: Healthy) -> None:
    assert "ends in 30 days" in found(api, "warning", NOW + 3 * YEAR - 30 * 86_400)
    assert "cannot be used" in found(api, "missing", NOW + 4 * YEAR)


def test_a_device_plugin_beside_shared_mode_is_a_warning(api: Healthy) -> None:
    api.lists["Node"][0]["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    assert "Nodes node-a hand out nvidia.com/gpu" in found(api, "warning")
    api.lists["Queue"][0]["metadata"]["annotations"] = {doctor.DEVICES: "recreate"}
    assert found(api, "warning") == ""


def test_no_labelled_queue_is_a_warning(api: Healthy) -> None:
    api.lists["Queue"] = []
    assert "No queue has the label" in found(api, "warning")


def test_what_this_account_may_not_see_is_unknown(api: Healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = api.get

    def get(kind: str, name: str, namespace: str | None = None) -> Any:
        if kind == "Secret":
            raise Fatal("the API server refuses this account")
        return seen(kind, name, namespace)

    monkeypatch.setattr(api, "get", get)
    api.answers["/metrics"] = Fatal("the API server refuses this account")
    unknown = found(api, "unknown")
    assert "Secret reshape-keys: this account may not look." in unknown
    assert "cannot be seen from here" in unknown
    assert found(api, "missing") == ""


@pytest.mark.parametrize("named", [False, True])
def test_without_a_cluster_it_is_one_sentence(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is named, or the one that is does not answer."""
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    if named:
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run(["doctor"]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("No cluster can be looked at")


def test_rows_that_somebody_changed_into_nonsense_are_told_of(api: Healthy) -> None:
    api.answers["/metrics"] = (
        METRICS + b'reshape_misfit_rows{table="jobs"} 2.0\nreshape_misfit_rows{table="gpus"} 0.0\n'
    )
    assert "2 rows of table jobs hold what makes no sense" in found(api, "warning")
    assert "table gpus" not in found(api, "warning")
