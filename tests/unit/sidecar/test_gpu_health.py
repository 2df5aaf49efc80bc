"""Errors that the driver reports mark a GPU, unless a program made them."""

from __future__ import annotations

import pytest

from sidecar.resources.agent import NvmlInventory
from sidecar.resources.gpu_health import OF_PROGRAMS, XidWatch
from sidecar.resources.gpus import NvmlProbe, list_gpus
from tests.fakes import fake_pynvml
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml


def watching(*gpus: FakeGpu) -> tuple[FakeNvml, XidWatch]:
    """A watch that has looked once."""
    nvml = FakeNvml(list(gpus))
    watch = XidWatch(nvml)
    assert watch.problems() == {}
    return nvml, watch


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 94, 95, 119, 999])
def test_an_error_of_the_hardware_marks_its_gpu_for_good_and_no_other(xid: int) -> None:
    bad, good = FakeGpu("GPU-1"), FakeGpu("GPU-2")
    _, watch = watching(bad, good)
    bad.xids, good.xids = [13, xid, 43], [31]
    (told,) = watch.problems().items()
    assert told[0] == "GPU-1"
    assert f"GPU GPU-1 reported Xid {xid}" in told[1] and "nvidia-smi --gpu-reset -i GPU-1" in told[1]
    assert bad.xids == good.xids == [], "all that has happened was taken at one look"
    assert dict([told]) == watch.problems()


@pytest.mark.parametrize("xid", sorted(OF_PROGRAMS))
def test_an_error_of_a_program_marks_nothing(xid: int) -> None:
    gpu = FakeGpu("GPU-1")
    _, watch = watching(gpu)
    gpu.xids = [xid]
    assert watch.problems() == {} and gpu.xids == []


def test_a_gpu_without_events_and_a_machine_without_driver_are_left_alone() -> None:
    nvml, watch = watching(FakeGpu("GPU-1", has_events=False))
    assert watch.problems() == {} and nvml.sessions == 0
    assert XidWatch(FakeNvml(init_error=fake_pynvml.NVMLError_LibraryNotFound)).problems() == {}


def test_when_the_driver_is_loaded_again_it_watches_again_and_forgets_nothing() -> None:
    bad, other = FakeGpu("GPU-1"), FakeGpu("GPU-2")
    nvml, watch = watching(bad, other)
    bad.xids = [79]
    marked = watch.problems()
    nvml.sessions = 0  # the session is void
    assert watch.problems() == marked
    assert watch.problems() == marked, "a new one was begun"
    other.xids = [48]
    assert set(watch.problems()) == {"GPU-1", "GPU-2"}


def test_the_inventory_of_a_machine_says_so() -> None:
    gpu = FakeGpu("GPU-1")
    nvml = FakeNvml([gpu])
    look = NvmlInventory(lambda: list_gpus(nvml), NvmlProbe(nvml), XidWatch(nvml))
    assert [one.healthy for one in look()] == [True]
    gpu.xids = [95]
    (told,) = look()
    assert not told.healthy and "Xid 95 (memory error that was not contained)" in told.problem
    assert not look()[0].healthy
