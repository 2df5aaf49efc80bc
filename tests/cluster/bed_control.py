"""The control plane of the test bed: etcd, API server, controllers, scheduler and DNS, in the `control` namespace.

Called by bed.py. RBAC is on, every component signs in as itself, and what our own service accounts ask of the API
server is written to audit.log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import bed_network as network
from tests.cluster.bed_build import BINARIES
from tests.cluster.bed_kubectl import Cluster, Object, until
from tests.cluster.bed_pki import Authority, Tokens
from tests.cluster.bed_processes import Processes

API = f"https://{network.CONTROL_IP}:6443"
ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"
DNS_IP = "10.96.0.10"
OUR_ACCOUNTS = "system:serviceaccounts:reshape-system"
SECONDS_TO_NOT_READY = 12  # a silent node is marked; upstream's 50 s is long for a test
SECONDS_TO_EVICTION = 20  # and its pods are then evicted; upstream: 300 s


@dataclass
class Control:
    """Folder, programs, certificates and processes of one control plane."""

    folder: Path
    binaries: Path
    authority: Authority
    tokens: Tokens
    processes: Processes

    def start(self) -> Cluster:
        """Everything but DNS, which needs the API server's answers first."""
        admin = self.tokens.kubeconfig("admin", "admin", "system:masters")
        manager = self.tokens.kubeconfig("controller-manager", "system:kube-controller-manager")
        scheduler = self.tokens.kubeconfig("scheduler", "system:kube-scheduler")
        keys = self.authority.signing_key("service-accounts")
        self._run("etcd", self.binaries / "server", _etcd(self.folder / "etcd"))
        self._run("kube-apiserver", self.binaries / "kube-apiserver", self._api_server(keys))
        cluster = Cluster(admin, self.binaries)
        until("the API server", lambda: cluster.kubectl("get", "--raw=/readyz") == "ok", 60, self._alive)
        self._run(
            "kube-controller-manager",
            self.binaries / "kube-controller-manager",
            _manager(manager, keys, self.authority.certificate),
        )
        self._run("kube-scheduler", self.binaries / "kube-scheduler", _scheduler(scheduler))
        return cluster

    def start_dns(self, cluster: Cluster, config: Path) -> None:
        """CoreDNS beside the API server, behind the Service `kube-dns` that pods ask; outside names are refused."""
        cluster.apply(DNS_OBJECTS)
        corefile = self.folder / "Corefile"
        corefile.write_text(COREFILE.format(config=config))
        self._run(
            "coredns", BINARIES / "coredns", ["-conf", str(corefile), "-pidfile", str(self.folder / "coredns.pid")]
        )
        (self.folder / "resolv.conf").write_text(
            f"nameserver {network.CONTROL_IP}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"
        )

    def _alive(self) -> None:
        for name in ("etcd", "kube-apiserver"):
            self.processes.check(name)

    def _run(self, name: str, program: Path, arguments: list[str]) -> None:
        self.processes.start(name, network.inside(network.CONTROL, [str(program), *arguments]))

    def _api_server(self, keys: Path) -> list[str]:
        names = [network.CONTROL_IP, "10.96.0.1", "127.0.0.1", "localhost", *SERVICE_NAMES]
        certificate, key = self.authority.issue("apiserver", names)
        user, group = "kube-apiserver", "system:masters"
        kubelet_certificate, kubelet_key = self.authority.issue("apiserver-to-kubelet", [], user=user, group=group)
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        return [
            f"--etcd-servers={ETCD}", "--secure-port=6443", f"--bind-address={network.CONTROL_IP}",
            f"--advertise-address={network.CONTROL_IP}", f"--service-cluster-ip-range={network.SERVICES}",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority.certificate}", f"--token-auth-file={self.tokens.file}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={keys}",
            f"--service-account-signing-key-file={keys}", "--authorization-mode=Node,RBAC", "--anonymous-auth=false",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--enable-aggregator-routing=true", "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={kubelet_certificate}", f"--kubelet-client-key={kubelet_key}",
            f"--default-not-ready-toleration-seconds={SECONDS_TO_EVICTION}",
            f"--default-unreachable-toleration-seconds={SECONDS_TO_EVICTION}",
            f"--audit-policy-file={policy}", f"--audit-log-path={self.folder / 'audit.log'}",
        ]  # fmt: skip


def _etcd(data: Path) -> list[str]:
    return [
        "--data-dir", str(data), "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD,
        "--listen-peer-urls", ETCD_PEER, "--initial-advertise-peer-urls", ETCD_PEER,
        "--initial-cluster", f"default={ETCD_PEER}", "--unsafe-no-fsync",
    ]  # fmt: skip


def _manager(config: Path, keys: Path, authority: Path) -> list[str]:
    return [
        f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        f"--service-account-private-key-file={keys}", f"--root-ca-file={authority}", "--leader-elect=false",
        "--use-service-account-credentials=true", f"--node-monitor-grace-period={SECONDS_TO_NOT_READY}s",
        "--node-monitor-period=2s",
    ]  # fmt: skip


def _scheduler(config: Path) -> list[str]:
    """Kubernetes' own, for all pods that do not name Volcano's: our Deployments and the DaemonSet."""
    identities = [f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}"]
    return [f"--kubeconfig={config}", *identities, "--leader-elect=false"]


SERVICE_NAMES = [
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
]  # fmt: skip

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": [OUR_ACCOUNTS]}, {"level": "None"}],
}  # fmt: skip

COREFILE = """.:53 {{
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {config}
        ttl 5
    }}
}}
"""

_READ = ["list", "watch"]
DNS_OBJECTS: list[Object] = [
    {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_IP, "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]},
    },
    {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "endpoints": [{"addresses": [network.CONTROL_IP], "conditions": {"ready": True}}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "bed:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": _READ},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _READ},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bed:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bed:coredns"},
        "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
    },
]  # fmt: skip
