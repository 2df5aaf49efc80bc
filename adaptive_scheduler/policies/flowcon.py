"""Limits CPU by growth efficiency, so that jobs that grow fast get more cores (FlowCon).

Only for jobs that train on CPU and are not being changed; the state of Algorithm 1 lies in their efficiency records
(`growth.measure`). Jobs on GPUs are neither limited nor counted, and the cores that feed them are not in `Node.cores`,
so no limit slows a GPU down (X4). Called last by the engine; `FlowConInterval` by the coordinator and the simulator.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from adaptive_scheduler.decision import Explanation, Limit
from adaptive_scheduler.models.contention import all_known, cpu_demands, water_fill
from adaptive_scheduler.profiles.growth import Efficiency
from adaptive_scheduler.settings import Deadlines, FlowCon, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

FLOWCON = "flowcon"

SAME = 0.01
"""A new limit that differs by less than this share of the node from the present one is not set."""

LEAST_CORES = 0.01
"""Lower bound of limits: the least quota that a kernel supports."""


def schedule_limits(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Limit, ...]:
    """Return limits that differ from those in force or must be renewed before they expire. Only jobs that train count
    (X11); others are counted once they do, which changes the pool (F6). On a node without heartbeats limits expire."""
    decided: list[Limit] = []
    for node in snapshot.nodes if snapshot.on_cpu else ():
        training = [j for j in snapshot.on_cpu[node.name] if j.state == "running" and not j.busy]
        if training and node.heard and node.cores > 0:
            node = replace(node, cores=node.cores + node.lent_cores)  # a quota would only keep those idle (F10)
            parts = _parts(snapshot, node, training, now, settings)
            limits = (_limit(node, part, now, settings.flowcon) for part in parts)
            decided += [limit for limit in limits if limit is not None]
    return tuple(decided)


@dataclass(frozen=True, slots=True)
class _CpuShare:
    """The share L of its node's cores that a job gets; 1 means no limit."""

    job: Job
    share: float
    why: str


def _parts(
    snapshot: ClusterSnapshot, node: Node, jobs: Sequence[Job], now: float, settings: Settings
) -> list[_CpuShare]:
    parts = _by_efficiency(node, jobs, now, settings.flowcon)
    needs = {job: demand.core_s for job, demand in cpu_demands(snapshot, node.name).items()}
    if settings.flowcon.keep_makespan:
        parts = _none_last(node, parts, needs, settings.flowcon)
    while True:
        raised = _none_idle(node, parts, settings.flowcon)
        eased = _in_time(node, raised, needs, now, settings.deadlines) if "deadline" in settings.systems else raised
        # A job eased for its deadline takes idle cores from others, which may then be late themselves: repeat.
        both = zip(parts, raised, eased, strict=True)
        again = [part if after is before else after for part, before, after in both]
        if all(part is one for part, one in zip(parts, again, strict=True)):
            return raised
        parts = again


def _by_efficiency(node: Node, jobs: Sequence[Job], now: float, settings: FlowCon) -> list[_CpuShare]:
    """Apply Algorithm 1 as resolved (3.3)."""
    if all(job.efficiency.list == "CL" for job in jobs):
        return [_CpuShare(job, 1.0, "no job there grows fast any more") for job in jobs]
    efficiencies = [_efficiency(job, settings) for job in jobs]
    total = math.fsum(efficiencies)
    shares = [e / total if total > 0 else 1 / len(jobs) for e in efficiencies]  # F9
    least = 1 / max(1.0, settings.beta * len(jobs))
    return [_by_list(node, job, share, least, now, settings) for job, share in zip(jobs, shares, strict=True)]


def _by_list(node: Node, job: Job, share: float, least: float, now: float, settings: FlowCon) -> _CpuShare:
    record = job.efficiency
    if record.list == "WL":
        present = _in_force(job, now)
        kept = 1.0 if present is None else present / node.cores
        return _CpuShare(job, kept, "it has only just become slow and keeps what it had")
    if not record.measured:  # F4; a job that reports no value stays here and gets at least its fair share (3.8)
        return _CpuShare(job, 1.0, "how fast it grows is not known yet")
    part = f"{share:.0%} of the growth per core on {node.name} is its own"
    if share < least and (record.list == "CL" or settings.nl_floor):  # F3
        return _CpuShare(job, least, f"{part}, and no job there gets less than {least:.0%}")
    return _CpuShare(job, share, part)


def _efficiency(job: Job, settings: FlowCon) -> float:
    """Return its efficiency; an unmeasured job counts as one at its peak (F4)."""
    record = job.efficiency
    return (record.share if settings.efficiency == "peak" else record.raw).get("cpu", 1.0)


def _none_last(
    node: Node, parts: Sequence[_CpuShare], needs: Mapping[str, float], settings: FlowCon
) -> list[_CpuShare]:
    """Lift limits of jobs that can use only some of the cores and would end after the others (ours). Such a job cannot
    catch up: it would train alone at the end with the node mostly idle. It is in time if, limited until the next
    interval, it could still end with the rest. Needs a known length."""
    all_s = math.fsum(needs[part.job.id] for part in parts) / node.cores
    kept: list[_CpuShare] = []
    for part in parts:
        job, most = part.job, part.job.demand
        if 0 < most < node.cores and all_known([job]):
            held_s = settings.interval_s * (1 - min(1.0, part.share * node.cores / most))
            if needs[job.id] / most + held_s > all_s:
                part = replace(part, share=1.0, why="it would end last, and held back it would end later still")
        kept.append(part)
    return kept


def _none_idle(node: Node, parts: Sequence[_CpuShare], settings: FlowCon) -> list[_CpuShare]:
    """Raise limits that together would leave cores idle that a job can use (F10). That happens if a job cannot use its
    limit or keeps one from when there were more jobs. Jobs that keep theirs come last, since they would keep the
    increase too."""
    if settings.idle_cores == "left":
        return list(parts)
    keeping = [part.job.efficiency.list == "WL" for part in parts]
    return _raised(node, _raised(node, parts, [not keeps for keeps in keeping]), keeping)


def _raised(node: Node, parts: Sequence[_CpuShare], takes: Sequence[bool]) -> list[_CpuShare]:
    """Divide idle cores among the jobs that may take them, in proportion to their limits."""
    allowed = [min(part.share * node.cores, part.job.demand) for part in parts]
    if math.fsum(allowed) >= node.cores * (1 - SAME):
        return list(parts)
    takers = [part for part, may in zip(parts, takes, strict=True) if may]
    left = node.cores - math.fsum(own for may, own in zip(takes, allowed, strict=True) if not may)
    weights = [max(part.share, LEAST_CORES / node.cores) for part in takers]
    useful = iter(water_fill(left, [part.job.demand for part in takers], weights))
    return [_more(part, next(useful) / node.cores) if may else part for part, may in zip(parts, takes, strict=True)]


def _more(part: _CpuShare, share: float) -> _CpuShare:
    if share <= part.share:
        return part
    return replace(part, share=share, why=f"{part.why}; what others leave idle comes on top")


def _in_time(
    node: Node, parts: Sequence[_CpuShare], needs: Mapping[str, float], now: float, settings: Deadlines
) -> list[_CpuShare]:
    """Give a job that its limit would make late its fair share, or no limit if it is late anyhow (X6)."""
    caps = [min(part.job.demand, max(part.share * node.cores, LEAST_CORES)) for part in parts]
    eased: list[_CpuShare] = []
    for part, cores in zip(parts, water_fill(node.cores, caps), strict=True):
        job, fair = part.job, 1 / len(parts)
        left_s = needs[job.id] / cores if all_known([job]) and cores > 0 else 0.0
        slack_s = math.inf if job.sla_s is None else job.submit_s + job.sla_s - now - left_s
        if job.sla_s is not None and slack_s < 0 and part.share < 1:
            part = replace(part, share=1.0, why="it would miss its deadline")
        elif job.sla_s is not None and slack_s < settings.slack_min * job.sla_s and part.share < fair:
            part = replace(part, share=fair, why="its deadline is near, so it has its fair share")
        eased.append(part)
    return eased


def _in_force(job: Job, now: float) -> float | None:
    """Return its limit in cores; None if it has expired."""
    lifted = job.limit_until_s is not None and job.limit_until_s <= now
    return None if lifted else job.cpu_limit


def _limit(node: Node, part: _CpuShare, now: float, settings: FlowCon) -> Limit | None:
    job, present = part.job, _in_force(part.job, now)
    cores = None if part.share >= 1 - 1e-9 else max(part.share * node.cores, LEAST_CORES)
    lasts_s = max(settings.limit_lasts_s, 2 * settings.interval_s)  # outlasts the next measurement
    if (cores is None and present is None) or not job.limitable:
        return None
    if cores is None or present is None or abs(cores - present) > SAME * node.cores:
        sentence = f"{job.id} {_words(cores, node)}: {part.why}."
    elif job.limit_until_s is not None and job.limit_until_s - now < lasts_s / 2:
        cores, sentence = present, f"{job.id} is still limited to {present:.3g} cores of {node.name}: {part.why}."
    else:
        return None
    return Limit(job.id, node.name, cores, lasts_s, Explanation(FLOWCON, sentence), settings.cpu_mode)


def _words(cores: float | None, node: Node) -> str:
    if cores is None:
        return f"is no longer limited on {node.name}"
    return f"is limited to {cores:.3g} of the {node.cores:g} cores of {node.name}"


Pool = frozenset[tuple[str, int]]
"""Jobs that train on a node, each with its generation, which changes with a move or GPU change (X14)."""


@dataclass(frozen=True, slots=True)
class FlowConInterval:
    """Back-off state between two measurements of a node; before the first, `interval_s` is 0 and `due_s` is past."""

    pool: Pool = frozenset()
    interval_s: float = 0.0
    due_s: float = -math.inf

    def is_due(self, now: float, pool: Pool) -> bool:
        """Return whether to measure now: the interval is over, or the set of jobs changed (F6: ids, not counts)."""
        return now >= self.due_s or pool != self.pool

    def stepped(self, now: float, pool: Pool, measured: Sequence[Efficiency], settings: FlowCon) -> FlowConInterval:
        """Return the next state after a measurement. Any change of the pool resets the back-off."""
        present = self.interval_s if pool == self.pool else settings.interval_s
        interval_s = next_interval_s(present, measured, settings)
        return FlowConInterval(pool, interval_s, now + interval_s)


def next_interval_s(present: float, measured: Iterable[Efficiency], settings: FlowCon) -> float:
    """Return twice the present interval, up to the cap, while all jobs converge; else the initial one (F5)."""
    lists = {record.list for record in measured}
    if lists != {"CL"}:
        return settings.interval_s
    longest = settings.interval_s * settings.interval_max_factor or math.inf
    return max(settings.interval_s, min(2 * present, longest))
