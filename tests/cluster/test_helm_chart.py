"""The Helm chart without a cluster: it says what kustomize says, and each value is written where it belongs.

Needs only `helm` and `kubectl`, which are built with the bed.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.admission import setup
from tests.cluster.bed_build import BINARIES, ROOT
from tests.cluster.helm import CHART, HelmRefused, helm, program
from tests.cluster.installed import SYSTEM

Doc = dict[str, Any]

MANAGERS = {"app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart"}
HASH = re.compile(r"^(reshape-(?:settings|emulated-gpus|mongodb|dashboard))-[a-z0-9]{10}$")  # kustomize's, of contents


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    program()


@cache
def rendered(*options: str) -> str:
    return helm("template", "reshape", str(CHART), "--namespace", SYSTEM, *options)


def objects(*options: str) -> list[Doc]:
    return [each for each in yaml.safe_load_all(rendered(*options)) if each]


def one(kind: str, name: str, *options: str) -> Doc:
    (found,) = [o for o in objects(*options) if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def given(values: str) -> tuple[str, ...]:
    """Options for values, written as JSON by their names: `image.tag="1"`, one a line."""
    return tuple(f"--set-json={line.strip()}" for line in values.splitlines() if line.strip())


def pods(*options: str) -> dict[str, Doc]:
    """The pod's template of each component."""
    found = [each for each in objects(*options) if "template" in each.get("spec", {})]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"] for each in found}


def variables(pod: Doc) -> Doc:
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def kustomized(folder: str) -> list[Doc]:
    done = subprocess.run(
        [BINARIES / "kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def normalised(found: list[Doc]) -> dict[tuple[str, str], Doc]:
    """Objects without what the two tools must say differently: who manages them, and how a change makes new pods."""
    return {(each["kind"], each["metadata"]["name"]): each for each in map(_normalised, found)}


def _normalised(given: Doc) -> Doc:
    doc = copy.deepcopy(given)
    template = doc.get("spec", {}).get("template", {})
    for meta in (doc["metadata"], template.get("metadata", {})):
        meta["labels"] = {name: text for name, text in meta.get("labels", {}).items() if name not in MANAGERS}
        notes = meta.get("annotations", {})
        meta["annotations"] = {
            name: text
            for name, text in notes.items()
            if not name.startswith("checksum/") and name != "helm.sh/resource-policy"
        }
    if (doc["kind"], doc["metadata"]["name"][:13]) == ("Job", "reshape-setup"):
        doc["metadata"]["name"] = "reshape-setup"  # by Helm one for each revision, which therefore may stay
        doc["spec"].pop("ttlSecondsAfterFinished", None)
    for container in (template.get("spec") or {}).get("containers", []):
        if container.get("imagePullPolicy") == "IfNotPresent":  # the default of an image with a tag
            del container["imagePullPolicy"]
    return without_hashes(doc)


def without_hashes(value: Any) -> Any:
    """Names without hashes, and entries in the order of their keys: kustomize puts added ones first."""
    if isinstance(value, dict):
        return {name: without_hashes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        inner = [without_hashes(each) for each in value]
        key = next((k for k in ("mountPath", "name") if all(isinstance(e, dict) and k in e for e in inner)), None)
        return sorted(inner, key=lambda each: str(each[key])) if key else inner
    return HASH.sub(r"\1", value) if isinstance(value, str) else value


def options_for(overlay: str) -> tuple[str, ...]:
    """The values that install what a folder of overlays/ does."""
    about = yaml.safe_load((CHART / "overlays" / overlay / "kustomization.yaml").read_text(encoding="utf-8"))
    own = {"mongodb.yaml", "../mongodb"} & set(about["resources"])
    names = [folder.rpartition("/")[2] for folder in about.get("components", [])]
    volcano = json.dumps("without-volcano" not in names)
    names = [name for name in names if name != "without-volcano"]
    store = "mongodb" if own else "external"
    return given(f"""store.type="{store}"\ncomponents={json.dumps(names)}\nvolcano.enabled={volcano}""")


@pytest.mark.parametrize("overlay", sorted(folder.name for folder in (CHART / "overlays").iterdir()))
def test_the_chart_installs_what_each_overlay_installs(overlay: str) -> None:
    compare(kustomized(f"manifests/overlays/{overlay}"), *options_for(overlay))


def test_without_volcano_it_refuses_what_needs_it() -> None:
    for values, why in (
        ('components=["without-volcano"]', "set volcano.enabled to false in its place"),
        (
            'components=["pool"]\nvolcano.enabled=false',
            "components names pool, whose placeholders are scheduled by Volcano",
        ),
    ):
        with pytest.raises(HelmRefused, match=why):
            rendered(*given(values))


def test_it_installs_what_is_installed_by_default_and_what_prometheus_needs() -> None:
    compare(kustomized("manifests"))
    compare([*kustomized("manifests"), *kustomized("manifests/monitoring")], "--set", "metrics.enabled=true")


def compare(found: list[Doc], *options: str) -> None:
    """Object by object. If this fails after a change in manifests/, teach templates/ what it does not know yet."""
    ours = normalised(objects(*options))
    theirs = normalised(found)
    del theirs["Namespace", SYSTEM]  # Helm must have it before it begins: --create-namespace
    assert sorted(ours) == sorted(theirs)
    assert [key for key in theirs if ours[key] != theirs[key]] == [], "see manifests/templates/"


def test_helm_finds_nothing_to_mend() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ("", "volcano-reshape:0.1.0"),
        ('image.registry="registry.example.com:5000/team/"', "registry.example.com:5000/team/volcano-reshape:0.1.0"),
        ('image={"repository": "localhost:5000/reshape", "tag": "2"}', "localhost:5000/reshape:2"),
        (f'image={{"registry": "r", "digest": "sha256:{"a" * 64}"}}', f"r/volcano-reshape@sha256:{'a' * 64}"),
    ],
)
def test_all_parts_and_the_sidecars_have_the_image(values: str, image: str) -> None:
    found = pods(*given(values))
    named = {name: pod["spec"]["containers"][0]["image"] for name, pod in found.items()}
    assert named == {**dict.fromkeys(("coordinator", "launcher", "agent", "setup"), image), "store": "mongo:7.0"}
    assert variables(found["launcher"])["RESHAPE_IMAGE"] == image


def test_pods_say_that_helm_manages_them() -> None:
    assert "kustomize" not in rendered()


def test_when_it_is_pulled_holds_for_sidecars_too() -> None:
    options = given('image.pullPolicy="Always"')
    assert {
        c["imagePullPolicy"] for n, p in pods(*options).items() if n != "store" for c in p["spec"]["containers"]
    } == {"Always"}
    assert one("ConfigMap", "reshape-settings", *options)["data"]["RESHAPE_IMAGE_PULL_POLICY"] == "Always"


def test_placement_is_that_of_our_parts_and_agents_have_their_own() -> None:
    options = given(
        """
        imagePullSecrets=[{"name": "registry"}]
        nodeSelector={"role": "infra"}
        tolerations=[{"key": "infra", "operator": "Exists"}]
        affinity={"nodeAffinity": {}}
        priorityClassName="system-cluster-critical"
        podAnnotations={"team": "ml"}
        agent={"nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}], "runtimeClassName": "nvidia"}
        agent.podAnnotations={"nri": "all"}
        """
    )
    bare = pods()
    found = pods(*options)
    for name, pod in found.items():
        spec = pod["spec"]
        before = bare[name]["spec"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}], name
        assert pod["metadata"]["annotations"]["team"] == "ml", name
        assert pod["metadata"]["annotations"].get("nri") == ("all" if name == "agent" else None), name
        added = {"operator": "Exists"} if name == "agent" else {"key": "infra", "operator": "Exists"}
        assert spec["tolerations"] == [*before.get("tolerations", []), added], name
        assert spec["nodeSelector"] == ({"gpu": "yes"} if name == "agent" else {"role": "infra"}), name
        high = name in ("coordinator", "launcher", "store")
        assert spec.get("priorityClassName") == ("system-cluster-critical" if high else None), name
        assert spec.get("runtimeClassName") == ("nvidia" if name == "agent" else None), name
    assert set(found["launcher"]["spec"]["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    assert "affinity" not in found["agent"]["spec"]


def test_resources_replace_single_ones_and_replicas_are_counted() -> None:
    options = given(
        """
        coordinator={"replicas": 3, "resources": {"limits": {"memory": "8Gi"}}}
        launcher.replicas=1
        agent.resources={"requests": {"cpu": "50m"}}
        store.mongodb={"resources": {"limits": {"memory": "4Gi"}}, "image": "mirror/mongo:7.0", "storage": "50Gi"}
        store.mongodb.storageClassName="fast"
        """
    )
    given_to = {name: pod["spec"]["containers"][0]["resources"] for name, pod in pods(*options).items()}
    assert given_to["coordinator"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "8Gi"}}
    assert given_to["agent"]["requests"] == {"cpu": "50m", "memory": "64Mi"}
    coordinator = one("Deployment", "reshape-coordinator", *options)["spec"]
    assert (coordinator["replicas"], coordinator["strategy"]["rollingUpdate"]["maxUnavailable"]) == (3, 3)
    assert one("Deployment", "reshape-launcher", *options)["spec"]["replicas"] == 1
    mongodb = one("StatefulSet", "reshape-mongodb", *options)["spec"]
    (claim,) = mongodb["volumeClaimTemplates"]
    assert (claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]["storage"]) == ("fast", "50Gi")
    inner = mongodb["template"]["spec"]
    assert {each["image"] for each in (*inner["initContainers"], *inner["containers"])} == {"mirror/mongo:7.0"}
    assert {each["resources"]["limits"]["memory"] for each in inner["containers"]} == {"4Gi"}


def test_settings_are_written_as_the_coordinator_reads_them_and_make_new_pods() -> None:
    options = given('settings={"RESHAPE_LEASE_S": 3000000, "RESHAPE_POLL_S": 0.5, "RESHAPE_SYSTEMS": "elastic"}')
    data = one("ConfigMap", "reshape-settings", *options, *given("settings.RESHAPE_OTEL=true"))["data"]
    assert data == {
        "RESHAPE_IMAGE_PULL_POLICY": "IfNotPresent",
        "RESHAPE_LOG_FORMAT": "json",
        "RESHAPE_LEASE_S": "3000000",
        "RESHAPE_POLL_S": "0.5",
        "RESHAPE_SYSTEMS": "elastic",
        "RESHAPE_OTEL": "1",
    }
    before = pods()
    after = pods(*options)
    changed = {name for name in before if before[name]["metadata"] != after[name]["metadata"]}
    assert changed == {"coordinator", "launcher"}


def test_emulated_gpus_are_the_lines_that_agents_read() -> None:
    options = given('emulatedGPUs={"node-a": "4xV100", "node-b": "2xA100-80GB"}')
    assert one("ConfigMap", "reshape-emulated-gpus", *options)["data"]["gpus"] == "node-a=4xV100\nnode-b=2xA100-80GB"


def test_queues_are_made_and_the_webhook_looks_at_them_from_the_start() -> None:
    options = given('queues=[{"name": "gold", "devices": "recreate", "spec": {"weight": 9}}, {"name": "rest"}]')
    found = {each["metadata"]["name"]: each for each in objects(*options) if each["kind"] == "Queue"}
    assert {name: each["metadata"]["annotations"]["volcano-reshape.io/devices"] for name, each in found.items()} == {
        "gold": "recreate",
        "rest": "shared",
    }
    assert found["gold"]["spec"] == {"weight": 9, "reclaimable": True}
    assert all(each["metadata"]["labels"]["volcano-reshape.io/inject"] == "true" for each in found.values())
    assert selected(*options) == ["gold", "rest"]
    assert selected(*given("queues=[]")) == ["none.volcano-reshape"]


def selected(*options: str) -> list[str]:
    hooks = one("MutatingWebhookConfiguration", "reshape-inject", *options)["webhooks"]
    for hook in hooks:  # one without a selector would meet every pod of the cluster
        assert "pods" not in hook["rules"][0]["resources"] or hook["objectSelector"], hook["name"]
    (by_queue,) = [hook for hook in hooks if hook["name"] == "queue.volcano-reshape.io"]
    return [name for each in by_queue["objectSelector"]["matchExpressions"] for name in each["values"]]


def test_what_would_take_the_work_of_others_along_stays_when_it_is_uninstalled() -> None:
    kept = {
        (each["kind"], each["metadata"]["name"])
        for each in objects()
        if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {("CustomResourceDefinition", "slamls.sla-operator.dcn.com"), ("Queue", "reshape")}


def test_an_external_store_is_named_by_its_address_or_by_its_secret() -> None:
    address = "mongodb://user:pass@db.example.com/reshape?replicaSet=rs0&tls=true"
    options = given(f'store={{"type": "external", "uri": "{address}"}}')
    assert one("Secret", "reshape-store", *options)["stringData"] == {"uri": address}
    assert not [each for each in objects(*options) if each["kind"] == "StatefulSet"]
    assert not [each for each in objects(*given('store.type="external"')) if each["kind"] == "Secret"]


@pytest.mark.parametrize("maker", ["certManager", "secret"])
def test_a_certificate_of_others_is_kept_by_setup(maker: str) -> None:
    options = given(f'certificate.from="{maker}"')
    assert pods(*options)["setup"]["spec"]["containers"][0]["args"][-1] == "--keep-certificate"
    made = [each["kind"] for each in objects(*options) if each["apiVersion"] == "cert-manager.io/v1"]
    assert made == (["Certificate", "Issuer"] if maker == "certManager" else [])


def test_cert_manager_writes_the_secret_that_launchers_mount_for_the_webhooks_names() -> None:
    options = given('certificate={"from": "certManager", "issuerRef": {"kind": "ClusterIssuer", "name": "internal"}}')
    spec = one("Certificate", "reshape-webhook", *options)["spec"]
    assert spec["issuerRef"] == {"kind": "ClusterIssuer", "name": "internal"}
    assert (spec["secretName"], spec["dnsNames"]) == (setup.TLS, setup.WEBHOOK_NAMES)
    annotations = one("MutatingWebhookConfiguration", "reshape-inject", *options)["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"{SYSTEM}/reshape-webhook"}
    assert "Issuer" not in {each["kind"] for each in objects(*options)}


def test_metrics_carry_the_labels_that_prometheus_selects_by_and_let_it_in() -> None:
    options = given('metrics={"enabled": true, "labels": {"release": "kps"}, "prometheusNamespace": "observe"}')
    found = [each for each in objects(*options) if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert {each["kind"] for each in found} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert {each["metadata"]["labels"]["release"] for each in found} == {"kps"}
    assert "observe" in str(one("NetworkPolicy", "reshape-metrics", *options))
    assert one("ConfigMap", "reshape-dashboard", *options)["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize(
    ("kind", "value"), [("NetworkPolicy", "networkPolicy"), ("PodDisruptionBudget", "podDisruptionBudget")]
)
def test_what_a_cluster_has_of_its_own_can_be_left_out(kind: str, value: str) -> None:
    assert kind not in {each["kind"] for each in objects(*given(f"{value}.enabled=false"))}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ('image.pullPolicy="always"', "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ('image.repository="reshape:1"', "at '/image/repository': 'reshape:1' does not match pattern"),
        ('image.digest="sha256:1"', "at '/image/digest': 'sha256:1' does not match pattern"),
        ('imagee.tag="1"', "at '': additional properties 'imagee' not allowed"),
        ("launcher.replicas=0", "at '/launcher/replicas': minimum: got 0, want 1"),
        ('settings.LEASE="1"', "at '/settings': additional properties 'LEASE' not allowed"),
        ('emulatedGPUs.node-a="V100"', "at '/emulatedGPUs/node-a': 'V100' does not match pattern"),
        ('queues=[{"devices": "shared"}]', "at '/queues/0': missing property 'name'"),
        (
            'queues=[{"name": "a", "devices": "mine"}]',
            "at '/queues/0/devices': value must be one of 'shared', 'recreate', 'pool'",
        ),
        ('store.type="sqlite"', "at '/store/type': value must be one of 'mongodb', 'external'"),
        (
            'store={"type": "external", "uri": "postgres://db"}',
            "at '/store/uri': 'postgres://db' does not match pattern",
        ),
        ('certificate.from="acme"', "at '/certificate/from': value must be one of 'setup', 'certManager', 'secret'"),
        ('store.uri="mongodb://db/reshape"', "set store.type to external, or leave the address out."),
        ('certificate.issuerRef={"name": "a"}', "set certificate.from to certManager, or leave it out."),
        (f'image={{"tag": "1", "digest": "sha256:{"b" * 64}"}}', "image.tag and image.digest are both given: give one"),
        ('queues=[{"name": "a"}, {"name": "a"}]', "queues names a twice: name each queue once."),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(values: str, sentence: str) -> None:
    with pytest.raises(HelmRefused, match=re.escape(sentence)):
        rendered(*given(values))


def test_another_namespace_is_refused_with_the_options_to_give() -> None:
    with pytest.raises(HelmRefused, match=r"not in default: .* Give --namespace reshape-system --create-namespace"):
        helm("template", "reshape", str(CHART), "--namespace", "default")


def test_what_a_kustomization_has_that_the_chart_cannot_read_is_refused(tmp_path: Path) -> None:
    """So that nothing that is added in base/ can be forgotten by the chart in silence."""
    shutil.copytree(CHART, tmp_path / "chart")
    file = tmp_path / "chart" / "base" / "kustomization.yaml"
    file.write_text(file.read_text() + "secretGenerator: [{name: more}]\n")
    with pytest.raises(
        HelmRefused, match=r"cannot read `secretGenerator` of base/kustomization.yaml: teach templates/"
    ):
        helm("template", "reshape", str(tmp_path / "chart"), "--namespace", SYSTEM)


COMPONENT = """
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources: [priority.yaml]
patches:
  - target: {kind: Namespace, name: reshape-system}
    patch: |
      - {op: replace, path: /metadata/labels/pod-security.kubernetes.io~1enforce, value: privileged}
  - target: {kind: Queue, name: reshape}
    patch: |
      - {op: replace, path: /metadata/annotations/volcano-reshape.io~1devices, value: recreate}
      - {op: remove, path: /spec/reclaimable}
  - target: {kind: DaemonSet, name: reshape-agent}
    patch: |
      apiVersion: apps/v1
      kind: DaemonSet
      metadata: {name: reshape-agent, namespace: reshape-system}
      spec:
        template:
          spec:
            securityContext: {runAsUser: 0, fsGroup: null}
            containers:
              - name: agent
                args: [agent, --more]
                env:
                  - {name: RESHAPE_KEYS, value: /other}
                  - {name: RESHAPE_MORE, value: "1"}
                volumeMounts:
                  - {name: more, mountPath: /more}
            volumes:
              - name: more
                hostPath: {path: /more}
"""


def test_a_component_is_added_as_kustomize_adds_it(tmp_path: Path) -> None:
    """Both kinds of patches apply, also to the queues that the values name."""
    shutil.copytree(CHART, tmp_path / "manifests")
    added = tmp_path / "manifests" / "components" / "more"
    overlay = tmp_path / "manifests" / "overlays" / "more"
    added.mkdir(parents=True)
    overlay.mkdir()
    (added / "kustomization.yaml").write_text(COMPONENT)
    (added / "priority.yaml").write_text(PRIORITY)
    (overlay / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        "resources: [../mongodb]\ncomponents: [../../components/more]\n"
    )
    theirs = normalised(kustomized(str(overlay)))
    del theirs["Namespace", SYSTEM]
    text = helm(
        "template", "reshape", str(tmp_path / "manifests"), "--namespace", SYSTEM, *given('components=["more"]')
    )
    assert normalised([each for each in yaml.safe_load_all(text) if each]) == theirs
    assert theirs["DaemonSet", "reshape-agent"] != normalised(objects())["DaemonSet", "reshape-agent"]
    with pytest.raises(HelmRefused, match="components names none, but the chart has no folder components/none"):
        rendered(*given('components=["none"]'))


PRIORITY = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: reshape}\nvalue: 1000\n"


def test_a_file_that_is_added_to_the_base_is_installed_by_the_chart(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "chart")
    base = tmp_path / "chart" / "base"
    base.joinpath("more.yaml").write_text(PRIORITY)
    file = base / "kustomization.yaml"
    file.write_text(file.read_text().replace("resources:\n", "resources:\n  - more.yaml\n", 1))
    text = helm("template", "reshape", str(tmp_path / "chart"), "--namespace", SYSTEM)
    read = [each for each in yaml.safe_load_all(text) if each]
    (found,) = [each for each in read if (each["kind"], each["metadata"]["name"]) == ("PriorityClass", "reshape")]
    assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "volcano-reshape"


def test_the_packed_chart_says_the_same(tmp_path: Path) -> None:
    helm("package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.glob("volcano-reshape-*.tgz")
    assert helm("template", "reshape", str(packed), "--namespace", SYSTEM) == rendered()


def test_the_file_that_the_page_shows_is_taken() -> None:
    page = (ROOT / "docs" / "reference" / "helm-values.md").read_text(encoding="utf-8")
    shown = page.partition('title="values.yaml"\n')[2].partition("```")[0]
    values = yaml.safe_load(shown)
    found = pods(*(f"--set-json={name}={json.dumps(value)}" for name, value in values.items()))
    assert found["launcher"]["spec"]["containers"][0]["image"] == "registry.example.com/ml/volcano-reshape:0.1.0"
    assert found["agent"]["spec"]["runtimeClassName"] == "nvidia"
