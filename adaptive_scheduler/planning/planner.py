"""Chooses among a few complete plans by what follows them (`algorithms.md` 1.12; ours).

The plans are the decisions of Algorithms 1 and 2, the first action of the fluid policy, shortest first or late ones
first, and a knapsack's. Each is continued to the end of all known jobs. The one with the least ln(sum of completion
times) + `makespan_weight` ln(last completion) is taken; one that is not the paper's must be better by `BETTER_BY`, and
worse for no queue in a measure that counts there. Called by the engine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from adaptive_scheduler.candidates import gpus, seconds
from adaptive_scheduler.decision import Candidate, Decision, Explanation, Hold, Move, Reshape, Start, Victim
from adaptive_scheduler.planning.fluid import (
    Budget,
    FluidPolicy,
    Place,
    PlannedChange,
    PlannedGift,
    PlanOutcome,
    TooMuchToLookAt,
    present_places,
)
from adaptive_scheduler.planning.knapsack import knapsack_plan
from adaptive_scheduler.planning.planned_jobs import PlanGroup, PlannedCluster, mark_late, read_cluster
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.rights.plans import keeps_priorities, keeps_rights
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, has_deadline

PLANNER = "elastic.planner"

BETTER_BY = 0.005
"""Another plan must be better than the paper's by half a per cent: lengths are predictions."""

LOOKS = 250_000
"""Placements that one decision may look at: a tenth of a second. Beyond, the paper's plan is carried out."""

MOST_JOBS = 3_000
"""Jobs of which plans are made: to read more of them would take longer than to compare plans may."""

NOT_COMPARED = "Other plans were not compared: there are too many jobs and nodes to do that in time."

NOT_SIMULATED = PlanOutcome((), ())
"""Outcome of the only plan: there is nothing to compare it with."""

UNSAID = Explanation(PLANNER, "")
"""Of an operation that is only judged."""

PAPER = "the paper's rules"
PLANS = {False: "shortest first", True: "late jobs first"}
"""Names of the fluid policy's plans for people, by whether late jobs go first."""
KNAPSACK = "most work soon"
"""Name of the knapsack's plan for people."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan: its operations on GPU jobs, and what follows."""

    name: str
    changes: tuple[PlannedChange, ...]
    outcome: PlanOutcome = NOT_SIMULATED


def choose_plan(
    snapshot: ClusterSnapshot,
    now: float,
    settings: Settings,
    papers: Sequence[Decision],
    reserved: bool,
    rights_bind: bool,
    permits: Callable[[Start | Reshape | Move], bool],
) -> list[Decision]:
    """Return the decisions of the best plan. `papers`: those of Algorithms 1 and 2 on this snapshot, the default.

    `reserved`: whether a node is kept for an aged job, or GPUs for a user, which only they respect. `rights_bind`:
    whether rights to GPUs forbid anybody anything. `permits`: whether reservations to come permit an operation.
    """
    default = list(papers)
    if reserved or not _can_plan(snapshot, settings, default):
        return default
    if len(snapshot.jobs) > MOST_JOBS:
        return [_not_compared(one) for one in default]
    cluster = read_cluster(snapshot, now, settings)
    positions = {one.job.id: position for position, one in enumerate(cluster.jobs)} if cluster else {}
    operations = [one for one in default if isinstance(one, Start | Reshape | Move) and one.num_gpus]
    if cluster is None or not positions.keys() >= {one.job for one in operations}:
        return default

    def is_allowed(plan: Plan) -> bool:
        changes = [_bare_operation(cluster, change) for change in plan.changes]
        if not keeps_priorities(snapshot, changes, default) or not all(map(permits, changes)):
            return False
        return not rights_bind or keeps_rights(Rights(snapshot, now, settings), snapshot, changes, default)

    weight = settings.makespan_weight
    try:
        startable = {positions[name] for name in _may_start(snapshot, now, settings) if name in positions}
        papers_changes = [_change_of(cluster, positions, one) for one in operations]
        plans = _compare_plans(cluster, papers_changes, startable, is_allowed, weight, Budget(LOOKS))
    except TooMuchToLookAt:
        return [_not_compared(one) for one in default]
    others = [plan for plan in plans[1:] if not _is_worse(plan, plans[0], cluster.groups)]
    if not others:
        return default
    best = min(others, key=lambda plan: plan.outcome.objective(cluster.groups, weight))
    papers_objective = plans[0].outcome.objective(cluster.groups, weight)
    if best.outcome.objective(cluster.groups, weight) + BETTER_BY >= papers_objective:
        return default
    return _decisions_of(cluster, best, plans, default)


def _is_worse(plan: Plan, papers: Plan, groups: Sequence[PlanGroup]) -> bool:
    """Return whether the plan is worse than the paper's for a group of jobs, in the measure that counts more there, or
    in either if both do.

    A gain in one measure that costs the other is repeated at each decision, until much of the other is lost. And no
    queue pays for what another one wants, nor anybody for the weights of others' jobs.
    """
    for position, group in enumerate(groups):
        ends_later = plan.outcome.lasts_s[position] > papers.outcome.lasts_s[position]
        takes_longer = plan.outcome.sums_s[position] > papers.outcome.sums_s[position]
        if (ends_later and group.makespan_weight >= 1.0) or (takes_longer and group.makespan_weight <= 1.0):
            return True
    return False


def _not_compared(decision: Decision) -> Decision:
    """Say in an operation's reason that it was carried out without a look at other plans."""
    if not isinstance(decision, Start | Reshape | Move):
        return decision
    sentence = f"{decision.explanation.sentence} {NOT_COMPARED}"
    return replace(decision, explanation=replace(decision.explanation, sentence=sentence))


def _can_plan(snapshot: ClusterSnapshot, settings: Settings, papers: Iterable[Decision]) -> bool:
    """Return whether the planner knows all that binds here: not deadlines, gangs and jobs over several hosts."""
    if settings.placement != "host" or not settings.reshape_up_with_pending:
        return False
    on_gpus = [job for job in snapshot.jobs if not job.uses_cpu]
    if "deadline" in settings.systems and any(has_deadline(job) for job in on_gpus):
        return False
    if any(job.workers or job.gpus_per_pod or job.max_workers > 1 for job in on_gpus):
        return False
    waits = any(not job.uses_cpu for job in snapshot.queue)
    return (waits or snapshot.has_idle) and all(isinstance(one, Start | Reshape | Move | Hold) for one in papers)


def _may_start(snapshot: ClusterSnapshot, now: float, settings: Settings) -> frozenset[str]:
    """Return the waiting jobs that may start now: none that yields to another one."""
    return frozenset(job.id for job in Queue(now, settings).in_order(snapshot))


def _compare_plans(
    cluster: PlannedCluster,
    papers: Sequence[PlannedChange],
    startable: Collection[int],
    is_allowed: Callable[[Plan], bool],
    makespan_weight: float,
    budget: Budget,
) -> list[Plan]:
    """Return the different plans with their outcomes, the paper's first; without, if no other one is allowed."""
    mark_late(cluster)
    present = present_places(cluster)
    plans = {frozenset(papers): Plan(PAPER, tuple(papers))}
    for late_first, name in PLANS.items():
        changes = tuple(FluidPolicy(cluster, present, late_first, budget).first_action(startable))
        plans.setdefault(frozenset(changes), Plan(name, changes))
    changes = tuple(knapsack_plan(cluster, startable, budget))
    if changes:  # to do nothing is no plan of its own: what follows would be done at once, and be put off for ever
        plans.setdefault(frozenset(changes), Plan(KNAPSACK, changes))
    default, *others = plans.values()
    allowed = [plan for plan in others if is_allowed(plan)]
    if not allowed:
        return [default]
    return [
        replace(plan, outcome=_outcome_of(cluster, _places_after(cluster, present, plan), makespan_weight, budget))
        for plan in (default, *allowed)
    ]


def _change_of(
    cluster: PlannedCluster, positions: Mapping[str, int], decision: Start | Reshape | Move
) -> PlannedChange:
    host = cluster.names.index(decision.node)
    victims = decision.victims if isinstance(decision, Start) else ()
    gifts = tuple(PlannedGift(positions[victim.job], victim.num_gpus) for victim in victims)
    return PlannedChange(positions[decision.job], host, decision.num_gpus, gifts)


def _outcome_of(
    cluster: PlannedCluster, places: Sequence[Place], makespan_weight: float, budget: Budget
) -> PlanOutcome:
    """Return what follows from these places if the better of the two fluid policies continues them."""
    runs = [FluidPolicy(cluster, places, late_first, budget).run() for late_first in PLANS]
    return min(runs, key=lambda outcome: outcome.objective(cluster.groups, makespan_weight))


def _places_after(cluster: PlannedCluster, present: Sequence[Place], plan: Plan) -> list[Place]:
    places = list(present)
    for change in plan.changes:
        still_s = cluster.jobs[change.job].standstill_s(change.host)
        places[change.job] = Place(change.host, change.num_gpus, still_s, present[change.job].changes_at_s)
        for gift in change.gifts:
            victim = present[gift.victim]
            standstill_s = cluster.jobs[gift.victim].reshape_s
            places[gift.victim] = Place(victim.host, gift.keeps, standstill_s, victim.changes_at_s)
    return places


def _decisions_of(
    cluster: PlannedCluster, best: Plan, plans: Sequence[Plan], papers: Sequence[Decision]
) -> list[Decision]:
    """Return the operations of the best plan, the paper's decisions on jobs without GPUs, and why others wait."""
    on_gpus = {one.job.id for one in cluster.jobs}
    others = [one for one in papers if one.job not in on_gpus]
    operations = [_operation_of(cluster, change, best, plans) for change in best.changes]
    changed = {one.job for one in operations}
    held = [
        _reason_to_wait(cluster, one, best, plans[0]) for one in papers if one.job in on_gpus and one.job not in changed
    ]
    return [*others, *operations, *(one for one in held if one is not None)]


def _reason_to_wait(cluster: PlannedCluster, paper: Decision, best: Plan, papers: Plan) -> Hold | None:
    """Return why a waiting job waits, if it does. A running one that the paper's rules would change needs no reason."""
    if isinstance(paper, Hold):
        return paper
    if not isinstance(paper, Start):
        return None
    sentence = f"{paper.job} waits although it could start: {_comparison(cluster, best, papers)}"
    return Hold(paper.job, Explanation(PLANNER, sentence))


def _operation_of(
    cluster: PlannedCluster, change: PlannedChange, best: Plan, plans: Sequence[Plan]
) -> Start | Reshape | Move:
    one = cluster.jobs[change.job]
    name = one.job.id
    node = cluster.names[change.host]
    count = gpus(change.num_gpus)
    if one.waits:
        taken = "".join(f", and {victim.job} keeps {victim.num_gpus}" for victim in _victims_of(cluster, change))
        does = f"{name} starts on {count} of {node}{taken}"
    elif change.host == one.host:
        does = f"{name} gets {count} of {node}"
    else:
        does = f"{name} moves to {count} of {node}"
    operation = _bare_operation(cluster, change)
    return replace(operation, explanation=_explain_change(cluster, change, does, best, plans))


def _bare_operation(cluster: PlannedCluster, change: PlannedChange) -> Start | Reshape | Move:
    """Return the operation without its reason."""
    one = cluster.jobs[change.job]
    name = one.job.id
    node = cluster.names[change.host]
    if one.waits:
        victims = _victims_of(cluster, change)
        first, keeps = (victims[0].job, victims[0].num_gpus) if victims else (None, None)
        return Start(name, node, change.num_gpus, UNSAID, first, keeps, more_victims=victims[1:])
    kind = Reshape if change.host == one.host else Move
    return kind(name, node, change.num_gpus, UNSAID)


def _explain_change(
    cluster: PlannedCluster, change: PlannedChange, does: str, best: Plan, plans: Sequence[Plan]
) -> Explanation:
    """Return the sentence, and as candidates what each plan, the best one first, does to this job."""
    candidates = list[Candidate]()
    for plan in (best, *(plan for plan in plans if plan is not best)):
        for other in plan.changes:
            if other.job == change.job:
                rejected = "" if plan is best else f"part of another plan, {plan.name}"
                candidates.append(_candidate_of(cluster, other, plan, rejected))
    papers = plans[0].outcome
    sentence = f"{does}: {_comparison(cluster, best, plans[0])}"
    return Explanation(PLANNER, sentence, tuple(candidates), papers.last_s, papers.sum_s)


def _candidate_of(cluster: PlannedCluster, change: PlannedChange, plan: Plan, rejected: str) -> Candidate:
    one = cluster.jobs[change.job]
    victims = _victims_of(cluster, change)
    trained_s = one.seconds[cluster.kinds[change.host]].get(change.num_gpus, one.here_s)
    return Candidate(
        node=cluster.names[change.host],
        num_gpus=change.num_gpus,
        makespan_s=plan.outcome.last_s,
        sum_s=plan.outcome.sum_s,
        job_s=one.standstill_s(change.host) + trained_s,
        job=one.job.id,
        victim=victims[0].job if victims else None,
        victim_num_gpus=victims[0].num_gpus if victims else None,
        rejected=rejected,
        more_victims=victims[1:],
    )


def _victims_of(cluster: PlannedCluster, change: PlannedChange) -> tuple[Victim, ...]:
    return tuple(Victim(cluster.jobs[gift.victim].job.id, gift.keeps) for gift in change.gifts)


def _comparison(cluster: PlannedCluster, best: Plan, papers: Plan) -> str:
    if len(cluster.groups) == 1:
        (group,) = cluster.groups
        return (
            f"with this plan ({best.name}) all known jobs end in {seconds(best.outcome.last_s)} and take "
            f"{seconds(best.outcome.sum_s / group.num_jobs)} on average{_by_weight(group)}, with {PAPER} "
            f"{seconds(papers.outcome.last_s)} and {seconds(papers.outcome.sum_s / group.num_jobs)}."
        )
    measures = list[str]()
    for position, group in enumerate(cluster.groups):
        jobs, ends, takes = ("job", "ends", "takes") if group.num_jobs == 1 else ("jobs", "end", "take")
        last_s, papers_last_s = (plan.outcome.lasts_s[position] for plan in (best, papers))
        mean_s, papers_mean_s = (plan.outcome.sums_s[position] / group.num_jobs for plan in (best, papers))
        measures.append(
            f"the {group.num_jobs} {jobs} {_name_group(cluster, group)} {ends} in {seconds(last_s)}, not "
            f"{seconds(papers_last_s)}, and {takes} {seconds(mean_s)} on average{_by_weight(group)}, not "
            f"{seconds(papers_mean_s)}"
        )
    return f"with this plan ({best.name}), against {PAPER}, {'; '.join(measures)}."


def _by_weight(group: PlanGroup) -> str:
    return " by their weights" if group.weighted else ""


def _name_group(cluster: PlannedCluster, group: PlanGroup) -> str:
    """Return what sets the jobs of a group apart from others: "whose queue has makespan_weight 3", for instance."""
    names = list[str]()
    if any(other.weighted != group.weighted for other in cluster.groups):
        names.append("of owners who weight them" if group.weighted else "of owners who do not weight them")
    if any(other.makespan_weight != group.makespan_weight for other in cluster.groups):
        names.append(f"whose queue has makespan_weight {group.makespan_weight:g}")
    return " and ".join(names)
