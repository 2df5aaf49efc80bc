"""`reshape doctor` says what is missing and what to do, and never calls well what it could not look at."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.errors import Fatal, Transient
from launcher.admission import setup
from launcher.volcano_conf import with_extender
from launcher.volcano_connection import CONFIG_MAP
from reshape import __version__, doctor, version_skew
from reshape.cli.main import run
from tests.unit.launcher.test_setup import NOW, YEAR, Memory
from tests.unit.launcher.test_volcano_conf import V1_11

CONF = """
actions: "enqueue, allocate"
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
            ("ConfigMap", CONFIG_MAP): {"data": {"volcano-scheduler.conf": CONF}},
            ("Secret", "reshape-store"): {"data": {}},
            ("Deployment", "reshape-coordinator"): {"status": {"readyReplicas": 1}},
            ("Deployment", "reshape-launcher"): {"spec": {"replicas": 2}, "status": {"readyReplicas": 2}},
            ("DaemonSet", "reshape-agent"): {"status": {"numberReady": 2, "desiredNumberScheduled": 2}},
        }
        self.lists: dict[str, list[dict[str, Any]]] = {
            "Queue": [{"metadata": {"name": "reshape"}}],
            "Node": [{"metadata": {"name": "node-a"}, "status": {"allocatable": {"cpu": "8"}}}],
            "Pod": [{"spec": {"nodeName": "node-a"}}],
            "Deployment": [],
            "RuntimeClass": [],
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
    api.objects["ConfigMap", CONFIG_MAP] = {"data": {"volcano-scheduler.conf": more}}
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


TAINT = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "lacking"),
    [
        ([TAINT], "- {key: dedicated, operator: Equal, value: training, effect: NoSchedule}"),
        ([{"key": "gpu", "effect": "NoExecute"}], "- {key: gpu, operator: Exists, effect: NoExecute}"),
        ([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, TAINT], "- {key: dedicated, "),
    ],
)
def test_half_a_cluster_is_named_with_the_toleration_that_the_agent_lacks(
    api: Healthy, taints: list[dict[str, str]], lacking: str
) -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    api.objects["DaemonSet", "reshape-agent"]["spec"] = {"template": {"spec": {"tolerations": tolerations}}}
    node = {"metadata": {"name": "gpu-9"}, "spec": {"taints": taints}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    api.lists["Node"].append(node)
    assert "No agent runs on gpu-9, so that GPUs there are not used: add to `tolerations`" in found(api, "missing")
    assert lacking in found(api, "missing")
    del node["status"]  # without a device plugin nothing tells that it has GPUs
    assert found(api, "missing") == ""
    assert "A taint keeps the agent off gpu-9. If there are GPUs, add" in found(api, "warning")
    tolerations += [TAINT, {"key": "gpu", "operator": "Exists"}]
    api.objects["DaemonSet", "reshape-agent"]["spec"] = {"template": {"spec": {"tolerations": tolerations}}}
    assert found(api, "warning") == ""


def test_a_control_plane_is_not_taken_for_a_node_that_lacks_its_agent(api: Healthy) -> None:
    taints = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    api.lists["Node"].append({"metadata": {"name": "master-0"}, "spec": {"taints": taints}})
    assert found(api, "warning") == ""


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
        ("tiers: []", "does not ask our extender"),
        ("not: [yaml", "does not ask our extender"),
        (CONF.replace("reshape-coordinator", "someone-else"), "does not ask our extender"),
        (CONF.replace("ignorable: true", 'ignorable: "true"'), "without quotes"),
        (CONF.replace("      extender.ignorable: true", ""), "without quotes"),
    ],
)
def test_a_scheduler_that_does_not_ask_us_or_would_stop_with_us(api: Healthy, conf: str, sentence: str) -> None:
    api.objects["ConfigMap", CONFIG_MAP] = {"data": {"volcano-scheduler.conf": conf}}
    assert sentence in found(api, "missing")


def test_a_launcher_without_its_second_pod_is_a_warning(api: Healthy) -> None:
    api.objects["Deployment", "reshape-launcher"]["status"]["readyReplicas"] = 1
    assert "Only 1 of 2 pods of Deployment reshape-launcher are ready" in found(api, "warning")


def test_what_connect_writes_passes(api: Healthy) -> None:
    text = with_extender(V1_11).text
    api.objects["ConfigMap", CONFIG_MAP] = {"data": {"volcano-scheduler.conf": text}}
    assert "asks our extender" in found(api, "well")
    assert "several pods" not in found(api, "warning")
    text = text.replace("predicateErrorCacheEnable: false", "")
    api.objects["ConfigMap", CONFIG_MAP] = {"data": {"volcano-scheduler.conf": text}}
    assert "predicateErrorCacheEnable: false" in found(api, "warning")


def test_a_scheduler_that_asks_nobody_before_it_starts_a_job(api: Healthy) -> None:
    text = with_extender(V1_11).text.replace("enqueue, ", "")
    api.objects["ConfigMap", CONFIG_MAP] = {"data": {"volcano-scheduler.conf": text}}
    assert "lack `enqueue`" in found(api, "missing")


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
    last = missing.splitlines()[-1]
    assert last.startswith("The API server does not reach our webhook")
    assert "port 8443" in last
    assert last.endswith("connection refused).")


def test_a_pod_that_the_webhook_refuses_is_told_with_its_words(api: Healthy) -> None:
    api.made = Fatal('admission webhook "label.volcano-reshape.io" denied the request: no command.')
    assert "would be refused: admission webhook" in found(api, "missing")


def test_a_pod_that_gets_no_sidecar(api: Healthy) -> None:
    api.made = {"spec": {}}
    assert "gets none" in found(api, "missing")


def test_a_certificate_near_its_end_is_a_warning_and_after_it_missing(api: Healthy) -> None:
    assert "ends in 30 days" in found(api, "warning", NOW + 3 * YEAR - 30 * 86_400)
    assert "cannot be used" in found(api, "missing", NOW + 4 * YEAR)


def test_a_device_plugin_beside_shared_mode_is_a_warning(api: Healthy) -> None:
    api.lists["Node"][0]["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    assert "Nodes node-a hand out nvidia.com/gpu" in found(api, "warning")
    assert "can open all GPUs of their node" in found(api, "warning")
    api.lists["Queue"][0]["metadata"]["annotations"] = {doctor.DEVICES: "recreate"}
    assert found(api, "warning") == ""


def test_seats_are_judged_by_the_settings_that_the_launcher_reads(api: Healthy) -> None:
    container = {"envFrom": [{"configMapRef": {"name": "reshape-settings-5f2k"}}]}
    api.objects["Deployment", "reshape-launcher"]["spec"]["template"] = {"spec": {"containers": [container]}}
    api.objects["ConfigMap", "reshape-settings-5f2k"] = {"data": {"RESHAPE_SEATS": "cdi"}}
    agent = {"env": [{"name": "RESHAPE_SEATS"}]}
    api.objects["DaemonSet", "reshape-agent"]["spec"] = {"template": {"spec": {"containers": [agent]}}}
    api.lists["Node"][0]["status"]["allocatable"]["volcano-reshape.io/seat"] = "256"
    assert "kernel lets pods open their own GPUs only: 1 (seats by cdi)" in found(api, "well")


def test_an_installation_without_volcano_is_asked_for_nothing_of_it(api: Healthy) -> None:
    api.objects["ConfigMap", "reshape-settings"] = {"data": {"RESHAPE_VOLCANO": "0"}}
    for kind, name in [*api.objects]:
        if "volcano.sh" in name or name == "volcano-scheduler" or (kind, name) == ("ConfigMap", CONFIG_MAP):
            del api.objects[kind, name]
    del api.lists["Queue"]
    asked: list[dict[str, Any]] = []
    api.rehearse = lambda doc: asked.append(doc) or api.made  # type: ignore[assignment, func-returns-value, return-value]
    assert (found(api, "missing"), found(api, "warning")) == ("", "")
    assert "is installed without Volcano (RESHAPE_VOLCANO=0): batch Jobs" in found(api, "well")
    assert "ownerReferences" not in asked[0]["metadata"], "a bare pod: nobody makes others here"
    assert "One thing could not be checked" not in found(api, "unknown")


def test_a_cluster_without_volcano_is_told_of_the_installation_without_it(api: Healthy) -> None:
    del api.objects["CustomResourceDefinition", "jobs.batch.volcano.sh"]
    assert "or volcano-reshape without it (docs/how-to/without-volcano.md)" in found(api, "missing")


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
    assert said.startswith("The cluster cannot be checked")


def test_rows_that_somebody_changed_into_nonsense_are_told_of(api: Healthy) -> None:
    api.answers["/metrics"] = (
        METRICS + b'reshape_misfit_rows{table="jobs"} 2.0\nreshape_misfit_rows{table="gpus"} 0.0\n'
    )
    assert "2 rows of table jobs hold values that make no sense" in found(api, "warning")
    assert "table gpus" not in found(api, "warning")


def runs(image: str) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"image": image}]}}}


def test_parts_of_different_versions_are_named(api: Healthy) -> None:
    for part, image in zip(version_skew.PARTS, ("reshape:2", "reshape:2", "reshape:1"), strict=True):
        api.objects[part].setdefault("spec", {}).update(runs(image))
    assert "reshape-coordinator reshape:2, reshape-launcher reshape:2, reshape-agent reshape:1" in found(api, "warning")
    api.objects["DaemonSet", "reshape-agent"]["spec"].update(runs("reshape:2"))
    assert "different images" not in found(api, "warning")


def test_a_coordinator_of_another_version_than_the_command_is_said(api: Healthy) -> None:
    api.answers["/metrics"] = METRICS + b'reshape_build_info{version="9.9.9"} 1.0\n'
    assert f"This command is volcano-reshape {__version__}, the coordinator 9.9.9" in found(api, "warning")
    api.answers["/metrics"] = METRICS + f'reshape_build_info{{version="{__version__}"}} 1.0\n'.encode()
    assert found(api, "warning") == ""


def test_sidecars_that_are_older_than_the_launcher_are_counted(api: Healthy) -> None:
    api.objects["Deployment", "reshape-launcher"]["spec"].update(runs("reshape:2"))
    images = ("reshape:1", "reshape:1", "reshape:2")
    api.lists["Pod"] += [{"spec": {"initContainers": [{"name": "reshape-sidecar", "image": i}]}} for i in images]
    assert "2 pods have a sidecar of reshape:1; new ones get reshape:2." in found(api, "well")
    assert found(api, "warning") == ""


def test_what_volcanos_queues_give_is_told(api: Healthy) -> None:
    gpus = {"capability": {"nvidia.com/gpu": "4"}, "deserved": {"nvidia.com/gpu": 2}}
    api.lists["Queue"][0]["spec"] = {"weight": 3, **gpus}
    told = found(api, "well")
    assert "reshape (weight 3, 2 guaranteed, at most 4 GPUs)" in told
    assert "`shares.yaml` wins" in told
