"""The nodes of the test bed: each a real kubelet on its own containerd, with kube-proxy, in its own namespace.

Called by bed.py; tests kill and start a node's kubelet through it. Nothing is pulled: images are imported.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import bed_network as network
from tests.cluster.bed_kubectl import Cluster, until
from tests.cluster.bed_pki import Authority, Tokens
from tests.cluster.bed_processes import BedError, Processes, end, run, start_time

CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = (CGROUPS / "cgroup.controllers").exists()
PAUSE = "reshape.local/pause:1"
KUBELET_FOLDER = Path("/var/lib/kubelet")
POD_LOGS = Path("/var/log/pods")
GPU_PLUGIN = "gpu-plugin"
PARTS = ("kubelet", "containerd", "kube-proxy")


@dataclass
class Node:
    """One node: its folder under `nodes/` holds everything that its programs write."""

    name: str
    run_folder: Path
    binaries: Path
    processes: Processes

    @property
    def folder(self) -> Path:
        return self.run_folder / "nodes" / self.name

    @property
    def kubelet_folder(self) -> Path:
        """Its /var/lib/kubelet."""
        return self.folder / "kubelet"

    @property
    def socket(self) -> Path:
        return self.folder / "c.sock"

    def prepare(self, authority: Authority, tokens: Tokens) -> None:
        """Write its configuration and issue its certificate and tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tokens.kubeconfig(f"kubelet-{self.name}", f"system:node:{self.name}", "system:nodes")
        authority.issue(f"kubelet-{self.name}", [network.node_ip(self.name), self.name])
        proxy = self._pki(f"kube-proxy-{self.name}.kubeconfig")
        tokens.kubeconfig(f"kube-proxy-{self.name}", "system:kube-proxy")
        self._write("cni/10-bed.conflist", json.dumps(_cni(self.name, self.folder / "addresses")))
        self._write("containerd.toml", CONTAINERD.format(folder=self.folder, pause=PAUSE))
        self._write("kubelet.json", json.dumps(self._kubelet_config(authority.certificate)))
        write_proxy_config(self.folder / "kube-proxy.json", self.name, proxy, network.node_ip(self.name))

    def start_runtime(self) -> None:
        for group in cgroups(self.name):
            group.mkdir(exist_ok=True)
        _fill_cgroups(self.name)
        own = {self.kubelet_folder: KUBELET_FOLDER, self.folder / "pod-logs": POD_LOGS}
        for mine, usual in own.items():
            mine.mkdir(exist_ok=True)
            usual.mkdir(parents=True, exist_ok=True)
        # The kubelet's folders of device plugins and of PodResources are constants, and agents mount that of pods' logs
        # where it usually is: each node has its own ones, which containerd and kubelet see alone.
        bind = " && ".join(f"mount --bind {mine} {usual}" for mine, usual in own.items()) + " && exec "
        alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", bind + '"$@"', "sh"]
        self._run("containerd", [*alone, "containerd", "-c", str(self.folder / "containerd.toml")])
        until(
            f"containerd of {self.name}",
            lambda: self.ctr("version"),
            30,
            lambda: self.processes.check(self._part("containerd")),
        )

    def start_kubelet(self) -> None:
        mounts = f"--mount=/proc/{self.processes.pid(self._part('containerd'))}/ns/mnt"
        self._run("kubelet", [
            "nsenter", mounts, str(self.binaries / "kubelet"), f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self._pki(f'kubelet-{self.name}.kubeconfig')}", f"--hostname-override={self.name}",
            f"--node-ip={network.node_ip(self.name)}",
            f"--containerd={self.socket}",  # of cAdvisor, which names no containers if it finds no containerd
            "--housekeeping-interval=5s",  # of cAdvisor: how old its figures may be
        ])  # fmt: skip

    def start_gpu_plugin(self, gpu_ids: list[str]) -> None:
        """Give the node these GPUs by a device plugin, as NVIDIA's does."""
        program = Path(__file__).with_name("fake_gpu_plugin.py")
        folder = self.kubelet_folder / "device-plugins"
        self.processes.start(self._part(GPU_PLUGIN), [sys.executable, str(program), str(folder), *gpu_ids])

    def stop_gpu_plugin(self) -> None:
        self.processes.stop([self._part(GPU_PLUGIN)])

    def start_proxy(self) -> None:
        self._run("kube-proxy", [str(self.binaries / "kube-proxy"), f"--config={self.folder / 'kube-proxy.json'}"])

    def check(self) -> None:
        """BedError with the end of its log when one of the node's programs has ended."""
        for part in PARTS:
            self.processes.check(self._part(part))

    def describe(self, cluster: Cluster) -> str:
        """What the API server and the node's programs say of it: for a node that does not get Ready."""
        found = (cluster.get("node", self.name) or {}).get("status", {}).get("conditions", [])
        said = [f"{each['type']}={each['status']}: {each.get('message')}" for each in found]
        logs = [f"the end of {self._part(part)}.log:\n{self.processes.tail(self._part(part))}" for part in PARTS]
        return "\n".join([*(said or [f"the API server knows nothing of node {self.name}"]), *logs])

    def kill_kubelet(self) -> None:
        """What a lost node looks like to the API server; its containers run on."""
        self.processes.stop([self._part("kubelet")], kill=True)

    def ctr(self, *arguments: str, within_s: float = 300.0) -> str:
        return run(
            ["ctr", "--connect-timeout=2s", "-a", str(self.socket), "-n", "k8s.io", *arguments], within_s=within_s
        )

    def import_image(self, archive: Path) -> None:
        self.ctr("images", "import", str(archive))

    def images(self) -> list[str]:
        return self.ctr("images", "ls", "-q").split()

    def _run(self, part: str, command: list[str]) -> None:
        self.processes.start(self._part(part), network.inside(network.namespace(self.name), command))

    def _part(self, part: str) -> str:
        return f"{part}-{self.name}"

    def _pki(self, file: str) -> Path:
        return self.run_folder / "pki" / file

    def _write(self, file: str, content: str) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def _kubelet_config(self, authority: Path) -> dict[str, object]:
        part = f"kubelet-{self.name}"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self._pki(f"{part}.crt")), "tlsPrivateKeyFile": str(self._pki(f"{part}.key")),
            "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local", "resolvConf": "",
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{network.namespace(self.name)}",
            "containerRuntimeEndpoint": f"unix://{self.socket}", "failSwapOn": False, "failCgroupV1": False,
            "enforceNodeAllocatable": [], "makeIPTablesUtilChains": False, "imageGCHighThresholdPercent": 100,
            # Not a share of the disk: of a large one that others have filled, no pod would start for want of gigabytes.
            "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "100Mi"),
            "nodeLeaseDurationSeconds": 12, "nodeStatusUpdateFrequency": "5s", "serializeImagePulls": False,
            "volumePluginDir": str(self.folder / "volume-plugins"),
        }  # fmt: skip


def write_proxy_config(file: Path, node: str, kubeconfig: Path, address: str) -> None:
    file.write_text(json.dumps({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
        "hostnameOverride": node, "bindAddress": address, "clusterCIDR": network.PODS,
        "clientConnection": {"kubeconfig": str(kubeconfig)}, "iptables": {"minSyncPeriod": "100ms"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }))  # fmt: skip


def cgroups(node: str) -> list[Path]:
    """The node's own folder in every hierarchy (one, where cgroups are unified)."""
    name = network.namespace(node)
    if UNIFIED:
        return [CGROUPS / name]
    return [each / name for each in sorted(CGROUPS.iterdir()) if each.is_dir() and not each.is_symlink()]


def _fill_cgroups(node: str) -> None:
    """A new cpuset is empty (v1), a new group has no controllers (v2): give each what its parent has."""
    name = network.namespace(node)
    if UNIFIED:
        for group in (CGROUPS, CGROUPS / name):
            wanted = (group / "cgroup.controllers").read_text().split()
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in wanted))
        return
    for file in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / name / file).write_text((CGROUPS / "cpuset" / file).read_text())


def patch_gpus(cluster: Cluster, node: str, count: int) -> None:
    """Give the node `nvidia.com/gpu` as a device plugin would; kubelet keeps what it does not know."""
    change = {"status": {"capacity": {"nvidia.com/gpu": str(count)}, "allocatable": {"nvidia.com/gpu": str(count)}}}
    cluster.patch("node", node, change, "default", "--subresource=status")


def tear_down(run_folder: Path, processes: Processes) -> None:
    """End the nodes' programs and containers, then remove mounts and cgroups. Works on what a crash left, too."""
    processes.stop([f"kubelet-{node}" for node in network.NODES])
    _end_containers()
    processes.stop([f"{part}-{node}" for node in network.NODES for part in PARTS])
    _end_shims(run_folder)
    _unmount(run_folder)
    for node in network.NODES:
        for group in cgroups(node):
            _remove_cgroup(group)


def _end_containers() -> None:
    groups = [group for node in network.NODES for group in cgroups(node) if group.exists()]
    files = [file for group in groups for file in group.rglob("cgroup.procs")]
    end({int(pid) for file in files for pid in _read(file).split()}, kill=True)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _end_shims(run_folder: Path) -> None:
    """containerd's shims outlive it: those that serve our sockets, and the sockets that they leave elsewhere."""
    ours = str(run_folder / "nodes").encode()
    shims = []
    for folder in Path("/proc").glob("[0-9]*"):
        words = _read_bytes(folder / "cmdline").split(b"\0")
        if words[0].endswith(b"containerd-shim-runc-v2") and any(word.startswith(ours) for word in words):
            shims.append(int(folder.name))
    end([pid for pid in shims if start_time(pid)], kill=True)
    for file in run_folder.glob("nodes/*/state/io.containerd.runtime.v2.task/k8s.io/*/address"):
        if socket := _read(file).removeprefix("unix://"):
            Path(socket).unlink(missing_ok=True)


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _unmount(run_folder: Path) -> None:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((each for each in points if each.startswith(f"{run_folder}/")), reverse=True):
        run(["umount", "--lazy", point])


def _remove_cgroup(group: Path) -> None:
    """What was killed in it leaves it a moment later."""
    if group.exists():
        until(f"control group {group} is removed", lambda: _removed(group), 10)


def _removed(group: Path) -> bool:
    try:
        for folder in sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True):
            folder.rmdir()
        group.rmdir()
    except OSError as busy:
        inside = {pid for file in group.rglob("cgroup.procs") for pid in _read(file).split()}
        raise BedError(f"{busy}; processes in it: {', '.join(sorted(inside)) or 'none'}") from None
    return True


def _cni(node: str, addresses: Path) -> dict[str, object]:
    ipam = {
        "type": "host-local", "dataDir": str(addresses), "subnet": network.pod_range(node),
        "routes": [{"dst": "0.0.0.0/0"}],
    }  # fmt: skip
    return {"cniVersion": "0.4.0", "name": "bed", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


# restrict_oom_score_adj: in a container without CAP_SYS_RESOURCE no sandbox starts otherwise.
CONTAINERD = """version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
