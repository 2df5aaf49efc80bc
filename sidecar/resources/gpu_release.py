"""Proves that a trainer's GPUs are free again before its end is reported, upon which they are handed on.

The shim sees that no process of it is left; the driver gives memory back a moment later. Promises: an end waits at
most `RELEASE_S` for the proof, also if the driver hangs, and without a reading from before the start not at all.
Called by `service.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from sidecar.protocol import GpuHolder
from sidecar.resources.gpus import SLACK, Footprint, GpuProbe

log = logging.getLogger(__name__)

READ_S, RELEASE_S, PAUSE_S = 3.0, 10.0, 0.05  # seconds: to read before a start, for the proof, between two looks


class ReleaseProof:
    """Of one sidecar: what its GPUs held before the trainer began, and whether they hold no more than that."""

    def __init__(self, probe: GpuProbe, thread: Executor) -> None:
        """`thread`: in which the probe is used."""
        self._probe, self._thread = probe, thread
        self._before: Mapping[str, Footprint] = {}

    async def begin(self, gpu_ids: Sequence[str], holder: GpuHolder | None = None) -> None:
        """Read what these GPUs hold; a trainer starts next.

        `holder`: a process of ours that holds memory of one of them for now, whose last reading is kept.
        """
        before, self._before = self._before, await self._read(gpu_ids, READ_S) or {}
        if holder is not None and holder.gpu_id in before:
            self._before = {**self._before, holder.gpu_id: before[holder.gpu_id]}

    async def wait(self, holder: GpuHolder | None = None) -> list[str]:
        """Return once the GPUs are free again, or after `RELEASE_S` with what they still hold, as sentences.

        `holder`: a process of ours that holds memory of one of them for the next trainer.
        """
        before = self._before
        until, held = asyncio.get_running_loop().time() + RELEASE_S, list[str]()
        while before and (left := until - asyncio.get_running_loop().time()) > 0:
            now = await self._read(list(before), left)
            if now is None:  # a reading that began shortly before the end of the wait tells no more than the last one
                return held or [
                    "NVML did not answer when its trainer had ended: check the NVIDIA driver of this machine"
                ]
            held = [said for gpu_id, was in before.items() if (said := _held(gpu_id, was, now.get(gpu_id), holder))]
            if not held:
                break
            await asyncio.sleep(PAUSE_S)
        return held

    async def _read(self, gpu_ids: Sequence[str], within_s: float) -> dict[str, Footprint] | None:
        """Return what each GPU holds that can be read; None if the driver does not answer."""
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._probe.footprints, gpu_ids)
        try:
            return await asyncio.wait_for(reading, within_s)
        except TimeoutError:
            return None


def _held(gpu_id: str, was: Footprint, now: Footprint | None, holder: GpuHolder | None) -> str:
    """Return what a GPU still holds; empty if no more than before, or if it cannot be read, which is told elsewhere."""
    if now is None:
        return ""
    pids = now.pids - was.pids
    if holder is not None and holder.gpu_id == gpu_id:
        pids = _without(holder, pids)
        more = 0  # how much of it is the holder's is not known here
    else:
        more = now.memory - was.memory
    if pids:
        return f"GPU {gpu_id} is still in use by process {', '.join(map(str, sorted(pids)))}"
    return f"GPU {gpu_id} still holds {more >> 20} MiB more than before its trainer began" if more > SLACK else ""


def _without(holder: GpuHolder, pids: frozenset[int]) -> frozenset[int]:
    """Return the processes that are not the holder.

    In a container the driver names it by a pid of the machine, which is not known here: one alone is the holder then.
    """
    if holder.pid in pids:
        return pids - {holder.pid}
    return pids if len(pids) > 1 else frozenset()
