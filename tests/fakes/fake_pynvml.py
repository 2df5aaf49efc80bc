"""A pynvml with chosen GPUs and chosen misbehaviour.

The names and the errors' tree are the real module's; `tests/unit/sidecar/test_gpus.py` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class NVMLError(Exception):
    pass


class NVMLError_Uninitialized(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_Timeout(NVMLError):
    pass


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA V100"
    used: int = 1 << 30
    total: int = 16 << 30
    busy: int = 42  # percent
    lost: bool = False
    has_utilisation: bool = True
    pids: list[int] = field(default_factory=list)  # that compute on it
    sizes: dict[int, int | None] = field(default_factory=dict)  # bytes of those that hold other than 3 GiB
    reserved: int = 0  # bytes of `used` that are the driver's own
    xids: list[int] = field(default_factory=list)  # that the driver has yet to tell
    has_events: bool = True
    minor: int | None = None  # of its device file


@dataclass
class _Process:
    pid: int
    usedGpuMemory: int | None = 3 << 30


@dataclass
class _Event:
    eventType: int
    eventData: int


@dataclass
class _Memory:
    used: int
    total: int
    reserved: int = 0


@dataclass
class _Rates:
    gpu: int


@dataclass
class FakeNvml:
    """Stands for the module: functions are methods, errors are attributes."""

    gpus: list[FakeGpu] = field(default_factory=list)
    init_error: type[NVMLError] | None = None
    sessions: int = 0
    asked: list[str] = field(default_factory=list)

    NVMLError = NVMLError
    NVMLError_Uninitialized = NVMLError_Uninitialized
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_Timeout = NVMLError_Timeout
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 0x2000028

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error("no NVML here")
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self._must_be_open()
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._must_be_open()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._must_be_open()
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._must_be_open()
        self.asked.append(uuid)
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError_NotFound("not found")

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        return handle.name

    def nvmlDeviceGetMinorNumber(self, handle: FakeGpu) -> int:
        if handle.minor is None:
            raise NVMLError_NotSupported("not supported")
        return handle.minor

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> _Memory:
        if handle.lost:
            raise NVMLError_GpuIsLost("GPU is lost")
        if version is not None:
            return _Memory(handle.used - handle.reserved, handle.total, handle.reserved)
        return _Memory(handle.used, handle.total)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> _Rates:
        if not handle.has_utilisation:
            raise NVMLError_NotSupported("not supported")
        return _Rates(handle.busy)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[_Process]:
        if handle.lost:
            raise NVMLError_GpuIsLost("GPU is lost")
        return [_Process(pid, handle.sizes.get(pid, 3 << 30)) for pid in handle.pids]

    def nvmlDeviceGetSupportedEventTypes(self, handle: FakeGpu) -> int:
        return 8 if handle.has_events else 0

    def nvmlEventSetCreate(self) -> list[FakeGpu]:
        self._must_be_open()
        return []

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, eventTypes: int, eventSet: list[FakeGpu]) -> None:
        handle.xids.clear()  # only what happens from now on is told
        eventSet.append(handle)

    def nvmlEventSetWait_v2(self, eventSet: list[FakeGpu], timeoutms: int) -> _Event:
        self._must_be_open()
        for gpu in eventSet:
            if gpu.xids:
                return _Event(8, gpu.xids.pop(0))
        raise NVMLError_Timeout("timeout")

    def nvmlEventSetFree(self, eventSet: list[FakeGpu]) -> None:
        self._must_be_open()

    def _must_be_open(self) -> None:
        if self.sessions == 0:
            raise NVMLError_Uninitialized("uninitialized")
