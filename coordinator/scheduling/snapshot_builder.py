"""Builds the frozen snapshot that decisions are made on from the cache and from observations. No clock, no I/O.

What has not changed since the last snapshot is taken over from it: jobs (`snapshot_jobs`), nodes, or all of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from adaptive_scheduler.profiles.observations import Observations
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.shares import Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, GpuState, Node
from coordinator.model import states as s
from coordinator.model.progress import ObservedJob
from coordinator.model.records import GpuRecord, JobRecord, Moment, number, takes_work
from coordinator.model.tables import NodeRow
from coordinator.scheduling.snapshot_jobs import Basis, SnapshotJobs
from coordinator.stores.row_facts import users_of
from coordinator.telemetry.changed_jobs import Picked
from coordinator.telemetry.changed_jobs import changed as changed_in
from coordinator.telemetry.measured.other_load import held_by_others
from sidecar.protocol import Heartbeat

JITTER_S = 0.05  # between two readings of two clocks, by a process that has to wait for a core meanwhile


@dataclass(frozen=True)
class SnapshotInputs:
    """Inputs of a snapshot beside jobs and GPUs."""

    profiles: Profiles = field(default_factory=Profiles)
    observations: Observations = field(default_factory=Observations)
    nodes: Mapping[str, NodeRow] = field(default_factory=dict)  # documents by node; some nodes have none
    checkpoints_last: bool = True  # checkpoints outlive their launch, unless a job says otherwise
    in_pods: bool = False  # jobs run in pods, in which our sidecar requests something, too
    grace_s: float = 20.0  # that a job has to save in, if its record says nothing
    shares: Shares = field(default_factory=Shares)
    default_owner: str = ""  # of jobs that name none


NOTHING = ClusterSnapshot((), ())


class SnapshotBuilder:
    """Builds one snapshot after the other, and works out again only what depends on records that have changed."""

    def __init__(self, give_way: Callable[[], None] = lambda: None) -> None:
        """`give_way` is called after each job and each node."""
        self._jobs, self._gpus, self._nodes = SnapshotJobs(give_way), _GroupedGpus(), _Nodes(give_way)
        self._changing = Picked(lambda job: job.operation is not None)
        self._ahead = math.inf  # the clock of `now` less the wall clock
        self._last: ClusterSnapshot | None = None

    def build(
        self,
        jobs: Mapping[str, JobRecord],
        gpus: Mapping[str, GpuRecord],
        seen: Mapping[str, ObservedJob],
        known: SnapshotInputs,
        at: Moment,
    ) -> ClusterSnapshot:
        """The cluster as it will be after the operations in progress. Neither `gpus` nor a value of `seen` may change
        any more."""
        at = self._steady(at)
        changing = self._changing.from_jobs(jobs).values()
        touched = self._gpus.update(gpus, {g: j.id for j in changing if j.operation for g in j.operation.to})
        booked = self._gpus.booked
        basis = Basis(
            self._gpus.nodes, self._ahead, known.checkpoints_last, known.in_pods, known.grace_s, known.default_owner
        )
        stale = self._jobs.stale(jobs, seen, basis, at.wall, booked)
        self._nodes.touch(touched)
        self._nodes.place(stale, jobs, seen)
        self._jobs.update(stale, jobs, seen, basis, at, booked)
        nodes, last = self._nodes.update(self._gpus.by_node, known.nodes), self._last
        if (
            last is None
            or self._jobs.jobs is not last.jobs
            or nodes is not last.nodes
            or known.profiles is not last.profiles
            or known.observations is not last.observations
            or known.shares is not last.shares
        ):
            inputs = {"profiles": known.profiles, "observations": known.observations, "shares": known.shares}
            self._last = last = (last or NOTHING).then(nodes=nodes, jobs=self._jobs.jobs, **inputs)
        return last

    def _steady(self, at: Moment) -> Moment:
        """The same moment, of which the distance of the clocks is the last one's unless they have drifted apart."""
        if not abs(at.now - at.wall - self._ahead) < JITTER_S:
            self._ahead = at.now - at.wall
        return Moment(at.now, at.now - self._ahead, at.boot)


class _GroupedGpus:
    """GPUs by node, grouped again only where one has changed."""

    def __init__(self) -> None:
        self._gpus: Mapping[str, GpuRecord] = {}  # as they were at the last snapshot
        self._promised: dict[str, str] = {}
        self._members: dict[str, dict[str, GpuRecord]] = {}
        self.nodes: dict[str, str] = {}  # by GPU; another object after a change
        self._users = Counter[str]()  # jobs that a GPU is promised to or held by: by how many
        self.booked = frozenset[str]()  # the same jobs; another object after a change
        self.by_node: dict[str, tuple[str, tuple[Gpu, ...]]] = {}  # GPU type, GPUs

    def update(self, gpus: Mapping[str, GpuRecord], promised: dict[str, str]) -> set[str]:
        """Take GPUs and the promises of operations; returns the nodes with one that has changed."""
        if gpus is self._gpus and promised == self._promised:
            return set()
        before, self._gpus = self._gpus, gpus
        changed = {*changed_in(before, gpus)} | (before.keys() - gpus.keys() if gpus is not before else set())
        for g in changed & before.keys():
            self._members[before[g].node].pop(g)
        for g in changed & gpus.keys():
            self._members.setdefault(gpus[g].node, {})[g] = gpus[g]
        if any(self.nodes.get(g) != (gpus[g].node if g in gpus else None) for g in changed):
            self.nodes = {g: record.node for g, record in gpus.items()}
        others = {g for g, job in promised.items() ^ self._promised.items()}
        touched = {of[g].node for of in (before, gpus) for g in changed | others if g in of}
        self._promised = promised
        self._count(before, gpus, changed)
        for name in touched:
            self._regroup(name)
        return touched

    def _count(self, before: Mapping[str, GpuRecord], gpus: Mapping[str, GpuRecord], changed: set[str]) -> None:
        for g in changed:
            self._users.update(users_of(gpus.get(g)))
            self._users.subtract(users_of(before.get(g)))
        some = {job for of in (before, gpus) for g in changed for job in users_of(of.get(g))}
        gone = {job for job in some if not self._users[job]}
        for job in gone:
            del self._users[job]
        if gone or not some <= self.booked:
            self.booked = (self.booked | some) - gone

    def _regroup(self, name: str) -> None:
        found = sorted(self._members.get(name, {}).values(), key=lambda g: (g.doc.get("index") or 0, g.id))
        if not found:
            self.by_node.pop(name, None)
            return
        # a faulty GPU's type may be outdated
        gpu_type = min(found, key=lambda g: g.faulty).gpu_type
        self.by_node[name] = gpu_type, tuple(_gpu(g, self._promised.get(g.id)) for g in found)


class _Nodes:
    """The nodes of one snapshot after the other, worked out again only where one of its jobs or GPUs has changed."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._touched: set[str] = set()
        self._beats: dict[str, dict[str, Heartbeat | None]] = {}  # by node and job
        self._place: dict[str, str] = {}  # by job
        self._docs: Mapping[str, NodeRow] = {}
        self._nodes: dict[str, Node] = {}
        self._names: list[str] = []  # of these nodes, in order
        self._tuple: tuple[Node, ...] = ()

    def touch(self, names: Iterable[str]) -> None:
        self._touched.update(names)

    def place(self, stale: Collection[str], jobs: Mapping[str, JobRecord], seen: Mapping[str, ObservedJob]) -> None:
        """Take what these jobs use, and where."""
        for job_id in stale:
            if (was := self._place.pop(job_id, None)) is not None:
                self._beats[was].pop(job_id)
                self._touched.add(was)
            job, observed = jobs.get(job_id), seen.get(job_id)
            if job is not None and job.node is not None and observed is not None:
                self._beats.setdefault(job.node, {})[job_id] = observed.beat
                self._place[job_id] = job.node
                self._touched.add(job.node)

    def update(
        self, by_node: Mapping[str, tuple[str, tuple[Gpu, ...]]], docs: Mapping[str, NodeRow]
    ) -> tuple[Node, ...]:
        """All nodes by name; the same object as before if none has changed."""
        before, self._docs = self._docs, docs
        if not self._touched and docs == before:
            return self._tuple
        changed = {name for name, doc in docs.items() if (old := before.get(name)) is not doc and old != doc}
        names = docs.keys() | by_node.keys()
        moved = names ^ self._nodes.keys()
        changed |= (self._touched & names) | (before.keys() - docs.keys()) | moved
        self._names = sorted(names) if moved else self._names
        for name in changed:
            self._give_way()
            self._nodes.pop(name, None)
            if name in names:
                beats = list(self._beats.get(name, {}).values())
                self._nodes[name] = _node(name, *by_node.get(name, ("", ())), docs.get(name, {}), beats)
        self._touched.clear()
        if changed:
            self._tuple = tuple(map(self._nodes.__getitem__, self._names))
        return self._tuple


def _node(name: str, gpu_type: str, gpus: tuple[Gpu, ...], doc: NodeRow, beats: Sequence[Heartbeat | None]) -> Node:
    """A node. Its use comes from its agent (S18), else from the heartbeats of its jobs, `beats`."""
    cores, memory = number(doc.get("cores")) or 0.0, number(doc.get("memory")) or 0.0
    others = held_by_others(doc)
    usages = [beat.usage for beat in beats if beat is not None]
    return Node(
        name=name,
        gpu_type=gpu_type,
        gpus=gpus,
        cores=max(0.0, cores - others.cores),
        memory=max(1.0, memory - others.memory) if memory else 0.0,  # 0 would mean unknown
        used_cores=others.used_cores,
        used_memory=others.used_memory,
        used_by=others.sentence,
        lent_cores=min(others.lent_cores, cores),
        schedulable=takes_work(doc),
        drained=bool(doc.get("drained")),
        cordoned=not doc.get("schedulable", True),
        cpu_use=_known(doc.get("cpu_use"), _share(math.fsum(u.cpu_cores or 0.0 for u in usages), cores)),
        memory_use=_known(doc.get("memory_use"), _share(math.fsum(u.memory or 0 for u in usages), memory)),
        heard=doc.get("heard") is not False,
    )


def _known(share: object, otherwise: float) -> float:
    return otherwise if (found := number(share)) is None else min(1.0, found)


def _share(used: float, whole: float) -> float:
    return min(1.0, used / whole) if whole else 0.0


def _gpu(gpu: GpuRecord, promised: str | None) -> Gpu:
    """A GPU; an idle one that an operation names counts as reserved before it is claimed."""
    if gpu.state == s.IDLE and promised is not None:
        return Gpu(gpu.id, "reserved", promised, pool=gpu.pool)
    asked = gpu.doc.get("asked_back") if gpu.faulty else None
    return Gpu(
        gpu.id,
        cast(GpuState, gpu.state),
        gpu.job,
        gpu.held_by,
        gpu.used_by_others,
        pool=gpu.pool,
        asked_back=bool(asked),
        overdue=asked == "overdue",
    )
