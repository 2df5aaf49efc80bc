"""Defines the settings of the scheduler, one class per system; immutable.

Built by the coordinator from its configuration and by the simulator from its command line. Literal values restore what
a paper prints where we deviate (`algorithms.md` 1.8, 2.6, 3.5, 4.5). Times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

System = Literal["elastic", "specon", "flowcon", "deadline"]
MakespanScope = Literal["cluster", "pair"]
RemovalRange = Literal["resolved", "printed"]
OverRelease = Literal["never", "needed", "always"]
Tiebreak = Literal["full", "first"]
Placement = Literal["host", "count_only"]
PlannerName = Literal["paper", "rollout"]
QueueOrder = Literal["arrival", "shortest", "deadline"]
BatchScaling = Literal["fixed", "weak"]


def _is_factor(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_TIMERS = ("interval_s", "limit_lasts_s", "tick_s")


class _Checked:
    """Validates fields: an invalid value raises ValueError that begins with the field's name."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, words = getattr(self, name), get_args(hint)
            if words and isinstance(words[0], str) and value not in words:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}")
            if hint is bool and not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, not {value!r}")
            if hint is float and not _is_factor(value):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")
            if name in _TIMERS and value == 0:
                raise ValueError(f"{name} must be above 0 s, or there would be no end of it")
            if name == "percentile" and value > 1:
                raise ValueError(f"{name} must be a share from 0 to 1, such as 0.9, not {value!r}")
            if hint is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{name} must be a whole number of at least 0, not {value!r}")


@dataclass(frozen=True, slots=True)
class SpeCon(_Checked):
    """Moves of converged jobs between nodes (SpeCon)."""

    alpha: float = 0.01
    """Growth per interval, as a share of the range of the evaluation value, from which a job progresses."""
    interval_s: float = 30.0
    """Interval of growth measurements."""
    weight_pc: float = 2.0
    """Weight of a progressing job in its node's score."""
    weight_wc: float = 1.5
    """Weight of a watched job."""
    weight_cc: float = 1.0
    """Weight of a converged job."""
    accept_move: Literal["makespan", "always"] = "makespan"
    """5.5: make a move only if it lowers predicted (makespan, sum), or always as in the paper."""
    growth: Literal["range", "raw"] = "range"
    """S1: growth as a share of the range seen so far, or the raw difference of the value."""
    slowing: Literal["not_risen", "strict"] = "not_risen"
    """Growth below alpha that counts as slowing: not risen since the interval before, so that a constant value
    converges; or as printed (Algorithm 1) strictly smaller."""
    freeze_migrated: bool = False
    """S6: whether a job that has moved keeps its category for ever."""
    request_on_entry: bool = False
    """S7: whether a job requests a move as it becomes converged, or one slow interval later."""
    request_beside: Literal["anybody", "progressing"] = "anybody"
    """S7: a converged job requests a move wherever others train beside it, even if all are converged; or as printed
    only where more than one on its node is not (|PC| + |WC| > 1)."""
    exclude_self: bool = False
    """S8: whether a job's own weight is left out of its node's score."""
    bf_floor: Literal["one", "zero"] = "one"
    """S11: serve an idle node also if fewer jobs than nodes are left, or as printed not."""
    donor_guard: bool = True
    """S13: a node donates a job only while it keeps its fair number."""
    rebalance_when: Literal["always", "all_migrated"] = "always"
    """S16: rebalance nodes whenever possible, or only once every job has moved."""


@dataclass(frozen=True, slots=True)
class FlowCon(_Checked):
    """CPU limits by growth efficiency (FlowCon)."""

    alpha: float = 0.05
    """Efficiency, as a share of the job's own peak, from which a job counts as new."""
    interval_s: float = 20.0
    """Initial interval of efficiency measurements; doubled while all jobs of a node are converging."""
    interval_max_factor: float = 8.0
    """F5: upper bound of the doubled interval, in multiples of `interval_s`; 0: none (as printed)."""
    beta: float = 2.0
    """No limit is below 1 / (beta x jobs) of the node."""
    min_dt_s: float = 5.0
    """F8: shorter intervals are not measured."""
    efficiency: Literal["peak", "raw"] = "peak"
    """F1: compare efficiencies as shares of each job's own peak, or raw, on different scales."""
    nl_floor: bool = True
    """F3: whether the lower bound holds for new jobs too."""
    idle_cores: Literal["shared", "left"] = "shared"
    """F10: cores that limits would leave idle go to jobs that can use them, or stay idle as under the paper's quota."""
    keep_makespan: bool = True
    """Ours: do not limit a job that cannot use the whole node and would end last. False as printed."""
    limit_lasts_s: float = 300.0
    """Seconds after which a limit that is not renewed expires."""
    cpu_mode: Literal["quota", "weight"] = "quota"
    """F10: limits on a cluster are quotas, or weights, which leave idle cores usable. On one machine always quotas."""


@dataclass(frozen=True, slots=True)
class Deadlines(_Checked):
    """Deadlines of queued and running jobs (Slaml)."""

    beta: float = 0.05
    """Tolerance, as a share of the target."""
    percentile: float = 0.9
    """D4: percentile of the matching execution times."""
    gpu_branch: Literal["argmax", "tie"] = "argmax"
    """D1: use the GPU table for jobs that request GPUs, or as printed only if CPU and memory shares are equal."""
    te: Literal["tasks", "job_lookup"] = "tasks"
    """D2: look up execution times task by task and add them, or once for the whole job."""
    literal_budget: bool = False
    """D5: count replacements of an overdue task with their waiting times, as printed, instead of their work."""
    order_by: Literal["safe", "paper"] = "safe"
    """D9: latest start without or with the tolerance."""
    yield_by: Literal["reshape", "stop"] = "reshape"
    """X9: an overdue job first gives GPUs and is stopped only if that saves another's deadline; or, as in the paper, is
    always stopped for lighter jobs."""
    tick_s: float = 5.0
    """Interval at which overdue tasks are looked for."""
    max_preempts: int = 2
    """D7: most times a job is requeued."""
    default_wait_s: float = 86400.0
    """X13: a job without deadline is ordered as if it had to start within this time, so that it ages."""
    slack_min: float = 0.1
    """X6: a job with less slack than this share of its target is not limited below its fair share."""


@dataclass(frozen=True, slots=True)
class Settings(_Checked):
    """The active systems, and the settings of SideCar scheduling."""

    systems: tuple[System, ...] = ("elastic", "specon", "flowcon", "deadline")
    """Active systems; without "elastic" each job gets its largest count and is never reshaped."""
    min_gain_factor: float = 1.0
    """A reshape up must gain more than this many times the reshape cost of that job (1.9)."""
    cooldown_factor: float = 10.0
    """Cool-down after a reshape, in multiples of its cost (1.9). The caller turns it into `Job.cooling_until`."""
    makespan_scope: MakespanScope = "cluster"
    """G1: the makespan of all placed jobs, or as printed only of the newcomer and its victim."""
    removal_range: RemovalRange = "resolved"
    """G2: a victim may shrink to any smaller allowed count, or as printed only give from its smallest to largest count.
    """
    over_release: OverRelease = "needed"
    """G3: when a victim may give more than is missing, leaving the surplus idle: if no victim can give the exact
    amount, always, or never as printed."""
    tiebreak: Tiebreak = "full"
    """G4: makespan, then the sum of remaining times, no victim, fewer GPUs, names; or the first found."""
    refined: bool = False
    """G5: whether a newcomer's time includes waiting for its victim's release of the GPUs."""
    allow_noop: bool = True
    """G6: whether doing nothing competes with a reshape up, with the minimum gain; False as printed."""
    placement: Placement = "host"
    """G7: all GPUs of a worker on one host, or as printed only their total counts, on any hosts."""
    batch_scaling: BatchScaling = "fixed"
    """G12: one batch is split over all GPUs, or each GPU has its own batch ("weak"): n GPUs then need one n-th of the
    iterations. Lengths are counted on one GPU, as submitted."""
    reshape_up_with_pending: bool = True
    """G14: whether running jobs may grow while a queued job cannot be placed."""
    compare_with_waiting: bool = False
    """G19: whether waiting for the next job to end competes with an immediate start."""
    spare_critical: bool = True
    """Whether a newcomer waits for the next job to end, if its victim would then end after all work on all GPUs could,
    and waiting gives a smaller makespan; False as printed."""
    planner: PlannerName = "rollout"
    """Who places jobs on GPUs: the best of a few complete plans, each continued to the end of all known jobs, or
    Algorithms 1 and 2 of the paper alone."""
    makespan_weight: float = 1.0
    """What one per cent of makespan counts to the planner against one per cent of mean completion time; 0: nothing."""
    moves: bool = True
    """Whether a running job may move to another host for more or faster GPUs (sequence D)."""
    queue_order: QueueOrder = "shortest"
    """Order of waiting jobs: by arrival; shortest first, unknown lengths last, jobs with a deadline at their place by
    latest start; or by latest start, jobs without deadline as if it were `Deadlines.default_wait_s`."""
    reserve_after_s: float = 86400.0
    """Aging: a job that has waited this long, and twice its length, goes first, and freed GPUs are reserved for it; 0:
    never. After an hour nearly all jobs of a full cluster would go first."""
    specon: SpeCon = SpeCon()
    """Moves of jobs trained on CPU."""
    flowcon: FlowCon = FlowCon()
    """CPU limits."""
    deadlines: Deadlines = Deadlines()
    """Queue order, and overdue jobs."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.systems if name not in get_args(System)]:
            raise ValueError(f"systems must be some of {', '.join(get_args(System))}, not {unknown[0]!r}")
        _Checked.__post_init__(self)


DEFAULTS = Settings()
