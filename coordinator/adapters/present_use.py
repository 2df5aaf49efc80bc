"""Asks a Prometheus what nodes and the pods of jobs use at present, in a fixed number of queries however many they are.

Metric names are those of cAdvisor in each kubelet and of the node exporter. Rates are means over `MEASURED_S`, in which
at least two samples must lie. A node is known by the label `node` of cAdvisor's series, or by `nodename` of the node
exporter. Called by `prometheus.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from coordinator.ports import MEASURED_S, MeasuredNow
from coordinator.telemetry.usage import Series
from sidecar.protocol import Usage

Ask = Callable[[str], Sequence[Series]]
Pod = tuple[str, str]  # namespace, name

CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
# Counters of bytes, both ways.
DISK = "container_fs_reads_bytes_total", "container_fs_writes_bytes_total"
NETWORK = "container_network_receive_bytes_total", "container_network_transmit_bytes_total"
RANGE = f"[{MEASURED_S:.0f}s]"
BY_POD, BY_CONTAINER = "sum by (namespace, pod)", "sum by (namespace, pod, container)"
OWN = "reshape-"  # prefix of the names of our own containers beside a training
NODE_EXPORTER = (
    'max by (node) (label_replace(({}) * on (job, instance) group_left (nodename) node_uname_info, "node", "$1", '
    '"nodename", "(.*)"))'
)
NODE_CPU = (
    f'max by (node) (sum by (node, instance) (rate({CPU}{{id="/",node!=""}}{RANGE}))) or '
    + NODE_EXPORTER.format(f'sum by (job, instance) (rate(node_cpu_seconds_total{{mode!~"idle|iowait"}}{RANGE}))')
)
NODE_MEMORY = f'max by (node) ({MEMORY}{{id="/",node!=""}}) or ' + NODE_EXPORTER.format(
    "node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes"
)


class LaunchedPod(NamedTuple):
    """A pod of a job's launch, and where it is."""

    uid: str  # of the job
    launch: int
    namespace: str
    name: str
    node: str

    @property
    def pod(self) -> Pod:
        return self.namespace, self.name


class _Used(NamedTuple):
    """Of one pod: by its training, and by all of its containers."""

    training: float
    whole: float


def measured_now(ask: Ask, pods: Sequence[LaunchedPod]) -> MeasuredNow:
    """Return the use of nodes by what is none of `pods`, and of each launch of which all pods are known."""
    where = _where(pods)
    cpu = _by_container(ask, f"rate({CPU}{where}{RANGE})") if pods else {}
    memory = _by_container(ask, f"{MEMORY}{where}") if pods else {}
    disk = _moved(ask, BY_CONTAINER, DISK, where) if cpu else {}
    devices = where[:-1] + ',interface!="lo"}'
    traffic = _moved(ask, BY_POD, NETWORK, devices) if cpu else {}
    launches: dict[tuple[str, int], list[Pod]] = {}
    for each in pods:
        launches.setdefault((each.uid, each.launch), []).append(each.pod)
    jobs = {}
    for launch, members in launches.items():
        cores, held = _sum(cpu, members), _sum(memory, members)
        if cores is not None:
            jobs[launch] = Usage(
                cores, None if held is None else int(held), _sum(disk, members), _sum(traffic, members)
            )
    return MeasuredNow(_others(ask, pods, cpu, memory), jobs)


def _others(
    ask: Ask, pods: Sequence[LaunchedPod], cpu: Mapping[Pod, _Used], memory: Mapping[Pod, _Used]
) -> dict[str, tuple[float, float]]:
    """Cores and bytes that are used on each node by what is none of our pods."""
    cores, held = (_by_node(ask(query)) for query in (NODE_CPU, NODE_MEMORY))
    for each in pods:
        for whole, of in ((cores, cpu), (held, memory)):
            if each.node in whole and each.pod in of:
                whole[each.node] -= of[each.pod].whole
    return {node: (max(0.0, cores[node]), max(0.0, held[node])) for node in cores.keys() & held.keys()}


def _where(pods: Sequence[LaunchedPod]) -> str:
    """Choose the series of pods of our namespaces; the container POD only holds the others together."""
    names = "|".join(sorted({each.namespace for each in pods}))  # a namespace's name has no character to escape
    return f'{{namespace=~"{names}",pod!="",container!="POD"}}'


def _by_container(ask: Ask, rate: str) -> dict[Pod, _Used]:
    """The value of each pod: of its containers, or of the pod as a whole where they are not told."""
    return _pods(ask(f"{BY_CONTAINER} ({rate})"))


def _moved(ask: Ask, by: str, metrics: Iterable[str], where: str) -> dict[Pod, _Used]:
    """Bytes per second, both ways together."""
    return _pods(ask(" + ".join(f"{by} (rate({metric}{where}{RANGE}))" for metric in metrics)))


def _pods(series: Iterable[Series]) -> dict[Pod, _Used]:
    found: dict[Pod, dict[str, float]] = {}
    for each in series:
        pod = each.labels.get("namespace", ""), each.labels.get("pod", "")
        if each.samples:
            found.setdefault(pod, {})[each.labels.get("container", "")] = each.samples[-1][1]
    return {pod: _used(values) for pod, values in found.items()}


def _used(values: Mapping[str, float]) -> _Used:
    named = {container: value for container, value in values.items() if container}
    if not named:
        return _Used(values[""], values[""])
    training = math.fsum(value for container, value in named.items() if not container.startswith(OWN))
    return _Used(training, math.fsum(named.values()))


def _by_node(series: Iterable[Series]) -> dict[str, float]:
    return {each.labels.get("node", ""): each.samples[-1][1] for each in series if each.samples}


def _sum(of: Mapping[Pod, _Used], pods: Sequence[Pod]) -> float | None:
    """None unless each of these is known."""
    return math.fsum(of[pod].training for pod in pods) if all(pod in of for pod in pods) else None
