"""Makes, lists and cancels reservations of GPUs, and plans the maintenance of nodes.

Promises: what is accepted can be had without stopping a job that must not be stopped; what is refused says why, and
from when on it could be had. On a shared machine users reserve for themselves, no more GPUs at a time than their part;
administrators reserve for everybody. On a cluster, tenants do so who have the right to.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from adaptive_scheduler.candidates import gpus as count_of
from adaptive_scheduler.decision import gpus_on
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.reserved_gpus import NoRoom, ReservedGpus, find_room, in_words, kept_gpus, why_kept
from adaptive_scheduler.rights.limits import most_gpus_of
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from coordinator.adapters.clock import local_time
from coordinator.api.access import Access, UserService
from coordinator.caller import FORBIDDEN, Tenant
from coordinator.errors import Rejected
from coordinator.model.owner_names import OWNER
from coordinator.model.records import Moment, number
from coordinator.ports import Clock, Doc, Store, moment_of
from coordinator.scheduling.loop import DecisionLoop
from coordinator.scheduling.reservation_rows import TABLE, from_rows, is_maintenance
from coordinator.stores.retention import HOUR_S

View = dict[str, Any]

LATE_S = 60.0
"""Seconds by which a time that is named may have passed: as long as a call may take."""
LONGEST_S = 31 * 86400.0
FARTHEST_S = 366 * 86400.0
FOR_EVER_S = 10 * 365 * 86400.0
"""Of maintenance without an end."""


class Reservations(UserService):
    """Thread-safe."""

    def __init__(
        self, access: Access, store: Store, loop: DecisionLoop, clock: Clock, read_store: Callable[[], None]
    ) -> None:
        super().__init__(access)
        self._store = store
        self._loop = loop
        self._clock = clock
        self._read_store = read_store
        self._lock = threading.Lock()  # of two that are asked for at once the second one sees the first

    def reserve(self, asked: Mapping[str, Any]) -> View:
        """Keep GPUs for a user. `asked`: gpus, until, and maybe from, node, gpu_type, user, nodes.

        `nodes`: on how many nodes they are, as many on each; one if left out.
        Times are seconds since 1970. Raises `Rejected`; with status 409 if it cannot be had then.
        """
        with self.access.nameless_refusals(of_jobs=True):
            return self._reserve(asked)

    def _reserve(self, asked: Mapping[str, Any]) -> View:
        at = moment_of(self._clock)
        user = self._asked_user(asked.get("user"))
        begins, ends = _asked_times(asked.get("from"), asked["until"], at.wall, LONGEST_S)
        count = int(asked["gpus"])
        num_nodes = int(asked.get("nodes") or 1)
        if count % num_nodes:
            raise Rejected(f"{count_of(count)} are not as many on each of {num_nodes} nodes.")
        with self._lock:
            world, at = self._world_now()
            self._check_rights(world, at, user, count, begins, ends)
            node = str(asked.get("node") or "")
            wanted = Reservation("", node, count // num_nodes, at.from_epoch(begins), at.from_epoch(ends), user)
            offset_s = at.wall - at.now
            found = find_room(world, at.now, wanted, asked.get("gpu_type"), offset_s=offset_s, num_nodes=num_nodes)
            if isinstance(found, NoRoom):
                raise _refusal_of(found, count, node, at, ends - begins)
            first = self._row_of(found[0].node, wanted.num_gpus, begins, ends, user)
            rows = [first] if num_nodes == 1 else list(_rows_by_node(first, found))
            self._store.put_many(TABLE, rows)
        self._read_store()
        self.access.note_change("reserve", str(first["_id"]))
        return self._view_of_all(rows, *self._world_now())

    def plan_drain(self, node: str, begins: float, ends: float | None) -> View:
        """Drain a node from one time until another, or until it is undrained."""
        self.access.require_admin("drain nodes")
        wall = self._clock.wall()
        begins, ends = _asked_times(begins, wall + FOR_EVER_S if ends is None else ends, wall, FOR_EVER_S)
        with self._lock:
            world, at = self._world_now()
            if node not in world.node:
                raise Rejected(f"There is no node {node!r}; `reshape nodes` lists all.", 404)
            others = [row for row in self._stored_rows(at) if row["node"] == node and not is_maintenance(row)]
            if inside := [row for row in others if row["from_ts"] < ends and row["until_ts"] > begins]:
                told = ", ".join(f"{row['_id']} of {row['user']}" for row in inside)
                raise Rejected(f"GPUs of {node} are reserved in that time: {told}. Cancel these first.", 409)
            row = self._row_of(node, max(1, len(world.node[node].gpus)), begins, ends, None)
            self._store.insert(TABLE, row)
        self._read_store()
        self.access.note_change("drain", node)
        there = [job for job in world.placed if gpus_on(job, node)]
        jobs = [{"job_id": job.id, "num_gpus": job.num_gpus, "stays": _why_it_stays(job)} for job in there]
        return {
            "node": node,
            "drained": world.node[node].drained,
            "jobs": jobs,
            "window": self._view_of(row, world, at),
        }

    def end_drains(self, node: str) -> None:
        """Cancel what is planned for a node that takes work again, also what is over by a clock that may be wrong."""
        for row in self._store.list(TABLE):
            if row["node"] == node and is_maintenance(row):
                self._store.delete(TABLE, row["_id"])

    def listed(self) -> list[View]:
        """Return those that have not ended, by their beginning."""
        world, at = self._world_now()
        views = [self._view_of(row, world, at) for row in self._stored_rows(at)]
        return sorted(views, key=lambda view: (view["from"], view["reservation_id"]))

    def users_of_idle_gpus(self) -> dict[str, list[str]]:
        """Return by node for which user each GPU is kept that no job has, as the last decision saw it."""
        snapshot = self._loop.last_snapshot
        if snapshot is None or not snapshot.reservations:
            return {}
        kept = ReservedGpus(snapshot, self._clock.now())
        spare = {node: kept.spare(snapshot, node) for node in kept.kept_by_node}
        return {
            node: [user for user, count in of_node.items() if user is not None for _ in range(count)]
            for node, of_node in spare.items()
        }

    def cancel(self, reservation_id: str) -> View:
        """End a reservation, on all its nodes or on one of them, or maintenance that was planned; jobs on its GPUs keep
        training."""
        world, at = self._world_now()
        rows = [row for row in self._stored_rows(at) if reservation_id in (row["_id"], whole_id(row["_id"]))]
        if not rows:
            raise Rejected(f"There is no reservation {reservation_id!r}; `reshape reservations` lists all.", 404)
        if self._caller is not None and not self._caller.admin and rows[0]["user"] != self._caller.name:
            raise Rejected("It belongs to another user: only that user and administrators may cancel it.", FORBIDDEN)
        if not self._store.remove(TABLE, [row["_id"] for row in rows]):
            raise Rejected(f"There is no reservation {reservation_id!r} any more.", 404)
        self._read_store()
        self.access.note_change("unreserve", reservation_id)
        return self._view_of_all(rows, world, at)

    def _asked_user(self, named: Any) -> str:
        if named is not None and not (isinstance(named, str) and OWNER.fullmatch(named)):
            raise Rejected("user must be the name of a user.")
        if self._caller is None:
            return named or self._loop.config.default_owner
        if isinstance(self._caller, Tenant):  # any account of the cluster may call
            self._caller.require_reserving()
        if named not in (None, self._caller.name):
            self._caller.require_admin("reserve GPUs for other users")
        return named or self._caller.name

    def _world_now(self) -> tuple[ClusterSnapshot, Moment]:
        snapshot, _ = self._loop.present()
        at = moment_of(self._clock)
        return snapshot.then(reservations=from_rows(self._store.list(TABLE), at)), at

    def _stored_rows(self, at: Moment) -> list[Doc]:
        """Return those that are not over; the others are removed once the clock can be trusted with that."""
        return [row for row in self._store.list(TABLE) if (number(row.get("until_ts")) or 0.0) > at.wall]

    def _row_of(self, node: str, count: int, begins: float, ends: float, user: str | None) -> Doc:
        by = None if self._caller is None else self._caller.name
        times = {"from_ts": begins, "until_ts": ends}
        taken = {whole_id(row["_id"]) for row in self._store.list(TABLE)}
        row_id = _draw_id()
        while row_id in taken:
            row_id = _draw_id()
        return {"_id": row_id, "node": node, "num_gpus": count, "user": user, "by": by, **times}

    def _check_rights(
        self, world: ClusterSnapshot, at: Moment, user: str, count: int, begins: float, ends: float
    ) -> None:
        shares = self._loop.queue_shares.shares
        owner = shares.owner_of("", user)
        most = most_gpus_of(shares, owner)
        whose = f"queue {owner.queue}" if shares.queues else user
        if count > most:
            raise Rejected(f"{count_of(count)} cannot be reserved: {whose} may have at most {most:.0f}.", 409)
        if self._caller is None or self._caller.admin:
            return
        others = [one for one in world.reservations if one.user == user]
        from_s = at.from_epoch(begins)
        until_s = at.from_epoch(ends)
        has = sum(one.num_gpus for one in others if one.from_s < until_s and one.until_s > from_s)
        part = fair_part(shares, world, user, world.used)
        if has + count > part:
            also = f" besides the {has} that you have then" if has else ""
            raise Rejected(
                f"{count_of(count)} cannot be reserved{also}: your part of the GPUs is {part}. Ask for fewer, or an "
                "administrator.",
                409,
            )
        self._check_total(world, at, others, count, until_s - from_s)

    def _check_total(
        self, world: ClusterSnapshot, at: Moment, others: Sequence[Reservation], count: int, lasts_s: float
    ) -> None:
        """Refuse what would keep more GPU-hours for one user than that may have reserved: who comes later waits."""
        most_s = self._loop.queue_shares.shares.most_reserved_s
        most = world.capacity["gpus"] * most_s / HOUR_S
        has = sum(one.num_gpus * (one.until_s - max(one.from_s, at.now)) for one in others) / HOUR_S
        asked = count * lasts_s / HOUR_S
        if has + asked <= most + 1e-6:
            return
        also = f", and you have {has:.1f} reserved" if has >= 0.1 else ""
        left_s = max(0.0, most - has) / count * HOUR_S
        instead = f"Reserve {count_of(count)} for at most {in_words(left_s)}" if left_s >= LATE_S else "Cancel one"
        may = f"{most:.1f}, all GPUs for {in_words(most_s)} (`most_reserved` in shares.yaml)"
        raise Rejected(
            f"{count_of(count)} for {in_words(lasts_s)} would be {asked:.1f} GPU-hours{also}; the reservations of a "
            f"user may come to {may}. {instead}, or ask an administrator.",
            409,
        )

    def _view_of_all(self, rows: Sequence[Doc], world: ClusterSnapshot, at: Moment) -> View:
        """Return one view of what was reserved together."""
        views = [self._view_of(row, world, at) for row in rows]
        missing = [view["missing"] for view in views if view["missing"] is not None]
        return views[0] | {
            "reservation_id": whole_id(rows[0]["_id"]) if len(rows) > 1 else rows[0]["_id"],
            "nodes": [view["node"] for view in views],
            "gpus": sum(view["gpus"] for view in views),
            "missing": sum(missing) if missing else None,
        }

    def _view_of(self, row: Mapping[str, Any], world: ClusterSnapshot, at: Moment) -> View:
        view: View = {
            "reservation_id": row["_id"],
            "purpose": "maintenance" if is_maintenance(row) else "user",
            "user": row["user"],
            "node": row["node"],
            "nodes": [row["node"]],
            "gpus": row["num_gpus"],
            "from": row["from_ts"],
            "until": None if row["until_ts"] - row["from_ts"] > LONGEST_S and is_maintenance(row) else row["until_ts"],
            "by": row.get("by"),
            "missing": _missing_gpus(row, world) if row["from_ts"] <= at.wall else None,
        }
        caller = self._caller
        if caller is not None and not (caller.others_seen or caller.admin or row["user"] in (None, caller.name)):
            return {**view, "user": None, "by": None}
        return view


def _draw_id() -> str:
    """Return an id that is short, for people, and may therefore be taken."""
    return f"r-{secrets.token_hex(3)}"


def whole_id(row_id: str) -> str:
    """Return the id of all that was reserved together: of `r-3f9a2c.2`, its part on one node, `r-3f9a2c`."""
    return row_id.partition(".")[0]


def _rows_by_node(first: Doc, found: Sequence[Reservation]) -> Iterator[Doc]:
    for place, one in enumerate(found, 1):
        yield {**first, "_id": f"{first['_id']}.{place}", "node": one.node}


def _why_it_stays(job: Job) -> str | None:
    return f"trains on there unless it ends before: {why_kept(job)}" if kept_gpus(job, job.num_gpus) else None


def _missing_gpus(row: Mapping[str, Any], world: ClusterSnapshot) -> int:
    """Return how many of the GPUs others have still."""
    node = world.node.get(str(row["node"]))
    if node is None:
        return int(row["num_gpus"])
    own = sum(gpus_on(job, node.name) for job in world.placed if job.owner == row["user"])
    idle = sum(gpu.state == "idle" for gpu in node.gpus)
    return max(0, int(row["num_gpus"]) - own - idle)


def fair_part(shares: Shares, world: ClusterSnapshot, user: str, lately: Iterable[JobOwner]) -> int:
    """Return how many GPUs are a user's part among all who have jobs or have used some lately; at least 1. Of a user
    with jobs in several queues, that in the queue where it is largest."""
    owner_of = {(job.queue, job.owner): shares.owner_of(job.queue, job.owner) for job in world.jobs if not job.uses_cpu}
    mine = {owner for (_, name), owner in owner_of.items() if name == user} or {shares.owner_of("", user)}
    owners = {*owner_of.values(), *lately, *mine}
    total = sum(shares.queue(name).weight for name in {owner.queue for owner in owners})

    def part_of(owner: JobOwner) -> float:
        queue = shares.queue(owner.queue)
        of_queue = queue.weight / total * world.capacity["gpus"] if total else 0.0
        weights = sum(shares.user(other.user).weight for other in owners if other.queue == owner.queue)
        return max(of_queue, queue.guaranteed_in_all) * shares.user(owner.user).weight / weights

    return max(1, math.floor(max(map(part_of, mine)) + 1e-9))


def _asked_times(begins: Any, ends: Any, wall: float, longest_s: float) -> tuple[float, float]:
    first = wall if begins is None else number(begins)
    last = number(ends)
    if first is None or last is None:
        raise Rejected("from and until must be times in seconds since 1970.")
    if first < wall - LATE_S:
        raise Rejected("The time from which on it is asked for has passed; name a later one.")
    if last <= max(first, wall):
        raise Rejected("It would end before it begins, or has ended already: name a later `until`.")
    if last - first > longest_s or first - wall > FARTHEST_S:
        raise Rejected("A reservation lasts 31 days at most, and begins within a year.")
    return max(first, wall), last


def _refusal_of(found: NoRoom, count: int, node: str, at: Moment, lasts_s: float) -> Rejected:
    where = f" of {node}" if node else ""
    why = f"{count_of(count)}{where} cannot be had: {found.why}."
    if found.earliest_s is None:
        return Rejected(why, 409)
    earliest = found.earliest_s + at.wall - at.now
    told = local_time(earliest, "%Y-%m-%d %H:%M")
    return Rejected(
        f"{why} For as long a time they can be had from {told} on.", 409, (f"from: at least {earliest:.0f}",)
    )
