"""Queries Prometheus for the resource use of a task's pods and the load of its node (Slaml, D15), and for present use.

Metric names are those of cAdvisor in each kubelet (`/metrics/cadvisor`) and of the node exporter. Series per container
are preferred; series per pod serve where there are no others. Called by `coordinator.telemetry.observation_profiler`.
"""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from coordinator.adapters.present_use import CPU, DISK, MEMORY, NETWORK, LaunchedPod, measured_now
from coordinator.errors import Transient
from coordinator.model.tables import JobRow
from coordinator.ports import Doc, MeasuredNow
from coordinator.telemetry.usage import Series, from_counters, last

TIMEOUT_S = 5.0
ANSWER_MAX = 8 * 1024 * 1024
MOST_S = 6 * 3600.0  # of a longer run the last hours: all its samples would be megabytes
MOVED = {"used_block_io": DISK, "used_network_io": NETWORK}  # by the field that tells how many bytes move in a second
CONTAINERS = 'container!="",container!="POD",container!~"reshape-.*"'  # neither pause nor own containers
WHOLE_POD = 'container="",image=""'


@dataclass(frozen=True)
class TaskRun:
    """The pods of a task, and the time in which they trained."""

    namespace: str
    pods: tuple[str, ...]
    node: str | None  # of the first
    since: float
    until: float


class Prometheus:
    """Thread-safe: one short connection per query."""

    def __init__(
        self, url: str, pods: Callable[[JobRow], Sequence[Doc]], all_pods: Callable[[], Sequence[LaunchedPod]]
    ) -> None:
        """`url`: `http://HOST:PORT`, with a path where it is served under one. `pods`: of a job, as {name, namespace,
        node}. `all_pods`: of all jobs, those that have a node."""
        address = urlsplit(url)
        self._kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = address.hostname or "", address.port
        self._path = f"{address.path.rstrip('/')}/api/v1/query"
        self._pods, self._all_pods = pods, all_pods

    def used(self, doc: JobRow, since: float, until: float) -> Doc:
        """See `ports.Measurements`. After several launches of a job, only the last one's pods count."""
        pods = self._pods(doc)
        if not pods:
            return {}
        names, node = tuple(str(pod["name"]) for pod in pods), pods[0].get("node")
        ran = TaskRun(str(pods[0]["namespace"]), names, None if node is None else str(node), since, until)
        found = self._containers(ran, CONTAINERS) or self._containers(ran, WHOLE_POD)
        found |= self._moved(ran) if found else {}
        load = self._node_load(ran) if ran.node else None
        return found if load is None else {**found, "node_load": load}

    def now(self, at: float) -> MeasuredNow:
        """See `ports.Measurements`."""
        return measured_now(lambda query: self.ask(query, at), self._all_pods())

    def _containers(self, ran: TaskRun, which: str) -> Doc:
        where = _where(ran, which)
        cpu = self.ask(CPU + where, ran.until)
        return from_counters(cpu, self.ask(MEMORY + where, ran.until)) if cpu else {}

    def _moved(self, ran: TaskRun) -> Doc:
        """Mean bytes per second, without what is not measured of its pods."""
        found: Doc = {}
        for field, ways in MOVED.items():
            for which in (CONTAINERS, WHOLE_POD) if field == "used_block_io" else ('interface!="lo"',):
                rates = " + ".join(f"sum(rate({metric}{_where(ran, which)}))" for metric in ways)
                if field not in found and (mean := last(self.ask(rates, ran.until))) is not None:
                    found[field] = mean
        return found

    def _node_load(self, ran: TaskRun) -> float | None:
        """Mean one-minute load of the node, found by its `nodename` or its label."""
        node, load = _quoted(str(ran.node)), f"avg_over_time(node_load1%s[{_span(ran)}])"
        named = f'on(job, instance) group_left node_uname_info{{nodename="{node}"}}'
        labelled = load % f'{{node="{node}"}}'
        return last(self.ask(f"{load % ''} * {named} or {labelled}", ran.until))

    def ask(self, query: str, at: float) -> list[Series]:
        """The series that the query returns at that time, with their samples. `Transient` without a valid answer."""
        body = urlencode({"query": query, "time": f"{at:.3f}", "timeout": f"{TIMEOUT_S:g}s"})
        status, answer = self._post(body)
        try:
            doc: Any = msgspec.json.decode(answer)
            if status == 200 and doc["status"] == "success":
                return [_series(each) for each in doc["data"]["result"]]
        except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
            pass
        said = answer[:200].decode("utf-8", "replace")
        raise Transient(f"Prometheus at {self._host} did not answer a query ({status}): {said}")

    def _post(self, body: str) -> tuple[int, bytes]:
        connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        try:
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_MAX)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Transient(f"Prometheus at {self._host} does not answer: {why}") from None
        finally:
            connection.close()


def _series(given: Any) -> Series:
    """Parse a series of a vector (one sample) or a matrix (many); samples that are not finite are dropped."""
    pairs = given["values"] if "values" in given else [given["value"]]
    samples = [(float(at), float(value)) for at, value in pairs]
    return Series(given["metric"], [each for each in samples if math.isfinite(each[1])])


def _where(ran: TaskRun, which: str) -> str:
    pods = "|".join(sorted(map(_literally, ran.pods)))
    return f'{{namespace="{_quoted(ran.namespace)}",pod=~"{_quoted(pods)}",{which}}}[{_span(ran)}]'


def _span(ran: TaskRun) -> str:
    return f"{min(max(1, math.ceil(ran.until - ran.since)), MOST_S):.0f}s"


def _literally(name: str) -> str:
    """Escape a name for a regular expression that matches only it."""
    return re.sub(r"([^a-zA-Z0-9-])", r"\\\1", name)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
