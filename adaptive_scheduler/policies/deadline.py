"""Orders the queue by deadlines and lets overdue jobs yield (Slaml; `algorithms.md` 4.3, 4.4).

`in_order` is the queue by latest start (X13), `schedule_overdue` is Algorithm 2 as resolved, `with_alerts` reports
deadlines that cannot hold. Expected times: `deadline_feasibility.py`. Called by the engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from adaptive_scheduler.candidates import (
    GOOD,
    LISTED,
    REFUSED,
    RankedCandidate,
    explain,
    gpus,
    min_start_gpus,
    no_speed,
    nodes_for,
    seconds,
    spread,
)
from adaptive_scheduler.decision import Candidate, Decision, Explanation, Hold, Requeue, Start
from adaptive_scheduler.models.allocatable import allocatable_on, obstacle
from adaptive_scheduler.models.prediction import RemainingTimes, Tardiness, t_new, t_run
from adaptive_scheduler.policies.deadline_feasibility import Diagnosis, alert, diagnose, heaviness
from adaptive_scheduler.rights.reclaim import SUSPEND
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

OVERDUE = "deadline.overdue"
QUEUE = "deadline.queue"


def in_order(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Job, ...]:
    """Return the queue by latest start, then submission, then id (X13), without jobs that still yield (D7)."""
    queue = snapshot.queue
    if not lets_yield(settings) or all(job.sla_s is None and not job.yields_to for job in queue):
        return queue
    yielding = _yielding(queue)
    ready = [job for job in queue if job.id not in yielding]
    if "deadline" not in settings.systems:
        return tuple(ready)
    return tuple(sorted(ready, key=lambda job: (_order_s(job, snapshot, now, settings), job.submit_s, job.id)))


def lets_yield(settings: Settings) -> bool:
    """Return whether jobs give way to others: overdue ones (Slaml), or by right, which takes SideCar scheduling."""
    return "deadline" in settings.systems or "elastic" in settings.systems


def latest_start_s(job: Job, diagnosis: Diagnosis, settings: Settings) -> float:
    """Return the latest start on the clock of `submit_s`: the deadline less the expected time, if that is known."""
    assert job.sla_s is not None
    safe = settings.deadlines.order_by == "safe"  # D9
    if diagnosis.te_s is None:
        return job.submit_s + job.sla_s
    return job.submit_s + (diagnosis.tw_safe_s if safe else diagnosis.tw_s)


def is_lost(job: Job, diagnosis: Diagnosis, now: float) -> bool:
    """Return whether even an immediate start would end after the deadline and its tolerance."""
    return now > job.submit_s + diagnosis.tw_s


def _order_s(job: Job, snapshot: ClusterSnapshot, now: float, settings: Settings) -> float:
    """Order a job with a lost deadline as one without (4.8: best effort); as printed it goes first of all."""
    best_effort = job.submit_s + settings.deadlines.default_wait_s
    if job.sla_s is None:
        return best_effort
    found = diagnose(job, snapshot, settings)
    if settings.deadlines.order_by == "safe" and is_lost(job, found, now):
        return best_effort
    return latest_start_s(job, found, settings)


def _yielding(queue: Sequence[Job]) -> frozenset[str]:
    """Return the jobs that wait for another queued job; jobs that wait only for each other do not wait."""
    queued = {job.id for job in queue}
    waits_for = {job.id: queued.intersection(job.yields_to) for job in queue}
    going = {job_id for job_id, others in waits_for.items() if not others}
    yielding: set[str] = set()
    while more := {i for i, others in waits_for.items() if i not in yielding and others & (going | yielding)}:
        yielding |= more
    return frozenset(yielding)


def with_alerts(
    snapshot: ClusterSnapshot, now: float, settings: Settings, decisions: Iterable[Decision]
) -> Iterator[Decision]:
    """Yield the decisions, with alerts about deadlines of waiting jobs, and a Hold for each job that still yields."""
    if not lets_yield(settings):
        yield from decisions
        return
    answered: set[str] = set()
    for decision in decisions:
        job = snapshot.job[decision.job]
        answered.add(job.id)
        if (
            "deadline" in settings.systems
            and isinstance(decision, Hold)
            and job.sla_s is not None
            and job.state == "submitted"
        ):
            decision = _with_alert(decision, job, diagnose(job, snapshot, settings), now)
        yield decision
    # Without deadlines it gave way to a right.
    why = QUEUE if "deadline" in settings.systems else SUSPEND
    for job in snapshot.queue:
        if job.id not in answered:
            others = sorted(i for i in job.yields_to if i in snapshot.job)
            have, them = ("has", "it") if len(others) == 1 else ("have", "them")
            sentence = f"{job.id} waits until {', '.join(others)} {have} started: it gave way to {them}."
            yield Hold(job.id, Explanation(why, sentence))


def _with_alert(hold: Hold, job: Job, found: Diagnosis, now: float) -> Hold:
    late = now + (found.te_s or 0.0) - job.submit_s - (job.sla_s or 0.0)
    more = alert(job, found) or (
        f"{job.id} is expected to miss its deadline by {seconds(late)} even if it starts now."
        if is_lost(job, found, now)
        else ""
    )
    explanation = replace(hold.explanation, sentence=f"{hold.explanation.sentence} {more}")
    return replace(hold, explanation=explanation) if more else hold


def schedule_overdue(
    snapshot: ClusterSnapshot,
    now: float,
    settings: Settings,
    may_yield: Callable[[Job, Job], bool] = lambda heavy, light: True,
) -> tuple[Start | Requeue, ...]:
    """Let the heaviest overdue job give GPUs to a lighter queued one or, failing that, its place (X9). One answer per
    tick (D7); if the heaviest cannot help any job, the next heaviest. `may_yield`: whether an overdue job may give
    anything to a waiting one."""
    late = [job for job in snapshot.where(_is_overdue, settings.deadlines.beta) if job.cooling_until <= now]
    # Its place on a node that is not heard of could not be used.
    overdue = [job for job in late if (node := snapshot.node.get(job.node or "")) and node.heard]
    if not overdue:
        return ()
    helped = {other for job in snapshot.where(_frees) for other in job.yields_to}  # GPUs are being freed
    waiting = [
        job
        for job in in_order(snapshot, now, settings)
        if job.id not in helped and not _starts_anyway(snapshot, job, settings)
    ]
    for heaviest in sorted(overdue, key=lambda j: (-heaviness(j, snapshot), -_overrun_s(j), j.id)):  # D6
        weight = heaviness(heaviest, snapshot)
        lighter = [
            job
            for job in waiting
            if job.uses_cpu == heaviest.uses_cpu and heaviness(job, snapshot) < weight and may_yield(heaviest, job)
        ]
        answer = _yield_gpus(snapshot, heaviest, lighter, now, settings) or _yield_place(
            snapshot, heaviest, lighter, now, settings
        )
        if answer is not None:
            return (answer,)
    return ()


def _overrun_s(job: Job) -> float:
    return job.task_s - (job.expected_s or 0.0)


def _overdue_words(job: Job) -> str:
    return f"{job.id} is {seconds(_overrun_s(job))} over the {seconds(job.expected_s or 0.0)} expected of it"


def _frees(job: Job) -> bool:
    return job.busy and bool(job.yields_to)


def _is_overdue(job: Job, beta: float) -> bool:
    """Return whether its present task exceeds the expected time and tolerance, and the job may be stopped."""
    if job.state != "running" or job.busy or job.expected_s is None or job.wanted is not None or not job.yields:
        return False
    return job.task_s > job.expected_s * (1 + beta)


def _starts_anyway(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> bool:
    """Return whether a node, or several together, could serve the job without a job that yields."""
    if job.uses_cpu:
        return any(not obstacle(snapshot, node.name, job) for node in snapshot.nodes)
    nodes = [node for node in nodes_for(snapshot, job) if node.schedulable]
    count = min_start_gpus(snapshot, job, settings)
    return any(count <= node.idle for node in nodes) or _starts_spread(nodes, job, count, settings)


def _starts_spread(nodes: Sequence[Node], job: Job, count: int, settings: Settings) -> bool:
    """Return whether it fits on idle GPUs of several nodes, of one type unless only counts matter (G7)."""
    if "elastic" not in settings.systems:
        return False
    if settings.placement == "count_only":
        return bool(spread(count, nodes, len(nodes)))
    kinds = sorted({node.gpu_type for node in nodes})
    return any(
        spread(count, [n for n in nodes if n.gpu_type == kind], job.max_workers, each=job.gpus_per_pod or 1)
        for kind in kinds
    )


def _allowed(snapshot: ClusterSnapshot, job: Job) -> Sequence[Node]:
    if not job.uses_cpu:
        return nodes_for(snapshot, job)
    return [node for node in snapshot.nodes if job.pinned in (None, node.name)]


def _yield_gpus(
    snapshot: ClusterSnapshot, heavy: Job, lighter: Sequence[Job], now: float, settings: Settings
) -> Start | None:
    """Start the most urgent job that can use GPUs given by the overdue one, both on allowed counts."""
    node, may = snapshot.node.get(heavy.node or ""), settings.deadlines.yield_by == "reshape"
    if not may or "elastic" not in settings.systems or heavy.uses_cpu or node is None or len(heavy.workers) > 1:
        return None
    times = RemainingTimes.estimate(snapshot)
    for job in lighter:
        if node not in _allowed(snapshot, job) or not node.schedulable:
            continue
        candidates = list(_shrink_candidates(snapshot, heavy, job, node, now, settings, times))
        best = min(candidates, key=lambda candidate: candidate.key, default=None)
        if best is None or best.rank == REFUSED:
            continue
        sentence = (
            f"{job.id} starts on {gpus(best.num_gpus)} of {node.name}: {_overdue_words(heavy)} and goes "
            f"from {heavy.num_gpus} to {best.keeps}."
        )
        explanation = explain(OVERDUE, sentence, candidates, best, times, snapshot.profiles)
        return Start(job.id, node.name, best.num_gpus, explanation, heavy.id, best.keeps)
    return None


def _shrink_candidates(
    snapshot: ClusterSnapshot, heavy: Job, job: Job, node: Node, now: float, settings: Settings, times: RemainingTimes
) -> Iterator[RankedCandidate]:
    """Yield a candidate for each count of the job, with the most GPUs that the overdue job could then keep."""
    profiles = snapshot.profiles
    tardiness = Tardiness.estimate(snapshot, times, now, settings)
    for count in job.optional:
        keeps = max((n for n in heavy.optional if n <= node.idle + heavy.num_gpus - count), default=0)
        if not 0 < keeps < heavy.num_gpus:
            continue
        job_s, heavy_s = t_new(profiles, job, node.gpu_type, count), t_run(profiles, heavy, node.gpu_type, keeps)
        makespan, total = times.replace(heavy.id, heavy_s)
        makespan, total = max(makespan, job_s), total + job_s
        key = (GOOD, job_s > tardiness.limits.get(job.id, math.inf), makespan, total, count)
        candidate = RankedCandidate(key, job, node, count, makespan, total, job_s, heavy, keeps)
        if tardiness.broken_by({heavy.id: heavy_s}):
            candidate = candidate._replace(key=(REFUSED, count), refused=f"{heavy.id} would miss its own deadline")
        if profiles.speed(heavy.type, node.gpu_type, keeps) is None:
            candidate = candidate._replace(key=(REFUSED, count), refused=no_speed(keeps, node, heavy.id))
        yield candidate


def _yield_place(
    snapshot: ClusterSnapshot, heavy: Job, lighter: Sequence[Job], now: float, settings: Settings
) -> Requeue | None:
    """Requeue the overdue job if lighter jobs fit in its place and it can wait that long (D5)."""
    if heavy.stays or heavy.preempts >= settings.deadlines.max_preempts:
        return None
    found = diagnose(heavy, snapshot, settings)
    candidates = list(_replacements(snapshot, heavy, found, lighter, now, settings))
    chosen = tuple(candidate.job for candidate in candidates if not candidate.rejected)
    if not chosen:
        return None  # D7: no stop without benefit
    does = "is frozen in memory" if heavy.freezes else "saves a checkpoint"
    sentence = (
        f"{_overdue_words(heavy)}; it {does} and goes back to the queue until {', '.join(chosen)} "
        f"{'has' if len(chosen) == 1 else 'have'} started, lighter than it."
    )
    listed = sorted(candidates, key=lambda candidate: bool(candidate.rejected))[:LISTED]
    return Requeue(heavy.id, Explanation(OVERDUE, sentence, tuple(listed)), chosen)


def _replacements(
    snapshot: ClusterSnapshot, heavy: Job, found: Diagnosis, lighter: Sequence[Job], now: float, settings: Settings
) -> Iterator[Candidate]:
    """Yield lighter jobs, the most urgent first; accepted while they fit together in place and wait budget. Unless
    configured as in the paper (X9), only those whose deadline is saved by it: the overdue job is nearly done. Times of
    each: itself first and the overdue job after it, as if they were alone."""
    place = _FreedResources(snapshot, heavy, settings)
    budget = _budget_s(heavy, found, now, settings)
    left_s = found.te_s or 0.0
    again_s = left_s + (0.0 if heavy.freezes else heavy.unsaved_s)
    for job in lighter:
        its = diagnose(job, snapshot, settings)
        job_s = its.te_s or 0.0
        cost = its.tw_s if settings.deadlines.literal_budget else job_s  # D5
        why = ""
        if its.te_s is None:
            why = "its length is not known"
        elif settings.deadlines.yield_by == "reshape" and not _is_saved(job, its, now, left_s):
            why = "its deadline does not depend on it"
        elif cost > budget:
            why = f"{heavy.id} can wait only {seconds(max(0.0, budget))} more"
        elif not place.takes(job):
            why = f"does not fit in what {heavy.id} would leave"
        else:
            budget -= cost
        yield Candidate(
            node=heavy.node or "",
            num_gpus=min_start_gpus(snapshot, job, settings),
            makespan_s=job_s + again_s,
            sum_s=2 * job_s + again_s,
            job_s=job_s,
            job=job.id,
            victim=heavy.id,
            victim_num_gpus=0,
            rejected=why,
            low_confidence=its.low_confidence or found.low_confidence,
        )


def _is_saved(job: Job, found: Diagnosis, now: float, others_s: float) -> bool:
    """Return whether its deadline holds with an immediate start but not after waiting for the other job."""
    latest = job.submit_s + found.tw_s
    return now <= latest < now + others_s


def _budget_s(heavy: Job, found: Diagnosis, now: float, settings: Settings) -> float:
    """Return how long the overdue job may be displaced: its slack. Without a deadline to hold, its remaining time:
    shorter jobs gain more than it loses. As printed (D5) the wait left when its present task started, and without a
    deadline for ever."""
    literal = settings.deadlines.literal_budget
    still_s = math.inf if literal or found.te_s is None else found.te_s
    if heavy.sla_s is None or found.te_s is None:
        return still_s
    deadline = heavy.submit_s + heavy.sla_s * (1 + settings.deadlines.beta)
    if literal:
        return deadline - (now - heavy.task_s) - (heavy.expected_s or 0.0)
    slack = deadline - now - found.te_s - heavy.unsaved_s
    return slack if slack >= 0 else still_s


class _FreedResources:
    """Resources that an overdue job would free on its node, allocated step by step."""

    def __init__(self, snapshot: ClusterSnapshot, heavy: Job, settings: Settings) -> None:
        self._snapshot, self._node, self._settings = snapshot, snapshot.node[heavy.node or ""], settings
        self._cpu_left = allocatable_on(snapshot, self._node.name, leaving=heavy.id)
        own = [w.num_gpus for w in heavy.workers if w.node == self._node.name] or [heavy.num_gpus]
        self._gpus = self._node.idle + sum(own)

    def takes(self, job: Job) -> bool:
        """Allocate the job's fewest GPUs or its requests if they fit; return whether they did."""
        if self._node not in _allowed(self._snapshot, job) or not self._node.schedulable:
            return False
        if job.uses_cpu:
            if not self._cpu_left.holds(job):
                return False
            self._cpu_left = self._cpu_left.without(job)
            return True
        count = min_start_gpus(self._snapshot, job, self._settings)
        if count > self._gpus:
            return False
        self._gpus -= count
        return True
