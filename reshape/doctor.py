"""Runs `reshape doctor` on a cluster: checks it with the user's kubeconfig, and says what is missing.

Promises to change nothing (it reads, and creates one pod as a dry run), to end with 1 if anything is missing, and to
report what it may not read as unknown.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import click

from coordinator.adapters.clock import SystemClock
from coordinator.errors import Fatal, ReshapeError, Transient
from launcher.admission import certificates
from launcher.admission.setup import AGENT, KEYS, NAMESPACE, STORE, TLS, WEBHOOK, read

Doc = dict[str, Any]
Level = Literal["well", "unknown", "warning", "missing"]

VOLCANO = "volcano-system"
KINDS_NEEDED = ("jobs.batch.volcano.sh", "queues.scheduling.volcano.sh", "podgroups.scheduling.volcano.sh")
OLDEST_VOLCANO, OLDEST_KUBERNETES = (1, 10), (1, 29)
RESIZE = "pods/resize"
SCHEDULER_CONF = "volcano-scheduler-configmap"
COORDINATOR = "reshape-coordinator:8080"
AGENT_PODS = "app.kubernetes.io/component=agent"
GPU_COUNTS = re.compile(r"(nvidia|amd|intel|habana)\.(com|ai)/(gpu|mig-.*|xe|i915|gaudi)(\.shared)?")  # device plugins'
GPU_LABELS = ("nvidia.com/gpu.present", "amd.com/gpu.present")  # of the operators, also where no plugin runs
INJECT = "volcano-reshape.io/inject"
DEVICES = "volcano-reshape.io/devices"
WARN_DAYS = 60
AGAIN_S = 2.0


class DoctorApi(Protocol):
    """The part of `launcher.cluster.api.KubernetesApi` that the checks use."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None: ...

    def create(self, doc: Doc) -> Doc: ...

    def patch(self, kind: str, name: str, changes: Doc, namespace: str | None = None) -> Doc: ...

    def list(self, kind: str, namespace: str | None = None, labels: str | None = None) -> Any: ...

    def rehearse(self, doc: Doc) -> Doc: ...

    def through_service(self, namespace: str, service: str, path: str, body: Doc | None = None) -> bytes: ...

    def serves(self, part: str) -> bool: ...

    def version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    sentence: str


def run(context: str | None, wait_s: float) -> int:
    """Print what was found; the exit code."""
    from launcher.cluster.api import KubernetesApi

    try:
        api = KubernetesApi(context=context)
        api.version()
    except (Fatal, Transient) as error:
        click.echo(f"No cluster can be looked at: {_plain(error)}.", err=True)
        return 1
    end = time.monotonic() + wait_s
    while True:
        found = list(examine(api, SystemClock().wall()))
        missing = sum(finding.level == "missing" for finding in found)
        if not missing or time.monotonic() >= end:
            break
        time.sleep(AGAIN_S)
    return show(found, "docs/kubernetes.md")


def show(found: Sequence[Finding], page: str) -> int:
    """Print what was found; the exit code. `page`: the document that helps on."""
    for finding in found:
        click.echo(f"{finding.level:8} {finding.sentence}")
    missing = sum(finding.level == "missing" for finding in found)
    click.echo(f"{missing} missing: see {page}." if missing else "All is there.")
    return 1 if missing else 0


def examine(api: DoctorApi, now: float) -> Iterator[Finding]:
    """Check everything, in the order in which a user would install it."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _kubernetes(api),
        lambda: _volcano(api),
        lambda: _scheduler(api),
        lambda: _secrets(api, now),
        lambda: _parts(api),
        lambda: _extender(api),
        lambda: _gpus(api),
        lambda: _webhook(api),
        lambda: _rehearsal(api),
        lambda: _queues(api),
        lambda: _network(api),
    ]
    for check in checks:
        try:
            yield from check()
        except ReshapeError as error:
            yield Finding("unknown", f"One thing could not be looked at: {_plain(error)}.")


def _kubernetes(api: DoctorApi) -> Iterator[Finding]:
    version = api.version()
    if _numbers(version) < OLDEST_KUBERNETES:
        yield Finding("missing", f"Kubernetes {version} is too old: containers that run beside others need 1.29.")
    else:
        yield Finding("well", f"Kubernetes {version} answers.")
    if api.serves(RESIZE):
        yield Finding("well", "Living pods can be resized, so CPU limits can be set.")
    else:
        lost = "jobs trained on CPU are not limited in favour of faster growing ones; all else works"
        yield Finding("warning", f"Kubernetes {version} cannot resize living pods (1.33 and newer can): {lost}.")


def _volcano(api: DoctorApi) -> Iterator[Finding]:
    absent = [name for name in KINDS_NEEDED if api.get("CustomResourceDefinition", name) is None]
    if absent:
        yield Finding("missing", f"Volcano is not installed: there is no {absent[0]}. Install Volcano 1.10 or newer.")
        return
    version = _volcano_version(api)
    if version is None:
        yield Finding("unknown", "Volcano is installed; which version cannot be told from its Deployment.")
    elif _numbers(version) < OLDEST_VOLCANO:
        yield Finding("missing", f"Volcano {version} is too old: install 1.10 or newer.")
    else:
        yield Finding("well", f"Volcano {version} is installed.")
    if not _keeps_sidecars(api.get("CustomResourceDefinition", KINDS_NEEDED[0]) or {}):
        yield Finding("missing", "Volcano's Job drops `restartPolicy` of init containers: apply its newer CRDs.")


def _volcano_version(api: DoctorApi) -> str | None:
    found = api.get("Deployment", "volcano-scheduler", VOLCANO)
    if found is None:
        return None
    image = str(found["spec"]["template"]["spec"]["containers"][0]["image"])
    tag = re.search(r":(v?\d+\.\d+[^@]*)", image.rpartition("/")[2])
    return tag[1] if tag else None


def _keeps_sidecars(crd: Doc) -> bool:
    """True if the schema of a Job's pods has what makes an init container a sidecar."""
    path = ("spec", "tasks", "items", "template", "spec", "initContainers", "items", "restartPolicy")
    schemas = [version["schema"]["openAPIV3Schema"] for version in crd.get("spec", {}).get("versions", ())]
    return any(_reaches(schema, path) for schema in schemas)


def _reaches(schema: Doc, path: tuple[str, ...]) -> bool:
    for step in path:
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return True
        inner = schema.get("items") if step == "items" else schema.get("properties", {}).get(step)
        if inner is None:
            return False
        schema = inner
    return True


def _scheduler(api: DoctorApi) -> Iterator[Finding]:
    found = api.get("ConfigMap", SCHEDULER_CONF, VOLCANO)
    if found is None:
        yield Finding("unknown", f"There is no ConfigMap {VOLCANO}/{SCHEDULER_CONF}: how Volcano is set is not known.")
        return
    ours = [plugin for text in (found.get("data") or {}).values() for plugin in _extenders(text)]
    if not ours:
        yield Finding("missing", "Volcano's scheduler does not ask us: add our extender (manifests/volcano).")
        return
    if not all(plugin.get("extender.ignorable") is True for plugin in ours):  # Volcano takes the text "true" for false
        wanted = "`extender.ignorable: true`, without quotes"
        yield Finding("missing", f"Volcano would stop starting jobs when we are away: give our extender {wanted}.")
        return
    yield Finding("well", "Volcano's scheduler asks our extender.")
    if any(plugin.get("extender.prioritizeVerb") for plugin in ours):
        why = "it sends all nodes with their pods for each pod that is placed, and we no longer answer"
        yield Finding("warning", f"Take `extender.prioritizeVerb` out of Volcano's scheduler configuration: {why}.")
    if not any(_asks_for_each_pod(text) for text in (found.get("data") or {}).values()):
        wanted = "`predicateErrorCacheEnable: false` for its action `allocate` (manifests/volcano)"
        yield Finding("warning", f"Jobs of several pods can start on one node only: give Volcano's scheduler {wanted}.")


def _asks_for_each_pod(text: str) -> bool:
    """True if a node that is closed to one pod of a task may still be open to another one."""
    import yaml

    try:
        actions = (yaml.safe_load(text) or {}).get("configurations") or []
        arguments = [each.get("arguments") or {} for each in actions if each.get("name") == "allocate"]
        return any(each.get("predicateErrorCacheEnable") is False for each in arguments)
    except (yaml.YAMLError, AttributeError, TypeError):
        return False


def _extenders(text: str) -> list[Doc]:
    """The arguments of each `extender` that is ours in a scheduler configuration."""
    import yaml

    try:
        tiers = (yaml.safe_load(text) or {}).get("tiers") or []
        plugins = [plugin for tier in tiers for plugin in tier.get("plugins") or []]
        arguments = [p.get("arguments") or {} for p in plugins if p.get("name") == "extender"]
    except (yaml.YAMLError, AttributeError, TypeError):
        return []
    return [a for a in arguments if "reshape-coordinator" in str(a.get("extender.urlPrefix"))]


def _secrets(api: DoctorApi, now: float) -> Iterator[Finding]:
    for name in (KEYS, AGENT, STORE, TLS):
        try:
            content = read(api, name)
        except Fatal:
            yield Finding("unknown", f"Secret {name}: this account may not look.")
            continue
        if content is None:
            what = "name your MongoDB in it" if name == STORE else "see the log of Job reshape-setup"
            yield Finding("missing", f"Secret {name} is not there: {what}.")
        elif name == TLS:
            yield from _certificate(content, now)
        else:
            yield Finding("well", f"Secret {name} is there.")


def _certificate(content: dict[str, str], now: float) -> Iterator[Finding]:
    left = certificates.days_left(content.get("tls.crt", ""), now)
    if left is None or left <= 0:
        yield Finding("missing", "The webhook's certificate cannot be used: apply the manifests again.")
    elif left < WARN_DAYS:
        yield Finding("warning", f"The webhook's certificate ends in {left:.0f} days: apply the manifests again.")
    else:
        yield Finding("well", f"The webhook's certificate is good for {left:.0f} days.")


def _parts(api: DoctorApi) -> Iterator[Finding]:
    for name, means in (("reshape-coordinator", "one acts, so its store works"), ("reshape-launcher", "it is ready")):
        found = api.get("Deployment", name, NAMESPACE)
        if found is None:
            yield Finding("missing", f"Deployment {name} is not there: kubectl apply -k manifests/.")
        elif not (ready := (found.get("status") or {}).get("readyReplicas")):
            yield Finding("missing", f"Deployment {name} has no pod that is ready: {_hint(name)}.")
        elif name == "reshape-launcher" and ready < (wanted := found["spec"].get("replicas", 1)):
            yield Finding("warning", f"Only {ready} of {wanted} pods of Deployment {name} are ready: {_hint(name)}.")
        else:
            yield Finding("well", f"Deployment {name}: {means}.")
    yield from _agents(api)


def _hint(name: str) -> str:
    return f"kubectl -n {NAMESPACE} get pods; kubectl -n {NAMESPACE} logs deploy/{name}"


def _agents(api: DoctorApi) -> Iterator[Finding]:
    found = api.get("DaemonSet", "reshape-agent", NAMESPACE)
    status = (found or {}).get("status") or {}
    ready, wanted = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    if found is None:
        yield Finding("missing", "DaemonSet reshape-agent is not there: kubectl apply -k manifests/.")
    elif not wanted:
        yield Finding("missing", "No node runs an agent: no GPU will be known.")
    elif ready < wanted:
        yield Finding("missing", f"Only {ready} of {wanted} agents are ready: kubectl -n {NAMESPACE} get pods -o wide.")
    else:
        yield Finding("well", f"{ready} nodes run an agent.")
    if found is not None:
        yield from _nodes_without_agent(api)


def _nodes_without_agent(api: DoctorApi) -> Iterator[Finding]:
    """A DaemonSet counts only the nodes that it was let on: those with a taint are missed without a word."""
    watched = {(pod.get("spec") or {}).get("nodeName") for pod in api.list("Pod", NAMESPACE, labels=AGENT_PODS).items}
    missed = sorted(
        name for node in api.list("Node").items if _has_gpus(node) and (name := node["metadata"]["name"]) not in watched
    )
    if missed:
        some = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
        hint = "give DaemonSet reshape-agent a toleration for their taints, and nodes its node selector asks for"
        yield Finding("missing", f"No agent runs on {some}, so that GPUs there are not used: {hint}.")


def _has_gpus(node: Doc) -> bool:
    capacity = (node.get("status") or {}).get("capacity") or {}
    labels = node["metadata"].get("labels") or {}
    counted = any(GPU_COUNTS.fullmatch(name) and str(count) != "0" for name, count in capacity.items())
    return counted or any(labels.get(name) == "true" for name in GPU_LABELS)


def _extender(api: DoctorApi) -> Iterator[Finding]:
    """Ask as Volcano's scheduler does, in the shape of each version: a job that is to be reshaped must wait."""
    wrong = []
    for versions, group in (("1.10 to 1.13", POD_GROUP), ("1.14 and newer", {"metadata": POD_GROUP})):
        asked = {"job": {"Namespace": "default", "Queue": "reshape-doctor", "PodGroup": group}}
        try:
            said = json.loads(api.through_service(NAMESPACE, COORDINATOR, "/v1/extender/jobEnqueueable", asked))
        except (ReshapeError, ValueError) as error:
            yield Finding("unknown", f"Whether waiting jobs are held back cannot be seen from here: {_plain(error)}.")
            return
        if said != {"status": -1}:
            wrong.append(versions)
    if wrong:
        versions = " or ".join(wrong)
        hint = f"where Volcano is {versions}, jobs start before they are decided. Install a newer volcano-reshape"
        yield Finding("missing", f"The coordinator does not hold waiting jobs back: {hint}.")
    else:
        yield Finding("well", "Jobs that wait are held back, asked as Volcano 1.10 to 1.13 and as 1.14 and newer ask.")


# Of a Volcano Job that nobody has made, which asks to be reshaped.
POD_GROUP: Doc = {
    "name": "reshape-doctor",
    "annotations": {"volcano-reshape.io/gpus": "1"},
    "ownerReferences": [
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "reshape-doctor", "uid": "reshape-doctor"}
    ],
}


def _gpus(api: DoctorApi) -> Iterator[Finding]:
    try:
        text = api.through_service(NAMESPACE, COORDINATOR, "/metrics").decode()
    except ReshapeError as error:  # a network policy may keep the API server out, which harms no other part
        yield Finding("unknown", f"How many GPUs are known cannot be seen from here: {_plain(error)}.")
        return
    for table, number in re.findall(r'(?m)^reshape_misfit_rows\{table="(\w+)"\} (\S+)$', text):
        if float(number):
            hint = f"reshape {table} names the fields" + (", reshape job ID those of one" if table == "jobs" else "")
            yield Finding("warning", f"{float(number):.0f} rows of table {table} hold what makes no sense: {hint}.")
    gpus = sum(float(n) for n in re.findall(r"(?m)^reshape_gpus\{[^}]*\} (\S+)$", text))
    if gpus:
        yield Finding("well", f"{gpus:.0f} GPUs are known.")
    else:
        hint = "Look at the agents' logs, or give nodes emulated ones (ConfigMap reshape-emulated-gpus)."
        yield Finding("missing", f"No GPU is known. {hint}")


def _webhook(api: DoctorApi) -> Iterator[Finding]:
    found = api.get("MutatingWebhookConfiguration", WEBHOOK)
    if found is None:
        yield Finding("missing", f"MutatingWebhookConfiguration {WEBHOOK} is not there: kubectl apply -k manifests/.")
        return
    bundles = {hook["clientConfig"].get("caBundle") or "" for hook in found["webhooks"]}
    try:
        authority = (read(api, TLS) or {}).get("ca.crt", "")
    except Fatal:
        authority = ""
    if "" in bundles or not all(authority in base64.b64decode(bundle).decode() for bundle in bundles):
        yield Finding("missing", f"Webhook {WEBHOOK} trusts no certificate of ours: see the log of Job reshape-setup.")
    else:
        yield Finding("well", f"Webhook {WEBHOOK} trusts our certificate.")


def _rehearsal(api: DoctorApi) -> Iterator[Finding]:
    """Check by a dry run that a pod gets its sidecar: this tests API server, certificate and launcher."""
    owner = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "name": "reshape-doctor",
        "uid": "reshape-doctor",
    }
    about = {
        "name": "reshape-doctor",
        "namespace": "default",
        "labels": {INJECT: "true", "volcano.sh/job-name": "reshape-doctor"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    container = {"name": "trainer", "image": "nothing", "command": ["true"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
    try:
        made = api.rehearse(pod)
    except ReshapeError as error:
        yield Finding("missing", f"A pod that asks for a sidecar would be refused: {_plain(error)}.")
        return
    inits = [container["name"] for container in made["spec"].get("initContainers") or ()]
    if "reshape-sidecar" in inits:
        yield Finding("well", "A pod that asks for a sidecar gets it.")
    else:
        yield Finding("missing", "A pod that asks for a sidecar gets none: is the webhook there?")


def _queues(api: DoctorApi) -> Iterator[Finding]:
    queues = api.list("Queue", labels=f"{INJECT}=true").items
    if not queues:
        yield Finding("warning", f"No queue has the label {INJECT}=true: only jobs with the label are reshaped.")
        return
    names = ", ".join(sorted(queue["metadata"]["name"] for queue in queues))
    yield Finding("well", f"Jobs are reshaped in: {names}.")
    modes = [(queue["metadata"].get("annotations") or {}).get(DEVICES, "shared") for queue in queues]
    if "shared" in modes:
        yield from _device_plugin(api)


def _device_plugin(api: DoctorApi) -> Iterator[Finding]:
    nodes = api.list("Node").items
    allocatable = [(n["metadata"]["name"], (n.get("status") or {}).get("allocatable") or {}) for n in nodes]
    both = sorted(name for name, has in allocatable if str(has.get("nvidia.com/gpu", "0")) != "0")
    if both:
        hint = "keep other GPU pods off these nodes, or choose the mode `recreate`"
        yield Finding(
            "warning", f"Nodes {', '.join(both)} hand out nvidia.com/gpu beside queues in shared mode: {hint}."
        )


def _network(api: DoctorApi) -> Iterator[Finding]:
    yield Finding("unknown", "Whether this cluster enforces NetworkPolicies cannot be asked: its network plug-in must.")


def _plain(error: Exception) -> str:
    return str(error).rstrip(".")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])
