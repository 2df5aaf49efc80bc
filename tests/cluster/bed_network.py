"""The test bed's network: a `control` namespace with the bridge, one namespace per node, and no route out of any.

The host has one link into the bridge (10.99.0.254), so that tests and kubectl reach the API server, pods and
ClusterIPs; nothing forwards between the bed and the host's own network. Called by bed.py and bed_nodes.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.bed_processes import BedError, end, run

CONTROL = "reshape-control"
CONTROL_IP = "10.99.0.1"
HOST_IP = "10.99.0.254"
HOST_LINK = "reshape-host"
NODES = {"node-a": 1, "node-b": 2}
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"


def namespace(node: str) -> str:
    return f"reshape-{node}"


def node_ip(node: str) -> str:
    return f"10.99.0.{10 + NODES[node]}"


def pod_range(node: str) -> str:
    return f"10.244.{NODES[node]}.0/24"


def inside(name: str, command: list[str], resolver: Path | None = None) -> list[str]:
    """The command, to be run in that network namespace; with a resolv.conf of its own where one is given.

    Not `ip netns exec`: that mounts /sys anew and hides the cgroups from the kubelet.
    """
    entered = ["nsenter", f"--net=/run/netns/{name}"]
    if resolver is None:
        return [*entered, *command]
    mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    return [*entered, "unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(resolver), *command]


def set_up() -> None:
    """Bridge in `control`, a link from it to each node and to the host."""
    ip("netns add", CONTROL)
    _in(CONTROL, "link set lo up")
    _in(CONTROL, "link add reshape0 type bridge")
    _in(CONTROL, f"addr add {CONTROL_IP}/24 dev reshape0")
    _in(CONTROL, "link set reshape0 up")
    _forward(CONTROL)
    _bridge_past_the_rules(CONTROL)
    _link_host()
    for node in NODES:
        _link_node(node)
        _in(CONTROL, f"route add {pod_range(node)} via {node_ip(node)}")
        ip("route add", pod_range(node), "via", node_ip(node))
    _in(CONTROL, f"route add {SERVICES} dev reshape0")  # likewise: what has no route is never looked at by its rules
    ip("route add", SERVICES, "via", CONTROL_IP)


def _link_host() -> None:
    ip("link add", HOST_LINK, "type veth peer name to-host netns", CONTROL)
    _in(CONTROL, "link set to-host master reshape0 up")
    ip("addr add", f"{HOST_IP}/24 dev", HOST_LINK)
    ip("link set", HOST_LINK, "up")


def _link_node(node: str) -> None:
    name = namespace(node)
    ip("netns add", name)
    _in(CONTROL, f"link add to-{node} type veth peer name eth0 netns {name}")
    _in(CONTROL, f"link set to-{node} master reshape0 up")
    _in(name, f"addr add {node_ip(node)}/24 dev eth0")
    _in(name, "link set eth0 up")
    _in(name, "link set lo up")
    for other in NODES:
        if other != node:
            _in(name, f"route add {pod_range(other)} via {node_ip(other)}")
    _in(name, f"route add {SERVICES} via {CONTROL_IP}")  # kube-proxy rewrites them before they would go there
    _forward(name)


def _forward(name: str) -> None:
    run(inside(name, ["sysctl", "-qw", "net.ipv4.ip_forward=1"]))


def _bridge_past_the_rules(name: str) -> None:
    """Frames between nodes are not for the rules of `control`; a kernel without the switch does so anyway."""
    switch = "net.bridge.bridge-nf-call-iptables"
    if Path("/proc/sys/net/bridge").exists():
        run(inside(name, ["sysctl", "-qw", f"{switch}=0"]))


def cut(node: str) -> None:
    """Take the node's link down: it and its pods reach nothing but themselves."""
    _in(CONTROL, f"link set to-{node} down")


def mend(node: str) -> None:
    _in(CONTROL, f"link set to-{node} up")


def tear_down() -> None:
    """End what still runs in our namespaces, then remove them; the links go with them."""
    for name in [*map(namespace, NODES), CONTROL]:
        if Path(f"/run/netns/{name}").exists():
            end(map(int, run(["ip", "netns", "pids", name]).split()), kill=True)
            ip("netns del", name)
    try:
        ip("link del", HOST_LINK)
    except BedError:
        pass  # it went with its other end, or never was


def ip(*words: str) -> str:
    return run(["ip", *" ".join(words).split()])


def _in(name: str, words: str) -> str:
    return ip("-n", name, words)
