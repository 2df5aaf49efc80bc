"""The policies of `reshape up` by name: what each sets of the coordinator and of the scheduler.

`sidecar` are Algorithms 1 and 2 of SideCar scheduling alone; `planner`, the default, takes another plan where it is
predicted to be better. `termination` is the paper's case-study baseline (G15): the decisions of `sidecar`, carried out
by stopping and launching again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


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
