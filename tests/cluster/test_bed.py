"""What the other cluster tests may rely on: the test bed is a cluster like a user's own, and nothing leaves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import bed_network
from tests.cluster.bed import Bed
from tests.cluster.bed_build import CONTROL_PLANE
from tests.cluster.bed_kubectl import Cluster, Object, condition, phase, until
from tests.cluster.bed_processes import BedError, Processes
from tests.cluster.bed_report import Report
from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.images import PAUSE

OUTSIDE = "192.0.2.1:53"  # an address that documentation uses: it answers nobody, and the bed has no way there


def pod(name: str, namespace: str, *arguments: str, node: str = "node-a") -> Object:
    container = {"name": "ask", "image": PAUSE, "imagePullPolicy": "IfNotPresent", "args": list(arguments)}
    spec = {"restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 2, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def job(name: str, namespace: str, *arguments: str, image: str = PAUSE) -> Object:
    made = volcano_job(name, pod_template({"image": image, "args": list(arguments)}))
    made["metadata"]["namespace"] = namespace
    return made


def answer(cluster: Cluster, namespace: str, name: str, *arguments: str, node: str = "node-a") -> tuple[str, str]:
    """How a pod that asks this ended, and what it printed."""
    cluster.apply(pod(name, namespace, *arguments, node=node))
    ended = cluster.wait("pod", name, lambda found: phase("Succeeded")(found) or phase("Failed")(found), namespace)
    return ended["status"]["phase"], cluster.logs(name, namespace)


def test_two_nodes_are_ready(bed: Bed, report: Report) -> None:
    with report.scenario("two nodes are ready") as figures:
        nodes = bed.cluster.list("nodes", None)
        assert {each["metadata"]["name"] for each in nodes if condition(each, "Ready")} == set(bed_network.NODES)
        figures["kubernetes"] = nodes[0]["status"]["nodeInfo"]["kubeletVersion"]
        figures["api_server"] = json.loads(bed.cluster.kubectl("get", "--raw=/version"))["gitVersion"]
        assert str(figures["api_server"]).startswith(f"v{os.environ.get(CONTROL_PLANE) or '1.34'}.")


def test_a_volcano_job_runs_to_its_end(bed: Bed, cluster: Cluster, namespace: str) -> None:
    cluster.apply(job("hello", namespace, "sleep", "0.1"))

    def completed(found: Object) -> bool:  # its controller writes the status some time after the job is there
        return found.get("status", {}).get("state", {}).get("phase") == "Completed"

    ended = cluster.wait("vcjob", "hello", completed, namespace)
    assert ended["status"]["succeeded"] == 1
    assert cluster.list("pods", namespace)[0]["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize("node", bed_network.NODES)
def test_names_of_services_resolve_in_pods(bed: Bed, cluster: Cluster, namespace: str, node: str) -> None:
    ended, said = answer(cluster, namespace, "own", "lookup", "kubernetes.default", node=node)
    assert (ended, said.strip()) == ("Succeeded", "[10.96.0.1]")
    ended, _ = answer(cluster, namespace, "other", "lookup", "example.com", node=node)
    assert ended == "Failed"


def test_a_service_is_reached_from_pods(bed: Bed, cluster: Cluster, namespace: str) -> None:
    ended, said = answer(cluster, namespace, "api", "dial", "kubernetes.default:443", node="node-b")
    assert ended == "Succeeded", said


def test_nothing_outside_is_reached(bed: Bed, cluster: Cluster, namespace: str) -> None:
    ended, said = answer(cluster, namespace, "out", "dial", OUTSIDE)
    assert ended == "Failed"
    assert "unreachable" in said
    for name in (bed_network.CONTROL, *map(bed_network.namespace, bed_network.NODES)):
        assert bed_network.ip("-n", name, "route show default") == ""


def test_rbac_refuses_whom_nobody_gave_a_role(bed: Bed, cluster: Cluster, namespace: str) -> None:
    assert not cluster.may(f"{namespace}:default", "get", "pods", namespace)
    with pytest.raises(BedError, match="forbidden"):
        cluster.kubectl("get", "pods", "-n", namespace, f"--as=system:serviceaccount:{namespace}:default")
    assert cluster.may("volcano-system:volcano-scheduler", "list", "queues.scheduling.volcano.sh")
    assert not cluster.may("volcano-system:volcano-scheduler", "get", "secrets")


def test_volcanos_webhook_refuses_a_changed_template(bed: Bed, cluster: Cluster, namespace: str) -> None:
    cluster.apply(job("fixed", namespace))
    with pytest.raises(BedError, match="job updates may not change fields"):
        cluster.apply(job("fixed", namespace, image="another"))


def test_what_our_service_accounts_ask_is_written_down(bed: Bed, cluster: Cluster) -> None:
    installed = cluster.get("namespace", "reshape-system") is not None
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "reshape-system"}})
    account = {"name": "bed-probe", "namespace": "reshape-system"}
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    token = cluster.kubectl("create", "token", "bed-probe", "-n", "reshape-system").strip()
    with pytest.raises(BedError, match="forbidden"):
        as_itself = {**json.loads(bed.kubeconfig.read_text()), "users": [{"name": "bed", "user": {"token": token}}]}
        run_as(bed, as_itself, "get", "configmaps")
    cluster.delete("serviceaccount", "bed-probe", "reshape-system")
    if not installed:
        cluster.delete("namespace", "reshape-system")
    lines = [json.loads(line) for line in (bed.folder / "audit.log").read_text().splitlines()]
    asked = [each for each in lines if each["user"]["username"] == "system:serviceaccount:reshape-system:bed-probe"]
    assert any(each["verb"] == "list" and each["objectRef"]["resource"] == "configmaps" for each in asked)
    assert {each["user"]["username"].split(":")[2] for each in lines} == {"reshape-system"}


def run_as(bed: Bed, kubeconfig: Object, *arguments: str) -> str:
    file = bed.folder / "probe.kubeconfig"
    file.write_text(json.dumps(kubeconfig))
    try:
        return Cluster(file).kubectl(*arguments)
    finally:
        file.unlink()


def test_a_node_that_is_cut_off_is_missed_and_comes_back(bed: Bed, namespace: str) -> None:
    bed.cut_link("node-b")
    try:
        bed.cluster.wait("node", "node-b", lambda found: not condition(found, "Ready"))
    finally:
        bed.mend("node-b")
    bed.wait_ready()


def test_a_nodes_kubelet_is_killed_and_started_again(bed: Bed, cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("stays", namespace, node="node-b"))
    before = cluster.wait("pod", "stays", phase("Running"), namespace)
    bed.kill_kubelet("node-b")
    bed.start_kubelet("node-b")
    bed.wait_ready()
    after = cluster.wait("pod", "stays", phase("Running"), namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    ask = ("/pause", "dial", "10.96.0.1:443")  # at first the kubelet does not know its pods again
    assert "connected" in until("exec in it", lambda: cluster.exec("stays", *ask, namespace=namespace))


def test_why_a_pod_does_not_start_is_told_for_the_report_of_a_test(bed: Bed, cluster: Cluster, namespace: str) -> None:
    stuck = pod("stuck", namespace)
    stuck["spec"]["containers"][0] |= {"image": "reshape.local/nothing:1", "imagePullPolicy": "Never"}
    cluster.apply(stuck)
    why = f"pod {namespace}/stuck: Pending on node-a: ask ErrImageNeverPull"
    told = until("it cannot start", lambda: said if why in (said := bed.trouble()) else None)
    assert 'Container image "reshape.local/nothing:1" is not present' in told
    assert "node node-a: Ready" in told
    assert re.search(r"disk of .*: [0-9.]+ of [0-9]+ GB free", told)
    assert "of kubelet-node-a:" in told and "of containerd-node-b:" in told


def test_gpus_can_be_pretended(bed: Bed) -> None:
    bed.patch_gpus("node-a", 4)
    node = bed.cluster.wait("node", "node-a", lambda found: found["status"]["allocatable"].get("nvidia.com/gpu") == "4")
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "4"
    bed.patch_gpus("node-a", 0)


def test_a_pid_that_is_another_process_by_now_is_left_alone(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    waiting = subprocess.Popen(["sleep", "60"])
    try:
        record = {"ours": {"pid": str(waiting.pid), "started": "1"}}
        (tmp_path / "processes.json").write_text(json.dumps(record))
        processes.stop(["ours"])
        assert waiting.poll() is None
    finally:
        waiting.kill()
        waiting.wait()


def test_a_recorded_process_is_ended(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    pid = processes.start("ours", ["sleep", "60"])
    processes.stop(["ours"])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
