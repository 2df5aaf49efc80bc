"""Volcano in the test bed: the objects of its own installer file, and its three programs beside the API server.

Called by bed.py. They run as host processes under their own service accounts' names; its webhooks are on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.volcano_conf import with_extender
from tests.cluster import bed_network as network
from tests.cluster.bed_kubectl import Cluster, condition, until
from tests.cluster.bed_pki import Authority, Tokens
from tests.cluster.bed_processes import Processes

NAMESPACE = "volcano-system"
SERVICE = "volcano-admission-service"
ADMISSION_PORT = 8443
PROGRAMS = ("scheduler", "controllers", "admission")
LEFT_OUT = {"Deployment", "Job"}  # its programs run as processes here, its certificate comes from the bed's CA
PERIOD = "250ms"  # between two looks of the scheduler; a pod needs two. By default a second: tests start some 150 pods


@dataclass
class Volcano:
    """Volcano's objects and programs of one run."""

    folder: Path
    binaries: Path
    source: Path
    authority: Authority
    tokens: Tokens
    processes: Processes

    @property
    def conf(self) -> Path:
        """In a folder of its own: the scheduler watches the whole folder, and reads the file again on each change."""
        return self.folder / "volcano" / "volcano-scheduler.conf"

    def prepare(self) -> None:
        for account in PROGRAMS:
            self.tokens.service_account(f"volcano-{account}", NAMESPACE, f"volcano-{account}")
        self.authority.issue("volcano-admission", [f"{SERVICE}.{NAMESPACE}.svc", network.CONTROL_IP])

    def start(self, cluster: Cluster) -> None:
        objects = [each for each in self._installed() if each["kind"] not in LEFT_OUT]
        first = ("Namespace", "CustomResourceDefinition")
        cluster.apply([each for each in objects if each["kind"] in first])
        for each in objects:
            if each["kind"] == "CustomResourceDefinition":
                cluster.wait("crd", each["metadata"]["name"], lambda found: condition(found, "Established"))
        cluster.apply([self._adapted(each) for each in objects if each["kind"] not in first])
        cluster.apply(ADMISSION_ENDPOINT)
        self.set_conf(self.default_conf())
        for program in PROGRAMS:
            self.start_program(program)
        until("Volcano's webhooks", lambda: _admits(cluster), 60, self._alive)

    def remove(self, cluster: Cluster) -> None:
        """Take programs, webhooks and kinds away, with all objects of these; `start` brings them back."""
        for program in PROGRAMS:
            self.stop_program(program)
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "CustomResourceDefinition"):
            for name in self._names(kind):
                cluster.delete(kind, name)

    def _names(self, kind: str) -> list[str]:
        return [str(each["metadata"]["name"]) for each in self._installed() if each["kind"] == kind]

    def start_program(self, name: str) -> None:
        """scheduler, controllers or admission."""
        common = [f"--kubeconfig={self.folder / 'pki' / f'volcano-{name}.kubeconfig'}", "--logtostderr", "-v=3"]
        program, arguments = self._arguments()[name]
        command = [str(self.binaries / "volcano" / program), *common, *arguments]
        resolver = self.folder / "resolv.conf"
        self.processes.start(f"volcano-{name}", network.inside(network.CONTROL, command, resolver))

    def stop_program(self, name: str, *, kill: bool = False) -> None:
        self.processes.stop([f"volcano-{name}"], kill=kill)

    def default_conf(self) -> str:
        """The scheduler's configuration of Volcano's own installer file."""
        wanted = (each for each in self._installed() if each["metadata"]["name"] == "volcano-scheduler-configmap")
        return str(next(wanted)["data"]["volcano-scheduler.conf"])

    def set_conf(self, conf: str) -> None:
        """The scheduler reads it again by itself."""
        self.conf.parent.mkdir(exist_ok=True)
        self.conf.write_text(conf)

    def add_extender(self, url: str, changes: Mapping[str, object] | None = None) -> None:
        """Let the scheduler ask `url`/VERB, by what `reshape volcano connect` makes of Volcano's own configuration."""
        conf = yaml.safe_load(with_extender(self.default_conf()).text)
        (ours,) = (each for tier in conf["tiers"] for each in tier["plugins"] if each["name"] == "extender")
        ours["arguments"] |= {"extender.urlPrefix": url, "extender.httpTimeout": "1s", **(changes or {})}
        self.set_conf(yaml.safe_dump(conf, sort_keys=False))

    def _arguments(self) -> dict[str, tuple[str, list[str]]]:
        pki = self.folder / "pki"
        serving = [
            f"--tls-cert-file={pki / 'volcano-admission.crt'}",
            f"--tls-private-key-file={pki / 'volcano-admission.key'}",
            f"--ca-cert-file={self.authority.certificate}", f"--listen-address={network.CONTROL_IP}",
            f"--port={ADMISSION_PORT}", f"--webhook-namespace={NAMESPACE}", f"--webhook-service-name={SERVICE}",
        ]  # fmt: skip
        quiet = ["--leader-elect=false", "--enable-healthz=false"]
        own = [f"--scheduler-conf={self.conf}", f"--cache-dump-dir={self.folder}", f"--schedule-period={PERIOD}"]
        return {
            "scheduler": ("scheduler", [*quiet, *own]),
            "controllers": ("controller-manager", quiet),
            "admission": ("webhook-manager", serving),
        }

    def _installed(self) -> list[dict[str, Any]]:
        text = (self.source / "installer" / "volcano-development.yaml").read_text()
        return [each for each in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]

    def _adapted(self, each: dict[str, Any]) -> dict[str, Any]:
        """Its admission Service points at a process, not at pods; its webhooks trust the bed's CA from the start."""
        if each["kind"] == "Service":
            each["spec"].pop("selector", None)
        bundle = base64.b64encode(self.authority.certificate.read_bytes()).decode()
        for webhook in each.get("webhooks", []):
            webhook["clientConfig"]["caBundle"] = bundle
        return each

    def _alive(self) -> None:
        for name in PROGRAMS:
            self.processes.check(f"volcano-{name}")


def _admits(cluster: Cluster) -> bool:
    cluster.apply(TRIAL_JOB, "--dry-run=server")
    return True


def volcano_job(name: str, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Volcano Job of one task `trainer` with one replica, for tests."""
    task = {"name": "trainer", "replicas": 1, "template": template}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task], **spec},
    }  # fmt: skip


def pod_template(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """One container, nothing pulled."""
    whole = {"name": "trainer", "imagePullPolicy": "IfNotPresent", **container}
    return {"spec": {"restartPolicy": "Never", "containers": [whole], **spec}}


TRIAL_JOB = json.dumps(volcano_job("trial", pod_template({"image": "none"})))
ADMISSION_ENDPOINT = {
    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
    "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": SERVICE}},
    "endpoints": [{"addresses": [network.CONTROL_IP], "conditions": {"ready": True}}],
    "ports": [{"name": "", "port": ADMISSION_PORT, "protocol": "TCP"}],
}  # fmt: skip
