"""Works out once per decision what each queue and each of its users is entitled to (`algorithms.md` 1.13).

Called by `rights.py`, and by the coordinator to show and to count shares. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from adaptive_scheduler.rights.covered import CoveredGpus
from adaptive_scheduler.rights.entitlements import Party, credit_of, divide_by_weight, round_to_gpus
from adaptive_scheduler.rights.guarantees import TypeGuarantees
from adaptive_scheduler.rights.owners import JobColumns, OwnerIndex, node_row, read_jobs, read_values
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot

K = TypeVar("K", JobOwner, str)


class Standing(NamedTuple):
    """Demand, entitlement and use of one owner or one queue. GPUs are standard GPUs."""

    demand: float
    entitled: float  # not rounded
    whole: float  # in whole GPUs where all types count alike
    credit: float
    use: float  # decayed GPU-seconds
    fair_use: float  # its share of the use of all


NOBODY = Standing(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Standings:
    """Lists all queues and owners with jobs on GPUs."""

    index: OwnerIndex
    columns: JobColumns
    owners: tuple[JobOwner, ...]
    numbers: tuple[int, ...]  # of the owners, in `columns`
    values: Mapping[str, float]  # by GPU type; empty: all GPUs count alike
    capacity: float  # standard GPUs
    mean_value: float  # of one GPU
    gpus: Mapping[JobOwner, int]  # that each has or is promised
    held: Mapping[JobOwner, float]  # the same in standard GPUs
    covered: CoveredGpus  # what of it is reserved for its user
    guarantees: TypeGuarantees  # of single GPU types
    of_queue: Mapping[str, Standing] = field(default_factory=dict)
    of_owner: Mapping[JobOwner, Standing] = field(default_factory=dict)

    def beside_reserved(self, owner: JobOwner) -> float:
        """Return the standard GPUs that an owner has beside those that are reserved for its user."""
        return self.held.get(owner, 0.0) - self.covered.units(owner)


def read_owners(snapshot: ClusterSnapshot, now: float) -> Standings:
    """Return who has jobs on GPUs, and what they have. What each is entitled to is added by `entitle`.

    GPUs that are reserved at the time `now` are not part of the capacity.
    """
    values = read_values(snapshot)
    index = snapshot.once(OwnerIndex, snapshot.shares, fits=OwnerIndex.is_small)
    columns = read_jobs(snapshot, index, values)
    on_gpus = columns.owner >= 0
    owner = columns.owner[on_gpus]
    gpus = columns.gpus[on_gpus]
    numbers = np.unique(owner).tolist()
    count = np.bincount(owner, gpus).tolist()
    held = np.bincount(owner, gpus * columns.value[on_gpus]).tolist()
    names = [index.owners[number] for number in numbers]
    working, idle, units, idle_units = snapshot.node_rows(node_row, values).reshape(-1, 4).sum(0).tolist()
    # What jobs have on closed nodes counts, too, while they have it.
    total = max(working, sum(count) + idle)
    all_units = max(units, math.fsum(held) + idle_units)
    covered = CoveredGpus(snapshot, now, values)
    guarantees = TypeGuarantees(snapshot, index.owners, columns, values, covered)
    return Standings(
        index=index,
        columns=columns,
        owners=tuple(names),
        numbers=tuple(numbers),
        values=values,
        capacity=max(0.0, all_units - covered.kept_units),
        mean_value=all_units / total if total else 1.0,
        gpus={name: round(count[number]) for name, number in zip(names, numbers, strict=True)},
        held={name: held[number] for name, number in zip(names, numbers, strict=True)},
        covered=covered,
        guarantees=guarantees,
    )


def entitle(snapshot: ClusterSnapshot, who: Standings) -> Standings:
    """Return the same with what each queue and each owner is entitled to."""
    on_gpus = who.columns.owner >= 0
    sums = np.bincount(who.columns.owner[on_gpus], who.columns.demand[on_gpus]).tolist()
    demand = {name: sums[number] for name, number in zip(who.owners, who.numbers, strict=True)}
    if who.covered:
        demand = {name: max(0.0, wanted - who.covered.units(name)) for name, wanted in demand.items()}
    of_queue = _entitle_queues(snapshot, who, demand)
    of_owner: dict[JobOwner, Standing] = {}
    for queue in of_queue:
        here = {owner: demand[owner] for owner in who.owners if owner.queue == queue}
        of_owner |= _entitle_users(snapshot, who, queue, of_queue[queue], here)
    return replace(who, of_queue=of_queue, of_owner=of_owner)


def _entitle_queues(snapshot: ClusterSnapshot, who: Standings, demand: Mapping[JobOwner, float]) -> dict[str, Standing]:
    shares = snapshot.shares
    largest = max(who.values.values(), default=1.0)
    use: dict[str, float] = defaultdict(float)
    for owner, value in snapshot.used.items():
        use[owner.queue] += value
    wanted: dict[str, float] = defaultdict(float)
    for owner in sorted(demand):
        wanted[owner.queue] += demand[owner]
    wanted = {name: min(value, shares.queue(name).most * largest) for name, value in wanted.items()}
    known = wanted.keys() | shares.queues.keys() | use.keys()
    weight = {name: shares.queue(name).weight for name in known}
    first = {name: shares.queue(name).guaranteed + who.guarantees.guaranteed_units(name) for name in wanted}
    for parent, parts in _parts_of_parents(shares, wanted):
        parties = {name: Party(wanted[name], first[name], weight[name]) for name in parts}
        wanted |= divide_by_weight(shares.queue(parent).most_together * largest, parties)
    return _stand(wanted, weight, first, use, known, _window(snapshot, who.capacity), who.capacity, who.capacity, who)


def _parts_of_parents(shares: Shares, names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the queues above these that have a limit, each after those below it, with those of `names` that count in
    it."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        for queue in (name, *shares.limiting_parents(name)):
            parts[queue].append(name)
    above = {parent for name in parts for parent in shares.limiting_parents(name)}
    deepest_first = sorted(above, key=lambda parent: (-len(shares.limiting_parents(parent)), parent))
    return [(parent, parts[parent]) for parent in deepest_first]


def _entitle_users(
    snapshot: ClusterSnapshot, who: Standings, queue: str, its: Standing, demand: Mapping[JobOwner, float]
) -> dict[JobOwner, Standing]:
    use = {owner: value for owner, value in snapshot.used.items() if owner.queue == queue}
    known = demand.keys() | {owner for owner, value in use.items() if value > 1.0}
    weight = {owner: snapshot.shares.user(owner.user).weight for owner in known}
    first = dict.fromkeys(demand, 0.0)
    window = _window(snapshot, its.entitled)
    return _stand(demand, weight, first, use, known, window, its.entitled, its.whole, who)


def _window(snapshot: ClusterSnapshot, capacity: float) -> float:
    """Return the decayed use of so many GPUs that were always held."""
    return capacity * snapshot.shares.half_life_s / math.log(2)


def _stand(
    demand: Mapping[K, float],
    weight: Mapping[K, float],
    first: Mapping[K, float],
    use: Mapping[K, float],
    known: Iterable[K],
    window: float,
    capacity: float,
    total: float,
    who: Standings,
) -> dict[K, Standing]:
    """Divide `capacity` among those with a demand. Shares of past use count all that are `known`."""
    all_weights = math.fsum(weight[name] for name in known)
    all_use = math.fsum(use.get(name, 0.0) for name in known)
    share = {name: weight[name] / all_weights if all_weights else 0.0 for name in demand}
    credit = {name: credit_of(use.get(name, 0.0), all_use, share[name], window) for name in demand}
    parties = {name: Party(demand[name], first[name], weight[name] * 2.0 ** credit[name]) for name in demand}
    entitled = divide_by_weight(capacity, parties)
    rounded: Mapping[K, float] = entitled if who.values else round_to_gpus(entitled, demand, credit, total)
    return {
        name: Standing(
            demand[name], entitled[name], rounded[name], credit[name], use.get(name, 0.0), share[name] * all_use
        )
        for name in demand
    }
