"""Observes the pods of a gang, a job of several pods: their reports, and the platform's view of them.

Stateless; called by the reconciler, which builds the `ObservedState` for `lifecycle` from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from coordinator.config import Config
from coordinator.model.gang import NO_MEMBERS, merged_report, rendezvous
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.ports import Platform
from coordinator.reconcile.observed_state import ComingLaunch
from coordinator.telemetry.reports import Reports
from sidecar.protocol import Heartbeat


@dataclass(frozen=True)
class GangPods:
    """The pods of one job; for a job of one pod only `seen` is set."""

    seen: Heartbeat | None  # the merged report
    each: Mapping[int, Heartbeat] = field(default_factory=dict)
    ended: frozenset[int] = NO_MEMBERS  # of which certainly nothing runs
    all_pods: frozenset[int] = NO_MEMBERS

    @property
    def lost_pods(self) -> frozenset[int]:
        """Pods that are gone while others are not."""
        return NO_MEMBERS if self.lost else self.ended

    @property
    def lost(self) -> bool:
        return bool(self.ended) and self.ended == self.all_pods


def startup_problem(beats: Iterable[Heartbeat | None]) -> str | None:
    """Return why a trainer would certainly fail to start in one of these pods; None if no pod reports so."""
    return next((beat.unfit for beat in beats if beat and beat.unfit), None)


class GangObserver:
    """Reads reports and platform. `node_unavailable`: whether a node is silent or takes no new pods."""

    def __init__(
        self, reports: Reports, platform: Platform, config: Config, node_unavailable: Callable[[str | None], bool]
    ) -> None:
        self._reports, self._platform, self._config = reports, platform, config
        self._node_unavailable = node_unavailable

    def pods(self, job: JobRecord, removed: bool) -> GangPods:
        """Observe the pods of a job. `removed`: whether the removal of its launch was requested."""
        if job.gpus_per_pod is None:
            return GangPods(self._reports.newest_of_job(job))
        each, all_pods = self._reports.pods(job), frozenset(range(job.members))
        ended = self._ended(job, each, removed) & all_pods
        # The last reports still count if the whole gang is gone.
        silent_pods = all_pods - frozenset(each) if ended == all_pods else ended
        return GangPods(merged_report(each, job.members, silent_pods, job.reshape_exit_codes), each, ended, all_pods)

    def _ended(self, job: JobRecord, each: Mapping[int, Heartbeat], removed: bool) -> frozenset[int]:
        if job.launch == 0 or (self._reports.fresh(job) and not removed):
            return NO_MEMBERS
        was_up = range(job.members) if job.doc.get("up") == job.launch else each
        return self._platform.ended(job.doc) | frozenset(k for k in was_up if self.over(job, k))

    def over(self, job: JobRecord, member: int) -> bool:
        """True if a pod has been silent for so long that its trainer has certainly ended, by the end of its lease.

        Of one without a lease no silence proves that, but whoever deletes its object by force, or its node, vouches.
        """
        silent = self._reports.silent_s(job, member) > self._config.wait_out_s
        return silent and (not job.unleased or member in self._platform.vanished(job.doc))

    def silent_pods(self, job: JobRecord) -> frozenset[int]:
        """Pods without a recent report."""
        if job.gpus_per_pod is None:
            return NO_MEMBERS
        return frozenset(k for k in range(job.members) if not self._reports.recent(job, k))

    def node_unavailable(self, job: JobRecord, gpus: Mapping[str, GpuRecord]) -> bool:
        """True if one of its nodes is silent or takes no new pods."""
        more = () if job.gpus_per_pod is None else [gpus[g].node for g in job.gpu_ids if g in gpus]
        return any(self._node_unavailable(node) for node in {job.node, *more})

    def growth(
        self, job: JobRecord, gpus: Mapping[str, GpuRecord], asked: int | None, waited_s: float
    ) -> ComingLaunch | None:
        """The pods that it is to grow by while it trains on. `asked`: total pods requested of the platform."""
        op = job.operation
        if op is None or job.gpus_per_pod is None or (op.kind, op.how) != ("reshape", "in place"):
            return None
        grown = JobRecord({**job.doc, "gpu_ids": list(op.to), "num_gpus": len(op.to)})
        more = range(job.members, grown.members)
        if not more or job.generation >= op.generation:
            return None
        each, is_asked = self._reports.pods(job), asked == grown.members
        up = all(k in each and not each[k].shim.ending for k in more)
        new_nodes = [gpus[g].node for part in job.parts(op.to)[job.members :] for g in part if g in gpus]
        gone = self._platform.ended(grown.doc) if up and not self._reports.fresh(grown) else NO_MEMBERS
        return ComingLaunch(
            up=up,
            lost=not gone.isdisjoint(more),
            node_unavailable=any(map(self._node_unavailable, new_nodes)),
            asked=is_asked,
            failure=(self._platform.failure(job.doc) if is_asked else None)
            or startup_problem(each.get(k) for k in more),
            unplaced=self._platform.unplaced(job.doc) if waited_s > self._config.init_timeout_s else None,
        )

    def rendezvous_env(self, job: JobRecord, member: int) -> dict[str, str]:
        """Environment variables by which this pod finds the others in the present generation."""
        each = self._reports.pods(job)
        hosts = [urlsplit(each[k].url).hostname or "" for k in range(job.members)]
        return rendezvous(hosts, member, job.generation, job.gpus_per_pod or 1)
