"""The policies of `reshape up` by name: what each sets of the coordinator and of the scheduler.

`termination` is the case-study baseline of SideCar scheduling (G15): the same decisions, carried out by stopping and
launching again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PolicyChoice(NamedTuple):
    """Fields of the coordinator's `Config` and of the scheduler's `Settings`."""

    config: dict[str, Any]
    settings: dict[str, Any]


POLICIES = {
    "sidecar": PolicyChoice({}, {}),
    "termination": PolicyChoice(
        {"reshape_by": "relaunch", "early_initialization": False}, {"min_gain_factor": 0.0, "cooldown_factor": 0.0}
    ),
    "default": PolicyChoice({}, {"systems": ()}),
}
