"""Errors that the driver reports mark a GPU, unless a program made them; so does a driver that hangs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sidecar import service
from sidecar.protocol import GpuReading, ShimStatus
from sidecar.resources.agent import NvmlInventory
from sidecar.resources.gpu_health import OF_PROGRAMS, HangWatch, XidWatch
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


def readings(watch: HangWatch, read_at: float, now: float, monkeypatch: pytest.MonkeyPatch) -> list[GpuReading]:
    """Return what a sidecar tells of its GPU at `now`, if it has read it last at `read_at`."""
    sample = service.Sample(read_at, gpus=(GpuReading(gpu_id="GPU-1"), GpuReading(gpu_id="GPU-2")))
    sidecar = SimpleNamespace(sample=sample, _driver=watch)
    monkeypatch.setattr(service, "boottime", lambda: now)
    return service.Sidecar._readings(sidecar, ShimStatus(gpu_ids=["GPU-1"]))  # type: ignore[arg-type]


def test_a_driver_that_hangs_while_the_sidecar_runs_makes_its_gpus_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = HangWatch(5.0)
    told = [readings(watch, 1.0, now, monkeypatch)[0].healthy for now in (1.0, 6.0, 11.0, 16.0, 21.0)]
    assert told == [True, True, True, True, False]
    (found,) = readings(watch, 1.0, 22.0, monkeypatch)
    assert (found.gpu_id, found.problem) == ("GPU-1", service.SILENT)
    assert readings(watch, 23.0, 24.0, monkeypatch)[0].healthy


@pytest.mark.parametrize("paused_s", [8.0, 20.0, 30_000.0])
def test_a_sidecar_that_was_stopped_or_whose_machine_was_paused_calls_no_gpu_unhealthy(
    paused_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its readings are old because it has not read, not because the driver hangs."""
    watch = HangWatch(5.0)
    assert readings(watch, 1.0, 5.0, monkeypatch)[0].healthy
    after = 5.0 + paused_s
    told = [readings(watch, 1.0, after + later, monkeypatch)[0].healthy for later in (0.0, 0.1, 5.0, 10.0, 15.0, 20.0)]
    assert told == [True, True, True, True, True, False], "if they stay old, it does hang"
