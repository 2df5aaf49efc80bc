"""Shows rights and accounts for callers: who may have, has and has used how many GPUs. Pure but for its arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from adaptive_scheduler.rights.standing import NOBODY, Standing, Standings
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.scheduling.budget_use import sentence, state_of

View = dict[str, Any]

NAMES = {
    "gpu_s": "gpu_hours",
    "borrowed_s": "borrowed_gpu_hours",
    "lent_s": "lent_gpu_hours",
    "lost_s": "lost_gpu_hours",
    "reclaimed": "reclaimed_gpus",
    "shrinks": "shrinks",
    "suspensions": "suspensions",
}
"""Fields of an account, and what they are called in a view."""

LEAST_USE = 36.0
"""GPU-seconds below which a user without a job is not shown."""


def shares_view(
    shares: Shares,
    who: Standings | None,
    snapshot: ClusterSnapshot | None,
    now: float,
    path: str,
    problem: str,
    spent: Mapping[str, float],
    of_volcano: Collection[str] = (),
) -> View:
    """Return queues and owners with what each may have and has. `who` and `snapshot`: of the last turn; None before.
    `of_volcano`: the queues of which Volcano's object says what they may have.

    `spent`: GPU-hours by `budget_key`. GPUs are standard GPUs where types differ in speed. `longest_wait_s` is None
    where nobody waits.
    """
    waits: dict[JobOwner | str, float] = {}
    for job in snapshot.queue if snapshot is not None else ():
        owner = shares.owner_of(job.queue, job.owner)
        if not job.uses_cpu:
            since = job.submit_s if job.queued_s is None else job.queued_s
            for name in (owner, owner.queue):
                waits[name] = max(waits.get(name, 0.0), now - since)
    held: dict[JobOwner | str, float] = defaultdict(float)
    beside: dict[JobOwner | str, float] = defaultdict(float)
    for owner, count in who.held.items() if who is not None else ():
        for name in (owner, owner.queue):
            held[name] += count
            beside[name] += who.beside_reserved(owner) if who is not None else 0.0
    of_queue = who.of_queue if who is not None else {}
    of_owner = who.of_owner if who is not None else {}
    names = {shares.default_queue, *shares.queues, *of_queue}
    used = snapshot.used if snapshot is not None else {}
    lately = {owner: NOBODY._replace(use=use) for owner, use in used.items() if use >= LEAST_USE}
    users = {**lately, **of_owner}
    return {
        "file": path or None,
        "problem": problem or None,
        "gpus": who.capacity if who is not None else 0.0,
        "half_life_s": shares.half_life_s,
        "patience_s": shares.patience_s,
        "min_run_s": shares.min_run_s,
        "most_reserved_s": shares.most_reserved_s,
        "turn": shares.turn,
        "gpu_values": dict(shares.gpu_values or (who.values if who is not None else {})),
        "queues": [
            {
                "queue": name,
                "from": "Volcano" if name in of_volcano else "shares.yaml" if name in shares.queues else None,
                "weight": shares.queue(name).weight,
                "guaranteed": shares.queue(name).guaranteed_in_all,
                "guaranteed_types": dict(shares.queue(name).guaranteed_types),
                "limit": shares.queue(name).limit,
                "borrow": shares.queue(name).borrow,
                "reclaimable": shares.queue(name).reclaimable,
                "user_limit": shares.queue(name).user_limit,
                "max_jobs": shares.queue(name).max_jobs,
                "users": list(shares.queue(name).users),
                "operators": list(shares.queue(name).operators),
                "owners": shares.queue(name).owners,
                "makespan_weight": shares.queue(name).makespan_weight,
                **_stands(of_queue.get(name, NOBODY), held[name], beside[name], waits.get(name)),
            }
            for name in sorted(names)
        ],
        "budgets": [
            {
                "kind": key.partition(" ")[0],
                "name": key.partition(" ")[2],
                "gpu_hours": budget.gpu_hours,
                "per": budget.per,
                "used_gpu_hours": round(spent.get(key, 0.0), 4),
                "state": state_of(budget, spent.get(key, 0.0)),
                "sentence": sentence(key, budget, spent.get(key, 0.0)),
            }
            for key, budget in sorted(shares.budgets.items())
        ],
        "users": [
            {
                "queue": owner.queue,
                "user": owner.user,
                "weight": shares.user(owner.user).weight,
                **_stands(its, held[owner], beside[owner], waits.get(owner)),
            }
            for owner, its in sorted(users.items())
        ],
    }


def _stands(its: Standing, held: float, beside: float, wait_s: float | None) -> View:
    """`beside`: what of `held` is not within reservations."""
    return {
        "demand": its.demand,
        "entitled": its.whole,
        "held": held,
        "borrowed": max(0.0, beside - its.whole),
        "credit": round(its.credit, 4),
        "used_gpu_hours": round(its.use / 3600, 4),
        "longest_wait_s": None if wait_s is None else round(wait_s, 1),
    }


def usage_view(rows: Iterable[Mapping[str, Any]]) -> list[View]:
    """Return the accounts of all hours added up, by queue, user and GPU type."""
    sums: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(NAMES, 0.0))
    for row in rows:
        key = str(row["queue"]), str(row["user"]), str(row["gpu_type"])
        for name in NAMES:
            sums[key][name] += float(row.get(name) or 0.0)
    return [_account(key, sums[key]) for key in sorted(sums)]


def _account(key: Sequence[str], amounts: Mapping[str, float]) -> View:
    hours = {NAMES[name]: amounts[name] / 3600 if name.endswith("_s") else amounts[name] for name in NAMES}
    shown = {name: round(value, 6) if "hours" in name else int(value) for name, value in hours.items()}
    own = round(shown["gpu_hours"] - shown["borrowed_gpu_hours"], 6)
    return {"queue": key[0], "user": key[1], "gpu_type": key[2], "own_gpu_hours": own, **shown}
