"""Keeps accounts of GPUs by user, queue and type: what was used lately, which rights rest on, and GPU-hours for people.

Promises: what was used survives a restart, and what ran meanwhile counts; a crash loses at most `FLUSH_S` seconds of
it. A turn costs the same however many jobs have ended. Called by the decision loop, read by the API from other threads.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adaptive_scheduler.decision import Decision, Requeue, Start
from adaptive_scheduler.index import Numbering
from adaptive_scheduler.rights.reclaim import SUSPEND
from adaptive_scheduler.rights.standing import Standings, entitle, read_owners
from adaptive_scheduler.shares import DecayedUse, JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from coordinator.errors import ReshapeError
from coordinator.model.records import Moment, number
from coordinator.ports import Clock, Doc, Store, moment_of
from coordinator.scheduling.budget_use import BudgetUse
from coordinator.stores.retention import HOUR_S
from coordinator.telemetry.gpu_use import parts_of_time

TABLE = "usage"
LATELY = "lately"
FLUSH_S = 30.0
MOST_BACK_S = 30 * 86400.0
"""Longest time, in seconds, that counts for jobs that ran while no coordinator did."""
AMOUNTS = ("gpu_s", "borrowed_s", "lent_s", "lost_s", "reclaimed", "shrinks", "suspensions")
"""Numbers of one account: GPU-seconds in all, of these beyond the share; of the guarantee, what others had meanwhile;
GPU-seconds for which trainings stood still in reshapes that made room for this owner, or were for its own jobs' sake;
GPUs that others reclaimed, and by how many shrinks and suspensions."""


class AccountKey(NamedTuple):
    """Key of an account: hour (its number since 1970), owner and GPU type."""

    hour: int
    queue: str
    user: str
    gpu_type: str


@dataclass
class _Account:
    amounts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(AMOUNTS, 0.0))
    changed: bool = True


class UsageAccounts:
    """Follows what owners hold from one turn to the next."""

    def __init__(
        self, store: Store, clock: Clock, count_held: Callable[[float, float, float], None] = lambda *_: None
    ) -> None:
        """`count_held` is told for how many seconds up to which wall time how many GPUs were held."""
        self._count_held = count_held
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()  # a turn counts while what it counted is written
        self._use = DecayedUse({}, {})
        self._accounts: dict[AccountKey, _Account] = {}
        self._now: float | None = None  # until when all is counted; None: nothing was read yet
        self._flushed_at = 0.0
        self._held: Mapping[tuple[JobOwner, str], float] = {}  # by owner and GPU type, since then
        self._borrowed: Mapping[JobOwner, float] = {}  # shares of that
        self._lent: Mapping[str, float] = {}  # by queue: GPUs of its guarantee
        self._budgets = BudgetUse(self._rows)
        self._looked: ClusterSnapshot | None = None  # what the last look saw; None before the first
        self.standings: Standings | None = None
        """Who was entitled to what at the last turn; None before the first."""

    @property
    def use(self) -> Mapping[JobOwner, float]:
        """Decayed GPU-seconds by owner."""
        return dict(self._use.use)

    def begin(self) -> None:
        """Forget what is in memory: another coordinator may have counted since."""
        with self._lock:
            self._now = None
            self._looked = None
            self._accounts = {}
            self._budgets.forget_accounts()

    @property
    def spent(self) -> Mapping[str, float]:
        """GPU-hours of the present week or month that count against budgets, by `budget_key`."""
        return self._budgets.spent

    def look(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Count the time since the last look, and return the snapshot with what was used lately."""
        with self._lock:
            return self._look(snapshot)

    def _look(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        at = moment_of(self._clock)
        half_life_s = snapshot.shares.half_life_s
        if self._now is None:
            self._read(at, half_life_s)
        elif at.now > self._now:
            self._count(at.now - self._now, at)
        passed_s = 0.0 if self._now is None else at.now - self._now
        self._now = at.now
        who = read_owners(snapshot, at.now)
        held = {owner: float(count) for owner, count in who.gpus.items() if count}
        for owner, _, count in who.covered.idle():
            held[owner] = held.get(owner, 0.0) + count
        self._use.look(passed_s, held, half_life_s)
        snapshot = snapshot.then(used=self.use, spent=self._budgets.look(snapshot.shares, at.wall))
        self._stand(snapshot, who)
        self._looked = snapshot
        return snapshot

    def _stand(self, snapshot: ClusterSnapshot, who: Standings) -> None:
        """Note what each owner holds from now on, and of that what is beyond its share."""
        self.standings = who = entitle(snapshot, who)
        by_type = dict(_held_by_type(snapshot, who))
        for owner, node, count in who.covered.idle():
            key = owner, snapshot.gpu_types.get(node, "")
            by_type[key] = by_type.get(key, 0.0) + count
        self._held = by_type
        alone = len(who.owners) < 2
        self._borrowed = {
            owner: 0.0 if alone or not held else max(0.0, who.beside_reserved(owner) - who.of_owner[owner].whole) / held
            for owner, held in who.held.items()
        }
        self._lent = _lent(snapshot, who)

    def _count(self, passed_s: float, at: Moment) -> None:
        """Add what was held for these seconds to the accounts of the hours that they lie in."""
        self._count_held(passed_s, at.wall, sum(self._held.values()))
        for (owner, gpu_type), count in self._held.items():
            for hour, seconds in parts_of_time(at.wall - passed_s, at.wall, HOUR_S):
                amounts = self._account(AccountKey(hour, *owner, gpu_type))
                amounts["gpu_s"] += count * seconds
                self._budgets.add(owner, count * seconds, hour * HOUR_S)
                amounts["borrowed_s"] += count * seconds * self._borrowed.get(owner, 0.0)
        for queue, count in self._lent.items():
            for hour, seconds in parts_of_time(at.wall - passed_s, at.wall, HOUR_S):
                self._account(AccountKey(hour, queue, "", ""))["lent_s"] += count * seconds

    def _account(self, key: AccountKey) -> dict[str, float]:
        if key not in self._accounts:
            kept = self._store.get(TABLE, _name(key)) or {}
            self._accounts[key] = _Account({name: number(kept.get(name)) or 0.0 for name in AMOUNTS})
        self._accounts[key].changed = True
        return self._accounts[key].amounts

    def decided(self, snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> None:
        """Count the GPUs that others reclaimed by right."""
        with self._lock:
            self._count_reclaimed(snapshot, decisions)

    def _count_reclaimed(self, snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> None:
        hour = int(self._clock.wall() // HOUR_S)
        for victim, gone, claimant, kind in _reclaimed(snapshot, decisions):
            owner = _owner(snapshot, victim)
            if owner != _owner(snapshot, claimant):
                gpu_type = snapshot.gpu_types.get(victim.node or "", "")
                amounts = self._account(AccountKey(hour, *owner, gpu_type))
                amounts["reclaimed"] += gone
                amounts[kind] += 1

    def count_lost(self, job_id: str, newcomer: str | None, gpu_s: float) -> None:
        """Charge the GPU-seconds for which a reshape let a training stand still to the owner that it made room for.

        Where it made room for nobody, or for a job that is gone, its own owner is charged. `ReshapeError` of the store.
        """
        with self._lock:
            job = None if self._looked is None else self._looked.job.get(job_id)
            if self._looked is None or job is None:
                return
            charged = _owner(self._looked, self._looked.job.get(newcomer or "", job))
            gpu_type = self._looked.gpu_types.get(job.node or "", "")
            self._account(AccountKey(int(self._clock.wall() // HOUR_S), *charged, gpu_type))["lost_s"] += gpu_s

    def flush_if_due(self) -> None:
        if self._clock.now() - self._flushed_at >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what has changed. Nothing before the first turn."""
        self._flushed_at = self._clock.now()
        with self._lock:
            docs, written = self._changed_documents()
        if not docs:
            return
        try:
            self._store.put_many(TABLE, docs)
        except ReshapeError:
            with self._lock:
                for one in written:
                    one.changed = True
            raise

    def _changed_documents(self) -> tuple[list[Doc], list[_Account]]:
        """Return what is to be written, and the accounts in it, which count as unchanged from now on."""
        at = moment_of(self._clock)
        changed = {key: one for key, one in self._accounts.items() if one.changed}
        if self._now is None or not (changed or self._use.use):
            return [], []
        docs = [_document(key, one.amounts) for key, one in changed.items()]
        owners = self._use.use.keys() | self._use.held.keys()
        lately = [[*owner, self._use.use.get(owner, 0.0), self._use.held.get(owner, 0.0)] for owner in sorted(owners)]
        counted_ts = at.wall - (at.now - self._now)
        docs.append({"_id": LATELY, "owners": lately, "ts": counted_ts, "mark": at.mark(counted_ts)})
        for one in changed.values():
            one.changed = False
        this_hour = int(at.wall // HOUR_S)
        self._accounts = {key: one for key, one in self._accounts.items() if key.hour >= this_hour - 1 or one.changed}
        return docs, list(changed.values())

    def _read(self, at: Moment, half_life_s: float) -> None:
        """Take up what was counted before, and count what was held since then."""
        kept = self._store.get(TABLE, LATELY) or {}
        rows = [row for row in kept.get("owners") or () if len(row) == 4]
        use = {JobOwner(str(row[0]), str(row[1])): number(row[2]) or 0.0 for row in rows}
        held = {JobOwner(str(row[0]), str(row[1])): number(row[3]) or 0.0 for row in rows}
        since = number(kept.get("ts"))
        passed_s = 0.0 if since is None else min(at.passed_s(since, kept.get("mark")), MOST_BACK_S)
        self._use = DecayedUse(use, held)
        self._use.look(passed_s, {}, half_life_s)

    def rows(self, since: float) -> list[dict[str, Any]]:
        """Return the accounts of each hour since this time (seconds since 1970), the oldest first."""
        with self._lock:
            return self._rows(since)

    def _rows(self, since: float) -> list[dict[str, Any]]:
        found = {str(doc["_id"]): doc for doc in self._store.list(TABLE) if doc["_id"] != LATELY}
        found |= {_name(key): _document(key, one.amounts) for key, one in self._accounts.items()}
        hour = int(since // HOUR_S)
        chosen = (doc for doc in found.values() if (number(doc.get("hour")) or 0) >= hour)
        return sorted(chosen, key=lambda doc: str(doc["_id"]))


def _held_by_type(snapshot: ClusterSnapshot, who: Standings) -> Iterator[tuple[tuple[JobOwner, str], float]]:
    kinds = snapshot.once(Numbering)
    places = snapshot.rows(_kind_row, kinds, snapshot.gpu_types).astype(np.intp)
    on_gpus = (who.columns.owner >= 0) & (who.columns.gpus > 0)
    most = len(kinds) + 1
    sums = np.bincount(who.columns.owner[on_gpus] * most + places[on_gpus], who.columns.gpus[on_gpus])
    names = {place: name for name, place in kinds.items()}
    for at in np.flatnonzero(sums).tolist():
        yield (who.index.owners[at // most], names[at % most]), float(sums[at])


def _kind_row(job: Job, kinds: Numbering, types: Mapping[str, str]) -> int:
    return kinds[types.get(job.node or "", "")]


def _lent(snapshot: ClusterSnapshot, who: Standings) -> Mapping[str, float]:
    """Return by queue the GPUs of its guarantee that it does not use and others have beyond theirs."""
    queues = snapshot.shares.queues
    held: dict[str, float] = defaultdict(float)
    for owner, count in who.held.items():
        held[owner.queue] += count
    lent = _lent_of({name: float(one.guaranteed) for name, one in queues.items()}, held)
    for gpu_type in who.guarantees.gpu_types:
        most = {name: float(one.guaranteed_types.get(gpu_type, 0)) for name, one in queues.items()}
        for name, count in _lent_of(most, who.guarantees.held_by_queue(gpu_type)).items():
            lent[name] = lent.get(name, 0.0) + count
    return lent


def _lent_of(guaranteed: Mapping[str, float], held: Mapping[str, float]) -> dict[str, float]:
    beyond = sum(max(0.0, count - guaranteed.get(name, 0.0)) for name, count in held.items())
    unused = {name: max(0.0, count - held.get(name, 0.0)) for name, count in guaranteed.items()}
    total = sum(unused.values())
    part = min(1.0, beyond / total) if total else 0.0
    return {name: count * part for name, count in unused.items() if count * part > 0}


def _reclaimed(snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> Iterator[tuple[Job, int, Job, str]]:
    """Yield (who gave, GPUs, for whom, what it was) of all GPUs that were taken."""
    for one in decisions:
        if isinstance(one, Start):
            for victim in one.victims:
                giver = snapshot.job[victim.job]
                yield giver, giver.num_gpus - victim.num_gpus, snapshot.job[one.job], "shrinks"
        elif isinstance(one, Requeue) and one.explanation.algorithm == SUSPEND:
            giver = snapshot.job[one.job]
            yield giver, giver.num_gpus, snapshot.job[one.yields_to[0]], "suspensions"


def _owner(snapshot: ClusterSnapshot, job: Job) -> JobOwner:
    return snapshot.shares.owner_of(job.queue, job.owner)


def _name(key: AccountKey) -> str:
    return f"{key.hour:08d} {key.queue} {key.user} {key.gpu_type}"


def _document(key: AccountKey, amounts: Mapping[str, float]) -> Doc:
    return {"_id": _name(key), **key._asdict(), **amounts}
