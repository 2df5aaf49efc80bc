"""Watches this machine's GPUs for errors reported by the driver (Xids), and the driver for a hang.

Promises: raises nothing and never waits; a hardware or driver error marks its GPU for the life of this process, since
only a reset fixes it; an error caused by a program does not. Called by a machine's inventory (`agent.py`) at each
report and by `service.py` (`HangWatch`); pynvml is imported on first use.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)

# Errors caused by programs, which do not affect the next program on that GPU. Any other number marks the GPU.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
MEANING = {
    48: "memory error that cannot be corrected",
    62: "internal micro-controller halted",
    63: "a damaged part of its memory is replaced at its next reset",
    64: "a damaged part of its memory could not be replaced",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "memory error, contained to the program that met it",
    95: "memory error that was not contained",
    119: "its system processor does not answer",
    120: "error of its system processor",
}


STALE_BEATS, AWAY_BEATS = 3.0, 1.5  # heartbeats: the age of stale readings, a gap in which this process did not run


class HangWatch:
    """Detects a hanging driver: its readings are stale although this process ran all the time.

    A process that was stopped, or whose machine was paused, also finds stale readings; it waits for new ones first.
    """

    def __init__(self, beat_s: float) -> None:
        """`beat_s`: the longest interval in seconds at which it is asked while this process runs."""
        self._beat_s = beat_s
        self._asked_at = self._awake_since = float("-inf")

    def hangs(self, read_at: float, now: float) -> bool:
        """Return whether the driver hangs.

        `read_at`, `now`: time of the newest readings and now, in s of CLOCK_BOOTTIME.
        """
        if now - self._asked_at > AWAY_BEATS * self._beat_s:
            self._awake_since = now
        self._asked_at = now
        return now - max(read_at, self._awake_since) > STALE_BEATS * self._beat_s


class XidWatch:
    """Collects the Xids of all GPUs since it was first asked."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: replaces the module pynvml in tests."""
        self._nvml = nvml
        self._sets: dict[str, Any] = {}  # event sets by GPU UUID: a lost GPU cannot tell its own
        self._marked: dict[str, str] = {}

    def problems(self) -> dict[str, str]:
        """Return UUID -> sentence for each GPU with an error that only a reset fixes."""
        if self._sets or self._open():
            for gpu_id, events in self._sets.items():
                if not self._take(gpu_id, events):
                    self._close()
                    break
        return dict(self._marked)

    def _open(self) -> bool:
        """Subscribe to events of each GPU that supports them."""
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            return False
        except self._nvml.NVMLError:
            return False
        nvml, kind = self._nvml, self._nvml.nvmlEventTypeXidCriticalError
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & kind:
                    events = self._sets[nvml.nvmlDeviceGetUUID(handle)] = nvml.nvmlEventSetCreate()
                    nvml.nvmlDeviceRegisterEvents(handle, kind, events)
        except nvml.NVMLError as error:
            log.debug("some GPUs tell no errors: %s", error)
        if not self._sets:
            self._close()
        return bool(self._sets)

    def _take(self, gpu_id: str, events: Any) -> bool:
        """Take a GPU's pending events; return False if this NVML session is void."""
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(events, 0)
            except nvml.NVMLError_Timeout:
                return True
            except nvml.NVMLError as error:
                log.warning("the errors of GPU %s cannot be read: %s", gpu_id, error)
                return False
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._judge(gpu_id, int(event.eventData))

    def _judge(self, gpu_id: str, xid: int) -> None:
        meaning = f" ({MEANING[xid]})" if xid in MEANING else ""
        log.warning("GPU %s reported Xid %d%s", gpu_id, xid, meaning)
        if xid not in OF_PROGRAMS:
            self._marked.setdefault(
                gpu_id,
                f"GPU {gpu_id} reported Xid {xid}{meaning}: reset it (nvidia-smi --gpu-reset -i {gpu_id}) or restart "
                "the machine, then restart the node agent or `reshape up`",
            )

    def _close(self) -> None:
        nvml, sets, self._sets = self._nvml, self._sets, {}
        for events in sets.values():
            try:
                nvml.nvmlEventSetFree(events)
            except nvml.NVMLError:
                pass  # gone with its session
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass
