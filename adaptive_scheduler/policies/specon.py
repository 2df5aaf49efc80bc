"""Moves converged jobs trained on CPU to nodes that they load less (SpeCon).

`schedule_move` is Algorithm 2 for the oldest request, `schedule_rebalance` Algorithm 3, both as resolved in
`algorithms.md` 2.4 and 2.5. Categories come from the snapshot (`growth.categorise`). A move must lower the predicted
makespan (5.5) unless `accept_move` is "always". Called by the engine, repeated after each answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
"""Decimals of a score, so that equal sums of weights compare equal."""


def schedule_move(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move | Stay, ...]:
    """Answer the oldest request; the next is decided on the resulting snapshot (2.4). Empty without requests."""
    asking = [job for job in snapshot.where(_may_ask) if _asks(snapshot, job, settings.specon)]
    if not asking:
        return ()
    job = min(asking, key=lambda j: (_read_s(j), j.id))
    return (_answer(snapshot, job, now, settings.specon),)


def _may_ask(job: Job) -> bool:
    """Not during an operation (X1), nor a rigid job, which a move would stop."""
    return job.growth.category == "CC" and job.uses_cpu and job.stoppable and job.state == "running" and not job.busy


def _asks(snapshot: ClusterSnapshot, job: Job, specon: SpeCon) -> bool:
    """Return whether a job that may requests a move: converged and slower still (S7), not moved yet, not refused
    since."""
    entered = specon.request_on_entry and job.growth.converged_s == _read_s(job)
    if job.migrated_s is not None or not (job.growth.slow_again or entered):
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
    """Return the time of its last growth measurement."""
    return job.growth.last.at_s if job.growth.last is not None else 0.0


def score(jobs: Sequence[Job], specon: SpeCon) -> float:
    """Return the load of a node: the sum of the category weights of its jobs trained on CPU (2.2; X11)."""
    weight = {"PC": specon.weight_pc, "WC": specon.weight_wc, "CC": specon.weight_cc}
    return round(sum(weight[job.growth.category] for job in jobs), ROUNDED)


class HostOption(NamedTuple):
    """A node considered for a job, with its score, and the obstacle if it may not host the job."""

    rank: tuple[bool, float, bool, float, float, str]
    node: Node
    score: float
    obstacle: str


def _answer(snapshot: ClusterSnapshot, job: Job, now: float, specon: SpeCon) -> Move | Stay:
    hosts = sorted(_hosts(snapshot, job, specon), key=lambda host: host.rank)
    best, source = hosts[0], next(host for host in hosts if host.node.name == job.node)
    predictions = MovePredictions(snapshot, job)
    if best is source and (silent_host := _silent_host(hosts, source, job)):
        silent = f"{silent_host.node.name} (score {silent_host.score:g}) has not been heard of lately"
        sentence = f"{job.id} stays on {job.node} (score {source.score:g}) for now: {silent}."
        return Stay(job.id, now, False, _explain(sentence, job, predictions, hosts, best, None))
    if best is source:
        sentence = f"{job.id} stays on {job.node}: no node with room scores lower than its {source.score:g}."
        return Stay(job.id, now, True, _explain(sentence, job, predictions, hosts, best, best))
    here, there = f"{job.node} (score {source.score:g})", f"{best.node.name} (score {best.score:g})"
    prediction = predictions.to(best.node.name)
    if specon.accept_move == "makespan" and not prediction.gains:
        sentence = f"{job.id} stays on {here} for now, though {there} scores lower: {_change(prediction)}."
        return Stay(job.id, now, False, _explain(sentence, job, predictions, hosts, best, None))
    sentence = f"{job.id} has converged and moves from {here} to {there}: {_change(prediction)}."
    return Move(job.id, best.node.name, 0, _explain(sentence, job, predictions, hosts, best, best))


def _hosts(snapshot: ClusterSnapshot, job: Job, specon: SpeCon) -> Iterator[HostOption]:
    """Yield ranked by: may host it (S10), lowest score, own node, least used (S18), name."""
    for node in snapshot.nodes:
        own = node.name == job.node
        if node.cores <= 0 and not own:
            continue
        why = "" if own else obstacle(snapshot, node.name, job)
        counted = [other for other in snapshot.on_cpu[node.name] if not (specon.exclude_self and other is job)]  # S8
        total = score(counted, specon)
        yield HostOption((bool(why), total, not own, node.cpu_use, node.memory_use, node.name), node, total, why)


def _silent_host(hosts: Sequence[HostOption], source: HostOption, job: Job) -> HostOption | None:
    """Return the best node without heartbeats that scores below its own: the job's one request waits for it."""
    silent = (h for h in hosts if not h.node.heard and h.score < source.score and job.pinned in (None, h.node.name))
    return next(silent, None)


def _explain(
    sentence: str,
    job: Job,
    predictions: MovePredictions,
    hosts: Sequence[HostOption],
    best: HostOption,
    chosen: HostOption | None,
) -> Explanation:
    """List the chosen node first, if any, then the others in order."""
    others = [host for host in hosts if host is not chosen and host.node.name != job.node]
    listed = ([chosen] if chosen else []) + others[: LISTED - 1]
    candidates = tuple(_candidate(job, predictions, host, best, chosen) for host in listed)
    return Explanation(MOVE, sentence, candidates, *predictions.to(best.node.name).before)


def _candidate(
    job: Job, predictions: MovePredictions, host: HostOption, best: HostOption, chosen: HostOption | None
) -> Candidate:
    prediction = predictions.to(host.node.name)
    rejected = host.obstacle
    if not rejected and host is not chosen:
        rejected = f"its score is {host.score:g}, that of {best.node.name} {best.score:g}"
        if host is best:
            rejected = _change(prediction)
    return replace(_of(prediction, job, host.node, rejected), possible=not host.obstacle)


def _change(prediction: MovePrediction) -> str:
    """Describe the effect on the jobs of both nodes."""
    longer = prediction.after.makespan_s - prediction.before.makespan_s
    if longer:
        return f"the last job of both nodes ends {seconds(abs(longer))} {'later' if longer > 0 else 'earlier'}"
    more = prediction.after.sum_s - prediction.before.sum_s
    if more:
        return f"the jobs of both nodes together take {seconds(abs(more))} {'longer' if more > 0 else 'less'}"
    return "for the jobs of both nodes it comes to the same"


class Balance(NamedTuple):
    """Nodes that receive one job each if they have fewer than `below`; nodes with more than `above` donate."""

    receivers: tuple[Node, ...]
    below: int
    above: int


def schedule_rebalance(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move, ...]:
    """Move one job to each idle node, or else to each with far too few: those that converged last (2.5). The engine
    calls at every event, so an idle node need not wait for the next interval (S16)."""
    specon, moves = settings.specon, list[Move]()
    balance = _balance(snapshot, specon) if snapshot.on_cpu else None
    if balance is None:
        return ()
    donors = sorted(_donors(snapshot, balance), key=lambda job: (-(job.migrated_s or 0.0), job.id))
    for node in balance.receivers:
        if len(snapshot.on_cpu[node.name]) < balance.below and (
            move := _pick(snapshot, node, donors, balance.above if specon.donor_guard else 0, specon)
        ):
            moves.append(move)
            snapshot = after(snapshot, move)
            donors = [job for job in donors if job.id != move.job]
    return tuple(moves)


def _balance(snapshot: ClusterSnapshot, specon: SpeCon) -> Balance | None:
    """Return None if nothing is to be done. Nodes without heartbeats take no part."""
    nodes = [node for node in snapshot.nodes if node.cores > 0 and node.heard]
    on = {node.name: snapshot.on_cpu[node.name] for node in nodes}
    all_jobs = [job for jobs in on.values() for job in jobs]
    if not nodes or (specon.rebalance_when == "all_migrated" and any(job.migrated_s is None for job in all_jobs)):
        return None
    fair = len(all_jobs) // len(nodes)
    by_need = sorted((n for n in nodes if n.open), key=lambda n: (len(on[n.name]), n.cpu_use, n.memory_use, n.name))
    if idle := tuple(node for node in by_need if not on[node.name]):
        return Balance(idle, fair if specon.bf_floor == "zero" else max(1, fair), max(1, fair))  # S11
    return Balance(tuple(node for node in by_need if len(on[node.name]) < fair - 1), fair - 1, fair)


def _donors(snapshot: ClusterSnapshot, balance: Balance) -> Iterator[Job]:
    """Yield jobs with their speculative move used (S14), not their rebalancing move (S15), on non-receiving nodes."""
    receiving = {receiver.name for receiver in balance.receivers}
    for name, jobs in snapshot.on_cpu.items():
        if name not in receiving and snapshot.node[name].heard:
            yield from (
                job
                for job in jobs
                if job.state == "running"
                and not job.busy
                and job.migrated_s is not None
                and not job.rebalanced
                and job.stoppable
            )


def _pick(snapshot: ClusterSnapshot, node: Node, donors: Sequence[Job], above: int, specon: SpeCon) -> Move | None:
    """Move the first job allowed there from a node with more than `above` jobs (S13) that gains, if required."""
    refused: list[Candidate] = []
    for job in donors:
        count = len(snapshot.on_cpu[job.node or ""])
        if count <= above or obstacle(snapshot, node.name, job):
            continue
        prediction = MovePredictions(snapshot, job).to(node.name)
        if prediction.gains or specon.accept_move == "always":
            chosen = _of(prediction, job, node)
            sentence = (
                f"{job.id} moves from {job.node} ({count} jobs) to {node.name}, which has too few: "
                f"{_change(prediction)}."
            )
            explanation = Explanation(REBALANCE, sentence, (chosen, *refused), *prediction.before)
            return Move(job.id, node.name, 0, explanation, rebalance=True)
        refused.append(_of(prediction, job, node, rejected=_change(prediction)))
        if len(refused) == LISTED - 1:
            break  # trying thousands would take longer than it gains
    return None


def _of(prediction: MovePrediction, job: Job, node: Node, rejected: str = "") -> Candidate:
    return Candidate(
        node.name, 0, *prediction.after, prediction.job_s, job.id, rejected=rejected, low_confidence=not prediction.sure
    )
