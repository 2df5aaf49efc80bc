"""Frees orphaned GPUs: those assigned to jobs whose documents were deleted while no coordinator acted.

Called by the loop after each reading of the store. A GPU that may be in use is never marked idle.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping

from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.document_validation import is_closed
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuChanges
from coordinator.stores.cache import Cache

log = logging.getLogger(__name__)


class GarbageCollector:
    """Frees a GPU once nothing can use it.

    `wait_out_s`: seconds after which a launch without a lease renewal has certainly stopped; infinite without leases.
    `nothing_runs`: the platform's word that no process of a job is left.
    """

    def __init__(self, cache: Cache, wait_out_s: float, nothing_runs: Callable[[str], bool]) -> None:
        self._cache, self._wait_out_s, self._nothing_runs = cache, wait_out_s, nothing_runs
        self._looked: tuple[object, object] = ({}, {})  # jobs and GPUs at the last look
        self._orphans: dict[str, float] = {}  # orphaned GPUs, by the time at which each was found

    def begin(self) -> None:
        """Begin to act: another coordinator may have granted leases until now, so times count from now."""
        self._orphans, self._looked = {}, ({}, {})

    def orphaned_jobs(self) -> set[str]:
        """Ids of missing jobs that GPUs are still assigned to."""
        gpus = self._assigned_to_others({**self._cache.jobs(), **self._cache.set_aside()})
        return {name for name, assigned in gpus.items() if name and assigned}

    def collect(self, now: float) -> None:
        """Free GPUs that are certainly unused. Does nothing while a job is set aside, since they may be that job's."""
        if self._cache.set_aside():
            return
        jobs, gpus = self._cache.jobs(), self._cache.gpus()
        if not self._orphans and jobs is self._looked[0] and gpus is self._looked[1]:
            return
        self._looked = jobs, gpus
        orphans = {gpu.id: gpu for assigned in self._assigned_to_others(jobs).values() for gpu in assigned}
        self._orphans = {g: self._orphans.get(g, now) for g in orphans}
        for gpu_id, since in self._orphans.items():
            gpu = orphans[gpu_id]
            owner = str(gpu.job if gpu.held_by is None else gpu.held_by)
            if owner in jobs or self._may_live(gpu):
                continue
            if self._is_over(gpu, owner, now - since):
                self._free(gpu, jobs)

    def _is_over(self, gpu: GpuRecord, owner: str, waited_s: float) -> bool:
        """True if certainly no process of a missing job uses the GPU.

        Where there are leases the platform's word counts only after one would have ended: an object that vanished
        proves nothing about a pod that has one. No waiting outlasts an endless lease.
        """
        if self._wait_out_s == math.inf:
            return self._nothing_runs(owner)
        return waited_s > self._wait_out_s and (not gpu.doc.get("unleased") or self._nothing_runs(owner))

    def _assigned_to_others(self, jobs: Collection[str]) -> dict[str, list[GpuRecord]]:
        """By job that is none of `jobs`: its GPUs that a coordinator assigned, without those edited by hand."""
        gpus = self._cache.gpus_of_others(jobs)
        return {name: [gpu for gpu in assigned if "generation" in gpu.doc] for name, assigned in gpus.items()}

    def _free(self, gpu: GpuRecord, jobs: Mapping[str, JobRecord]) -> None:
        known = gpu.job in jobs
        gone: GpuChanges = {"held_by": None, "unleased": None}
        gone |= {} if known else {"job_id": None, "worker_id": None}
        state: GpuChanges = {} if known or gpu.faulty else {"state": s.IDLE}
        expect: GpuChanges = {"job_id": gpu.doc.get("job_id"), "held_by": gpu.doc.get("held_by")}
        try:
            self._cache.write_gpu(gpu, expect, {**gone, **state})
        except Conflict:
            return
        log.warning("GPU %s was assigned to job %s, which is gone: freed", gpu.id, gpu.job)

    def _may_live(self, gpu: GpuRecord) -> bool:
        """True if the document of its job exists after all, with an invalid `closed` that hid it from the cache."""
        owners = [owner for owner in (gpu.doc.get("job_id"), gpu.doc.get("held_by")) if owner is not None]
        docs = [doc for owner in owners for doc in self._cache.store.list("jobs", {"job_id": owner})]
        return any(doc.get("uid") and not is_closed(doc) for doc in docs)
