"""Keeps the device filters of this node's pods: which GPUs each pod with a seat can open now.

Promises: a pod is closed before its first container with a seat starts, and opened only by a call that names its GPUs;
a GPU is open to one pod at most, since it is closed to every other pod of the node before it is opened to one. What is
open lies in the kernel alone, in programs on the pods' control groups, so a new agent goes on where the last one
ended. They are on the pod's group, as a container runtime replaces what it finds on a container's, and a container
that is restarted gets a new one. Thread-safe. Called by the seat plugin and by the server of calls."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from sidecar import device_filter
from sidecar.device_filter import Unable
from sidecar.protocol import PermitCall

# By the kubelet's drivers: pod0123abcd-…, and kubepods-burstable-pod0123abcd_….slice of systemd.
POD_GROUP = re.compile(r"(?:.*-)?pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?")
NO_PODS = (".service", ".scope", ".mount")  # ends of names of groups below which no pod can be
DEEPEST = 6  # levels below the root at which pods are looked for


class StaleCall(Exception):
    """The call is older than another one that was obeyed."""


class PodFilters:
    """Sets the filters on the control groups of this node's pods."""

    def __init__(self, mount: Path, minors: Callable[[], Mapping[str, int]]) -> None:
        """`mount`: where this machine's control groups are. `minors`: tells device numbers by GPU id, which may take a
        second; asked once, and again about a GPU that it did not tell.
        """
        self._mount = mount
        self._minors = minors
        self._told: Mapping[str, int] = {}
        self._lock = threading.Lock()
        self._obeyed: dict[str, int] = {}  # the highest generation by pod

    def unable(self) -> str:
        """Return why no filter can be set on this node; empty if it can."""
        try:
            device_filter.try_program(str(self._root()))
        except Unable as fault:
            return str(fault)
        except OSError as fault:
            return device_filter.why_refused(fault)
        return ""

    def close(self, uids: Collection[str]) -> None:
        """Close every GPU to these pods, whose container is about to start, if they have no filter yet.

        `Unable` if none of them has a group. What was granted to a pod stays open while a container of it starts again.
        """
        with self._lock:
            groups = [group for uid, group in self._pod_groups() if uid in uids]
            if not groups:
                raise Unable("the pod has no control group of version 2")
            for group in groups:
                _check_processes(group)
                if device_filter.read_permitted(str(group)) is None:
                    device_filter.permit(str(group), device_filter.MAJOR, ())

    def obey(self, call: PermitCall) -> list[str]:
        """Open exactly these GPUs to a pod, or close all others to it; return which are open then.

        `StaleCall` if a newer one was obeyed, `Unable` if it cannot be done. A pod that is gone has none open.
        """
        with self._lock:
            minors = self._minors_of(call.gpu_ids)
            groups = dict(self._pod_groups())
            self._obeyed = {uid: number for uid, number in self._obeyed.items() if uid in groups}
            if call.generation < self._obeyed.get(call.pod, 0):
                raise StaleCall(f"generation {self._obeyed[call.pod]} of pod {call.pod} was obeyed before")
            if call.pod not in groups:
                if call.opens:
                    raise Unable(f"pod {call.pod} has no control group of version 2 on this node")
                return []
            self._obeyed[call.pod] = call.generation
            wanted = self._wanted_minors(call, groups[call.pod], minors)
            if call.opens:
                _check_processes(groups[call.pod])
                _close_to_others(groups, call.pod, wanted)
            device_filter.permit(str(groups[call.pod]), device_filter.MAJOR, wanted)
        return sorted(gpu_id for gpu_id, minor in minors.items() if minor in wanted)

    def _wanted_minors(self, call: PermitCall, group: Path, minors: Mapping[str, int]) -> frozenset[int]:
        if not call.opens:  # it only takes away, and names what stays
            named = {minors[gpu_id] for gpu_id in call.gpu_ids if gpu_id in minors}
            return frozenset(named & (device_filter.read_permitted(str(group)) or frozenset()))
        for gpu_id in call.gpu_ids:
            if gpu_id not in minors:
                raise Unable(f"NVML does not say which device file is that of GPU {gpu_id}")
        return frozenset(minors[gpu_id] for gpu_id in call.gpu_ids)

    def _minors_of(self, gpu_ids: Collection[str]) -> Mapping[str, int]:
        if not self._told.keys() >= set(gpu_ids):
            self._told = dict(self._minors())
        return self._told

    def _root(self) -> Path:
        """Return the root of the hierarchy of version 2, alone or beside those of version 1."""
        for root in (self._mount, self._mount / "unified"):
            if (root / "cgroup.controllers").exists():
                return root
        raise Unable("no control groups v2 are mounted here")

    def _pod_groups(self) -> Iterator[tuple[str, Path]]:
        """Yield uid and group of every pod of this node."""
        root = self._root()
        for folder, names, _ in os.walk(root):
            here = Path(folder)
            deeper: list[str] = []
            for name in names:
                if found := POD_GROUP.fullmatch(name):
                    yield _as_uid(found[1]), here / name
                elif not name.endswith(NO_PODS):
                    deeper.append(name)
            names[:] = deeper if len(here.relative_to(root).parts) < DEEPEST else []


def _as_uid(text: str) -> str:
    return text.replace("_", "-")


def _check_processes(group: Path) -> None:
    """Raise `Unable` where no process is in the group: a filter on it would hold nobody."""
    if not any(file.read_text() for file in group.rglob("cgroup.procs")):
        raise Unable("the pod's processes are not in its control group of version 2")


def _close_to_others(groups: Mapping[str, Path], pod: str, minors: frozenset[int]) -> None:
    for uid, group in groups.items():
        if uid == pod:
            continue
        try:
            known = device_filter.read_permitted(str(group))
        except OSError:
            if not group.exists():  # the pod is gone
                continue
            raise  # it is not known what this pod can open, so nothing is opened to another one
        if known and known & minors:
            device_filter.permit(str(group), device_filter.MAJOR, known - minors)
