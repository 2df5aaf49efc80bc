"""SpeCon (seeds 000 and 002): converged jobs trained on CPU move to nodes where they disturb less.

`schedule_move` is Algorithm 2 for the job that has asked longest, `schedule_rebalance` Algorithm 3, both as
resolved in `algorithms.md` 2.4 and 2.5. Who progresses and who is converged stands in the snapshot
(`progress.categorise`). A move is judged by the makespan that it is predicted to lead to (5.5), unless
`accept_move` says always. Called by the engine, again after each answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adaptive_scheduler.candidates import LISTED, seconds
from adaptive_scheduler.decision import Candidate, Explanation, Move, Stay
from adaptive_scheduler.models.allocatable import obstacle
from adaptive_scheduler.models.contention import MovePrediction, MovePredictions
from adaptive_scheduler.settings import Settings, SpeCon
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.tentative_snapshot import after

MOVE = "specon.move"
REBALANCE = "specon.rebalance"

ROUNDED = 9
"""Decimals of a score: sums of weights that are equal on paper are equal here."""


# who asks, and where it could go


def schedule_move(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move | Stay, ...]:
    """The answer to one request, the oldest; the next is decided on what has come of it (2.4). Empty: nobody asks."""
    asking = [job for job in snapshot.jobs if _asks(snapshot, job, settings.specon)]
    if not asking:
        return ()
    job = min(asking, key=lambda j: (_read_s(j), j.id))
    return (_answer(snapshot, job, now, settings.specon),)


def _asks(snapshot: ClusterSnapshot, job: Job, specon: SpeCon) -> bool:
    """Converged and slower still (S7), its one chance not had, no operation under way (X1), not refused since.

    One that is rigid never asks: a move would stop it.
    """
    entered = specon.request_on_entry and job.growth.converged_s == _read_s(job)
    if job.growth.category != "CC" or not (job.growth.slow_again or entered):
        return False
    if not job.uses_cpu or not job.stoppable or job.state != "running" or job.leased or job.migrated_s is not None:
        return False
    if job.move_refused_s is not None and job.move_refused_s >= _read_s(job):
        return False
    node = snapshot.node.get(job.node or "")
    if node is None or not node.heard:
        return False
    there = snapshot.on_cpu[node.name]
    if specon.request_beside == "progressing":
        return sum(other.growth.category != "CC" for other in there) > 1
    return len(there) > 1


def _read_s(job: Job) -> float:
    """When its growth was last looked at."""
    return job.growth.last.at_s if job.growth.last is not None else 0.0


def score(jobs: Sequence[Job], specon: SpeCon) -> float:
    """How much a node is disturbed already: each job trained there on CPU (X11) counts by its category (2.2)."""
    weight = {"PC": specon.weight_pc, "WC": specon.weight_wc, "CC": specon.weight_cc}
    return round(sum(weight[job.growth.category] for job in jobs), ROUNDED)


# one request (Algorithm 2)


class HostOption(NamedTuple):
    """A node that was looked at for a job, with its score, and why it may not host it if so."""

    rank: tuple[bool, float, bool, float, float, str]
    node: Node
    score: float
    obstacle: str


def _answer(snapshot: ClusterSnapshot, job: Job, now: float, specon: SpeCon) -> Move | Stay:
    hosts = sorted(_hosts(snapshot, job, specon), key=lambda host: host.rank)
    best, source = hosts[0], next(host for host in hosts if host.node.name == job.node)
    trips = MovePredictions(snapshot, job)
    if best is source and (frozen := _frozen(hosts, source, job)):
        silent = f"{frozen.node.name} (score {frozen.score:g}) has not been heard of lately"
        sentence = f"{job.id} stays on {job.node} (score {source.score:g}) for now: {silent}."
        return Stay(job.id, now, False, _explain(sentence, job, trips, hosts, best, None))
    if best is source:
        sentence = f"{job.id} stays on {job.node}: no node with room scores lower than its {source.score:g}."
        return Stay(job.id, now, True, _explain(sentence, job, trips, hosts, best, best))
    here, there = f"{job.node} (score {source.score:g})", f"{best.node.name} (score {best.score:g})"
    trip = trips.to(best.node.name)
    if specon.accept_move == "makespan" and not trip.gains:
        sentence = f"{job.id} stays on {here} for now, though {there} scores lower: {_change(trip)}."
        return Stay(job.id, now, False, _explain(sentence, job, trips, hosts, best, None))
    sentence = f"{job.id} has converged and moves from {here} to {there}: {_change(trip)}."
    return Move(job.id, best.node.name, 0, _explain(sentence, job, trips, hosts, best, best))


def _hosts(snapshot: ClusterSnapshot, job: Job, specon: SpeCon) -> Iterator[HostOption]:
    """Ranked: who may host it (S10), the lowest score, its own node, the least used (S18), the name."""
    for node in snapshot.nodes:
        own = node.name == job.node
        if node.cores <= 0 and not own:
            continue
        why = "" if own else obstacle(snapshot, node.name, job)
        counted = [other for other in snapshot.on_cpu[node.name] if not (specon.exclude_self and other is job)]  # S8
        total = score(counted, specon)
        yield HostOption((bool(why), total, not own, node.cpu_use, node.memory_use, node.name), node, total, why)


def _frozen(hosts: Sequence[HostOption], source: HostOption, job: Job) -> HostOption | None:
    """The best of those that would be better than its own, were they heard of: its one chance waits for them."""
    silent = (h for h in hosts if not h.node.heard and h.score < source.score and job.pinned in (None, h.node.name))
    return next(silent, None)


def _explain(
    sentence: str,
    job: Job,
    trips: MovePredictions,
    hosts: Sequence[HostOption],
    best: HostOption,
    chosen: HostOption | None,
) -> Explanation:
    """The chosen node first, if any, then the others in the order in which they would have come."""
    rivals = [host for host in hosts if host is not chosen and host.node.name != job.node]
    listed = ([chosen] if chosen else []) + rivals[: LISTED - 1]
    candidates = tuple(_candidate(job, trips, host, best, chosen) for host in listed)
    return Explanation(MOVE, sentence, candidates, *trips.to(best.node.name).before)


def _candidate(
    job: Job, trips: MovePredictions, host: HostOption, best: HostOption, chosen: HostOption | None
) -> Candidate:
    trip = trips.to(host.node.name)
    rejected = host.obstacle
    if not rejected and host is not chosen:
        rejected = f"its score is {host.score:g}, that of {best.node.name} {best.score:g}"
        if host is best:
            rejected = _change(trip)
    return _of(trip, job, host.node, rejected)


def _change(trip: MovePrediction) -> str:
    """In words, what it means for the jobs of both nodes."""
    longer = trip.after.makespan_s - trip.before.makespan_s
    if longer:
        return f"the last job of both nodes ends {seconds(abs(longer))} {'later' if longer > 0 else 'earlier'}"
    more = trip.after.sum_s - trip.before.sum_s
    if more:
        return f"the jobs of both nodes together take {seconds(abs(more))} {'longer' if more > 0 else 'less'}"
    return "for the jobs of both nodes it comes to the same"


# nodes even out (Algorithm 3)


class Balance(NamedTuple):
    """Who receives one job each, below how many jobs, and above how many a node gives one."""

    receivers: tuple[Node, ...]
    below: int
    above: int


def schedule_rebalance(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move, ...]:
    """One job for each idle node, or else for each with far too few: those that converged most recently (2.5).

    The engine asks at every event, so a node that runs idle need not wait for the next interval (S16).
    """
    specon, moves = settings.specon, list[Move]()
    balance = _balance(snapshot, specon)
    if balance is None:
        return ()
    givers = sorted(_donors(snapshot, balance), key=lambda job: (-(job.migrated_s or 0.0), job.id))
    for node in balance.receivers:
        if len(snapshot.on_cpu[node.name]) < balance.below and (
            move := _pick(snapshot, node, givers, balance.above if specon.donor_guard else 0, specon)
        ):
            moves.append(move)
            snapshot = after(snapshot, move)
            givers = [job for job in givers if job.id != move.job]
    return tuple(moves)


def _balance(snapshot: ClusterSnapshot, specon: SpeCon) -> Balance | None:
    """None where nothing is to be done. Nodes that nobody has heard of take no part."""
    nodes = [node for node in snapshot.nodes if node.cores > 0 and node.heard]
    on = {node.name: snapshot.on_cpu[node.name] for node in nodes}
    everybody = [job for jobs in on.values() for job in jobs]
    if not nodes or (specon.rebalance_when == "all_migrated" and any(job.migrated_s is None for job in everybody)):
        return None
    fair = len(everybody) // len(nodes)
    by_need = sorted((n for n in nodes if n.open), key=lambda n: (len(on[n.name]), n.cpu_use, n.memory_use, n.name))
    if idle := tuple(node for node in by_need if not on[node.name]):
        return Balance(idle, fair if specon.bf_floor == "zero" else max(1, fair), max(1, fair))  # S11
    return Balance(tuple(node for node in by_need if len(on[node.name]) < fair - 1), fair - 1, fair)


def _donors(snapshot: ClusterSnapshot, balance: Balance) -> Iterator[Job]:
    """Jobs that have had their speculative move (S14) and not yet this one (S15), on nodes that do not receive."""
    receiving = {receiver.name for receiver in balance.receivers}
    for name, jobs in snapshot.on_cpu.items():
        if name not in receiving and snapshot.node[name].heard:
            yield from (
                job for job in jobs
                if job.state == "running" and not job.leased and job.migrated_s is not None and not job.rebalanced
                and job.stoppable
            )  # fmt: skip


def _pick(snapshot: ClusterSnapshot, node: Node, givers: Sequence[Job], above: int, specon: SpeCon) -> Move | None:
    """The first that may go there from a node with more jobs than `above` (S13) and, where moves are judged, gains."""
    refused: list[Candidate] = []
    for job in givers:
        count = len(snapshot.on_cpu[job.node or ""])
        if count <= above or obstacle(snapshot, node.name, job):
            continue
        trip = MovePredictions(snapshot, job).to(node.name)
        if trip.gains or specon.accept_move == "always":
            chosen = _of(trip, job, node)
            sentence = (
                f"{job.id} moves from {job.node} ({count} jobs) to {node.name}, which has too few: {_change(trip)}."
            )
            explanation = Explanation(REBALANCE, sentence, (chosen, *refused), *trip.before)
            return Move(job.id, node.name, 0, explanation, rebalance=True)
        refused.append(_of(trip, job, node, rejected=_change(trip)))
        if len(refused) == LISTED - 1:
            break  # those that converged last were tried; to try thousands would take longer than it gains
    return None


def _of(trip: MovePrediction, job: Job, node: Node, rejected: str = "") -> Candidate:
    return Candidate(
        node.name, 0, *trip.after, trip.job_s, job.id, rejected=rejected, low_confidence=not trip.sure
    )  # fmt: skip
