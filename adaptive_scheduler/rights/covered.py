"""Counts the GPUs that owners have within reservations: these are beside what they are entitled to. Pure.

Reserved GPUs are shared among nobody while they are kept, so they count neither as held by their user nor as there for
others. Called by `standing.py` and `rights.py`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from adaptive_scheduler.decision import Decision, Move, Requeue, Reshape, Start, placed_on, workers_of
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Worker


class CoveredGpus:
    """Counts what owners have of the GPUs that are reserved now, as decisions are made."""

    def __init__(self, snapshot: ClusterSnapshot, now: float, values: Mapping[str, float]) -> None:
        """`values`: standard GPUs by GPU type."""
        self._shares = snapshot.shares
        self._most = Counter[tuple[str, str]]()  # by user and node
        self._kept = Counter[str]()  # by node, for whomever
        for one in snapshot.reservations:
            if one.from_s <= now < one.until_s and one.node in snapshot.node:
                self._kept[one.node] += one.num_gpus
                if one.user is not None:
                    self._most[one.user, one.node] += one.num_gpus
        self._gpu_type = {name: snapshot.node[name].gpu_type for name in self._kept}
        self._value = {name: values.get(gpu_type, 1.0) for name, gpu_type in self._gpu_type.items()}
        self.kept_units = sum(
            min(count, snapshot.node[name].healthy) * self._value[name]
            for name, count in self._kept.items()
            if snapshot.node[name].schedulable
        )
        self._has: dict[tuple[str, str], Counter[JobOwner]] = defaultdict(Counter)
        users = {user for user, _ in self._most}
        for job in snapshot.placed if users else ():
            if job.owner in users:
                self._count_of_user(job, placed_on(job), 1)

    def __bool__(self) -> bool:
        return bool(self._most)

    def _count_of_user(self, job: Job, workers: Iterable[Worker], sign: int) -> None:
        for worker in workers:
            if (job.owner, worker.node) in self._most:
                owner = self._shares.owner_of(job.queue, job.owner)
                self._has[job.owner, worker.node][owner] += sign * worker.num_gpus

    def count(self, snapshot: ClusterSnapshot, decision: Decision) -> None:
        """Count a decision that was made on `snapshot`."""
        if not self._most or not isinstance(decision, Start | Reshape | Move | Requeue):
            return
        job = snapshot.job[decision.job]
        if isinstance(decision, Start):
            for victim in decision.victims:
                giver = snapshot.job[victim.job]
                self._count_of_user(giver, [Worker(decision.node, giver.num_gpus - victim.num_gpus)], -1)
        self._count_of_user(job, placed_on(job), -1)
        if not isinstance(decision, Requeue):
            self._count_of_user(job, workers_of(decision), 1)

    def idle(self) -> Iterator[tuple[JobOwner, str, int]]:
        """Yield (owner, node, GPUs) of what is reserved and no job of its user has: for them alone all the same."""
        for (user, node), most in self._most.items():
            count = most - sum(self._has[user, node].values())
            if count > 0:
                yield self._shares.owner_of("", user), node, count

    def units(self, name: JobOwner | str) -> float:
        """Return the standard GPUs that an owner or a queue has within reservations."""
        return math.fsum(taken * self._value[node] for node, taken in self._taken_by(name))

    def gpus_of(self, name: JobOwner | str, gpu_type: str) -> int:
        """Return the GPUs of a type that an owner or a queue has within reservations."""
        return sum(taken for node, taken in self._taken_by(name) if self._gpu_type[node] == gpu_type)

    def _taken_by(self, name: JobOwner | str) -> Iterator[tuple[str, int]]:
        """Yield (node, GPUs) of what an owner or a queue has of reserved GPUs."""
        for (user, node), most in self._most.items():
            left = most
            for owner, count in sorted(self._has[user, node].items()):
                taken = min(count, left)
                left -= taken
                if name in (owner, owner.queue):
                    yield node, taken
