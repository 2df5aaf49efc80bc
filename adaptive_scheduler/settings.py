"""The choices of the judgement, each with what it means; read once, never changed while running.

Built by the coordinator from its configuration and by the simulator from its command line. One class for
each of the four systems. A literal flag restores what a paper prints where we resolved it otherwise
(`algorithms.md` 1.8, 2.6, 3.5, 4.5). Times in seconds.
"""

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
QueueOrder = Literal["arrival", "shortest", "deadline"]
BatchScaling = Literal["fixed", "weak"]


def _is_factor(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_TIMERS = ("interval_s", "limit_lasts_s", "tick_s")


class _Checked:
    """A bad value raises ValueError that begins with the field's name."""

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
    """Moves of converged jobs between nodes (seeds 000 and 002)."""

    alpha: float = 0.01
    """Growth per interval, as a share of the range of the evaluation value, from which a job progresses."""

    interval_s: float = 30.0
    """How often growth is looked at."""

    weight_pc: float = 2.0
    """How heavy a progressing job weighs on its node."""
    weight_wc: float = 1.5
    """How heavy a watched one weighs."""
    weight_cc: float = 1.0
    """How heavy a converged one weighs."""

    accept_move: Literal["makespan", "always"] = "makespan"
    """5.5: a move is made only if it lowers predicted (makespan, sum), or always as in the paper."""

    growth: Literal["range", "raw"] = "range"
    """S1: growth as a share of the range seen so far, or the raw difference of the value."""

    slowing: Literal["not_risen", "strict"] = "not_risen"
    """What counts as slowing below alpha: growth that has not risen since the interval before, so that a job whose
    value stands still converges; or as printed (Algorithm 1) only growth that has become strictly smaller."""

    freeze_migrated: bool = False
    """S6: whether a job that has moved keeps its category for ever."""

    request_on_entry: bool = False
    """S7: whether a move is asked for as a job becomes converged, or one slow interval later."""

    request_beside: Literal["anybody", "progressing"] = "anybody"
    """S7: a converged job asks to move wherever others train beside it, also where all are converged; or as printed
    only where more than one on its node is not (|PC| + |WC| > 1)."""

    exclude_self: bool = False
    """S8: whether a job's own weight is left out of its node's score."""

    bf_floor: Literal["one", "zero"] = "one"
    """S11: an idle node is served also where fewer jobs than nodes are left, or as printed not."""

    donor_guard: bool = True
    """S13: a node gives a job only while it keeps its fair number."""

    rebalance_when: Literal["always", "all_migrated"] = "always"
    """S16: nodes are rebalanced whenever that is possible, or only once every job has moved."""


@dataclass(frozen=True, slots=True)
class FlowCon(_Checked):
    """CPU limits by growth efficiency (seed 001)."""

    alpha: float = 0.05
    """Efficiency, as a share of the job's own peak, from which a job counts as new."""

    interval_s: float = 20.0
    """How often efficiency is looked at; doubled while every job of a node is converging."""

    interval_max_factor: float = 8.0
    """F5: how many times `interval_s` the doubled interval may become at most; 0: any (as printed)."""

    beta: float = 2.0
    """No limit is below 1 / (beta x jobs) of the node."""

    min_dt_s: float = 5.0
    """F8: a shorter interval is not measured."""

    efficiency: Literal["peak", "raw"] = "peak"
    """F1: efficiencies compared as shares of each job's own peak, or raw, of whatever scale."""

    nl_floor: bool = True
    """F3: whether the lower bound holds for new jobs too."""

    idle_cores: Literal["shared", "left"] = "shared"
    """F10: cores that the limits of a node would leave idle go to the jobs that can use them, or stay idle as
    under the quotas of the paper."""

    keep_makespan: bool = True
    """Ours: a job that cannot use the whole node is not limited where it would end last. False as printed."""

    limit_lasts_s: float = 300.0
    """A limit that is not renewed lifts itself after so long."""

    cpu_mode: Literal["quota", "weight"] = "quota"
    """F10: a limit on a cluster is a quota, or only a weight beside others that compute there: what they leave
    idle may be used on top. On one machine (`reshape up`) it is always a quota."""


@dataclass(frozen=True, slots=True)
class Deadlines(_Checked):
    """Deadlines in front of the queue and while jobs run (seed 003)."""

    beta: float = 0.05
    """Tolerance, as a share of the target."""

    percentile: float = 0.9
    """D4: of the execution times that match."""

    gpu_branch: Literal["argmax", "tie"] = "argmax"
    """D1: the GPU table for whoever wants GPUs, or as printed only where CPU and memory shares are equal."""

    te: Literal["tasks", "job_lookup"] = "tasks"
    """D2: execution times looked up task by task and added, or once for the whole job."""

    literal_budget: bool = False
    """D5: replacements of an overdue task are counted with their waiting times, as printed, not their work."""

    order_by: Literal["safe", "paper"] = "safe"
    """D9: latest start without or with the tolerance."""

    yield_by: Literal["reshape", "stop"] = "reshape"
    """X9: an overdue job first gives GPUs, and is stopped only where that saves another's deadline; or it is
    always stopped as in the paper, for whoever is lighter."""

    tick_s: float = 5.0
    """How often overdue tasks are looked for."""

    max_preempts: int = 2
    """D7: how often one job is sent back to the queue."""

    default_wait_s: float = 86400.0
    """X13: a job without deadline is ordered as if it had to start within so long, so that it ages."""

    slack_min: float = 0.1
    """X6: a job with less slack than this share of its target is not limited below its fair share."""


@dataclass(frozen=True, slots=True)
class Settings(_Checked):
    """Which systems act, and ELASTIC's own choices (seed 004)."""

    systems: tuple[System, ...] = ("elastic", "specon", "flowcon", "deadline")
    """Who may act; without "elastic" each job gets its largest count and is never reshaped."""

    min_gain_factor: float = 1.0
    """A reshape up must gain more than this many times the reshape cost of that job (1.9)."""

    cooldown_factor: float = 10.0
    """After a reshape a job is left alone for this many times its reshape cost (1.9). The caller turns it
    into `Job.cooling_until`; decisions only compare that with now."""

    makespan_scope: MakespanScope = "cluster"
    """G1: the makespan of all placed jobs, or as printed only of the newcomer and its victim."""

    removal_range: RemovalRange = "resolved"
    """G2: a victim may go to any smaller allowed count, or as printed only give amounts between its
    smallest and its largest count."""

    over_release: OverRelease = "needed"
    """G3: when a victim may give more than is missing, and the surplus becomes idle: where nobody can give just that,
    always, or never as printed."""

    tiebreak: Tiebreak = "full"
    """G4: makespan, then the sum of remaining times, no removal, fewer GPUs, names; or the first found."""

    refined: bool = False
    """G5: whether a newcomer's time includes waiting for its victim to let go."""

    allow_noop: bool = True
    """G6: whether doing nothing competes with a reshape up, with the minimum gain; False as printed."""

    placement: Placement = "host"
    """G7: all GPUs of a worker on one host, or as printed only their number counts, on whatever hosts."""

    batch_scaling: BatchScaling = "fixed"
    """G12: one batch is split over all GPUs, or each GPU has a batch of its own ("weak"): n GPUs then need
    one n-th of the iterations. Lengths are counted on one GPU, as submitted."""

    reshape_up_with_pending: bool = True
    """G14: whether running jobs may grow while a queued job cannot be placed."""

    compare_with_waiting: bool = False
    """G19: whether waiting for the next job to end competes with a start at once."""

    spare_critical: bool = True
    """Whether a newcomer waits for the next job to end rather than take GPUs from a job that would then end later than
    all work left, the queue's too, takes on all GPUs, where waiting leads to a smaller makespan; False as printed."""

    moves: bool = True
    """Whether a running job may go to another host, where it gets more GPUs or faster ones (sequence D)."""

    queue_order: QueueOrder = "shortest"
    """Who of the waiting jobs is asked first: as they came; the one that would end soonest, jobs of unknown length
    behind those; or by latest start, who has no deadline as if it had `Deadlines.default_wait_s`. Among the shortest a
    job with a deadline keeps its place by latest start."""

    reserve_after_s: float = 86400.0
    """Aging: a job that has waited so long, and twice as long as it takes, goes first, and GPUs that become free are
    kept for it; 0: never. After an hour nearly all jobs of a full cluster would be first."""

    specon: SpeCon = SpeCon()
    """Moves of jobs trained on CPU."""
    flowcon: FlowCon = FlowCon()
    """CPU limits."""
    deadlines: Deadlines = Deadlines()
    """Order of the queue, and who gives way."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.systems if name not in get_args(System)]:
            raise ValueError(f"systems must be some of {', '.join(get_args(System))}, not {unknown[0]!r}")
        _Checked.__post_init__(self)


DEFAULTS = Settings()
