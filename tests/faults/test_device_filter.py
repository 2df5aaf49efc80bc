"""The kernel lets the processes of a job open its own GPUs only. Device files that the test makes stand for GPUs."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import device_filter
from tests.fakes import gpu_nodes
from tests.fakes.gpu_nodes import MAJOR, MINORS, WHY, needs_device_filter
from tests.fakes.shim_client import ShimProcess, running_shim, trainer
from tests.interpreters import python_of
from tests.patience import eventually


class Training:
    """A shim on two GPUs, whose trainer tries to open both."""

    def __init__(self, shim: ShimProcess, gpus: list[str]) -> None:
        self.shim, self.gpus = shim, gpus

    def start(self, generation: int, *numbers: int) -> None:
        assert self.shim.client.start(generation, [self.gpus[number] for number in numbers])["ok"]

    def stop(self, generation: int) -> None:
        self.shim.client.stop(generation)
        self.shim.client.wait("exited")

    def opens(self, generation: int) -> tuple[str, str]:
        """Return what the trainer of this generation and its child could open last."""

        def lines() -> list[tuple[str, str]]:
            text = self.shim.output.read_text() if self.shim.output.exists() else ""
            return re.findall(rf"^generation={generation} opens=(\S*) of_child=(\S*)$", text, re.M)

        return eventually(lines, f"generation {generation} has tried")[-1]

    def access(self) -> str:
        return str(self.shim.client.status()["gpu_access"])

    def says(self, access: str) -> None:
        eventually(lambda: self.access() == access, access)

    @property
    def group(self) -> Path:
        return Path((self.shim.folder / device_filter.NOTE).read_text().strip())


@contextlib.contextmanager
def training(folder: Path, unfiltered: str = "", minors: tuple[int, ...] = MINORS, **more: Any) -> Iterator[Training]:
    """In a folder with device files `gpu0` and `gpu1`."""
    folder = folder / f"launch-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    nodes = gpu_nodes.made(folder)
    mark = uuid.uuid4().hex[:8]
    gpus = [f"GPU-{mark}-{number}" for number in range(2)]
    given = {"gpu_major": MAJOR, "gpu_minors": dict(zip(gpus, minors, strict=False)), "unfiltered": unfiltered}
    with running_shim(
        folder, trainer("opens_devices", *nodes), gpus="nvml", workdir=str(folder), **given, **more
    ) as shim:
        yield Training(shim, gpus)


@needs_device_filter
def test_a_job_opens_only_the_gpus_that_it_was_given_whatever_its_processes_try(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.start(1, 0)
        assert run.opens(1) == ("gpu0", "gpu0")
        run.says(device_filter.OWN)
        run.stop(2)
        assert device_filter.permitted(str(run.group)) == frozenset(), "what has left the trainer opens none"
        run.start(3, 1)
        assert run.opens(3) == ("gpu1", "gpu1")
        run.stop(4)
        run.start(5, 0, 1)
        assert run.opens(5) == ("gpu0,gpu1", "gpu0,gpu1")
        group = run.group
    assert not group.exists()


@needs_device_filter
def test_shim_and_filter_do_so_on_the_oldest_python(tmp_path: Path) -> None:
    with training(tmp_path, python=python_of("3.8")) as run:
        run.start(1, 1)
        assert run.opens(1) == ("gpu1", "gpu1")
        run.says(device_filter.OWN)


@needs_device_filter
def test_a_training_that_leaves_its_group_or_whose_filter_is_taken_away_is_told_of(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.start(1, 0)
        run.says(device_filter.OWN)
        pid = run.shim.client.status()["trainer_pid"]
        (run.group.parent / "cgroup.procs").write_text(str(pid))
        run.says(f"{device_filter.ANY}the training has left its control group")
        assert run.opens(1)[0] == "gpu0,gpu1"
        device_filter.remove_group(str(run.group))
        run.says(f"{device_filter.ANY}somebody else has removed its device filter or changed it")


@needs_device_filter
def test_what_a_killed_shim_leaves_is_removed_with_its_launch(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.start(1, 0)
        run.says(device_filter.OWN)
        group = run.group
        run.shim.process.kill()
        run.shim.process.wait()
        eventually(lambda: not run.shim.left(), "its trainer has ended, too")
        assert group.is_dir()
        eventually(lambda: device_filter.remove_group_of(str(run.shim.folder)), "the group is removed")
        assert not group.exists()
        assert device_filter.remove_group_of(str(run.shim.folder)), "again does no harm"


@pytest.mark.parametrize(
    ("unfiltered", "minors", "why"),
    [
        ("`reshape up` does not run as root", MINORS, "`reshape up` does not run as root"),
        ("", (), "NVML does not say which device file is that of GPU "),
        ("", (0, 100), "the device numbers of its GPUs are too far apart"),
    ],
    ids=["not root", "numbers not known", "numbers too far apart"],
)
def test_where_there_can_be_no_filter_it_trains_as_without_one_and_says_why(
    tmp_path: Path, unfiltered: str, minors: tuple[int, ...], why: str
) -> None:
    with training(tmp_path, unfiltered, minors) as run:
        run.start(1, 0, 1)
        eventually(lambda: run.access().startswith(f"{device_filter.ANY}{why}"), why)
        assert run.opens(1) == ("gpu0,gpu1", "gpu0,gpu1")
        assert not (run.shim.folder / device_filter.NOTE).exists()


def test_a_part_of_a_gpu_cannot_be_told_from_the_others(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.gpus[0] = "MIG-1"
        run.start(1, 0)
        run.says(f"{device_filter.ANY}the parts of a GPU (MIG) share one device file")


def test_the_name_of_a_program_tells_what_it_permits() -> None:
    for minors in ((), (0,), (0, 1, 7), (200, 243), (253,)):
        assert device_filter.minors_in(device_filter.name_of(minors)) == frozenset(minors)
    assert device_filter.minors_in("somebody else's") is None
    assert device_filter.minors_in("rs00zzzzzzzzzzz") is None


def test_this_machine_is_left_as_it_was_by_trying() -> None:
    assert device_filter.unable() == WHY
    if not WHY:
        assert not list(Path(device_filter.own_group()).glob(f"{device_filter.GROUP}try-*"))
