"""Provides comparison policies by name: published policies, rebuilt from their descriptions; one module per family.

`planner` is our own, the default of `reshape up`. Each returns decisions as `decide()` does, which the same simulator
carries out. Called by `run.py` for a policy that a workload does not define itself, and by `validation`, which checks
each against its authors' figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from adaptive_scheduler.engine import decide
from reshape_papers import optimal_schedule
from reshape_papers.comparison_policies import gavel_rounds, round_policies, voda
from simulator.scenario import Planner, PolicySetup, Workload

PLANNER = "planner"
PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {
    **voda.PLANNERS,
    **round_policies.PLANNERS,
    **gavel_rounds.PLANNERS,
    **optimal_schedule.PLANNERS,
    PLANNER: lambda workload: _planner_setup(workload).plan,
}
"""By name: builds the planner of a policy for a workload."""


def policy_setup(name: str, workload: Workload) -> PolicySetup:
    """Return the setup of the policy `name`, a key of `PLANNERS`, for a workload of GPU jobs.

    It uses the costs of the workload's last policy, so that only the decisions differ.
    """
    if name == PLANNER:
        return _planner_setup(workload)
    ours = workload.policy_setups[-1]
    says = f"rebuilt from its authors' description; changes cost what they cost {ours.name}"
    return PolicySetup(name, PLANNERS[name](workload), ours.costs, ours.profiles, says=says)


def _planner_setup(workload: Workload) -> PolicySetup:
    """Return the workload's last policy, SideCar scheduling as the paper has it, with other plans to choose from."""
    ours = workload.policy_setups[-1]
    settings = replace(ours.settings, planner="rollout")
    plan = partial(decide, settings=settings)
    return replace(ours, name=PLANNER, plan=plan, settings=settings, says="the default of `reshape up`")
