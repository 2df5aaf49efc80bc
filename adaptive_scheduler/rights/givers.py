"""Lists the nodes on which running jobs could give a waiting one enough GPUs, the most promising first.

In arrays: a search looks at few of thousands of nodes. Called by `reclaim.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from adaptive_scheduler.candidates import change_obstacle
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.index import Floats, Ints
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.snapshot import Job, Node, is_placed


class GivingPlace(NamedTuple):
    """A node, and the jobs there that could give GPUs."""

    node: Node
    jobs: Sequence[Job]
    fewest: int  # jobs that have to give something, at least
    gpus: int  # that these give, at least; exactly if one gives all that it has


class Givers:
    """The running jobs of one snapshot that could give GPUs to others now."""

    def __init__(self, table: CostTable, rights: Rights) -> None:
        self.world = table.snapshot
        self._table = table
        self._rights = rights
        self._rows = np.flatnonzero((self.world.rows(_may_give) > 0) & (table.jobs.node >= 0))
        self._node = table.ints("node")[self._rows]
        self._has = table.jobs.num_gpus[self._rows]
        self._value = rights.columns(self.world).value[self._rows]

    def most_by_shrinking(self, limits: Floats) -> Floats:
        """Return by job the GPUs that it could give and go on, at most. `limits`: by job of the snapshot the standard
        GPUs that its owner can be made to give."""
        least = np.maximum(self.world.rows(_smallest_count), self._table.jobs.protected_gpus)[self._rows]
        most: Floats = np.minimum(self._has - least, np.floor(limits[self._rows] / self._value + TINY))
        return most

    def all_by_suspending(self, limits: Floats) -> Floats:
        """Return by job the GPUs that it has, if it may be suspended. `limits` as above."""
        rights = self._rights
        may = self.world.rows(_may_suspend, rights.now, rights.shares.min_run_s)[self._rows] > 0
        return np.where(may & (self._has * self._value <= limits[self._rows] + TINY), self._has, 0.0)

    def places(self, job: Job, gives: Floats) -> Iterator[GivingPlace]:
        """Yield the nodes on which GPUs are missing for a waiting job and jobs together can give these, in the order
        of `fewest`, `gpus` and name. `gives`: by job, as returned by the two methods above."""
        nodes = self._table.nodes
        count = min(job.optional, default=0)
        missing = count - nodes.idle
        fits = np.zeros(len(missing), np.bool_)
        fits[self._table.nodes_for(job)] = True
        healthy = np.append(self.world.node_rows(_healthy), 0.0)
        given = np.bincount(self._node, np.maximum(gives, 0.0), len(missing))
        fits &= nodes.open & (missing > 0) & (count <= healthy) & (given >= missing)
        chosen = np.flatnonzero((gives > 0) & fits[self._node])
        if len(chosen):
            yield from self._in_order(chosen[np.lexsort((-gives[chosen], self._node[chosen]))], gives, missing)

    def _in_order(self, chosen: Ints, gives: Floats, missing: Ints) -> Iterator[GivingPlace]:
        """`chosen`: by node, on each those first that give most."""
        at = self._node[chosen]
        each = gives[chosen]
        first = np.flatnonzero(np.diff(at, prepend=-1))
        ends = np.append(first[1:], len(at))
        names = at[first]
        so_far = np.cumsum(each)
        so_far -= np.repeat(so_far[first] - each[first], ends - first)
        fewest = np.add.reduceat((so_far < missing[at]).astype(np.intp), first) + 1
        alone = np.minimum.reduceat(np.where(each >= missing[at], each, np.inf), first)
        enough = np.where(fewest == 1, alone, missing[names]).astype(np.intp)
        for place in np.lexsort((self._table.node_rank[names], enough, fewest)).tolist():
            rows = self._rows[chosen[first[place] : ends[place]]].tolist()
            jobs = [self.world.jobs[row] for row in rows]
            node = self.world.nodes[names[place]]
            yield GivingPlace(node, jobs, int(fewest[place]), int(enough[place]))


def _may_give(job: Job) -> bool:
    return is_placed(job) and job.preemption != "never" and not job.workers and not change_obstacle(job)


def _smallest_count(job: Job) -> int:
    return min((count for count in job.optional if count > 0), default=job.num_gpus)


def _may_suspend(job: Job, now: float, min_run_s: float) -> bool:
    ran = job.started_s is None or now - job.started_s >= min_run_s
    return job.preemption == "any" and ran and job.cooling_until <= now and not job.stays


def _healthy(node: Node) -> int:
    return node.healthy
