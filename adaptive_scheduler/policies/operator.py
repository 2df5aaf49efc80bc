"""An operator's wish for a GPU count outranks what a policy thinks best (`algorithms.md` 5.4).

Called by the engine before any policy. The wish stands until the operator clears it.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Hold, Reshape, gpus_on
from adaptive_scheduler.prediction import RemainingTimes, t_run
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.ways import GOOD, Way, explain, gpus

OPERATOR = "operator"


def schedule_wished(snapshot: ClusterSnapshot, now: float, settings: Settings) -> list[Reshape | Hold]:
    """One answer for each running job whose wish is not fulfilled yet, oldest job first.

    A job with an operation under way gets none: its turn comes when that is done. A cooling job does.
    """
    times = RemainingTimes.of(snapshot)
    idle = {node.name: node.idle for node in snapshot.nodes}
    answers: list[Reshape | Hold] = []
    for job in sorted(snapshot.placed, key=lambda j: (j.submit_s, j.id)):
        if job.wanted is None or job.wanted == job.num_gpus or job.leased or job.state != "running":
            continue
        node = snapshot.node.get(job.node or "")
        answer = _answer(snapshot, job, job.wanted, node, idle, times)
        if isinstance(answer, Reshape):
            # What a shrinking job lets go is idle only once it has let go, so it is not handed on here.
            idle[answer.node] -= max(0, answer.num_gpus - gpus_on(job, answer.node))
        answers.append(answer)
    return answers


def _answer(
    snapshot: ClusterSnapshot, job: Job, wanted: int, node: Node | None, idle: dict[str, int], times: RemainingTimes
) -> Reshape | Hold:
    if node is None or (why := _obstacle(job, wanted, node, idle[node.name])):
        why = f"its node {job.node} is not known; wait until it is back" if node is None else why
        sentence = f"{job.id} keeps {gpus(job.num_gpus)}, although {wanted} were wished: {why}."
        return Hold(job.id, explain(OPERATOR, sentence, [], None, times, snapshot.profiles))
    job_s = t_run(snapshot.profiles, job, node.gpu_type, wanted)
    way = Way((GOOD,), job, node, wanted, *times.replace(job.id, job_s), job_s)
    sentence = f"{job.id} goes from {job.num_gpus} to {gpus(wanted)} on {node.name}, as an operator wished."
    return Reshape(job.id, node.name, wanted, explain(OPERATOR, sentence, [way], way, times, snapshot.profiles))


def _obstacle(job: Job, wanted: int, node: Node, idle: int) -> str:
    if wanted not in job.optional:
        return f"it may only run on {', '.join(map(str, job.optional))}; wish for one of these"
    more = wanted - gpus_on(job, node.name)  # one that is spread comes together on its first node
    if wanted > node.healthy:
        return f"node {node.name} has only {node.healthy} working; wish for fewer"
    if more > idle:
        return f"{more} more are needed and {idle} idle on {node.name}; it gets them when they are free"
    return ""
