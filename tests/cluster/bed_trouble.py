"""Says why pods do not run: what nodes, pods, events and the ends of logs tell, in some forty lines.

A test only sees that what it waits for does not come; by the time someone reads its report the cluster is gone. Called
when the bed does not come up and by conftest.py for each test that fails; raises nothing, whatever state all is in.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.bed_kubectl import Cluster, Object
from tests.cluster.bed_processes import BedError

PODS, EVENTS, LINES = 8, 3, 4  # so many at most: of pods, of events of each, of lines of each log
WIDTH = 400  # characters of one line
COMPLAINT = re.compile(r"^[EF]\d{4} |level=(?:error|fatal)")  # of klog and of containerd


def described(cluster: Cluster, disk: Path, logs: Mapping[str, Path]) -> str:
    """`disk`: a folder on the disk that pods need room on. `logs`: of programs that start pods, by name."""
    parts: list[Callable[[], list[str]]] = [
        lambda: [room(disk)],
        lambda: [line for node in cluster.list("nodes", None) for line in _node(node)],
        lambda: _pods(cluster),
        lambda: [line for name, file in logs.items() for line in complaints(name, file)],
    ]
    found: list[str] = []
    for part in parts:
        try:
            found += part()
        except (BedError, OSError, LookupError, TypeError, ValueError) as error:
            found.append(f"(cannot be looked at: {error})")
    return "\n".join(line[:WIDTH] for line in found)


def room(folder: Path) -> str:
    """How much of the disk is free, in GB."""
    has = shutil.disk_usage(folder)
    return f"disk of {folder}: {has.free / 1e9:.1f} of {has.total / 1e9:.0f} GB free"


def _node(node: Object) -> list[str]:
    name, status = node["metadata"]["name"], node.get("status", {})
    conditions = status.get("conditions") or []
    wrong = [each for each in conditions if (each["status"] == "True") != (each["type"] == "Ready")]
    said = [f"node {name}: {each['type']}={each['status']}: {each.get('message')}" for each in wrong]
    taints = [f"{each['key']}:{each['effect']}" for each in node.get("spec", {}).get("taints") or []]
    return [*(said or [f"node {name}: Ready"]), *([f"node {name}: taints {', '.join(taints)}"] if taints else [])]


def _pods(cluster: Cluster) -> list[str]:
    waiting = [pod for pod in cluster.list("pods", None) if not _is_well(pod)]
    events = json.loads(cluster.kubectl("get", "events", "-A", "-o", "json"))["items"] if waiting else []
    lines = [line for pod in waiting[:PODS] for line in _pod(pod, events)]
    more = len(waiting) - PODS
    return [*lines, *([f"and {more} more pods that do not run"] if more > 0 else [])]


def _is_well(pod: Object) -> bool:
    status = pod.get("status", {})
    if status.get("phase") == "Succeeded":
        return True
    return status.get("phase") == "Running" and all(each["ready"] for each in status.get("containerStatuses") or [])


def _pod(pod: Object, events: list[Object]) -> list[str]:
    about, status = pod["metadata"], pod.get("status", {})
    reasons = [status.get("reason"), status.get("message")]
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        for state in each.get("state", {}).values():
            reasons += [f"{each['name']} {state['reason']}: {state.get('message', '')}" if "reason" in state else None]
    where = pod["spec"].get("nodeName", "no node")
    why = "; ".join(reason for reason in reasons if reason)
    first = f"pod {about['namespace']}/{about['name']}: {status.get('phase')} on {where}{': ' if why else ''}{why}"
    own = [each for each in events if each.get("involvedObject", {}).get("uid") == about["uid"]]
    own.sort(key=lambda event: str(event["metadata"]["creationTimestamp"]))
    return [first, *(f"  {each.get('reason')}: {each.get('message')}" for each in own[-EVENTS:])]


def complaints(name: str, file: Path) -> list[str]:
    """The last errors in a program's log; its last lines where it has none."""
    lines = file.read_text(errors="replace").splitlines()
    errors = [line for line in lines if COMPLAINT.search(line)]
    what = "errors" if errors else "lines"
    return [f"last {what} of {name}:", *(f"  {line}" for line in (errors or lines)[-LINES:])]
