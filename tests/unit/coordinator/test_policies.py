"""Each policy of `reshape up` means the same whichever one was in force before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.settings import DEFAULTS
from coordinator.policies import POLICIES, settings_under


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_the_same_after_another_one(name: str, before: str) -> None:
    started_with = replace(DEFAULTS, **POLICIES[before].settings)
    assert settings_under(name, started_with) == replace(DEFAULTS, **POLICIES[name].settings)


@pytest.mark.parametrize("name", ["planner", "sidecar"])
def test_what_an_operator_has_set_stays(name: str) -> None:
    own = replace(DEFAULTS, min_gain_factor=0.3, queue_order="shortest", systems=("elastic",))
    after = settings_under(name, own)
    assert (after.min_gain_factor, after.queue_order, after.systems) == (0.3, "shortest", ("elastic",))
