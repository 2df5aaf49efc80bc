"""Reads GPUs through one probe: real ones by NVML, or emulated ones.

Promise: raises nothing, whatever NVML does (no library, no driver, a GPU fallen off the bus); a GPU that cannot be read
is reported unhealthy with a sentence. Only GPUs that were asked for are
touched. Called by `service.py` once per heartbeat interval in a thread, since a driver can hang,
and by the node agent (`list_gpus`). pynvml is imported on first use: most machines have none.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.protocol import GpuReading, Usage


@dataclass(frozen=True)
class Footprint:
    """What processes hold of one GPU now."""

    memory: int  # bytes
    pids: frozenset[int]  # that compute on it; in a container they may be the machine's
    held: Mapping[int, int] = field(default_factory=dict)  # bytes by pid, of those of which they are known


class GpuProbe(Protocol):
    """Reads the GPUs that the trainer was given."""

    emulated: bool

    def read(self, gpu_ids: Sequence[str], usage: Usage) -> list[GpuReading]:
        """One reading per id, in the same order. `usage` is what the trainer uses of the machine."""
        ...

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        """What processes hold of each GPU that can be read."""
        ...


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU of this machine."""

    gpu_id: str  # UUID
    gpu_type: str  # NVML's name, as `NVIDIA H100 80GB HBM3`
    memory: int  # bytes


class EmulatedProbe:
    """Emulated GPUs: as busy as the trainer keeps the CPU, and always healthy."""

    emulated = True

    def __init__(self, memory: int | None = None) -> None:
        """`memory`: bytes of each GPU."""
        self._memory = memory

    def read(self, gpu_ids: Sequence[str], usage: Usage) -> list[GpuReading]:
        busy = None if usage.cpu_cores is None else min(1.0, usage.cpu_cores)
        return [GpuReading(gpu_id=gpu_id, utilisation=busy, memory_total=self._memory) for gpu_id in gpu_ids]

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        return {}


class NoProbe:
    """No readings: this container cannot see the trainer's GPUs; the node agent watches them."""

    emulated = False

    def read(self, gpu_ids: Sequence[str], usage: Usage) -> list[GpuReading]:
        return []

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        return {}


class NvmlProbe:
    """Real GPUs by UUID."""

    emulated = False

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: replaces the module pynvml in tests."""
        self._nvml = nvml
        self._open = False

    def read(self, gpu_ids: Sequence[str], usage: Usage) -> list[GpuReading]:
        if not gpu_ids:
            return []
        if problem := self._start():
            return [GpuReading(gpu_id=gpu_id, healthy=False, problem=problem) for gpu_id in gpu_ids]
        readings = [self._one(gpu_id) for gpu_id in gpu_ids]
        if not all(reading.healthy for reading in readings):
            self._close()  # a driver that was reloaded answers only a fresh session
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
        try:
            running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except nvml.NVMLError:  # a slice of a GPU, or a container that may not know
            running = []
        known = {int(one.pid): size for one in running if isinstance(size := getattr(one, "usedGpuMemory", None), int)}
        return Footprint(memory, frozenset(int(process.pid) for process in running), known)

    def _start(self) -> str | None:
        """Start NVML; return why it cannot be used, or None."""
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
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return GpuReading(gpu_id=gpu_id, healthy=False, problem=f"GPU {gpu_id} cannot be read: {error}")
        try:
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError_NotSupported:  # a slice of a GPU (MIG) does not say
            busy = None
        except nvml.NVMLError as error:
            return GpuReading(gpu_id=gpu_id, healthy=False, problem=f"GPU {gpu_id} cannot be read: {error}")
        return GpuReading(gpu_id=gpu_id, utilisation=busy, memory_used=memory.used, memory_total=memory.total)

    def _close(self) -> None:
        self._open = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # it had already gone


def probe_for(kind: str, memory: int | None) -> GpuProbe:
    """Return the probe of a kind: `nvml`, `emulated` or `none`. `memory`: bytes of each emulated GPU."""
    return EmulatedProbe(memory) if kind == "emulated" else NoProbe() if kind == "none" else NvmlProbe()


def list_gpus(nvml: Any = None) -> list[DeviceInfo]:
    """Return every GPU of this machine that NVML lists; none without library or driver."""
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
        return DeviceInfo(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), memory)
    except nvml.NVMLError:
        return None
