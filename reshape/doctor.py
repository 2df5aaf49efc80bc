"""Runs `reshape doctor` on a cluster: checks it with the user's kubeconfig, and says what is missing.

Promises to change nothing (it reads, and creates one pod as a dry run), to end with 1 if anything is missing, and to
report what it may not read as unknown.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import click

from coordinator.adapters.clock import SystemClock
from coordinator.errors import Fatal, ReshapeError, Transient
from launcher.admission import certificates
from launcher.admission.setup import AGENT, KEYS, NAMESPACE, STORE, TLS, WEBHOOK, read
from launcher.cluster.controllers.volcano_queue import share_of
from launcher.volcano_conf import asks_before_start
from launcher.volcano_connection import scheduler_conf
from reshape import version_skew
from reshape.doctor_seats import judge_seats

Doc = dict[str, Any]
Level = Literal["well", "unknown", "warning", "missing"]

VOLCANO = "volcano-system"
KINDS_NEEDED = ("jobs.batch.volcano.sh", "queues.scheduling.volcano.sh", "podgroups.scheduling.volcano.sh")
OLDEST_VOLCANO = (1, 10)
OLDEST_KUBERNETES = (1, 30)
RESIZE = "pods/resize"
COORDINATOR = "reshape-coordinator:8080"
SETUP_LOG = f"see what setup said: kubectl -n {NAMESPACE} logs -l app.kubernetes.io/component=setup"
AGENT_PODS = "app.kubernetes.io/component=agent"
GPU_COUNTS = re.compile(r"(nvidia|amd|intel|habana)\.(com|ai)/(gpu|mig-.*|xe|i915|gaudi)(\.shared)?")  # device plugins'
GPU_LABELS = ("nvidia.com/gpu.present", "amd.com/gpu.present")  # of the operators, also where no plugin runs
INJECT = "volcano-reshape.io/inject"
DEVICES = "volcano-reshape.io/devices"
CALL_FAILED = "failed calling webhook"  # in the API server's words
POD_RESOURCES = "RESHAPE_POD_RESOURCES"  # of agents that read which pod holds which GPU
PLACEHOLDERS = "volcano-reshape.io/placeholder"
SETTINGS = "reshape-settings"
USES_VOLCANO = "RESHAPE_VOLCANO"  # setting, 0 where the launcher leaves Volcano alone
WARN_DAYS = 60
AGAIN_S = 2.0


class DoctorApi(Protocol):
    """The part of `launcher.cluster.api.KubernetesApi` that the checks use."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None: ...

    def create(self, doc: Doc) -> Doc: ...

    def patch(self, kind: str, name: str, changes: Doc, namespace: str | None = None) -> Doc: ...

    def patch_json(self, kind: str, name: str, operations: Sequence[Doc], namespace: str | None = None) -> Doc: ...

    def list(self, kind: str, namespace: str | None = None, labels: str | None = None) -> Any: ...

    def rehearse(self, doc: Doc) -> Doc: ...

    def through_service(self, namespace: str, service: str, path: str, body: Doc | None = None) -> bytes: ...

    def serves(self, part: str) -> bool: ...

    def version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    sentence: str


Check = Callable[[], Iterator[Finding]]


def run(context: str | None, wait_s: float) -> int:
    """Print what was found; the exit code."""
    from launcher.cluster.api import KubernetesApi

    try:
        api = KubernetesApi(context=context)
        api.version()
    except (Fatal, Transient) as error:
        click.echo(f"The cluster cannot be checked: {_plain(error)}.", err=True)
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
    has_volcano = _uses_volcano(api)
    before: list[Check] = [lambda: _volcano(api), lambda: _scheduler(api)] if has_volcano else [_without_volcano]
    checks: list[Check] = [
        lambda: _kubernetes(api),
        *before,
        lambda: _secrets(api, now),
        lambda: _parts(api),
        lambda: _version_findings(api),
        *([lambda: _extender(api)] if has_volcano else []),
        lambda: _gpus(api),
        lambda: _webhook(api),
        lambda: _rehearsal(api, _pod_of_volcano() if has_volcano else _bare_pod()),
        lambda: _queues(api) if has_volcano else _device_protection(api, {"shared"}),
        lambda: _network(api),
    ]
    for check in checks:
        try:
            yield from check()
        except ReshapeError as error:
            yield Finding("unknown", f"One thing could not be checked: {_plain(error)}.")


def _uses_volcano(api: DoctorApi) -> bool:
    """Return whether the launcher that is installed uses Volcano; True where this account may not look."""
    try:
        launcher = api.get("Deployment", "reshape-launcher", NAMESPACE) or {}
        settings = (api.get("ConfigMap", _settings_of(launcher), NAMESPACE) or {}).get("data") or {}
    except ReshapeError:
        return True
    return str(settings.get(USES_VOLCANO, "1")) != "0"


def _without_volcano() -> Iterator[Finding]:
    what = "batch Jobs with one pod, bare pods and records are reshaped, under Kubernetes' own scheduler"
    yield Finding("well", f"volcano-reshape is installed without Volcano ({USES_VOLCANO}=0): {what}.")


def _kubernetes(api: DoctorApi) -> Iterator[Finding]:
    version = api.version()
    if _numbers(version) < OLDEST_KUBERNETES:
        yield Finding("missing", f"Kubernetes {version} is too old: policies about admissions need 1.30.")
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
        hint = "Install Volcano 1.10 or newer, or volcano-reshape without it (docs/how-to/without-volcano.md)"
        yield Finding("missing", f"Volcano is not installed: there is no {absent[0]}. {hint}.")
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
    conf = scheduler_conf(api)
    if conf.text is None:
        yield Finding("unknown", f"There is no {conf}: how Volcano is set is not known.")
        return
    ours = _extenders(conf.text)
    if not ours:
        yield Finding("missing", f"Volcano's scheduler does not ask our extender ({conf}): reshape volcano connect.")
        return
    if not all(plugin.get("extender.ignorable") is True for plugin in ours):  # Volcano takes the text "true" for false
        wanted = "`extender.ignorable: true`, without quotes"
        yield Finding(
            "missing",
            f"Volcano would stop starting jobs when we are away: give our extender {wanted} (reshape volcano connect).",
        )
        return
    if not asks_before_start(conf.text):
        why = "Volcano asks nobody before it starts a job, and jobs of ours take a pod before they are decided"
        yield Finding("missing", f"The `actions` of Volcano's scheduler lack `enqueue` ({conf}): {why}. Add it.")
        return
    yield Finding("well", "Volcano's scheduler asks our extender.")
    if any(plugin.get("extender.prioritizeVerb") for plugin in ours):
        why = "it sends all nodes with their pods for each pod that is placed, and we no longer answer"
        yield Finding(
            "warning",
            f"Take `extender.prioritizeVerb` out of Volcano's configuration (reshape volcano connect): {why}.",
        )
    if not _asks_for_each_pod(conf.text):
        wanted = "`predicateErrorCacheEnable: false` for its action `allocate` (reshape volcano connect)"
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
            what = "name your MongoDB in it" if name == STORE else SETUP_LOG
            yield Finding("missing", f"Secret {name} is not there: {what}.")
        elif name == TLS:
            yield from _certificate(content, now)
        else:
            yield Finding("well", f"Secret {name} is there.")


def _certificate(content: dict[str, str], now: float) -> Iterator[Finding]:
    left = certificates.days_left(content.get("tls.crt", ""), now)
    again = "run `helm upgrade` or `kubectl apply -k` again, or renew it if it is your own"
    if left is None or left <= 0:
        yield Finding("missing", f"The webhook's certificate cannot be used: {again}.")
    elif left < WARN_DAYS:
        yield Finding("warning", f"The webhook's certificate ends in {left:.0f} days: {again}.")
    else:
        yield Finding("well", f"The webhook's certificate is good for {left:.0f} days.")


def _parts(api: DoctorApi) -> Iterator[Finding]:
    for name, means in (("reshape-coordinator", "one acts, so its store works"), ("reshape-launcher", "it is ready")):
        found = api.get("Deployment", name, NAMESPACE)
        if found is None:
            yield Finding("missing", f"Deployment {name} is not there: install volcano-reshape.")
        elif not (ready := (found.get("status") or {}).get("readyReplicas")):
            yield Finding("missing", f"Deployment {name} has no pod that is ready: {_hint(name)}.")
        elif name == "reshape-launcher" and ready < (wanted := found["spec"].get("replicas", 1)):
            yield Finding("warning", f"Only {ready} of {wanted} pods of Deployment {name} are ready: {_hint(name)}.")
        else:
            yield Finding("well", f"Deployment {name}: {means}.")
    yield from _agents(api)


def _version_findings(api: DoctorApi) -> Iterator[Finding]:
    for sentence in version_skew.of_parts(api, NAMESPACE):
        yield Finding("warning", sentence)
    for sentence in version_skew.of_sidecars(api, NAMESPACE):
        yield Finding("well", sentence)


def _hint(name: str) -> str:
    return f"kubectl -n {NAMESPACE} get pods; kubectl -n {NAMESPACE} logs deploy/{name}"


def _agents(api: DoctorApi) -> Iterator[Finding]:
    found = api.get("DaemonSet", "reshape-agent", NAMESPACE)
    status = (found or {}).get("status") or {}
    ready, wanted = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    if found is None:
        yield Finding("missing", "DaemonSet reshape-agent is not there: install volcano-reshape.")
    elif not wanted:
        yield Finding("missing", "No node runs an agent: no GPU will be known.")
    elif ready < wanted:
        yield Finding("missing", f"Only {ready} of {wanted} agents are ready: kubectl -n {NAMESPACE} get pods -o wide.")
    else:
        yield Finding("well", f"{ready} nodes run an agent.")
    if found is not None:
        yield from _nodes_without_agent(api, found)


def _nodes_without_agent(api: DoctorApi, agents: Doc) -> Iterator[Finding]:
    """A DaemonSet counts only the nodes that it was let on: those with a taint are missed without a word."""
    watched = {(pod.get("spec") or {}).get("nodeName") for pod in api.list("Pod", NAMESPACE, labels=AGENT_PODS).items}
    missed = [node for node in api.list("Node").items if node["metadata"]["name"] not in watched]
    pod = ((agents.get("spec") or {}).get("template") or {}).get("spec") or {}
    causes: dict[tuple[bool, str], list[str]] = {}
    for node in missed:
        wanted = _tolerations_needed(node, pod.get("tolerations") or [])
        if not _has_gpus(node) and not wanted:
            continue  # nothing says that it has GPUs, and nothing keeps the agent off
        causes.setdefault((_has_gpus(node), wanted), []).append(node["metadata"]["name"])
    for (has_gpus, wanted), names in sorted(causes.items(), reverse=True):
        some = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        if wanted:
            hint = f"add to `tolerations` of DaemonSet reshape-agent (manifests/base/agent.yaml): {wanted}"
        else:
            hint = "look at the node selector of DaemonSet reshape-agent, and at its pods"
        if has_gpus:
            yield Finding("missing", f"No agent runs on {some}, so that GPUs there are not used: {hint}.")
        else:
            yield Finding("warning", f"A taint keeps the agent off {some}. If there are GPUs, {hint}.")


def _tolerations_needed(node: Doc, tolerations: Sequence[Doc]) -> str:
    """Return the tolerations, as YAML in one line, that a pod with these ones lacks to run there; empty if none."""
    taints = [
        taint for taint in (node.get("spec") or {}).get("taints") or [] if taint.get("effect") != "PreferNoSchedule"
    ]
    lacking = [taint for taint in taints if not _of_kubernetes(taint) and not _is_tolerated(taint, tolerations)]
    shown = []
    for taint in lacking:
        value = f"operator: Equal, value: {taint['value']}" if taint.get("value") else "operator: Exists"
        shown.append(f"- {{key: {taint['key']}, {value}, effect: {taint['effect']}}}")
    return " ".join(shown)


def _of_kubernetes(taint: Doc) -> bool:
    """True for taints of a control plane and of a node's condition: no GPUs are meant to be used there now."""
    return str(taint.get("key")).startswith(("node-role.kubernetes.io/", "node.kubernetes.io/"))


def _is_tolerated(taint: Doc, tolerations: Sequence[Doc]) -> bool:
    for each in tolerations:
        key = each.get("key")
        effect = each.get("effect")
        fits = each.get("operator") == "Exists" or (each.get("value") or "") == (taint.get("value") or "")
        if key in (None, "", taint.get("key")) and effect in (None, "", taint.get("effect")) and fits:
            return True
    return False


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
    for sentence in version_skew.of_command(text):
        yield Finding("warning", sentence)
    for table, number in re.findall(r'(?m)^reshape_misfit_rows\{table="(\w+)"\} (\S+)$', text):
        if float(number):
            hint = f"reshape {table} names the fields" + (", reshape job ID those of one" if table == "jobs" else "")
            yield Finding(
                "warning", f"{float(number):.0f} rows of table {table} hold values that make no sense: {hint}."
            )
    gpus = sum(float(n) for n in re.findall(r"(?m)^reshape_gpus\{[^}]*\} (\S+)$", text))
    if gpus:
        yield Finding("well", f"{gpus:.0f} GPUs are known.")
    else:
        hint = "Look at the agents' logs, or give nodes emulated ones (ConfigMap reshape-emulated-gpus)."
        yield Finding("missing", f"No GPU is known. {hint}")


def _webhook(api: DoctorApi) -> Iterator[Finding]:
    found = api.get("MutatingWebhookConfiguration", WEBHOOK)
    if found is None:
        yield Finding("missing", f"MutatingWebhookConfiguration {WEBHOOK} is not there: install volcano-reshape.")
        return
    bundles = {hook["clientConfig"].get("caBundle") or "" for hook in found["webhooks"]}
    try:
        authority = (read(api, TLS) or {}).get("ca.crt", "")
    except Fatal:
        authority = ""
    if "" in bundles or not all(authority in base64.b64decode(bundle).decode() for bundle in bundles):
        yield Finding("missing", f"Webhook {WEBHOOK} trusts no certificate of ours: {SETUP_LOG}.")
    else:
        yield Finding("well", f"Webhook {WEBHOOK} trusts our certificate.")


def _pod_of_volcano() -> Doc:
    """Return a pod that asks for a sidecar, as Volcano makes it."""
    pod = _bare_pod()
    owner = POD_GROUP["ownerReferences"][0]
    pod["metadata"]["labels"]["volcano.sh/job-name"] = "reshape-doctor"
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return pod


def _bare_pod() -> Doc:
    """Return a pod that asks for a sidecar, as a user makes it."""
    about = {"name": "reshape-doctor", "namespace": "default", "labels": {INJECT: "true"}}
    container = {"name": "trainer", "image": "nothing", "command": ["true"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def _rehearsal(api: DoctorApi, pod: Doc) -> Iterator[Finding]:
    """Check by a dry run that a pod gets its sidecar: this tests API server, certificate and launcher."""
    try:
        made = api.rehearse(pod)
    except ReshapeError as error:
        yield Finding("missing", _webhook_refusal(_plain(error)))
        return
    inits = [container["name"] for container in made["spec"].get("initContainers") or ()]
    if "reshape-sidecar" in inits:
        yield Finding("well", "A pod that asks for a sidecar gets it.")
    else:
        yield Finding("missing", "A pod that asks for a sidecar gets none: is the webhook there?")


def _webhook_refusal(why: str) -> str:
    """Return the sentence about a pod that asks for a sidecar and is refused."""
    if CALL_FAILED not in why:
        return f"A pod that asks for a sidecar would be refused: {why}."
    hint = (
        "see that pods of Deployment reshape-launcher are ready, and that no network policy or firewall keeps the API "
        "server from their port 8443"
    )
    return f"The API server does not reach our webhook, so no pod that asks for a sidecar can be made: {hint} ({why})."


def _queues(api: DoctorApi) -> Iterator[Finding]:
    queues = api.list("Queue", labels=f"{INJECT}=true").items
    if not queues:
        yield Finding("warning", f"No queue has the label {INJECT}=true: only jobs with the label are reshaped.")
        return
    names = ", ".join(sorted(queue["metadata"]["name"] for queue in queues))
    yield Finding("well", f"Jobs are reshaped in: {names}.")
    yield Finding("well", f"{_rights_of(queues)} `shares.yaml` wins where it names a queue; `reshape shares` tells.")
    modes = {(queue["metadata"].get("annotations") or {}).get(DEVICES, "shared") for queue in queues}
    yield from _device_protection(api, modes)


def _device_protection(api: DoctorApi, modes: Set[str]) -> Iterator[Finding]:
    """Say what protects GPUs of queues in these modes."""
    if "shared" in modes:
        yield from _device_plugin(api)
    if "pool" in modes:
        yield from _pool_findings(api)
    if "shared" in modes or "pool" in modes:
        yield from _seat_findings(api)


def _pool_findings(api: DoctorApi) -> Iterator[Finding]:
    """Say what protects GPUs of queues in mode `pool`, and what is missing of it."""
    agents = api.get("DaemonSet", "reshape-agent", NAMESPACE) or {}
    containers = ((agents.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or []
    names = {variable.get("name") for container in containers for variable in container.get("env") or []}
    if POD_RESOURCES not in names:
        hint = "kubectl apply -k manifests/overlays/pool"
        yield Finding("missing", f"Agents do not read which pod holds which GPU, which mode pool needs: {hint}.")
        return
    nodes = [node for node in api.list("Node").items if _allocates_gpus(node)]
    held = api.list("Pod", labels=PLACEHOLDERS).items
    if not nodes:
        yield Finding("missing", "No node hands out nvidia.com/gpu, which mode pool needs: run NVIDIA's device plugin.")
    else:
        sentence = f"{len(held)} pods reserve GPUs on {len(nodes)} nodes with a device plugin: quotas count them."
        yield Finding("well", sentence)
    text = scheduler_conf(api).text or ""
    lacks = [action for action in ("preempt", "reclaim") if action not in text]
    if lacks:
        said = f"Volcano's scheduler does not run the action{'s' * (len(lacks) > 1)} {' and '.join(lacks)}"
        hint = "GPUs go back when somebody waits for them, but no queue takes back more than that"
        yield Finding("warning", f"{said}: {hint}.")


def _seat_findings(api: DoctorApi) -> Iterator[Finding]:
    """Say what keeps the GPUs of pods apart."""
    agents = api.get("DaemonSet", "reshape-agent", NAMESPACE) or {}
    launcher = api.get("Deployment", "reshape-launcher", NAMESPACE) or {}
    settings = (api.get("ConfigMap", _settings_of(launcher), NAMESPACE) or {}).get("data") or {}
    nodes = api.list("Node").items
    for level, sentence in judge_seats(agents, settings, nodes, api.list("RuntimeClass").items):
        yield Finding(level, sentence)


def _settings_of(launcher: Doc) -> str:
    """Return the name of the ConfigMap with settings: kustomize adds a hash to it."""
    containers = ((launcher.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or []
    names = [
        source.get("configMapRef", {}).get("name", "") for one in containers for source in one.get("envFrom") or []
    ]
    return next((str(name) for name in names if name.startswith(SETTINGS)), SETTINGS)


def _allocates_gpus(node: Doc) -> bool:
    has = (node.get("status") or {}).get("allocatable") or {}
    return str(has.get("nvidia.com/gpu", "0")) != "0"


def _rights_of(queues: Sequence[Doc]) -> str:
    """Return what the Queue objects say of GPUs."""
    told = []
    for queue in sorted(queues, key=lambda one: str(one["metadata"]["name"])):
        share = share_of(queue)
        limit = "no limit" if share["limit"] is None else f"at most {share['limit']} GPUs"
        told.append(
            f"{queue['metadata']['name']} (weight {share['weight']}, {share['guaranteed']} guaranteed, {limit})"
        )
    return f"Volcano's Queue objects give rights: {', '.join(told)}."


def _device_plugin(api: DoctorApi) -> Iterator[Finding]:
    nodes = api.list("Node").items
    allocatable = [(n["metadata"]["name"], (n.get("status") or {}).get("allocatable") or {}) for n in nodes]
    both = sorted(name for name, has in allocatable if str(has.get("nvidia.com/gpu", "0")) != "0")
    if both:
        hint = "keep other GPU pods off these nodes, or choose the mode `pool` or `recreate`"
        yield Finding(
            "warning", f"Nodes {', '.join(both)} hand out nvidia.com/gpu beside queues in shared mode: {hint}."
        )


def _network(api: DoctorApi) -> Iterator[Finding]:
    yield Finding("unknown", "Whether this cluster enforces NetworkPolicies cannot be asked: its network plug-in must.")


def _plain(error: Exception) -> str:
    return str(error).rstrip(".")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])
