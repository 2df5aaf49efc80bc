"""What a large cluster costs the launcher: its turns beside thousands of nodes and the pods of others, and its memory.

The real launcher with its real client reads them from an API server of this benchmark's own over HTTP, page by page,
and follows watches. Beside it stands one plain count of the same pods and nodes, which each turn would need that looked
at all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import logging
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.adapters.clock import SystemClock
from coordinator.ports import Store
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import open_store
from launcher.admission.inject import PodSettings
from launcher.cluster.api import KubernetesApi
from launcher.cluster.launch_service import LaunchService
from launcher.cluster.pods.foreign_usage import foreign_requests
from reshape import shipped

Doc = dict[str, Any]

NODES = 5_000
PODS = 100_000
GROUPS = 10_000
TINY = (20, 400, 40)
CHANGES = 100  # pods that end, and as many that begin, in a second
WINDOW_S = 10.0
TINY_WINDOW_S = 1.0
CORES = 0.5  # of each pod; sums are exact
MEMORY = 2**30
WITHIN_S = 600.0
FLOOR = 0.1  # times one plain count
OURS = "volcano-reshape.io/"  # in a selector: there are none of ours


class Size(NamedTuple):
    """Counts what there is in the cluster."""

    nodes: int
    pods: int
    groups: int


class Turns(NamedTuple):
    """Holds what the launcher did in one window, with its watches."""

    each_s: float  # processor seconds of a turn
    busy: float  # processor seconds in a second
    wall_s: float  # seconds of a turn by the clock


def run(options: argparse.Namespace) -> Result:
    size = Size(*TINY) if options.tiny else Size(NODES, PODS, GROUPS)
    window_s = TINY_WINDOW_S if options.tiny else WINDOW_S
    logging.getLogger("launcher").setLevel(logging.CRITICAL)  # its server goes away under its last watches
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as name, serving(size) as port:
        folder = Path(name)
        store = open_store(f"sqlite:///{folder / 'reshape.sqlite'}")
        for number in range(size.nodes):
            store.insert("nodes", {"_id": f"node-{number}", "cores": 64.0, "agent": True, "version": 1})
        before = _memory_kept()
        began = time.monotonic()
        with launching(store, port, folder) as service:
            pods = {number: number % size.nodes for number in range(size.pods)}
            _until_counted(store, pods, size)
            known_s = time.monotonic() - began
            idle = _watched(service, window_s)
            busy = _watched(service, window_s, lambda: _change_pods(port, pods, size))
            _until_counted(store, pods, size)
            kept = _memory_kept() - before
    plain_s = _plain_count(size)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Result(
        name="cluster_size",
        goals="scale",
        title="processor time that a large cluster costs the launcher",
        against="one plain count",
        sizes={"nodes": size.nodes, "pods of others": size.pods, "PodGroups": size.groups},
        rows=[
            Row("a turn in which nothing changed", idle.each_s, plain_s, idle.each_s / plain_s, "s", FLOOR),
            Row(f"a turn while {CHANGES} pods a second end", busy.each_s, plain_s, busy.each_s / plain_s, "s"),
        ],
        tables=[
            Table(
                "Behind them",
                ["", "VALUE"],
                [
                    ["from its start until each node's pods are counted and written", f"{known_s:.1f} s"],
                    ["of one core, while nothing changes", f"{100 * idle.busy:.1f} %"],
                    ["of one core, while pods end and begin", f"{100 * busy.busy:.1f} %"],
                    ["a turn by the clock, while nothing changes", f"{1000 * idle.wall_s:.0f} ms"],
                    ["memory that it keeps", f"{kept / 2**20:.0f} MiB"],
                    ["most memory of the whole process", f"{most / 2**20:.0f} MiB"],
                ],
            )
        ],
    )


@contextmanager
def launching(store: Store, port: int, folder: Path) -> Iterator[LaunchService]:
    """Run the launcher while the block runs."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / "config").write_text(json.dumps(config))
    clock = SystemClock()
    service = LaunchService(
        store,
        KubernetesApi(str(folder / "config")),
        clock,
        Elector(store, clock, 15.0, Holder.of_process(os.getpid()), "launcher"),
        PodSettings("ours:1", "http://127.0.0.1:1"),
        b"a master key",
        (),
        shipped.folder("playbooks"),
        folder,
        60.0,
    )
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _until_counted(store: Store, pods: Mapping[int, int], size: Size) -> None:
    """Wait until each node's document says what its pods request. `WrongAnswer` if it never does."""
    counts = [0] * size.nodes
    for node in pods.values():
        counts[node] += 1
    wanted = {
        f"node-{node}": {"cores": count * CORES, "memory": count * float(MEMORY)} for node, count in enumerate(counts)
    }
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        if {str(doc["_id"]): doc.get("others") for doc in store.list("nodes")} == wanted:
            return
        time.sleep(0.2)
    raise WrongAnswer("what pods of others request was not counted right")


def _watched(service: LaunchService, window_s: float, act: Callable[[], None] = lambda: None) -> Turns:
    """Call `act` once a second for so long; return what turns took meanwhile."""
    first = _turn_times(service)
    began = time.process_time()
    at = time.monotonic()
    end = at + window_s
    while time.monotonic() < end:
        act()
        time.sleep(min(1.0, window_s / 2))
    spent, count = _turn_times(service)
    busy = time.process_time() - began
    if count == first[1]:
        raise WrongAnswer("the launcher took no turn")
    turns = count - first[1]
    return Turns(busy / turns, busy / (time.monotonic() - at), (spent - first[0]) / turns)


def _turn_times(service: LaunchService) -> tuple[float, float]:
    """Return seconds and number of all turns so far."""
    lines = dict(line.rsplit(" ", 1) for line in service.metrics.text().decode().splitlines() if line[:1] != "#")
    return float(lines["reshape_launcher_turn_seconds_sum"]), float(lines["reshape_launcher_turn_seconds_count"])


def _change_pods(port: int, pods: dict[int, int], size: Size) -> None:
    """Let as many pods end and begin, on other nodes."""
    first = min(pods)
    last = max(pods) + 1
    count = min(CHANGES, size.pods // 4)
    for number in range(count):
        del pods[first + number]
        pods[last + number] = (last + number) * 7 % size.nodes
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/change", json.dumps([[first, last], count]))
    connection.getresponse().read()
    connection.close()


def _plain_count(size: Size) -> float:
    """Return the processor seconds of one count over all pods, by node."""
    found = foreign_requests(_make_pod(0, 0))
    if found is None:
        raise WrongAnswer("a pod of others is taken for none")
    table = [(f"node-{number % size.nodes}", found[1]) for number in range(size.pods)]
    began = time.process_time()
    by_node: dict[str, list[Any]] = {}
    for node, asked in table:
        by_node.setdefault(node, []).append(asked)
    sums = {node: tuple(math.fsum(each) for each in zip(*asked, strict=True)) for node, asked in by_node.items()}
    spent = time.process_time() - began
    if len(sums) != min(size.nodes, size.pods):
        raise WrongAnswer("the plain count is wrong")
    return spent


def _memory_kept() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# the API server


class _Cluster:
    """Holds the objects, and the watches of pods. Texts are made when asked for, so that the server stays small."""

    def __init__(self, size: Size) -> None:
        self.lists: dict[str, tuple[int, Callable[[int], Doc]]] = {
            "/api/v1/pods": (size.pods, lambda n: _make_pod(n, n % size.nodes)),
            "/api/v1/nodes": (size.nodes, _make_node),
            "/apis/scheduling.volcano.sh/v1beta1/podgroups": (size.groups, _make_group),
            "/apis/scheduling.volcano.sh/v1beta1/queues": (1, _make_queue),
        }
        self.size = size
        self.version = 1
        self.watches: set[asyncio.Queue[str]] = set()

    def change(self, first: int, last: int, count: int) -> None:
        for number in range(count):
            self._tell_watches("DELETED", _make_pod(first + number, 0))
            self._tell_watches("ADDED", _make_pod(last + number, (last + number) * 7 % self.size.nodes))

    def _tell_watches(self, kind: str, item: Doc) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        for watch in self.watches:
            watch.put_nowait(json.dumps({"type": kind, "object": item}) + "\n")


class _Answer(RequestHandler):
    """Lists, watches and whatever else the launcher asks."""

    def initialize(self, cluster: _Cluster) -> None:
        self._cluster = cluster

    async def get(self) -> None:
        ours = self.get_argument("labelSelector", "").startswith(OURS)
        if self.get_argument("watch", ""):
            await self._watch(self.request.path == "/api/v1/pods" and not ours)
        elif self.request.path.count("/mutatingwebhookconfigurations"):
            self.set_status(404)
            self.finish({"kind": "Status", "code": 404, "message": "not found"})
        else:
            count, make = (0, _make_queue) if ours else self._cluster.lists.get(self.request.path, (0, _make_queue))
            first = int(self.get_argument("continue", "0"))
            last = min(count, first + int(self.get_argument("limit", str(count))))
            about = {"resourceVersion": str(self._cluster.version), "continue": str(last) if last < count else ""}
            self.finish({"metadata": about, "items": [make(number) for number in range(first, last)]})

    async def post(self) -> None:
        if self.request.path == "/change":
            (first, last), count = json.loads(self.request.body)
            self._cluster.change(first, last, count)
        self.set_status(201)
        self.finish(self.request.body if self.request.path != "/change" else b"")

    async def _watch(self, of_pods: bool) -> None:
        events: asyncio.Queue[str] = asyncio.Queue()
        if of_pods:
            self._cluster.watches.add(events)
        end = time.monotonic() + float(self.get_argument("timeoutSeconds"))
        try:
            await self.flush()
            while (left := end - time.monotonic()) > 0:
                try:
                    self.write(await asyncio.wait_for(events.get(), left))
                except TimeoutError:
                    break
                await self.flush()
        except StreamClosedError:
            pass
        finally:
            self._cluster.watches.discard(events)


def _make_pod(number: int, node: int) -> Doc:
    """Return a pod with what most have, some 4 KB as JSON."""
    name = f"web-{number}"
    env = [{"name": f"SETTING_{each}", "value": "a value of some length"} for each in range(12)]
    container = {
        "name": "main",
        "image": "registry.example/team/web:1.0",
        "env": env,
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    fields: Doc = {f'k:{{"name":"SETTING_{each}"}}': {".": {}, "f:name": {}, "f:value": {}} for each in range(12)}
    times = "2026-01-01T00:00:00Z"
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 100}",
            "uid": f"00000000-0000-0000-0000-{number:012d}",
            "labels": {"app": "web", "pod-template-hash": "7d9f8b6c5d"},
            "creationTimestamp": times,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r"}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:spec": fields}}],
        },
        "spec": {
            "nodeName": f"node-{node}",
            "containers": [container],
            "restartPolicy": "Always",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "qosClass": "Burstable",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": times}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {"startedAt": times}}}],
        },
    }


def _make_node(number: int) -> Doc:
    """Return a node as kubelets report it: most of it are its images."""
    images = [{"names": [f"registry.example/image-{each}@sha256:{each:064d}"], "sizeBytes": each} for each in range(50)]
    given = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
    return {
        "metadata": {"name": f"node-{number}", "uid": f"node-uid-{number}", "labels": {"zone": "a"}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}],
            "capacity": given,
            "allocatable": given,
            "images": images,
        },
    }


def _make_group(number: int) -> Doc:
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": f"j-{number}", "uid": f"j-{number}"}
    return {
        "metadata": {"name": f"g-{number}", "namespace": "team", "uid": f"g-{number}", "ownerReferences": [owner]},
        "spec": {"queue": "others", "minMember": 1},
        "status": {"phase": "Running"},
    }


def _make_queue(_: int) -> Doc:
    return {"metadata": {"name": "others", "uid": "q"}, "spec": {"weight": 1}}


def _serve_cluster(size: Size, told: Any) -> None:
    async def forever() -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        routes: list[Any] = [(r"/.*", _Answer, {"cluster": _Cluster(size)})]
        HTTPServer(Application(routes, log_function=lambda _: None)).add_sockets(sockets)
        told.send(sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(forever())


@contextmanager
def serving(size: Size) -> Iterator[int]:
    """Yield the port of such a server in a process of its own, while the block runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_cluster, args=(size, there), daemon=True)
    process.start()
    try:
        if not here.poll(60):
            raise WrongAnswer("the server did not start")
        yield int(here.recv())
    finally:
        process.kill()
        process.join()
