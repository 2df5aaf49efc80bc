"""The policies of `reshape up` by name: what each sets of the coordinator and of the scheduler.

`sidecar` are Algorithms 1 and 2 of SideCar scheduling alone; `planner`, the default, takes another plan where it is
predicted to be better. `termination` is the paper's case-study baseline (G15): the decisions of `sidecar`, carried out
by stopping and launching again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from adaptive_scheduler.settings import DEFAULTS, Settings


class PolicyChoice(NamedTuple):
    """Fields of the coordinator's `Config` and of the scheduler's `Settings`."""

    config: dict[str, Any]
    settings: dict[str, Any]


POLICIES = {
    "planner": PolicyChoice({}, {}),
    "sidecar": PolicyChoice({}, {"planner": "paper"}),
    "termination": PolicyChoice(
        {"reshape_by": "relaunch", "early_initialization": False},
        {"planner": "paper", "min_gain_factor": 0.0, "cooldown_factor": 0.0},
    ),
    "default": PolicyChoice({}, {"systems": ()}),
}


def settings_under(name: str, settings: Settings) -> Settings:
    """Return `settings` as they would be had the coordinator been started with the policy `name` of `POLICIES`.

    A value that another policy sets goes back to its default; what an operator has set stays.
    """
    chosen = POLICIES[name].settings
    others = (choice.settings for choice in POLICIES.values())
    from_another = {
        field
        for choice in others
        for field, value in choice.items()
        if field not in chosen and getattr(settings, field) == value
    }
    return replace(settings, **{field: getattr(DEFAULTS, field) for field in from_another}, **chosen)
