"""GPUs by NVML and emulated ones."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from sidecar.protocol import GpuReading, Usage
from sidecar.resources.gpus import MACHINE, SLACK, DeviceInfo, EmulatedProbe, NvmlProbe, list_gpus, probe_for
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


GIB = 1 << 30
OURS, CHILD, STRANGER = 10, 11, 77


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """The kernel's folder of a machine on which two processes of ours have a GPU open, and a third has none."""
    for pid, files in {
        OURS: ["/dev/nvidiactl", "/dev/nvidia0"],
        CHILD: ["/dev/nvidia0"],
        12: ["/dev/nvidiactl"],
    }.items():
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        for number, file in enumerate(files):
            (tmp_path / str(pid) / "fd" / str(number)).symlink_to(file)
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to(MACHINE)
    return tmp_path


def in_a_container(proc: Path) -> None:
    (proc / "self" / "ns" / "pid").unlink()
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532999]")


def shares(gpu: FakeGpu, proc: Path, pids: set[int] | None) -> tuple[int | None, int | None, int | None]:
    """What is read of a GPU: in use, by these processes, by others."""
    reading = NvmlProbe(FakeNvml([gpu]), proc).read([gpu.uuid], IDLE, pids)[0]
    assert reading.healthy
    return reading.memory_used, reading.memory_own, reading.memory_others


@pytest.mark.parametrize("container", [False, True])
def test_what_a_stranger_holds_of_a_gpu_is_not_the_jobs(proc: Path, container: bool) -> None:
    if container:
        in_a_container(proc)
    sizes: dict[int, int | None] = {OURS: 2 * GIB, CHILD: GIB, STRANGER: 23 * GIB}
    gpu = FakeGpu("GPU-1", used=26 * GIB + GIB // 2, total=80 * GIB, pids=list(sizes), sizes=sizes, reserved=GIB // 2)
    assert shares(gpu, proc, {OURS, CHILD, 12}) == (26 * GIB, 3 * GIB, 23 * GIB)


def test_a_stranger_that_is_not_listed_is_seen_by_what_is_missing(proc: Path) -> None:
    gpu = FakeGpu("GPU-1", used=26 * GIB, total=80 * GIB, pids=[OURS])
    assert shares(gpu, proc, {OURS}) == (26 * GIB, 3 * GIB, 23 * GIB)
    gpu.used = 3 * GIB + SLACK  # which the driver may keep
    assert shares(gpu, proc, {OURS}) == (gpu.used, 3 * GIB, 0)


def test_where_processes_have_other_names_nothing_is_said(proc: Path) -> None:
    """NVML may name those of a container as the machine does, and one of those numbers may be ours here, too."""
    in_a_container(proc)
    assert shares(FakeGpu("GPU-1", pids=[4711, 12]), proc, {OURS, 12}) == (GIB, None, None)
    assert shares(FakeGpu("GPU-1", pids=[4711]), proc, {12}) == (GIB, 0, GIB)  # none of ours has a GPU open
    assert shares(FakeGpu("GPU-1", pids=[4711]), proc, None) == (GIB, None, None)


def test_what_a_process_does_not_say_is_not_guessed(proc: Path) -> None:
    assert shares(FakeGpu("GPU-1", pids=[OURS, CHILD], sizes={CHILD: None}), proc, {OURS, CHILD}) == (GIB, None, None)


def test_where_processes_are_not_told_nothing_is_said(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: FakeNvml, handle: FakeGpu) -> None:
        raise fake_pynvml.NVMLError_NotSupported("not supported")

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetComputeRunningProcesses", refuses)
    assert shares(FakeGpu("GPU-1", pids=[OURS]), proc, {OURS}) == (GIB, None, None)


def test_the_shares_of_two_gpus_are_told_apart(proc: Path) -> None:
    in_a_container(proc)
    gpus = FakeGpu("GPU-1", used=3 * GIB, pids=[OURS]), FakeGpu("GPU-2", used=3 * GIB, pids=[STRANGER])
    readings = NvmlProbe(FakeNvml(list(gpus)), proc).read(["GPU-1", "GPU-2"], IDLE, {OURS})
    assert [(r.memory_own, r.memory_others) for r in readings] == [(3 * GIB, 0), (0, 3 * GIB)]


def test_an_older_driver_counts_what_it_keeps_as_in_use(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlMemory_v2")
    assert shares(FakeGpu("GPU-1", used=4 * GIB, reserved=GIB, pids=[OURS]), proc, {OURS})[0] == 4 * GIB


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
    nvml = FakeNvml([FakeGpu("GPU-1"), FakeGpu("GPU-2", lost=True), FakeGpu("GPU-3", name="H100", total=80, minor=7)])
    assert list_gpus(nvml) == [DeviceInfo("GPU-1", "NVIDIA V100", 16 << 30), DeviceInfo("GPU-3", "H100", 80, 7)]
    assert nvml.sessions == 0


def test_a_machine_without_driver_has_no_gpus() -> None:
    assert list_gpus(FakeNvml(init_error=fake_pynvml.NVMLError_LibraryNotFound)) == []


def test_the_fake_has_the_names_of_the_real_pynvml() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra `gpu`)")
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml") and callable(getattr(FakeNvml, name))]
    assert len(functions) >= 9
    for name in functions:
        mine, theirs = (list(inspect.signature(getattr(m, name)).parameters) for m in (FakeNvml([]), real))
        assert mine == theirs[: len(mine)], name
    assert real.nvmlMemory_v2 == FakeNvml.nvmlMemory_v2
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
