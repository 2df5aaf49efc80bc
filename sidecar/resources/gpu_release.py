"""Proves that a trainer's GPUs are free before its end is reported, after which they are handed on.

The shim sees that none of its processes is left; the driver frees memory a moment later. Promises: an end waits at most
`RELEASE_S` for the proof, even if the driver hangs, and not at all without a reading from before the start. Called by
`service.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from sidecar.protocol import GpuHolder
from sidecar.resources.gpus import SLACK, Footprint, GpuProbe

log = logging.getLogger(__name__)

READ_S, RELEASE_S, PAUSE_S = 3.0, 10.0, 0.05  # seconds: to read before a start, for the proof, between two reads


class ReleaseProof:
    """Compares what a sidecar's GPUs hold with what they held before the trainer began."""

    def __init__(self, probe: GpuProbe, thread: Executor) -> None:
        """`thread`: the executor in which the probe runs."""
        self._probe, self._thread = probe, thread
        self._before: Mapping[str, Footprint] = {}

    async def begin(self, gpu_ids: Sequence[str], holder: GpuHolder | None = None) -> None:
        """Read what these GPUs hold before a trainer starts.

        `holder`: a process of ours that currently holds memory of one of them, whose previous reading is kept.
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
            if now is None:  # a reading begun shortly before the deadline adds nothing to the last one
                return held or [
                    "NVML did not answer when its trainer had ended: check the NVIDIA driver of this machine"
                ]
            held = [said for gpu_id, was in before.items() if (said := _held(gpu_id, was, now.get(gpu_id), holder))]
            if not held:
                break
            await asyncio.sleep(PAUSE_S)
        return held

    async def _read(self, gpu_ids: Sequence[str], within_s: float) -> dict[str, Footprint] | None:
        """Return what each readable GPU holds; None if the driver does not answer."""
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._probe.footprints, gpu_ids)
        try:
            return await asyncio.wait_for(reading, within_s)
        except TimeoutError:
            return None


def _held(gpu_id: str, was: Footprint, now: Footprint | None, holder: GpuHolder | None) -> str:
    """Return what a GPU still holds; empty if no more than before, or if unreadable, which is reported elsewhere."""
    if now is None:
        return ""
    pids = now.pids - was.pids
    if holder is not None and holder.gpu_id == gpu_id:
        pids = _without(holder, pids)
        more = 0  # how much of it is the holder's is unknown here
    else:
        more = now.memory - was.memory
    if pids:
        return f"GPU {gpu_id} is still in use by process {', '.join(map(str, sorted(pids)))}"
    return f"GPU {gpu_id} still holds {more >> 20} MiB more than before its trainer began" if more > SLACK else ""


def _without(holder: GpuHolder, pids: frozenset[int]) -> frozenset[int]:
    """Return the processes other than the holder.

    In a container, the driver may report the machine's pids, which are unknown here: a single process is then the
    holder.
    """
    if holder.pid in pids:
        return pids - {holder.pid}
    return pids if len(pids) > 1 else frozenset()
