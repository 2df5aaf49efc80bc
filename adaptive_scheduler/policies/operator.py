"""Carries out GPU counts requested by operators, before any policy (`algorithms.md` 5.4).

A request stands until the operator clears it, and is no right to GPUs of others. Called by the engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from adaptive_scheduler.candidates import CANNOT_RESUME, GOOD, RankedCandidate, explain, gpus, spread
from adaptive_scheduler.decision import Explanation, Hold, Reshape, first_pods, gpus_on, placed_on
from adaptive_scheduler.models.prediction import RemainingTimes, t_run
from adaptive_scheduler.rights.limits import binding_limit, count_held, most_gpus_of
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker
from adaptive_scheduler.tentative_snapshot import after

OPERATOR = "operator"


def schedule_requests(
    snapshot: ClusterSnapshot,
    now: float,
    settings: Settings,
    see: Callable[[ClusterSnapshot, Job], ClusterSnapshot] = lambda world, job: world,
    refuse: Callable[[ClusterSnapshot, Job], str] = lambda world, job: "",
) -> list[Reshape | Hold]:
    """Return one answer for each running job with an unmet request, oldest first, also in its cool-down. A job with an
    operation under way gets none until that is done. `see` returns a snapshot as one job sees it: without the GPUs that
    are reserved for others. `refuse` returns why the rights of others keep a job from what was requested."""
    asked = sorted(snapshot.where(_is_asked), key=lambda j: (j.submit_s, j.id))
    times = RemainingTimes.estimate(snapshot) if asked else RemainingTimes({})
    answers = list[Reshape | Hold]()
    for job in asked:
        if job.wanted is None or job.wanted == job.num_gpus or job.busy or job.state != "running":
            continue
        held = _held_by_limit(snapshot, job, job.wanted) or _held_by_others(job, refuse(snapshot, job))
        answers.append(held or _answer(see(snapshot, job), job, job.wanted, times))
        snapshot = after(snapshot, answers[-1])
    return answers


def _held_by_limit(snapshot: ClusterSnapshot, job: Job, wanted: int) -> Hold | None:
    """Return why budgets or limits keep a job from growing to what was requested; None if they do not."""
    owner = snapshot.shares.owner_of(job.queue, job.owner)
    spent = snapshot.shares.spent_budget(snapshot.spent, owner, job.owner)
    if wanted > job.num_gpus and spent:
        sentence = f"{job.id} keeps {gpus(job.num_gpus)}, although {wanted} were requested: {spent}."
        return Hold(job.id, Explanation(OPERATOR, sentence))
    if wanted <= job.num_gpus or most_gpus_of(snapshot.shares, owner) == math.inf:
        return None
    owners = [(snapshot.shares.owner_of(one.queue, one.owner), one.num_gpus) for one in snapshot.placed]
    owners += snapshot.elsewhere.items()
    has = count_held(snapshot.shares, owners)
    reached = binding_limit(snapshot.shares, owner, has, wanted - job.num_gpus)
    if reached is None:
        return None
    sentence = f"{job.id} keeps {gpus(job.num_gpus)}, although {wanted} were requested: {reached.words}."
    return Hold(job.id, Explanation(OPERATOR, sentence))


def _held_by_others(job: Job, why: str) -> Hold | None:
    sentence = f"{job.id} keeps {gpus(job.num_gpus)}, although {job.wanted} were requested: {why}"
    return Hold(job.id, Explanation(OPERATOR, sentence)) if why else None


def _is_asked(job: Job) -> bool:
    return job.wanted is not None and job.num_gpus > 0 and job.node is not None


def _answer(snapshot: ClusterSnapshot, job: Job, wanted: int, times: RemainingTimes) -> Reshape | Hold:
    if not (job.stoppable or job.forced):
        sentence = (
            f"{job.id} keeps {gpus(job.num_gpus)}, although {wanted} were requested: {CANNOT_RESUME}, so it would "
            f"begin again; repeat the request with --force to agree to that."
        )
        return Hold(job.id, explain(OPERATOR, sentence, [], None, times, snapshot.profiles))
    node = snapshot.node.get(job.node or "")
    workers = () if node is None else _workers(snapshot, job, wanted, node)
    if node is None or not workers:
        why = f"its node {job.node} is not known; wait until it is back" if node is None else _why(job, wanted, node)
        sentence = f"{job.id} keeps {gpus(job.num_gpus)}, although {wanted} were requested: {why}."
        return Hold(job.id, explain(OPERATOR, sentence, [], None, times, snapshot.profiles))
    job_s = t_run(snapshot.profiles, job, node.gpu_type, wanted)
    candidate = RankedCandidate((GOOD,), job, node, wanted, *times.replace(job.id, job_s), job_s)
    where = " and ".join(worker.node for worker in workers)
    sentence = f"{job.id} goes from {job.num_gpus} to {gpus(wanted)} on {where}, as an operator requested."
    explanation = explain(OPERATOR, sentence, [candidate], candidate, times, snapshot.profiles)
    return Reshape(job.id, node.name, wanted, explanation, workers if len(workers) > 1 else ())


def _workers(snapshot: ClusterSnapshot, job: Job, wanted: int, node: Node) -> tuple[Worker, ...]:
    """Return the new placement, empty if impossible: a spread job contracts to its first node, a gang stays."""
    if wanted not in job.optional:
        return ()
    if not job.gpus_per_pod:
        fits = wanted <= node.healthy and wanted - gpus_on(job, node.name) <= node.idle
        return (Worker(node.name, wanted),) if fits else ()
    if wanted < job.num_gpus:
        return first_pods(job, wanted)
    own = {worker.node: worker.num_gpus for worker in placed_on(job)}
    near = [other for other in snapshot.nodes if other.gpu_type == node.gpu_type]
    return spread(wanted, near, job.max_workers, own, job.gpus_per_pod)


def _why(job: Job, wanted: int, node: Node) -> str:
    if wanted not in job.optional:
        return f"it may only run on {', '.join(map(str, job.optional))}; request one of these"
    if job.gpus_per_pod:
        more = (wanted - job.num_gpus) // job.gpus_per_pod
        return (
            f"there is no place for {more} more of its pods of {gpus(job.gpus_per_pod)} on nodes of its GPU type, at "
            f"most {job.max_workers} in all; it gets them when there is"
        )
    more = wanted - gpus_on(job, node.name)
    if wanted > node.working:
        return f"node {node.name} has only {node.working} working; request fewer"
    verb = "is" if node.idle == 1 else "are"
    return f"it needs {more} more, and {node.idle} {verb} idle on {node.name}; it gets them when they are free"
