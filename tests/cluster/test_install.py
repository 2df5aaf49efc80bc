"""Installing, as a user does it: nothing but `kubectl apply`, and `reshape doctor` finds all well."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import yaml

from coordinator.adapters.clock import SystemClock
from launcher.admission import certificates, setup
from tests.cluster.bed_build import ROOT
from tests.cluster.bed_kubectl import Cluster, Object, until
from tests.cluster.bed_report import Report
from tests.cluster.built_images import name_of
from tests.cluster.installed import MANIFESTS, SYSTEM, Installed
from tests.patience import patient

DAY = 86_400
SCHEDULER = ("volcano-scheduler-configmap", "volcano-system")


def doctor(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    return reshape(cluster, "doctor", *options)


def reshape(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = [sys.executable, "-m", "reshape", *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def run_setup(cluster: Cluster) -> str:
    """`reshape setup` once more, as the next `kubectl apply -k` runs it; what it said."""
    cluster.delete("job", "reshape-setup", SYSTEM)
    cluster.apply(MANIFESTS)
    cluster.wait("job", "reshape-setup", lambda job: job.get("status", {}).get("succeeded"), SYSTEM)
    return cluster.kubectl("logs", "job/reshape-setup", "-n", SYSTEM)


def configure(cluster: Cluster, conf: str) -> None:
    """Write Volcano's ConfigMap. The bed's scheduler does not read it, but a user's would, and the doctor does."""
    name, namespace = SCHEDULER
    cluster.patch("configmap", name, {"data": {"volcano-scheduler.conf": conf}}, namespace)


def test_volcano_is_connected_and_disconnected_by_one_entry(installed: Installed) -> None:
    """After `disconnect` the scheduler's configuration is byte for byte Volcano's own."""
    before = installed.bed.volcano.default_conf()
    configure(installed.cluster, before)
    assert "asks our extender" in reshape(installed.cluster, "volcano", "connect").stdout
    after = scheduler_conf(installed.cluster)
    assert "Nothing was changed" in reshape(installed.cluster, "volcano", "connect").stdout
    assert scheduler_conf(installed.cluster) == after
    assert "no longer asks" in reshape(installed.cluster, "volcano", "disconnect").stdout
    assert scheduler_conf(installed.cluster) == before


def scheduler_conf(cluster: Cluster) -> str:
    name, namespace = SCHEDULER
    return str((cluster.get("configmap", name, namespace) or {})["data"]["volcano-scheduler.conf"])


def test_doctor_finds_all_well(installed: Installed, report: Report) -> None:
    configure(installed.cluster, installed.bed.volcano.default_conf())
    assert reshape(installed.cluster, "volcano", "connect").returncode == 0
    with report.scenario("reshape doctor on a fresh installation") as figures:
        ended = doctor(installed.cluster, "--wait", "30")
        figures["well"] = sum(line.startswith("well") for line in ended.stdout.splitlines())
        assert ended.returncode == 0, ended.stdout
        assert ended.stdout.strip().splitlines()[-1] == "All is there."
        assert "A pod that asks for a sidecar gets it." in ended.stdout
        assert "8 GPUs are known." in ended.stdout
        assert "asked as Volcano 1.10 to 1.13 and as 1.14 and newer ask." in ended.stdout


def test_doctor_names_what_is_missing_and_ends_with_1(installed: Installed) -> None:
    configure(installed.cluster, installed.bed.volcano.default_conf())
    ended = doctor(installed.cluster)
    assert ended.returncode == 1
    assert "Volcano's scheduler does not ask our extender" in ended.stdout


def test_one_coordinator_is_ready_and_the_service_reaches_only_that_one(installed: Installed) -> None:
    found = installed.cluster.get("endpoints", "reshape-coordinator", SYSTEM) or {}
    (subset,) = found["subsets"]
    assert (len(subset["addresses"]), len(subset["notReadyAddresses"])) == (1, 1)


@pytest.mark.parametrize("folder", ["manifests", "manifests/overlays/mongodb-external"])
def test_the_api_server_takes_the_shipped_manifests(folder: str, installed: Installed) -> None:
    """With MongoDB's, which cannot run here: validated and admitted, not kept."""
    installed.cluster.delete("job", "reshape-setup", SYSTEM)  # it removes itself after a minute, and cannot be changed
    rendered = yaml.safe_load_all(installed.cluster.kubectl("kustomize", str(ROOT / folder)))
    # nx-27017 stands here under the same name, and whether a Service has an address cannot be changed.
    others = [each for each in rendered if (each["kind"], each["metadata"]["name"]) != ("Service", "reshape-mongodb")]
    installed.cluster.apply(others, "--dry-run=server")


def test_only_agents_hold_no_token_for_the_api_server(installed: Installed) -> None:
    """The coordinator uses its own for reviews of tokens and rights only (`test_rbac.py`)."""
    for component, count in (("coordinator", 1), ("agent", 0)):
        pod = installed.cluster.list("pods", SYSTEM, f"app.kubernetes.io/component={component}")[0]
        mounts = [mount["mountPath"] for each in pod["spec"]["containers"] for mount in each["volumeMounts"]]
        assert len([path for path in mounts if "serviceaccount" in path]) == count


def test_setup_keeps_keys_and_makes_anew_what_was_lost(installed: Installed) -> None:
    before = secret(installed.cluster, setup.KEYS)
    installed.cluster.delete("secret", setup.AGENT, SYSTEM)
    said = run_setup(installed.cluster)
    assert "Secret reshape-keys is there." in said
    assert "Secret reshape-agent: made agent.key." in said
    assert secret(installed.cluster, setup.KEYS) == before
    assert secret(installed.cluster, setup.AGENT) == {"agent.key": before["agent.key"]}


def secret(cluster: Cluster, name: str) -> dict[str, str]:
    found = cluster.get("secret", name, SYSTEM) or {"data": {}}
    return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}


def test_a_certificate_is_renewed_and_no_pod_is_refused_meanwhile(installed: Installed, report: Report) -> None:
    cluster = installed.cluster
    with report.scenario("renew the webhook's certificate") as figures:
        old = near_its_end(cluster)
        serves(cluster, old)
        assert "made a certificate" in run_setup(cluster)
        new = secret(cluster, setup.TLS)["tls.crt"]
        assert new != old
        answers = [gets_a_sidecar(cluster)]  # the launchers may still show the old one
        serves(cluster, new, lambda: answers.append(gets_a_sidecar(cluster)))
        answers.append(gets_a_sidecar(cluster))
        figures["pods"], figures["refused"] = len(answers), answers.count(False)
        assert all(answers)


def near_its_end(cluster: Cluster) -> str:
    """Give the webhook a certificate that ends in 30 days, trusted as the one before it."""
    made = certificates.make(setup.WEBHOOK_NAMES, SystemClock().wall() - (certificates.VALID_DAYS - 30) * DAY)
    both = made.authority + secret(cluster, setup.TLS)["ca.crt"]
    hooks = (cluster.get("mutatingwebhookconfiguration", setup.WEBHOOK) or {})["webhooks"]
    bundle = base64.b64encode(both.encode()).decode()
    change = [{"name": hook["name"], "clientConfig": {"caBundle": bundle}} for hook in hooks]
    cluster.patch("mutatingwebhookconfiguration", setup.WEBHOOK, {"webhooks": change}, "default", "--type=strategic")
    content = {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in content.items()}
    cluster.patch("secret", setup.TLS, {"data": data}, SYSTEM)
    return made.certificate


def serves(cluster: Cluster, certificate: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait until each launcher shows this one."""
    for pod in cluster.list("pods", SYSTEM, "app.kubernetes.io/component=launcher"):
        if alive(pod):
            pod_serves(cluster, pod, certificate, meanwhile)


def pod_serves(cluster: Cluster, pod: Object, certificate: str, meanwhile: Callable[[], None]) -> None:
    """A changed annotation makes the kubelet look at the pod's Secrets now."""
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    cluster.kubectl("annotate", "pod", name, "-n", SYSTEM, "--overwrite", f"looked-at={certificate[-60:-40].strip()!r}")

    def shown() -> bool:
        meanwhile()
        der = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address, 8443), timeout=patient(5)))
        return der == ssl.PEM_cert_to_DER_cert(certificate)

    until("the launcher shows the certificate", shown, 150)


def alive(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"


def gets_a_sidecar(cluster: Cluster) -> bool:
    return "A pod that asks for a sidecar gets it." in doctor(cluster).stdout


def test_the_example_of_the_page_trains_and_is_reshaped_in_its_living_pod(
    installed: Installed, namespace: str, report: Report
) -> None:
    """The fifth command, and what the page does next."""
    cluster, job_id = installed.cluster, f"{namespace}.count"
    example = (ROOT / "examples" / "kubernetes" / "count.yaml").read_text()
    with report.scenario("the example of docs/kubernetes.md") as figures:
        began = time.monotonic()
        bare = example.replace("python:3.11-slim", name_of("base"))
        cluster.apply(bare, "-n", namespace)
        until("it counts", lambda: "step=" in cluster.logs("count-trainer-0", namespace, "trainer"), 90)
        figures["apply_to_first_step_s"] = time.monotonic() - began
        before = cluster.get("pod", "count-trainer-0", namespace) or {}
        gpus = installed.job(job_id)["num_gpus"]
        installed.client.reshape(job_id, 1 if gpus != 1 else 2)
        installed.until_on(job_id, 1 if gpus != 1 else 2)
        after = cluster.get("pod", "count-trainer-0", namespace) or {}
        figures["pod_uid_unchanged"] = before["metadata"]["uid"] == after["metadata"]["uid"]
        figures["restart_count"] = sum(each["restartCount"] for each in after["status"]["containerStatuses"])
        assert figures["pod_uid_unchanged"]
        assert figures["restart_count"] == 0
    cluster.delete("vcjob", "count", namespace)
    installed.end(job_id)
