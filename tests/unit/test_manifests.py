"""The manifests render with nothing but kubectl, and what they start is locked down."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.scheduling import intake
from launcher.cluster.controllers import one_pod_jobs, volcano_job_document
from launcher.cluster.pods import placeholder_pods
from launcher.names import GATE
from reshape import __version__
from reshape.services.node_agent import PERMIT_PORT
from sidecar.resources import seats
from tests.test_tidy import ROOT

SHIPPED = ("manifests", "manifests/overlays/mongodb-external")
BED = "tests/cluster/manifests"
TOKENS = {"reshape-coordinator", "reshape-launcher", "reshape-setup"}  # who talks to the API server

Doc = dict[str, Any]


@cache
def rendered(folder: str) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: str) -> list[Doc]:
    return list(yaml.safe_load_all(rendered(folder)))


def pods(folder: str) -> Iterator[tuple[str, Doc]]:
    """Name and spec of every pod that is started."""
    for each in objects(folder):
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers(spec: Doc) -> list[Doc]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_each_renders_and_names_no_object_twice(folder: str) -> None:
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects(folder)]
    assert len(names) == len(set(names))
    assert {kind for kind, *_ in names} >= {"Deployment", "DaemonSet", "Queue", "NetworkPolicy"}


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_no_pod_may_do_more_than_it_must(folder: str) -> None:
    for name, spec in pods(folder):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume], name
        for container in containers(spec):
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True, name
            assert rights["allowPrivilegeEscalation"] is False, name
            assert rights["capabilities"] == {"drop": ["ALL"]}, name


@pytest.mark.parametrize("folder", ["manifests/overlays/pool", "tests/cluster/manifests-pool"])
def test_the_pool_adds_the_kubelets_socket_to_agents_and_priorities(folder: str) -> None:
    (agent,) = [spec for name, spec in pods(folder) if name == "reshape-agent"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in agent["volumes"] if "hostPath" in volume}
    assert paths["pod-resources"] == "/var/lib/kubelet/pod-resources"
    (container,) = agent["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert variables["RESHAPE_POD_RESOURCES"] == f"{mounts['pod-resources']['mountPath']}/kubelet.sock"
    assert mounts["pod-resources"]["readOnly"] is True
    with_seats = "RESHAPE_SEATS" in variables
    added = {"add": ["SYS_ADMIN"]} if with_seats else {}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], **added}
    assert with_seats == (folder == "manifests/overlays/pool") == (set(paths) > {"pod-resources"})
    values = {each["metadata"]["name"]: each["value"] for each in objects(folder) if each["kind"] == "PriorityClass"}
    assert values[placeholder_pods.LOW_PRIORITY] < values[placeholder_pods.PRIORITY] == 0
    (queue,) = [each for each in objects(folder) if each["kind"] == "Queue"]
    assert queue["metadata"]["annotations"] == {"volcano-reshape.io/devices": "pool"}


@pytest.mark.parametrize("folder", ["manifests/overlays/pool", "tests/cluster/manifests-seats"])
def test_seats_are_the_launchers_setting_and_agents_see_of_the_machine_what_they_need(folder: str) -> None:
    (agent,) = [spec for name, spec in pods(folder) if name == "reshape-agent"]
    (container,) = agent["containers"]
    (settings,) = [each for each in objects(folder) if each["metadata"]["name"].startswith("reshape-settings")]
    assert settings["data"]["RESHAPE_SEATS"] == "files"
    variables = {each["name"]: each for each in container["env"]}
    source = variables["RESHAPE_SEATS"]["valueFrom"]["configMapKeyRef"]
    assert source == {"name": settings["metadata"]["name"], "key": "RESHAPE_SEATS"}
    machine = variables["RESHAPE_MACHINE"]["value"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in agent["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    seen = {path.removeprefix(f"{machine}/"): paths[mount["name"]] for path, mount in mounts.items() if machine in path}
    assert seen == {
        seats.DEVICE_PLUGINS: "/var/lib/kubelet/device-plugins",
        str(Path(seats.POD_RESOURCES).parent): "/var/lib/kubelet/pod-resources",
        seats.POD_LOGS: "/var/log/pods",
        seats.CONTROL_GROUPS: "/sys/fs/cgroup",
    }
    writable = [path for path, mount in mounts.items() if machine in path and not mount.get("readOnly")]
    assert writable == [f"{machine}/{seats.DEVICE_PLUGINS}"]
    policies = {each["metadata"]["name"]: each for each in objects(folder) if each["kind"] == "NetworkPolicy"}
    policy = policies["reshape-agent"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": PERMIT_PORT}]


@pytest.mark.parametrize("folder", SHIPPED)
def test_only_coordinator_launcher_and_setup_get_a_token(folder: str) -> None:
    with_token = {name for name, spec in pods(folder) if spec.get("automountServiceAccountToken", True)}
    assert with_token == TOKENS


@pytest.mark.parametrize("folder", SHIPPED)
def test_every_container_says_what_it_needs_and_servers_are_probed(folder: str) -> None:
    for name, spec in pods(folder):
        for container in containers(spec):
            assert container["resources"]["requests"], name
            assert "memory" in container["resources"]["limits"], name
            if "ports" in container:
                assert {"livenessProbe", "readinessProbe"} <= set(container), name


@pytest.mark.parametrize("folder", SHIPPED)
def test_no_secret_is_shipped(folder: str) -> None:
    assert not [each for each in objects(folder) if each["kind"] == "Secret"]
    assert not re.search(r"mongodb://\S*:\S*@", rendered(folder))


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_the_launcher_gives_pods_the_image_that_it_is_itself(folder: str) -> None:
    (spec,) = [spec for name, spec in pods(folder) if name == "reshape-launcher"]
    (launcher,) = spec["containers"]
    named = {variable["name"]: variable.get("value") for variable in launcher["env"]}
    assert named["RESHAPE_IMAGE"] == launcher["image"]


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_the_webhook_is_answered_by_two_launchers_on_two_nodes_if_there_are(folder: str) -> None:
    (found,) = [
        each
        for each in objects(folder)
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "reshape-launcher")
    ]
    assert found["spec"]["replicas"] == 2
    (launcher,) = found["spec"]["template"]["spec"]["containers"]
    assert launcher["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (wish,) = found["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    labels = wish["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels.items() <= found["spec"]["template"]["metadata"]["labels"].items()


def test_the_version_is_ours() -> None:
    labels = {each["metadata"]["labels"]["app.kubernetes.io/version"] for each in objects("manifests/base")}
    assert labels == {__version__}
    assert f"newTag: {__version__}" in (ROOT / "manifests" / "base" / "kustomization.yaml").read_text()


def test_a_mongodb_of_our_own_gets_its_password_from_setup() -> None:
    (setup,) = [spec for name, spec in pods("manifests") if name == "reshape-setup"]
    (mongodb,) = [spec for name, spec in pods("manifests") if name == "reshape-mongodb"]
    assert setup["containers"][0]["args"][1].startswith(
        "--mongodb=reshape-mongodb-0.reshape-mongodb.reshape-system.svc"
    )
    secrets = [volume["secret"]["secretName"] for volume in mongodb["volumes"] if "secret" in volume]
    assert secrets == ["reshape-store"]


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_the_webhook_meets_only_pods_that_opted_in(folder: str) -> None:
    for hook in hooks(folder):
        assert hook["sideEffects"] == "None"
        assert hook.get("objectSelector") or kinds_of(hook) == {"jobs"}, hook["name"]
        (others,) = hook["namespaceSelector"]["matchExpressions"]
        assert (others["operator"], "reshape-system" in others["values"]) == ("NotIn", True)


def test_what_the_launchers_rights_are_not_for_is_refused() -> None:
    """Its rights reach all namespaces; the policy that narrows them is tried on a cluster (test_tenants.py)."""
    (policy,) = [each for each in objects("manifests") if each["kind"] == "ValidatingAdmissionPolicy"]
    (binding,) = [each for each in objects("manifests") if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    role = next(each for each in objects("manifests") if each["metadata"]["name"] == "reshape-launcher-jobs")
    writes = {"create", "patch", "update", "delete"}
    narrowed = {name for rule in policy["spec"]["matchConstraints"]["resourceRules"] for name in rule["resources"]}
    written = {name for rule in role["rules"] if writes & set(rule["verbs"]) for name in rule["resources"]}
    assert written - narrowed == {"events", "pods/resize", "slamls/status"}, "add what is new to the policy"


def hooks(folder: str) -> list[Doc]:
    (found,) = [each for each in objects(folder) if each["kind"] == "MutatingWebhookConfiguration"]
    webhooks: list[Doc] = found["webhooks"]
    return webhooks


def kinds_of(hook: Doc) -> set[str]:
    return {kind for rule in hook["rules"] for kind in rule["resources"]}


@pytest.mark.parametrize("folder", [*SHIPPED, BED])
def test_the_api_server_goes_on_without_the_webhook_only_where_a_gate_keeps_the_pod_from_starting(folder: str) -> None:
    gate = f'(gate, gate.name == "{GATE}")'
    for hook in hooks(folder):
        conditions = [one["expression"] for one in hook.get("matchConditions", [])]
        if hook["name"] == "batch.volcano-reshape.io":
            assert hook["failurePolicy"] == "Fail"
            opts_in, stays = conditions
            assert '["volcano-reshape.io/inject"] == "true"' in opts_in
            assert stays == "!has(object.metadata.deletionTimestamp)"
        elif kinds_of(hook) == {"jobs"}:
            assert hook["failurePolicy"] == "Ignore"
        elif hook["failurePolicy"] == "Ignore":
            assert conditions == [f"has(object.spec.schedulingGates) && object.spec.schedulingGates.exists{gate}"]
        else:
            assert conditions == [f"!has(object.spec.schedulingGates) || !object.spec.schedulingGates.exists{gate}"]
    assert sorted(hook["failurePolicy"] for hook in hooks(folder)) == ["Fail", "Fail", "Fail", "Ignore", "Ignore"]


def test_the_page_explains_every_setting_that_a_manifest_sets() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    given = [each["data"] for each in objects(BED) if each["metadata"]["name"].startswith("reshape-settings")]
    assert [name for data in given for name in data if f"`{name}`" not in page] == []


def test_without_volcano_nothing_of_it_is_made_and_all_other_rights_of_the_launcher_stay() -> None:
    folder = "manifests/overlays/without-volcano"
    assert [each for each in objects(folder) if "volcano.sh" in each["apiVersion"]] == []
    settings = [each["data"] for each in objects(folder) if each["metadata"]["name"].startswith("reshape-settings")]
    assert settings[0]["RESHAPE_VOLCANO"] == "0"
    for role in ("reshape-launcher", "reshape-launcher-jobs"):
        usual = [rule for rule in rules("manifests", role) if not rule["apiGroups"][0].endswith("volcano.sh")]
        made = rules(folder, role)
        for rule in (*usual, *made):
            if (rule["apiGroups"], rule["resources"]) == (["batch"], ["jobs"]):
                rule["verbs"] = sorted({*rule["verbs"], "create", "delete"})
        assert made == usual, "what is changed in base/rbac.yaml is changed in components/without-volcano, too"


def rules(folder: str, role: str) -> list[Doc]:
    (found,) = [o for o in objects(folder) if (o["kind"], o["metadata"]["name"]) == ("ClusterRole", role)]
    return list(found["rules"])


def test_the_batch_job_of_the_examples_becomes_the_same_record_as_the_volcano_job() -> None:
    _, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "count-batch.yaml").read_text(encoding="utf-8"))
    job["metadata"] |= {"uid": "u", "namespace": "default"}
    doc = volcano_job_document.job_document(one_pod_jobs.read_batch_job(job))
    assert (doc["job_id"], doc["optional_num_gpus"], doc["queue"]) == ("default.count", [1, 2, 4], "default")
    code = [
        next(yaml.safe_load_all((ROOT / "examples" / "kubernetes" / name).read_text(encoding="utf-8")))
        for name in ("count.yaml", "count-batch.yaml")
    ]
    assert code[0] == code[1]


@pytest.mark.parametrize("name", ["job-record.json", "gang-record.json"])
def test_the_records_of_the_examples_pass_intake(name: str) -> None:
    doc = json.loads((ROOT / "examples" / "kubernetes" / name).read_text(encoding="utf-8"))
    assert list(intake.problems(doc)) == []


def test_the_volcano_job_of_the_examples_becomes_a_record() -> None:
    _, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "count.yaml").read_text(encoding="utf-8"))
    job["metadata"] |= {"uid": "u", "namespace": "default"}
    doc = volcano_job_document.job_document(job)
    assert (doc["job_id"], doc["optional_num_gpus"], doc["queue"]) == ("default.count", [1, 2, 4], "reshape")


def test_the_volcano_job_of_many_pods_of_the_examples_becomes_a_gang() -> None:
    _, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "gang.yaml").read_text(encoding="utf-8"))
    job["metadata"] |= {"uid": "u", "namespace": "default"}
    doc = volcano_job_document.job_document(job)
    assert (doc["gpus_per_pod"], doc["optional_num_gpus"], doc["checkpoint_claim"]) == (1, [2, 3, 4], "digits")
    assert list(intake.problems(doc)) == []


@pytest.mark.parametrize("folder", SHIPPED)
def test_a_drain_leaves_one_launcher_and_no_training_pushes_it_out(folder: str) -> None:
    """Pods that want to be injected are refused while no launcher is there."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects(folder)}
    launcher = found["Deployment", "reshape-launcher"]["spec"]
    budget = found["PodDisruptionBudget", "reshape-launcher"]["spec"]
    assert budget["minAvailable"] < launcher["replicas"]
    assert budget["selector"]["matchLabels"].items() <= launcher["template"]["metadata"]["labels"].items()
    pods = launcher["template"]["spec"]
    assert found["PriorityClass", pods["priorityClassName"]]["value"] > 0
