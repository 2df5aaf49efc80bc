"""GPUs by NVML and emulated ones."""

from __future__ import annotations

import inspect
import sys

import pytest

from sidecar.protocol import GpuReading, Usage
from sidecar.resources.gpus import DeviceInfo, EmulatedProbe, NvmlProbe, list_gpus, probe_for
from tests.fakes import fake_pynvml
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml

IDLE = Usage()


def test_an_emulated_gpu_is_as_busy_as_its_trainer_keeps_the_cpu() -> None:
    readings = EmulatedProbe(memory=8).read(["a", "b"], Usage(cpu_cores=0.25))
    assert readings == [GpuReading(gpu_id=g, utilisation=0.25, memory_total=8) for g in "ab"]
    assert EmulatedProbe.emulated and not NvmlProbe.emulated


def test_an_emulated_gpu_is_never_busier_than_wholly() -> None:
    assert EmulatedProbe().read(["a"], Usage(cpu_cores=3.5))[0].utilisation == 1.0
    assert EmulatedProbe().read(["a"], IDLE)[0].utilisation is None


def test_a_real_gpu_gives_utilisation_and_memory() -> None:
    nvml = FakeNvml([FakeGpu("GPU-1"), FakeGpu("GPU-2", busy=100, used=5)])
    readings = NvmlProbe(nvml).read(["GPU-2"], IDLE)
    assert readings == [GpuReading(gpu_id="GPU-2", utilisation=1.0, memory_used=5, memory_total=16 << 30)]


def test_only_the_gpus_that_were_given_are_asked() -> None:
    nvml = FakeNvml([FakeGpu("GPU-1"), FakeGpu("GPU-2")])
    NvmlProbe(nvml).read(["GPU-1"], IDLE)
    assert nvml.asked == ["GPU-1"]
    untouched = FakeNvml([FakeGpu("GPU-1")])
    assert NvmlProbe(untouched).read([], IDLE) == [] and untouched.sessions == 0


def test_a_gpu_that_does_not_tell_its_utilisation_is_healthy() -> None:
    reading = NvmlProbe(FakeNvml([FakeGpu("GPU-1", has_utilisation=False)])).read(["GPU-1"], IDLE)[0]
    assert reading.healthy and reading.utilisation is None and reading.memory_used == 1 << 30


def test_a_lost_or_unknown_gpu_is_unhealthy_and_the_others_are_not() -> None:
    nvml = FakeNvml([FakeGpu("GPU-1", lost=True), FakeGpu("GPU-2")])
    lost, good, unknown = NvmlProbe(nvml).read(["GPU-1", "GPU-2", "GPU-9"], IDLE)
    assert (lost.healthy, good.healthy, unknown.healthy) == (False, True, False)
    assert lost.problem == "GPU GPU-1 cannot be read: GPU is lost"


def test_a_driver_that_comes_back_is_used_again() -> None:
    nvml = FakeNvml([FakeGpu("GPU-1")], init_error=fake_pynvml.NVMLError_DriverNotLoaded)
    probe = NvmlProbe(nvml)
    down = probe.read(["GPU-1"], IDLE)[0]
    assert not down.healthy and "check the NVIDIA driver" in down.problem
    nvml.init_error = None
    assert probe.read(["GPU-1"], IDLE)[0].healthy
    nvml.sessions = 0  # the driver was reloaded: the old session is void
    assert not probe.read(["GPU-1"], IDLE)[0].healthy
    assert probe.read(["GPU-1"], IDLE)[0].healthy


def test_without_pynvml_a_gpu_is_unhealthy_and_none_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reading = NvmlProbe().read(["GPU-1"], IDLE)[0]
    assert not reading.healthy and "nvidia-ml-py" in reading.problem
    assert list_gpus() == []


def test_the_gpus_of_a_machine_are_listed_but_for_the_broken_ones() -> None:
    nvml = FakeNvml([FakeGpu("GPU-1"), FakeGpu("GPU-2", lost=True), FakeGpu("GPU-3", name="H100", total=80)])
    assert list_gpus(nvml) == [DeviceInfo("GPU-1", "NVIDIA V100", 16 << 30), DeviceInfo("GPU-3", "H100", 80)]
    assert nvml.sessions == 0


def test_a_machine_without_driver_has_no_gpus() -> None:
    assert list_gpus(FakeNvml(init_error=fake_pynvml.NVMLError_LibraryNotFound)) == []


def test_the_fake_has_the_names_of_the_real_pynvml() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra `gpu`)")
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml") and name != "nvmlEventTypeXidCriticalError"]
    assert len(functions) >= 9
    for name in functions:
        mine, theirs = (list(inspect.signature(getattr(m, name)).parameters) for m in (FakeNvml([]), real))
        assert mine == theirs[: len(mine)], name
    assert real.nvmlEventTypeXidCriticalError == FakeNvml.nvmlEventTypeXidCriticalError
    for name in (n for n in vars(FakeNvml) if n.startswith("NVMLError")):
        assert issubclass(getattr(real, name), real.NVMLError), name


@pytest.fixture
def real_gpus() -> list[DeviceInfo]:
    found = list_gpus()
    if not found:
        pytest.skip("this machine has no NVIDIA GPU with a driver")
    return found


def test_the_probe_is_the_one_that_the_launch_names() -> None:
    assert probe_for("emulated", 7).read(["A"], IDLE)[0].memory_total == 7
    assert probe_for("none", None).read(["A"], IDLE) == [] and not probe_for("none", None).emulated
    assert isinstance(probe_for("nvml", None), NvmlProbe)


@pytest.mark.gpu
def test_real_gpus_are_listed_by_uuid_with_their_memory(real_gpus: list[DeviceInfo]) -> None:
    assert all(g.gpu_id.startswith(("GPU-", "MIG-")) and g.gpu_type and g.memory > 1 << 30 for g in real_gpus)


@pytest.mark.gpu
def test_a_real_gpu_is_read_by_its_uuid(real_gpus: list[DeviceInfo]) -> None:
    reading, unknown = NvmlProbe().read([real_gpus[0].gpu_id, "GPU-of-nobody"], IDLE)
    assert reading.healthy and reading.memory_total == real_gpus[0].memory
    assert reading.utilisation is None or 0 <= reading.utilisation <= 1
    assert not unknown.healthy and unknown.problem
