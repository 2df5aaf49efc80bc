"""The few choices of the judgement, each with what it means; read once, never changed while running.

Built by the coordinator from its configuration and by the simulator from its command line. A literal
flag restores what the paper prints where we resolved it otherwise (`algorithms.md` 1.8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

Policy = Literal["elastic", "default"]
MakespanScope = Literal["cluster", "pair"]
RemovalRange = Literal["resolved", "printed"]
Tiebreak = Literal["full", "first"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A bad value raises ValueError that begins with the field's name."""

    policy: Policy = "elastic"
    """Who decides: "elastic" is seed 004, "default" gives each job its largest count and never reshapes."""

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

    over_release: bool = False
    """G3: whether a victim may give more than is needed; the surplus becomes idle."""

    tiebreak: Tiebreak = "full"
    """G4: makespan, then the sum of remaining times, no removal, fewer GPUs, names; or the first found."""

    refined: bool = False
    """G5: whether a newcomer's time includes waiting for its victim to let go."""

    allow_noop: bool = True
    """G6: whether doing nothing competes with a reshape up, with the minimum gain; False as printed."""

    reshape_up_with_pending: bool = True
    """G14: whether running jobs may grow while a queued job cannot be placed."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name, hint in hints.items():
            value = getattr(self, name)
            words = get_args(hint)
            if words and value not in words:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}")
            if hint is bool and not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, not {value!r}")
            if hint is float and not _is_factor(value):
                raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")


def _is_factor(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
