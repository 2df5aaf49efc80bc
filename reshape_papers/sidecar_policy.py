"""Builds the policy of SideCar scheduling as its paper has it: Algorithms 1 and 2 alone."""

from __future__ import annotations

from functools import partial

from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from simulator.scenario import Costs, PolicySetup

PAPERS = Settings(planner="paper")
"""As resolved in `algorithms.md` 1.6 and 1.7."""

plan_as_the_paper = partial(decide, settings=PAPERS)


def sidecar_setup(costs: Costs, profiles: Profiles, name: str = "sidecar", says: str = "") -> PolicySetup:
    """Return the policy with these costs and profiles. `says`: a note for the report."""
    return PolicySetup(name, plan_as_the_paper, costs, profiles, PAPERS, says)
