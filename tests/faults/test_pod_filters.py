"""The filters of a node's pods, in real control groups: device files that the test makes stand for GPUs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import device_filter
from sidecar.device_filter import Unable
from sidecar.protocol import PermitCall
from sidecar.resources.pod_filters import PodFilters, StaleCall
from tests.fakes import gpu_nodes
from tests.fakes.gpu_nodes import MAJOR, MINORS, needs_device_filter

pytestmark = needs_device_filter

TRIES = """
import os, sys
for _ in sys.stdin:
    words = []
    for path in sys.argv[1:]:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
            words.append("open")
        except PermissionError:
            words.append("closed")
        except OSError:  # no device behind it
            words.append("open")
    print(" ".join(words), flush=True)
"""


class Pod:
    """A pod's control group with one container, whose process tries both GPUs when it is asked."""

    def __init__(self, parent: Path, uid: str, files: list[str], name: str = "pod{uid}") -> None:
        self.uid = uid
        self.group = parent / name.format(uid=uid, slice=uid.replace("-", "_"))
        self.container = self.group / "container"
        self.container.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRIES, *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        (self.container / "cgroup.procs").write_text(str(self._process.pid))

    @property
    def opens(self) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        for group in (self.container, self.group):
            device_filter.remove_group(str(group))


class Machine:
    """Control groups as a kubelet makes them, below a group of this test."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root = root
        self.gpus = [f"GPU-{number}" for number in range(len(MINORS))]
        self.asked = 0
        self.filters = PodFilters(root, self._minors)
        self.pods: list[Pod] = []
        self._files = files

    def _minors(self) -> dict[str, int]:
        self.asked += 1
        return dict(zip(self.gpus, MINORS, strict=True))

    def pod(self, where: str = "kubepods/burstable", name: str = "pod{uid}") -> Pod:
        made = Pod(self.root / where, str(uuid.uuid4()), self._files, name)
        self.pods.append(made)
        return made

    def open(self, pod: Pod, generation: int, *numbers: int) -> list[str]:
        gpu_ids = [self.gpus[number] for number in numbers]
        return self.filters.obey(PermitCall(pod=pod.uid, generation=generation, gpu_ids=gpu_ids, opens=True))

    def keep(self, pod: Pod, generation: int, *numbers: int) -> list[str]:
        gpu_ids = [self.gpus[number] for number in numbers]
        return self.filters.obey(PermitCall(pod=pod.uid, generation=generation, gpu_ids=gpu_ids))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(device_filter, "MAJOR", MAJOR)
    root = Path(device_filter.own_group()) / f"{device_filter.GROUP}pods-{uuid.uuid4().hex[:8]}"
    root.mkdir()
    made = Machine(root, gpu_nodes.made(tmp_path))
    try:
        yield made
    finally:
        for pod in made.pods:
            pod.end()
        for folder in sorted((each for each in root.rglob("*") if each.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        device_filter.remove_group(str(root))


def test_a_pod_opens_what_it_was_granted_and_nothing_before(machine: Machine) -> None:
    pod = machine.pod()
    assert pod.opens == "open open", "its container has not been asked for"
    machine.filters.close([pod.uid])
    assert pod.opens == "closed closed"
    assert machine.open(pod, 1, 0) == ["GPU-0"]
    assert pod.opens == "open closed"
    assert machine.open(pod, 2, 0, 1) == ["GPU-0", "GPU-1"]
    assert pod.opens == "open open"
    assert machine.keep(pod, 3, 1) == ["GPU-1"]
    assert pod.opens == "closed open"
    assert machine.keep(pod, 3, 0, 1) == ["GPU-1"], "what is kept is not opened"
    assert machine.keep(pod, 4) == []
    assert pod.opens == "closed closed"


def test_a_container_that_starts_again_changes_nothing(machine: Machine) -> None:
    pod = machine.pod()
    machine.filters.close([pod.uid])
    machine.open(pod, 1, 1)
    machine.filters.close([pod.uid])
    assert pod.opens == "closed open"


def test_a_gpu_is_closed_to_one_pod_before_it_is_opened_to_another(machine: Machine) -> None:
    one = machine.pod()
    other = machine.pod("kubepods/besteffort")
    machine.filters.close([one.uid, other.uid])
    machine.open(one, 5, 0, 1)
    machine.open(other, 1, 1)
    assert (one.opens, other.opens) == ("open closed", "closed open")


def test_an_older_call_is_refused_and_a_new_agent_goes_on_from_the_kernel(machine: Machine) -> None:
    pod = machine.pod()
    machine.filters.close([pod.uid])
    machine.open(pod, 4, 0)
    machine.keep(pod, 5)
    with pytest.raises(StaleCall, match="generation 5"):
        machine.open(pod, 4, 0)
    assert pod.opens == "closed closed"
    machine.open(pod, 6, 1)
    machine.filters = PodFilters(machine.root, machine._minors)
    assert pod.opens == "closed open"
    assert machine.keep(pod, 6, 0, 1) == ["GPU-1"]


def test_groups_of_systemd_are_found(machine: Machine) -> None:
    where = "kubepods.slice/kubepods-burstable.slice"
    name = "kubepods-burstable-pod{slice}.slice"
    pod = machine.pod(where, name)
    machine.filters.close([pod.uid])
    assert pod.opens == "closed closed"
    machine.open(pod, 1, 0)
    assert pod.opens == "open closed"


def test_where_nobody_would_be_held_it_says_so(machine: Machine) -> None:
    pod = machine.pod()
    stranger = str(uuid.uuid4())
    with pytest.raises(Unable, match="no control group"):
        machine.filters.close([stranger])
    gone = PermitCall(pod=stranger, generation=1, gpu_ids=[], opens=False)
    assert machine.filters.obey(gone) == [], "a pod that is gone has nothing open"
    with pytest.raises(Unable, match="on this node"):
        machine.filters.obey(PermitCall(pod=stranger, generation=1, gpu_ids=["GPU-0"], opens=True))
    with pytest.raises(Unable, match="NVML does not say which device file is that of GPU GPU-9"):
        machine.filters.obey(PermitCall(pod=pod.uid, generation=1, gpu_ids=["GPU-9"], opens=True))
    pod.end()
    pod.container.mkdir(parents=True)
    with pytest.raises(Unable, match="processes are not in its control group"):
        machine.filters.close([pod.uid])


def test_what_nvml_told_is_not_asked_again(machine: Machine) -> None:
    pod = machine.pod()
    machine.filters.close([pod.uid])
    for generation in range(1, 4):
        machine.open(pod, generation, 0)
    assert machine.asked == 1
    assert machine.filters.unable() == ""
    assert PodFilters(Path("/proc"), dict).unable() == "no control groups v2 are mounted here"
