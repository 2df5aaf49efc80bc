"""Says during one decision whose job is next, how many GPUs it may have, and what every other job must keep.

Rights decide who, prediction decides how: the engine asks here, and Algorithms 1 and 2 choose among what is left. With
one owner and no limit nothing binds, and decisions are those without rights. A deadline gives no right to the GPUs of
other owners. `algorithms.md` 1.13. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Decision, Explanation, Hold, Move, Requeue, Reshape, Start
from adaptive_scheduler.index import Floats
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.limits import (
    BORROW,
    BUDGET,
    LIMIT,
    USER_LIMIT,
    binding_limit,
    count_held,
    most_gpus_of,
    names_counted,
    owner_in_words,
)
from adaptive_scheduler.rights.owners import JobColumns, most_gpus, read_jobs
from adaptive_scheduler.rights.standing import NOBODY, Standing, entitle, read_owners
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

SHARE = "rights.share"
"""Algorithm of a Hold because of what an owner is entitled to; those of limits are in `limits.py`."""

NO_HELP = (LIMIT, BORROW, USER_LIMIT, BUDGET)
"""Reasons among these that keep a job waiting whatever is idle."""

TOLD_GPU_H = 0.05
"""Less use than this many GPU-hours is not told."""


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """Tells whether a waiting job may have GPUs of others: of its own queue, of other queues."""

    within: bool = False
    across: bool = False
    odd: bool = False  # it rests on the odd GPU that rounding gives
    guaranteed: bool = False  # they are part of what its queue is guaranteed
    types: tuple[str, ...] = ()  # of which its queue is guaranteed more than it has

    @property
    def any(self) -> bool:
        return self.within or self.across or bool(self.types)

    def is_sure_on(self, gpu_type: str) -> bool:
        """Return whether it rests on more than the odd GPU on nodes of this type."""
        return gpu_type in self.types or ((self.within or self.across) and not self.odd)

    def is_guaranteed_on(self, gpu_type: str) -> bool:
        """Return whether GPUs of this type are part of what its queue is guaranteed."""
        return self.guaranteed or gpu_type in self.types


class _Promise(NamedTuple):
    """GPUs that are being freed for a waiting job."""

    owner: JobOwner
    num_gpus: int
    gpu_type: str | None  # the only one that the job may have; None: any
    units: float


class Rights:
    """The rights of one decision. What is decided on the way is told by `took`."""

    def __init__(self, snapshot: ClusterSnapshot, now: float, settings: Settings) -> None:
        self.shares = snapshot.shares
        self.now = now
        self._settings = settings
        self._owner_of: dict[tuple[str, str], JobOwner] = {}
        self._largest: dict[tuple[str | None, str | None], int] = {}  # GPUs of a node, by GPU type and node's name
        self._above: tuple[int, list[tuple[JobOwner, float]]] = -1, []  # by version
        self.version = 0  # counts the changes of what owners hold
        self.who = read_owners(snapshot, now)
        self._requested = set[str]()  # jobs whose requested count others may overrule
        self._is_covered = bool(self.who.covered)  # asked very often
        self._by_type = self.who.guarantees
        queues = {owner.queue for owner in self.who.owners}
        limited = any(most_gpus_of(self.shares, JobOwner(name, "")) < math.inf for name in queues)
        several = len(self.who.owners) > 1
        self._spent = snapshot.spent
        self._budget_is_up = any(
            snapshot.spent.get(key, 0.0) >= budget.gpu_hours for key, budget in self.shares.budgets.items()
        )
        self.binds = "elastic" in settings.systems and (several or limited or self._budget_is_up)
        if self.binds:
            self._begin(snapshot)

    def _begin(self, snapshot: ClusterSnapshot) -> None:
        self.who = entitle(snapshot, self.who)
        self._held: dict[JobOwner | str, float] = defaultdict(float)
        self._gpus: dict[JobOwner | str, int] = defaultdict(int)
        for owner in self.who.owners:
            self._change(owner, self.who.gpus[owner], self.who.held[owner])
        for name, count in count_held(self.shares, snapshot.elsewhere.items()).items():
            self._gpus[name] += count
        self._gpu_types = snapshot.gpu_types if self.who.values or self._by_type else {}  # by node
        self._seen: dict[object, tuple[int, CostTable, CostTable]] = {}  # by who sees it: version, table, as seen
        self._read: tuple[ClusterSnapshot, JobColumns] | None = None
        # A claim is not put off because waiting is predicted to be better for all.
        self._patient = replace(self._settings, spare_critical=False, compare_with_waiting=False)
        self._promised = dict[str, _Promise]()  # by waiting job that GPUs are being freed for
        for job in snapshot.where(_is_freeing):
            for name in job.yields_to:
                if name in snapshot.job and name not in self._promised:
                    self.promise(snapshot.job[name])

    def _change(self, owner: JobOwner, count: int, held: float) -> None:
        for name in names_counted(self.shares, owner):
            self._gpus[name] += count
        self._held[owner] += held
        self._held[owner.queue] += held
        self.version += 1

    # who

    def owner(self, job: Job) -> JobOwner:
        named = job.queue, job.owner
        found = self._owner_of.get(named)
        if found is None:
            found = self._owner_of[named] = self.shares.owner_of(*named)
        return found

    def standing(self, name: JobOwner | str) -> Standing:
        if isinstance(name, JobOwner):
            return self.who.of_owner.get(name, NOBODY)
        return self.who.of_queue.get(name, NOBODY)

    def held(self, name: JobOwner | str) -> float:
        """Return the standard GPUs that an owner or a queue has or is promised, beside those reserved for its user."""
        held = self._held.get(name, 0.0)
        return held - self.who.covered.units(name) if self._is_covered else held

    def level(self, owner: JobOwner) -> tuple[float, ...]:
        """Return how well served an owner is; the smallest is next."""
        queue, its = self.standing(owner.queue), self.standing(owner)
        return (
            _level(self.held(owner.queue), queue.entitled),
            -queue.credit,
            _level(self.held(owner), its.entitled),
            -its.credit,
        )

    def line_up(self, jobs: Sequence[Job]) -> WaitingLine:
        """Return the waiting jobs, which come in queue order, in the order of rights."""
        return WaitingLine(self, jobs)

    # how many

    def room(self, owner: JobOwner, but: str = "") -> float:
        """Return the standard GPUs that an owner may still have by its share, odd ones included. `but`: the waiting
        job for which GPUs that are being freed do not count."""
        its, queue = self.standing(owner), self.standing(owner.queue)
        return min(queue.whole - self._with_promised(owner.queue, but), its.whole - self._with_promised(owner, but))

    def _with_promised(self, name: JobOwner | str, but: str) -> float:
        """Return what one holds and what is being freed for its waiting jobs."""
        others = (one for job, one in self._promised.items() if job != but and name in (one.owner, one.owner.queue))
        return self.held(name) + math.fsum(one.units for one in others)

    def limit_left(self, owner: JobOwner) -> float:
        """Return the GPUs that the limits of its queue, and budgets, still leave an owner, whoever idles."""
        if self._budget_is_up and self.shares.spent_budget(self._spent, owner, owner.user):
            return 0.0
        queue = self.shares.queue(owner.queue)
        each = math.inf if queue.user_limit is None else queue.user_limit
        above = self.shares.limiting_parents(owner.queue)
        of_parents = [self.shares.queue(parent).most_together - self._gpus[parent] for parent in above]
        return min(queue.most - self._gpus[owner.queue], *of_parents, each - self._gpus[owner])

    def hold(self, job: Job, reserved: int = 0) -> Hold | None:
        """Return why a waiting job may not have its smallest count now, whatever is idle; None if it may. `reserved`:
        GPUs that its user has reserved and that are free for it."""
        if not self.binds or job.uses_cpu:
            return None
        owner = self.owner(job)
        least = min(job.optional, default=0)
        if self._budget_is_up and (spent := self.shares.spent_budget(self._spent, owner, job.owner)):
            return Hold(
                job.id,
                Explanation(BUDGET, f"{job.id} waits: {spent}. It starts in the next one, or with a larger budget."),
            )
        reached = binding_limit(self.shares, owner, self._gpus, least)
        if reached is not None:
            needs = "" if reached.algorithm == BORROW else f", and it needs {least}"
            return Hold(job.id, Explanation(reached.algorithm, f"{job.id} waits: {reached.words}{needs}."))
        room = self.room(owner, job.id) + TINY
        if job.preemption == "never" and least > reserved and least * self._value(job) > room:
            sentence = (
                f"{job.id} waits: as it is never to give GPUs up, it may only have what its owner is entitled to. "
                f"{self.sentence(owner)}"
            )
            return Hold(job.id, Explanation(SHARE, sentence))
        return None

    def capped(self, job: Job, others_wait: bool, reserved: int = 0) -> Job:
        """Return the job with the counts that it may have now, at least its smallest. `reserved`: as of `hold`."""
        if not self.binds or job.uses_cpu:
            return job
        owner = self.owner(job)
        least = min(job.optional, default=0)
        cap = self.limit_left(owner)
        within = math.floor(self.room(owner, job.id) / self.who.mean_value + TINY)
        if others_wait or job.preemption == "never":
            cap = min(cap, max(least, within, reserved))
        counts = tuple(count for count in job.optional if count <= cap)
        return job if counts == job.optional or not counts else replace(job, optional=counts)

    # whose

    def claim(self, job: Job) -> GpuClaim:
        """Return what GPUs of others a waiting job may have. An owner with some gets no odd GPU of others."""
        owner = self.owner(job)
        own, whole_queue = self.standing(owner), self.standing(owner.queue)
        has, queue_has = self._with_promised(owner, job.id), self._with_promised(owner.queue, job.id)
        needs = min(job.optional, default=0) * self._value(job)
        guaranteed = min(self.shares.queue(owner.queue).guaranteed, whole_queue.demand)
        types = self._types_due(owner.queue, job) if self._by_type else ()
        surely = has + needs <= own.entitled + TINY
        within = surely or (has == 0 and needs <= own.whole + TINY)
        by_share = queue_has + needs <= max(whole_queue.entitled, guaranteed) + TINY
        across = within and (by_share or (queue_has == 0 and needs <= whole_queue.whole + TINY))
        by_guarantee = across and queue_has + needs <= guaranteed + TINY
        return GpuClaim(within, across, odd=not surely, guaranteed=by_guarantee, types=types)

    def _types_due(self, queue: str, job: Job) -> tuple[str, ...]:
        """Return the GPU types of which a waiting job's smallest count is part of what its queue is guaranteed."""
        found = list[str]()
        for gpu_type in self._by_type.gpu_types:
            if job.gpu_type in (None, gpu_type):
                promised = sum(
                    one.num_gpus
                    for other, one in self._promised.items()
                    if other != job.id and one.owner.queue == queue and one.gpu_type in (None, gpu_type)
                )
                if 0 < min(job.optional, default=0) <= self._by_type.missing(queue, gpu_type) - promised:
                    found.append(gpu_type)
        return tuple(found)

    def waits_for_guarantee(self, job: Job) -> bool:
        """Return whether a waiting job is to get GPUs of a type that its queue is guaranteed: before all others."""
        return bool(self._by_type) and not job.uses_cpu and bool(self._types_due(self.owner(job).queue, job))

    def _value(self, job: Job) -> float:
        """Return the least that one GPU of those that the job may have counts."""
        values = self.who.values
        if job.gpu_type is not None:
            return values.get(job.gpu_type, 1.0)
        return min(values.values(), default=1.0)

    def units(self, job: Job, count: int) -> float:
        """Return how many standard GPUs `count` GPUs of a running job are."""
        return count * self._value_on(job.node)

    def refuse_request(self, snapshot: ClusterSnapshot, job: Job) -> str:
        """Return why a running job may not grow to the count that was requested for it, as a sentence; empty if it may.
        A request is no right: beyond its owner's share others come first."""
        more = (job.wanted or 0) - job.num_gpus
        owner = self.owner(job) if self.binds else None
        if owner is None or more <= 0 or self.units(job, more) <= self.room(owner) + TINY:
            return ""
        others = (other for other in snapshot.queue if not other.uses_cpu and self.owner(other) != owner)
        if not any(self.could_start(snapshot, other) and self.hold(other) is None for other in others):
            return ""
        return f"jobs of others wait for GPUs. {self.sentence(owner)}"

    def without_requests(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Return the snapshot in which no request keeps GPUs beyond the share of a job's owner from others that wait.

        For jobs of the same owner, such a job keeps its count all the same."""
        if not self.binds:
            return snapshot
        waiting = {self.owner(job) for job in snapshot.queue if not job.uses_cpu}
        above = {owner for owner, more in self._above_shares() if more > TINY and waiting - {owner}}
        self._requested = {job.id for job in snapshot.where(_is_requested) if self.owner(job) in above}
        if not self._requested:
            return snapshot
        jobs = (replace(job, wanted=None) if job.id in self._requested else job for job in snapshot.jobs)
        return snapshot.then(jobs=tuple(jobs))

    @property
    def overrules_requests(self) -> bool:
        """Return whether some request binds less than it says, so that plans cannot be simulated."""
        return bool(self._requested)

    def has_turn(self, owner: JobOwner, other: JobOwner) -> bool:
        """Return whether an owner with nothing may go first where both need more than their shares."""
        if owner.queue != other.queue:
            if not self.shares.queue(other.queue).reclaimable:
                return False
            more = self.standing(owner.queue).credit - self.standing(other.queue).credit
            return self.held(owner.queue) == 0 and more >= self.shares.turn
        return self.held(owner) == 0 and self.standing(owner).credit - self.standing(other).credit >= self.shares.turn

    def over(self, victim: JobOwner, claimant: JobOwner, claim: GpuClaim, gpu_type: str) -> float:
        """Return the standard GPUs that another owner can be made to give to the claimant on nodes of this type."""
        return max(0.0, min(self.surplus(victim, claimant, claim, gpu_type)))

    def surplus(self, victim: JobOwner, claimant: JobOwner, claim: GpuClaim, gpu_type: str) -> tuple[float, float]:
        """Return the standard GPUs that a claimant may take on nodes of this type of another owner, of its queue."""
        of_queue = self._surplus_of_queue(victim.queue, claimant, claim, gpu_type)
        if gpu_type in claim.types and victim.queue != claimant.queue:
            return self._by_type.units_of(victim, gpu_type), of_queue
        return self.held(victim) - self.standing(victim).whole, of_queue

    def _surplus_of_queue(self, queue: str, claimant: JobOwner, claim: GpuClaim, gpu_type: str) -> float:
        """Return the standard GPUs that a claimant may take of a queue on nodes of this type."""
        if queue == claimant.queue:
            return math.inf if claim.within else 0.0
        by_type = gpu_type in claim.types
        if not (claim.across or by_type) or not self.shares.queue(queue).reclaimable:
            return 0.0
        if by_type:
            return min(self._by_type.units_beyond(queue, gpu_type), self.beyond_any_type(queue))
        return min(self.held(queue) - self.standing(queue).whole, self.beyond_guarantee(queue, gpu_type))

    def beyond_guarantee(self, queue: str, gpu_type: str) -> float:
        """Return the standard GPUs of a type beyond what a queue is guaranteed of it; infinite if nobody is any."""
        return self._by_type.units_beyond(queue, gpu_type) if self.type_told_apart(gpu_type) else math.inf

    def beyond_any_type(self, queue: str) -> float:
        """Return the standard GPUs beyond what a queue is guaranteed of GPUs of any type, and wants; negative below."""
        return self.held(queue) - min(self.shares.queue(queue).guaranteed, self.standing(queue).demand)

    @property
    def types_told_apart(self) -> tuple[str, ...]:
        """Return what `type_told_apart` returns for all nodes."""
        return (*self._by_type.gpu_types, "")

    def type_told_apart(self, gpu_type: str) -> str:
        """Return a GPU type of which some queue is guaranteed a number, and for all others an empty text."""
        return gpu_type if gpu_type in self._by_type.gpu_types else ""

    def gpu_type_of(self, job: Job) -> str:
        """Return the same for the GPUs that a job has."""
        return self.type_told_apart(self._gpu_types.get(job.node or "", ""))

    def seen(self, table: CostTable, job: Job) -> CostTable:
        """Return the table as this waiting job sees it: what jobs of others keep by right.

        A claim is not put off because waiting is predicted to be better for all.
        """
        if not self.binds:
            return table
        owner = self.owner(job)
        claim = self.claim(job)
        key = owner, claim.within, claim.across, claim.types
        known = self._seen.get(key)
        if known is None or known[:2] != (self.version, table):
            known = self._seen[key] = self.version, table, self._see(table, owner, claim)
        return known[2]

    def _see(self, table: CostTable, owner: JobOwner, claim: GpuClaim) -> CostTable:
        columns = self.columns(table.snapshot)
        gives = self.by_job(table.snapshot, partial(self.given_to, owner, claim))
        may_give = np.floor(gives / columns.value + TINY)
        keeps = np.maximum(0.0, columns.gpus - may_give)
        others_fixed = (columns.fixed > 0) & (gives < math.inf)
        keeps = np.where(others_fixed, columns.gpus, keeps)
        own = [row for row in self._rows_requested(table) if gives[row] == math.inf]
        keeps[own] = columns.gpus[own]
        reclaims = bool(((gives > 0) & (gives < math.inf)).any())
        return table.keeping(keeps, self._patient if reclaims else table.settings)

    def _rows_requested(self, table: CostTable) -> list[int]:
        return [table.row_of[name] for name in self._requested] if self._requested else []

    def given_to(self, claimant: JobOwner, claim: GpuClaim, gpu_type: str) -> list[float]:
        """Return, in the order of the owners, the standard GPUs that each can be made to give to a claimant on nodes of
        this type; infinite for the claimant's own."""
        most = {queue: self._surplus_of_queue(queue, claimant, claim, gpu_type) for queue in self.who.of_queue}
        of_type = gpu_type in claim.types
        found = list[float]()
        for owner, above in self._above_shares():
            if owner == claimant:
                found.append(math.inf)
            elif of_type and owner.queue != claimant.queue:
                found.append(max(0.0, min(self._by_type.units_of(owner, gpu_type), most[owner.queue])))
            else:
                found.append(max(0.0, min(above, most[owner.queue])))
        return found

    def _above_shares(self) -> list[tuple[JobOwner, float]]:
        """Return each owner with the standard GPUs that it holds above its share, negative below."""
        if self._above[0] != self.version:
            above = [(owner, self.held(owner) - self.standing(owner).whole) for owner in self.who.owners]
            self._above = self.version, above
        return self._above[1]

    def by_job(self, snapshot: ClusterSnapshot, of: Callable[[str], Sequence[float]]) -> Floats:
        """Return by job of a snapshot the number that `of(type of its GPUs)` has for its owner; 0 for jobs trained on
        CPU. Types are as of `type_told_apart`, the numbers in the order of the owners."""
        owner = self.columns(snapshot).owner
        rows = [self._by_number(of(gpu_type)) for gpu_type in self.types_told_apart]
        if not self._by_type:
            return rows[0][owner]
        found: Floats = np.stack(rows)[self._by_type.type_numbers(snapshot), owner]
        return found

    def _by_number(self, by_owner: Sequence[float]) -> Floats:
        """Return numbers by number of an owner; the last one, 0, is that of jobs trained on CPU."""
        values = np.zeros(max(self.who.numbers, default=-1) + 2)
        values[list(self.who.numbers)] = by_owner
        return values

    def columns(self, snapshot: ClusterSnapshot) -> JobColumns:
        """Return what all jobs of a snapshot have and want."""
        if self._read is None or self._read[0] is not snapshot:
            self._read = snapshot, read_jobs(snapshot, self.who.index, self.who.values)
        return self._read[1]

    def growing(self, table: CostTable, borrows: bool) -> CostTable:
        """Return the table in which no job grows beyond what its owner is entitled to; `borrows`: beyond its limits."""
        if not self.binds:
            return table
        columns = self.columns(table.snapshot)
        limits = self._by_number([max(0, self.limit_left(owner)) for owner in self.who.owners])[columns.owner]
        more = limits
        if not borrows:
            room = self._by_number([max(0.0, self.room(owner)) for owner in self.who.owners])[columns.owner]
            more = np.minimum(limits, np.floor(room / columns.value + TINY))
        more[self._rows_requested(table)] = 0.0
        return table.growing(columns.gpus + more)

    def growth_steps(self, snapshot: ClusterSnapshot, held: Sequence[Hold]) -> Sequence[bool]:
        """Return whether to borrow in each round of growth: not while a job waits that idle GPUs could start."""
        if not self.binds:
            return (True,)
        waits = any(
            one.explanation.algorithm not in NO_HELP and self.could_start(snapshot, snapshot.job[one.job])
            for one in held
        )
        return (False,) if waits else (False, True)

    def could_start(self, snapshot: ClusterSnapshot, job: Job) -> bool:
        """Return whether some node has enough GPUs for a waiting job, idle or not."""
        place = job.gpu_type, job.pinned
        if place not in self._largest:
            self._largest[place] = max((node.working for node in snapshot.allowed(*place)), default=0)
        return not job.uses_cpu and most_gpus(job, self._largest[place]) > 0

    def may_keep_node(self, job: Job) -> bool:
        """Return whether a node may be kept for an aged job: one that has a claim, or whose owner has nothing. Of one
        owner alone each may."""
        if not self.binds or job.uses_cpu or len(self.who.owners) == 1:
            return True
        return self.held(self.owner(job)) == 0 or self.claim(job).any

    def keeps_node(self, job: Job) -> bool:
        """Return whether a node is kept for a job that has not aged: its claim has waited in vain, as what is idle is
        scattered, or held by jobs that keep it."""
        alone = not self.binds or job.uses_cpu or len(self.who.owners) == 1
        if alone or self.is_promised(job) or self.waited_s(job) < self.shares.patience_s:
            return False
        claim = self.claim(job)
        return bool(claim.types) or (claim.any and not claim.odd)

    def waited_s(self, job: Job) -> float:
        """Return how long a job has waited since it came into the queue last."""
        return self.now - (job.submit_s if job.queued_s is None else job.queued_s)

    def may_yield(self, heavy: Job, light: Job) -> bool:
        """Return whether an overdue job may give GPUs to a waiting one: in its own queue, or what it has too much."""
        if not self.binds or heavy.uses_cpu:
            return True
        queue = self.owner(heavy).queue
        if queue != self.owner(light).queue and not self.shares.queue(queue).reclaimable:
            return False
        above = min(
            self.held(queue) - self.standing(queue).whole, self.beyond_guarantee(queue, self.gpu_type_of(heavy))
        )
        return queue == self.owner(light).queue or above > 0

    # what was decided

    def promise(self, job: Job) -> None:
        """Note that GPUs are being freed for a waiting job: it makes no second claim, and others of its owner less."""
        least = min(job.optional, default=0)
        self._promised[job.id] = _Promise(self.owner(job), least, job.gpu_type, least * self._value(job))
        self.version += 1

    def is_promised(self, job: Job) -> bool:
        return job.id in self._promised

    def took(self, snapshot: ClusterSnapshot, decision: Decision) -> None:
        """Count a decision that was made on `snapshot`."""
        if not self.binds or not isinstance(decision, Start | Reshape | Move | Requeue):
            return
        self.who.covered.count(snapshot, decision)
        job = snapshot.job[decision.job]
        if isinstance(decision, Start):
            self._promised.pop(job.id, None)
            for victim in decision.victims:
                giver = snapshot.job[victim.job]
                gone = victim.num_gpus - giver.num_gpus
                self._by_type.count_gpus(self.owner(giver), self.gpu_type_of(giver), gone)
                self._change(self.owner(giver), gone, gone * self._value_on(giver.node))
        count = 0 if isinstance(decision, Requeue) else decision.num_gpus
        before = job.num_gpus * self._value_on(job.node)
        after = 0.0 if isinstance(decision, Requeue) else count * self._value_on(decision.node)
        self._by_type.count_gpus(self.owner(job), self.gpu_type_of(job), -job.num_gpus)
        if not isinstance(decision, Requeue):
            self._by_type.count_gpus(self.owner(job), self._gpu_types.get(decision.node, ""), count)
        self._change(self.owner(job), count - job.num_gpus, after - before)

    def _value_on(self, node: str | None) -> float:
        return self.who.values.get(self._gpu_types.get(node or "", ""), 1.0)

    # for people

    def name(self, owner: JobOwner) -> str:
        """Return words for an owner."""
        return owner_in_words(self.shares, owner)

    def sentence(self, owner: JobOwner) -> str:
        """Say what an owner holds, is entitled to and has used lately."""
        its, whole_queue = self.standing(owner), self.standing(owner.queue)
        holds, is_entitled, has_used = ("holds", "is", "has") if owner.user else ("hold", "are", "have")
        held = _number_of(self.held(owner))
        has = f"{self.name(owner)} {holds} {held} GPU{'' if held == '1' else 's'}"
        may = f"{is_entitled} entitled to {_number_of(its.whole)} now"
        text = f"{has} and {may}"
        if its.use / 3600 >= TOLD_GPU_H:
            share = f", {its.use / its.fair_use:.1f} x the share" if its.fair_use > 0 else ""
            text = f"{has}, {may}, and {has_used} used {its.use / 3600:.1f} GPU-hours lately{share}"
        if self.shares.queues:
            queue = self.shares.queue(owner.queue)
            terms = f"guaranteed {queue.guarantee_in_words}, weight {queue.weight:g}"
            text += f"; queue {owner.queue} ({terms}) holds {_number_of(self.held(owner.queue))} of "
            text += _number_of(whole_queue.whole)
        return f"{text[:1].upper() if not owner.user else text[:1]}{text[1:]}."


class WaitingLine:
    """The waiting jobs of one pass in the order of rights. With one owner that is the order of the queue."""

    def __init__(self, rights: Rights, jobs: Sequence[Job]) -> None:
        self._rights = rights
        self._left: dict[JobOwner, deque[tuple[int, Job]]] = {}
        self._on_gpus = Counter[JobOwner]()  # jobs that have yet to come
        ranked = sorted(enumerate(jobs), key=lambda one: (-one[1].priority, one[0]))
        self._jobs = [job for _, job in ranked]
        if rights.binds:
            for place, job in ranked:
                owner = rights.owner(job)
                self._left.setdefault(owner, deque()).append((place, job))
                self._on_gpus[owner] += not job.uses_cpu

    def others_wait(self, job: Job) -> bool:
        """Return whether a job of another owner has yet to come."""
        return any(count for owner, count in self._on_gpus.items() if owner != self._rights.owner(job))

    def __iter__(self) -> Iterator[Job]:
        if not self._rights.binds:
            yield from self._jobs
        version = -1
        heap = list[tuple[tuple[float, ...], JobOwner]]()
        while self._left:
            if version != self._rights.version:
                version = self._rights.version
                heap = [(self._key(owner), owner) for owner in self._left]
                heapq.heapify(heap)
            _, owner = heapq.heappop(heap)
            _, job = self._left[owner].popleft()
            self._on_gpus[owner] -= not job.uses_cpu
            if self._left[owner]:
                heapq.heappush(heap, (self._key(owner), owner))
            else:
                del self._left[owner]
            yield job

    def _key(self, owner: JobOwner) -> tuple[float, ...]:
        place, job = self._left[owner][0]
        not_guaranteed = not self._rights.waits_for_guarantee(job)
        return (not_guaranteed, *self._rights.level(owner), place)  # priority orders the jobs of one owner alone


def _number_of(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _level(held: float, entitled: float) -> float:
    return round(held / entitled, 6) if entitled > TINY else math.inf


def _is_requested(job: Job) -> bool:
    return job.wanted is not None and job.num_gpus > 0


def _is_freeing(job: Job) -> bool:
    return job.busy and job.num_gpus == 0 and bool(job.yields_to)
