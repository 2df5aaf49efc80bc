"""Reads GPUs through one probe: real ones with NVML, or emulated ones.

Promise: raises nothing, whatever NVML does (no library, no driver, a GPU off the bus); an unreadable GPU is reported
unhealthy with a sentence. Only the requested GPUs are touched. Called by `service.py` once per heartbeat interval in a
thread, since a driver can hang, and by the node agent (`list_gpus`). pynvml is imported on first use: most machines
have none.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sidecar.protocol import GpuReading, Usage

SLACK = 256 << 20  # bytes of a GPU that the driver may keep for itself
MACHINE = "pid:[4026531836]"  # the machine's initial PID namespace, whose inode number the kernel fixes
DEVICE = "/dev/nvidia"


@dataclass(frozen=True)
class Footprint:
    """What processes currently hold of one GPU."""

    memory: int  # bytes
    pids: frozenset[int]  # that compute on it; in a container they may be the machine's
    held: Mapping[int, int] = field(default_factory=dict)  # bytes by pid, where known


class GpuProbe(Protocol):
    """Reads the GPUs that the trainer was given."""

    emulated: bool

    def read(self, gpu_ids: Sequence[str], usage: Usage, pids: Collection[int] | None = None) -> list[GpuReading]:
        """Return one reading per id, in the same order. `usage`: what the trainer uses of the machine.

        `pids`: all processes of its launch, by their pids here; None if unknown.
        """
        ...

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        """Return what processes hold of each readable GPU."""
        ...


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU of this machine."""

    gpu_id: str  # UUID
    gpu_type: str  # NVML's name, as `NVIDIA H100 80GB HBM3`
    memory: int  # bytes
    minor: int | None = None  # N of its device file /dev/nvidiaN, if NVML tells it


class EmulatedProbe:
    """Emulates GPUs: as busy as the trainer keeps the CPU, and always healthy."""

    emulated = True

    def __init__(self, memory: int | None = None) -> None:
        """`memory`: bytes of each GPU."""
        self._memory = memory

    def read(self, gpu_ids: Sequence[str], usage: Usage, pids: Collection[int] | None = None) -> list[GpuReading]:
        busy = None if usage.cpu_cores is None else min(1.0, usage.cpu_cores)
        return [GpuReading(gpu_id=gpu_id, utilisation=busy, memory_total=self._memory) for gpu_id in gpu_ids]

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        return {}


class NoProbe:
    """Reads nothing: this container cannot see the trainer's GPUs; the node agent watches them."""

    emulated = False

    def read(self, gpu_ids: Sequence[str], usage: Usage, pids: Collection[int] | None = None) -> list[GpuReading]:
        return []

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        return {}


class NvmlProbe:
    """Reads real GPUs by UUID."""

    emulated = False

    def __init__(self, nvml: Any = None, proc: Path = Path("/proc")) -> None:
        """`nvml`, `proc`: replace pynvml and /proc in tests."""
        self._nvml, self._proc = nvml, proc
        self._open = False

    def read(self, gpu_ids: Sequence[str], usage: Usage, pids: Collection[int] | None = None) -> list[GpuReading]:
        if not gpu_ids:
            return []
        if problem := self._start():
            return [GpuReading(gpu_id=gpu_id, healthy=False, problem=problem) for gpu_id in gpu_ids]
        readings = [self._one(gpu_id) for gpu_id in gpu_ids]
        self._share([reading for reading in readings if reading.healthy], pids)
        if not all(reading.healthy for reading in readings):
            self._close()  # a reloaded driver answers only a new session
        return readings

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        if not gpu_ids or self._start():
            return {}
        return {gpu_id: found for gpu_id in gpu_ids if (found := self._footprint(gpu_id)) is not None}

    def _footprint(self, gpu_id: str) -> Footprint | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except nvml.NVMLError:
            return None
        running = self._running(handle) or {}
        known = {pid: size for pid, size in running.items() if size is not None}
        return Footprint(memory, frozenset(running), known)

    def _running(self, handle: Any) -> dict[int, int | None] | None:
        """Return the bytes, where known, of each process that computes on a GPU; None if NVML does not say."""
        try:
            running = list(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except self._nvml.NVMLError:  # a MIG slice, or a container that may not know
            return None
        sizes = ((int(one.pid), getattr(one, "usedGpuMemory", None)) for one in running)
        return {pid: size if isinstance(size, int) else None for pid, size in sizes}

    def _share(self, readings: Sequence[GpuReading], pids: Collection[int] | None) -> None:
        """Fill in how much memory of each GPU these processes hold, and how much others do.

        In a container, NVML may report the machine's pids. A pid that is ours only by coincidence is recognized because
        that process has no GPU open. If none of ours is listed though one has a GPU open, nothing is known.
        """
        if pids is None or not readings:
            return
        nvml, held = self._nvml, dict[str, dict[int, int | None]]()
        for reading in readings:
            with contextlib.suppress(nvml.NVMLError):
                if (running := self._running(nvml.nvmlDeviceGetHandleByUUID(reading.gpu_id))) is not None:
                    held[reading.gpu_id] = running
        named = {pid for running in held.values() for pid in running}
        ours = named & set(pids) if self._same_names() else set(self._with_gpu(named & set(pids)))
        if not ours and not self._same_names() and any(self._with_gpu(pids)):
            return
        for reading in readings:
            own = [size for pid, size in held.get(reading.gpu_id, {}).items() if pid in ours]
            known = [size for size in own if size is not None]
            if reading.memory_used is None or reading.gpu_id not in held or len(known) < len(own):
                continue
            reading.memory_own = sum(known)
            rest = reading.memory_used - reading.memory_own
            reading.memory_others = rest if rest > SLACK else 0

    def _same_names(self) -> bool:
        """Return whether pids here are the machine's pids."""
        with contextlib.suppress(OSError):
            return str((self._proc / "self" / "ns" / "pid").readlink()) == MACHINE
        return False

    def _with_gpu(self, pids: Iterable[int]) -> Iterable[int]:
        """Yield those of these processes that have a GPU open."""
        for pid in pids:
            with contextlib.suppress(OSError):
                if any(_names_gpu(file) for file in (self._proc / str(pid) / "fd").iterdir()):
                    yield pid

    def _start(self) -> str | None:
        """Initialize NVML; return why it cannot be used, or None."""
        if self._open:
            return None
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError:
            return "NVML cannot be read: install the package nvidia-ml-py beside the sidecar"
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return f"NVML does not start ({error}): check the NVIDIA driver of this machine"
        self._open = True
        return None

    def _one(self, gpu_id: str) -> GpuReading:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
            memory = self._memory(handle)
        except nvml.NVMLError as error:
            return GpuReading(gpu_id=gpu_id, healthy=False, problem=f"GPU {gpu_id} cannot be read: {error}")
        try:
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError_NotSupported:  # a MIG slice does not say
            busy = None
        except nvml.NVMLError as error:
            return GpuReading(gpu_id=gpu_id, healthy=False, problem=f"GPU {gpu_id} cannot be read: {error}")
        return GpuReading(gpu_id=gpu_id, utilisation=busy, memory_used=memory.used, memory_total=memory.total)

    def _memory(self, handle: Any) -> Any:
        """Return a GPU's memory; usage excludes what the driver reserves, where it tells these apart."""
        nvml = self._nvml
        with contextlib.suppress(AttributeError, TypeError, nvml.NVMLError):  # the module or the driver is too old
            return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _close(self) -> None:
        self._open = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # it was already gone


def _names_gpu(file: Path) -> bool:
    """Return whether this file descriptor is a GPU's: /dev/nvidia0, not /dev/nvidiactl."""
    with contextlib.suppress(OSError):
        return str(file.readlink()).removeprefix(DEVICE).isdigit()
    return False


def probe_for(kind: str, memory: int | None) -> GpuProbe:
    """Return the probe of a kind: `nvml`, `emulated` or `none`. `memory`: bytes of each emulated GPU."""
    return EmulatedProbe(memory) if kind == "emulated" else NoProbe() if kind == "none" else NvmlProbe()


def list_gpus(nvml: Any = None) -> list[DeviceInfo]:
    """Return every GPU that NVML lists on this machine; none without library or driver."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return []
    except nvml.NVMLError:
        return []
    try:
        return [found for index in range(nvml.nvmlDeviceGetCount()) if (found := _found(nvml, index)) is not None]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def device_minors() -> dict[str, int]:
    """Return GPU UUID -> N of its device file /dev/nvidiaN, where NVML tells it."""
    return {gpu.gpu_id: gpu.minor for gpu in list_gpus() if gpu.minor is not None}


def short_type(name: str) -> str:
    """Return the GPU type as in speed profiles: `NVIDIA H100 80GB HBM3` is an H100."""
    if match := re.search(r"\b(?:GTX|RTX)\s+(\d{3,4})\s*(Ti|SUPER)?", name):
        return match[1] + (match[2] or "")
    match = re.search(r"\b[A-Z]{1,2}\d{1,4}\b", name)
    return match[0] if match else name


def _found(nvml: Any, index: int) -> DeviceInfo | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        name, minor = nvml.nvmlDeviceGetName(handle), None
        with contextlib.suppress(nvml.NVMLError):
            minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
        return DeviceInfo(nvml.nvmlDeviceGetUUID(handle), name, memory, minor)
    except nvml.NVMLError:
        return None
