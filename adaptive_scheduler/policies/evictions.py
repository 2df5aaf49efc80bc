"""Decides which jobs give up GPUs because an operator suspended them or drains their node, or a GPU is faulty. Pure.

A suspended job saves, stops and waits until it is resumed; one that is held, since it did not start again, waits
likewise. A job on a drained node moves to another one, or keeps only its GPUs elsewhere. A job with a faulty GPU goes
on with its others, or moves. What must not be stopped is left alone, with the sentence that says why. The engine calls
it first: the four systems decide on what these decisions leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from adaptive_scheduler.candidates import (
    CANNOT_RESUME,
    GOOD,
    TO_MEASURE,
    RankedCandidate,
    explain,
    gpus,
    nodes_for,
)
from adaptive_scheduler.decision import Explanation, Hold, Move, Requeue, Reshape, Start, first_pods
from adaptive_scheduler.models.prediction import RemainingTimes, cross_host_s, t_run
from adaptive_scheduler.policies import cpu
from adaptive_scheduler.policies.operator import OPERATOR
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Worker
from adaptive_scheduler.tentative_snapshot import after

# Algorithms: the first two of a Hold of a job that waits to be resumed, the last one where the cluster takes back what
# placeholders hold.
SUSPENDED = "suspended"
HELD = "held"
DRAIN = "drain"
FAULT = "fault"
ASKED_BACK = "asked back"


See = Callable[[ClusterSnapshot, Job], ClusterSnapshot]
"""Returns a snapshot as one job sees it: without the GPUs that are reserved for others."""


def schedule_evictions(
    snapshot: ClusterSnapshot, now: float, settings: Settings, see: See = lambda world, job: world
) -> Iterator[Requeue | Move | Reshape | Hold]:
    """Yield one answer for each suspended job, then for each job that has to leave a node or a GPU, oldest first."""
    for job in sorted(snapshot.where(_is_suspended), key=lambda job: job.id):
        yield from _suspend(job)
    drained = snapshot.drained
    world = snapshot
    for job in _on(snapshot, drained) if drained else ():
        if not job.suspended:
            answer = _leave(see(world, job), job, drained, now, settings)
            world = after(world, answer)
            yield answer
    for job, asked in _on_gpus_asked_back(world):
        if not job.suspended and not drained.intersection(_hosts(job)):
            gives = _give_back(world, job, asked)
            world = after(world, gives)
            yield gives
    for job, faulty in _on_faulty_gpus(world):
        if not job.suspended and not drained.intersection(_hosts(job)):
            answer = _spare(see(world, job), job, faulty)
            world = after(world, answer)
            yield answer


def _is_suspended(job: Job) -> bool:
    return job.suspended


def _suspend(job: Job) -> Iterator[Requeue | Hold]:
    resume = f"`reshape resume {job.id}`"
    if job.state == "submitted" and job.held:
        yield Hold(job.id, Explanation(HELD, job.held))
    elif job.state == "submitted":
        lets = "and frozen in memory" if job.frozen else "by an operator"
        goes = "go on" if job.frozen else "start"
        yield Hold(job.id, Explanation(SUSPENDED, f"{job.id} is suspended {lets}; {resume} lets it {goes}."))
    elif job.state == "running" and not job.busy:
        if not job.freezes and (why := _loss(job)):
            sentence = f"{job.id} trains on, although an operator suspended it: {why}; {resume} withdraws that."
            yield Hold(job.id, Explanation(OPERATOR, sentence))
            return
        gives = "its cores" if job.uses_cpu else f"its {gpus(job.num_gpus)}"
        does = "is frozen in memory" if job.freezes else "saves"
        sentence = f"{job.id} {does} and gives {gives} up: an operator suspended it; {resume} lets it go on."
        yield Requeue(job.id, Explanation(OPERATOR, sentence))


def _loss(job: Job) -> str:
    """Return why a stop would lose work; empty if it would not."""
    if not job.stoppable:
        return f"{CANNOT_RESUME}, and it cannot be frozen: {job.unfrozen}" if job.unfrozen else CANNOT_RESUME
    if job.keeps_pod:
        return "its pod cannot be made anew"
    return "its checkpoints lie in its pod and would go with it, as it has no checkpoint_claim" if job.stays else ""


def _on(snapshot: ClusterSnapshot, drained: Collection[str]) -> list[Job]:
    """Return the jobs that train on these nodes and may be changed now, oldest first."""
    there = (
        job
        for job in snapshot.jobs
        if job.state == "running" and not job.busy and any(name in drained for name in _hosts(job))
    )
    return sorted(there, key=lambda job: (job.submit_s, job.id))


def _hosts(job: Job) -> Collection[str]:
    named = {*job.pods, *(worker.node for worker in job.workers)}
    return named or ({job.node} if job.node is not None else set())


def _leave(
    snapshot: ClusterSnapshot, job: Job, drained: frozenset[str], now: float, settings: Settings
) -> Move | Reshape | Hold:
    here = " and ".join(sorted(name for name in _hosts(job) if name in drained))
    stays = f"{job.id} stays on {here}, which an operator drains: "
    if why := _obstacle(snapshot, job):
        return Hold(job.id, Explanation(DRAIN, f"{stays}{why}."))
    if job.uses_cpu:
        return _leave_cores(snapshot, job, stays, now, settings)
    times = RemainingTimes.estimate(snapshot)
    found = [*_shrunk(snapshot, job, drained, times), *_moved(snapshot, job, times)]
    best = min(found, key=lambda candidate: candidate.key, default=None)
    if best is None:
        return Hold(job.id, Explanation(DRAIN, f"{stays}{_no_place(job)}."))
    return _leaving(snapshot, best, found, times, DRAIN, f"an operator drains {here}")


def _on_faulty_gpus(snapshot: ClusterSnapshot) -> list[tuple[Job, int]]:
    """Return the jobs that train with faulty GPUs and may be changed now, oldest first, and how many these are."""
    held = (gpu.job for node in snapshot.faulty for gpu in node.gpus if _is_faulty(gpu))
    faulty = Counter(job_id for job_id in held if job_id in snapshot.job)
    there = (snapshot.job[job_id] for job_id in faulty if job_id is not None)
    found = [job for job in there if job.state == "running" and not job.busy and len(_hosts(job)) == 1]
    return [(job, faulty[job.id]) for job in sorted(found, key=lambda job: (job.submit_s, job.id)) if not job.pods]


def _is_faulty(gpu: Gpu) -> bool:
    held = gpu.job is not None and gpu.held_by == gpu.job
    return gpu.state == "faulty" and held and not gpu.asked_back


def _on_gpus_asked_back(snapshot: ClusterSnapshot) -> list[tuple[Job, list[Gpu]]]:
    """Return the jobs that train on GPUs that are asked back and may be changed now, oldest first, with these GPUs."""
    asked: dict[str, list[Gpu]] = {}
    for node in snapshot.faulty:
        for gpu in node.gpus:
            if gpu.asked_back and gpu.job is not None and gpu.held_by == gpu.job:
                asked.setdefault(gpu.job, []).append(gpu)
    there = [snapshot.job[job_id] for job_id in asked if job_id in snapshot.job]
    found = [job for job in there if job.state == "running" and not job.busy]
    return [(job, asked[job.id]) for job in sorted(found, key=lambda job: (job.submit_s, job.id))]


def _give_back(snapshot: ClusterSnapshot, job: Job, asked: Sequence[Gpu]) -> Move | Reshape | Requeue | Hold:
    """Let a job go on with its other GPUs, or elsewhere; else it saves and waits. What cannot save trains as long as
    there is time: the cluster would have ended its pod."""
    count = len(asked)
    overdue = any(gpu.overdue for gpu in asked)
    why = f"the cluster takes {gpus(count)} of node {job.node} back"
    times = RemainingTimes.estimate(snapshot)
    found = list[RankedCandidate]()
    node = snapshot.node.get(job.node or "")
    in_place = job.stoppable and not job.relaunches and not job.gpus_per_pod and len(_hosts(job)) == 1
    if in_place and node is not None:
        fewer = max((n for n in _counts(job) if n <= job.num_gpus - count), default=0)
        found += [_ranked(snapshot, job, node, (Worker(node.name, fewer),), times)] if fewer else []
    loss = _loss(job)
    if not loss and job.pinned is None:
        found += _moved(snapshot, job, times)
    best = min(found, key=lambda candidate: candidate.key, default=None)
    if best is not None:
        return _leaving(snapshot, best, found, times, ASKED_BACK, why)
    if loss and not overdue:
        sentence = f"{job.id} trains on as long as the cluster lets it, although {why}: {loss}."
        return Hold(job.id, Explanation(ASKED_BACK, sentence))
    ends = "is stopped" if loss else "saves"
    lost = f"; {loss}" if loss else ""
    sentence = f"{job.id} {ends}, gives its {gpus(job.num_gpus)} up and waits: {why}{lost}."
    return Requeue(job.id, Explanation(ASKED_BACK, sentence), forced=bool(loss))


def _spare(snapshot: ClusterSnapshot, job: Job, faulty: int) -> Move | Reshape | Hold:
    """Let a job on one host go on with its other GPUs, or elsewhere, whichever ends sooner."""
    why = f"{gpus(faulty)} of node {job.node} {'is' if faulty == 1 else 'are'} faulty"
    if loss := _loss(job):
        return Hold(job.id, Explanation(FAULT, f"{job.id} trains on, although {why}: {loss}."))
    times = RemainingTimes.estimate(snapshot)
    found = list[RankedCandidate]()
    node = snapshot.node.get(job.node or "")
    if count := max((n for n in _counts(job) if n <= job.num_gpus - faulty), default=0):
        found += [_ranked(snapshot, job, node, (Worker(node.name, count),), times)] if node is not None else []
    found += _moved(snapshot, job, times) if job.pinned is None else ()
    best = min(found, key=lambda candidate: candidate.key, default=None)
    if best is None:
        return Hold(job.id, Explanation(FAULT, f"{job.id} trains on, although {why}: {_no_place(job)}."))
    return _leaving(snapshot, best, found, times, FAULT, why)


def _obstacle(snapshot: ClusterSnapshot, job: Job) -> str:
    """Return why the job cannot leave, whatever is idle elsewhere; empty if it can."""
    if why := _loss(job):
        return f"{why}, so it trains there to its end"
    if any(name not in snapshot.node or not snapshot.node[name].heard for name in _hosts(job)):
        return "the node has not been heard of lately, so the job cannot be told to leave"
    return f"it is pinned to {job.pinned}" if job.pinned in _hosts(job) else ""


def schedule_move(snapshot: ClusterSnapshot, job: Job, algorithm: str, why: str) -> Move | Reshape | None:
    """Return the move of a whole job on GPUs to another node, where it ends soonest; None if no other has idle GPUs.

    `snapshot`: as the job sees it.
    """
    if _obstacle(snapshot, job):
        return None
    times = RemainingTimes.estimate(snapshot)
    found = list(_moved(snapshot, job, times))
    best = min(found, key=lambda candidate: candidate.key, default=None)
    return None if best is None else _leaving(snapshot, best, found, times, algorithm, why)


def _no_place(job: Job) -> str:
    if job.gpus_per_pod:
        return "its first pods are there, and a gang is resized but not moved"
    counts = " or ".join(map(str, _counts(job)))
    return f"no other node has {counts} idle GPUs on which it can train; it leaves when one has"


def _leave_cores(snapshot: ClusterSnapshot, job: Job, stays: str, now: float, settings: Settings) -> Move | Hold:
    """Of a job trained on CPU: it goes where a waiting one would start."""
    place = cpu.schedule_incoming(snapshot, job, now, settings)
    if not isinstance(place, Start):
        why = "no other node has the cores for it; it leaves when one has"
        return Hold(job.id, Explanation(DRAIN, f"{stays}{why}."))
    sentence = f"{job.id} moves from {job.node} to {place.node}: an operator drains {job.node}."
    return Move(job.id, place.node, 0, Explanation(DRAIN, sentence, place.explanation.candidates))


def _counts(job: Job) -> list[int]:
    """Return the GPU counts with which it may leave: not more than it has, and what an operator requested if any."""
    return [n for n in job.optional if 0 < n <= job.num_gpus and job.wanted in (None, n)]


def _moved(snapshot: ClusterSnapshot, job: Job, times: RemainingTimes) -> Iterator[RankedCandidate]:
    """The whole job on another node; a gang cannot be moved."""
    for node in () if job.gpus_per_pod else nodes_for(snapshot, job):
        for count in _counts(job):
            if count <= node.idle and node.name not in _hosts(job):
                yield _ranked(
                    snapshot, job, node, (Worker(node.name, count),), times, cross_host_s(snapshot.profiles, job)
                )


def _shrunk(
    snapshot: ClusterSnapshot, job: Job, drained: frozenset[str], times: RemainingTimes
) -> Iterator[RankedCandidate]:
    """What it has on other nodes: its launch, and the first pods of a gang, must be there."""
    for count in reversed(_counts(job)):
        workers = _kept(job, count, drained)
        if workers and sum(worker.num_gpus for worker in workers) == count:
            yield _ranked(snapshot, job, snapshot.node[workers[0].node], workers, times)
            return


def _kept(job: Job, count: int, drained: frozenset[str]) -> tuple[Worker, ...]:
    """Return `count` GPUs per host of those that it has outside the drained nodes; fewer if it has fewer."""
    if job.gpus_per_pod:
        workers = first_pods(job, count)
        return () if any(worker.node in drained for worker in workers) else workers
    kept = list[Worker]()
    left = 0 if job.node in drained else count
    for worker in job.workers:
        if worker.node not in drained and left:
            kept.append(Worker(worker.node, min(worker.num_gpus, left)))
            left -= kept[-1].num_gpus
    return tuple(kept)


def _ranked(
    snapshot: ClusterSnapshot,
    job: Job,
    node: Node,
    workers: Sequence[Worker],
    times: RemainingTimes,
    extra_s: float = 0.0,
) -> RankedCandidate:
    """Rank by its own end: what others lose or gain by it is not what the node is drained for."""
    count = sum(worker.num_gpus for worker in workers)
    hosts = len(workers)
    rank = GOOD if snapshot.profiles.speed(job.type, node.gpu_type, count, hosts) else TO_MEASURE
    job_s = extra_s + t_run(snapshot.profiles, job, node.gpu_type, count, hosts=hosts)
    key = (rank, job_s, -count, node.name)
    return RankedCandidate(key, job, node, count, *times.replace(job.id, job_s), job_s, workers=tuple(workers))


def _leaving(
    snapshot: ClusterSnapshot,
    best: RankedCandidate,
    found: list[RankedCandidate],
    times: RemainingTimes,
    algorithm: str,
    why: str,
) -> Move | Reshape:
    job = best.job
    has = f"{job.num_gpus} to {gpus(best.num_gpus)}"
    if any(worker.node in _hosts(job) for worker in best.workers):
        on = " and ".join(worker.node for worker in best.workers)
        explanation = explain(
            algorithm, f"{job.id} goes from {has} on {on}: {why}.", found, best, times, snapshot.profiles
        )
        workers = best.workers if len(best.workers) > 1 else ()
        return Reshape(job.id, best.node.name, best.num_gpus, explanation, workers)
    change = "" if best.num_gpus == job.num_gpus else f" and from {has}"
    sentence = f"{job.id} moves from {job.node} to {best.node.name}{change}: {why}."
    return Move(
        job.id, best.node.name, best.num_gpus, explain(algorithm, sentence, found, best, times, snapshot.profiles)
    )
