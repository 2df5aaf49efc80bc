"""Converts an allotment (GPUs by job) to decisions, for policies that count GPUs without placing them.

Promises decisions that pass `check`: a job that gets fewer GPUs first shrinks or is requeued; other jobs take its GPUs
once it has released them. Called by the comparison policies; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.decision import Decision, Explanation, Requeue, Reshape, Start
from adaptive_scheduler.models.prediction import t_train
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after
from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest


def total(snapshot: ClusterSnapshot) -> int:
    """Return the number of healthy GPUs of all schedulable nodes, including those in use."""
    return sum(node.healthy for node in snapshot.nodes if node.schedulable)


def allotment_requests(
    snapshot: ClusterSnapshot, now: float, asked: Mapping[str, int], attained: Mapping[str, float] | None = None
) -> list[AllotmentRequest]:
    """Return the requests of all unfinished GPU jobs, by submission. `asked`: counts that users named, by job."""
    jobs = sorted((job for job in snapshot.jobs if not job.uses_cpu), key=lambda job: (job.submit_s, job.id))
    found = (_request(snapshot, job, now, asked.get(job.id, 0), (attained or {}).get(job.id, 0.0)) for job in jobs)
    return [request for request in found if request is not None]


def towards(snapshot: ClusterSnapshot, wanted: Allotment, name: str, whole: bool = False) -> tuple[Decision, ...]:
    """Return the next decisions towards `wanted`; call again after they are carried out.

    Each job stays on one node: a newcomer goes to the node with most idle GPUs and takes the largest allowed count up
    to `wanted` that is idle there; if `whole`, it starts only on that full count.
    """
    order = {job: place for place, job in enumerate(wanted)}
    running = [job for job in snapshot.placed if job.state == "running" and not job.busy and job.stoppable]
    free = sorted(running, key=lambda job: (order.get(job.id, len(order)), job.submit_s, job.id))
    waiting = sorted((job for job in snapshot.queue if job.id in order), key=lambda job: order[job.id])
    decisions: list[Decision] = []
    for job in free:
        less = _allowed(job, wanted.get(job.id, 0))
        if not less:
            decisions.append(Requeue(job.id, _because(name, f"{job.id} goes back to the queue: others come first.")))
        elif less < job.num_gpus:
            decisions.append(_reshape(job, less, name))
    for job in waiting:
        if (started := _start(snapshot, job, wanted[job.id], name)) and (
            not whole or started.num_gpus == _allowed(job, wanted[job.id])
        ):
            decisions.append(started)
            snapshot = after(snapshot, started)
    for job in free:
        most = min(wanted.get(job.id, 0), job.num_gpus + snapshot.node[job.node or ""].idle)
        if (more := _allowed(job, most)) > job.num_gpus:
            decisions.append(_reshape(job, more, name))
            snapshot = after(snapshot, decisions[-1])
    return tuple(decisions)


def _request(snapshot: ClusterSnapshot, job: Job, now: float, asked: int, attained: float) -> AllotmentRequest | None:
    """Return one job's request, with the speeds of the first open node: such policies treat all GPUs as equal."""
    nodes = [n for n in snapshot.nodes if n.schedulable and n.gpus]
    counts = tuple(n for n in job.optional if n <= max((len(node.gpus) for node in nodes), default=0))
    if not counts:
        return None
    return AllotmentRequest(
        id=job.id,
        submit_s=job.submit_s,
        counts=counts,
        asked=max((n for n in counts if n <= asked), default=counts[0]),
        has=job.num_gpus,
        attained=attained,
        seconds=partial(t_train, snapshot.profiles, job, nodes[0].gpu_type),
        due_s=None if job.sla_s is None else job.submit_s + job.sla_s,
        age_s=now - job.submit_s,
    )


def _allowed(job: Job, most: int) -> int:
    """Return the largest allowed count up to `most`; 0 if there is none."""
    return max((n for n in job.optional if n <= most), default=0)


def _start(snapshot: ClusterSnapshot, job: Job, wanted: int, name: str) -> Start | None:
    nodes = sorted((n for n in snapshot.nodes if n.gpus), key=lambda n: (-n.idle, n.name))
    count = _allowed(job, min(wanted, nodes[0].idle)) if nodes else 0
    if not count:
        return None
    return Start(job.id, nodes[0].name, count, _because(name, f"{job.id} starts on {gpus(count)} of {nodes[0].name}."))


def _reshape(job: Job, count: int, name: str) -> Reshape:
    sentence = f"{job.id} goes from {gpus(job.num_gpus)} to {gpus(count)}."
    return Reshape(job.id, job.node or "", count, _because(name, sentence))


def _because(name: str, sentence: str) -> Explanation:
    return Explanation(name, sentence)
