"""Policies that others published, rebuilt from their descriptions, by name; one module for each family.

A rival answers like `decide()` and is carried out by the same world. Called by `run.py` for a policy that a
workload does not bring along, and by `validation`, which checks each against its authors' own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments import optimal_schedule
from experiments.comparison_policies import gavel_rounds, round_policies, voda
from simulator.scenario import Planner, PolicySetup, Workload

PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {
    **voda.PLANNERS,
    **round_policies.PLANNERS,
    **gavel_rounds.PLANNERS,
    **optimal_schedule.PLANNERS,
}
"""By name: from the workload that it is run on (its jobs and nodes) to who decides."""


def policy_setup(name: str, workload: Workload) -> PolicySetup:
    """The rival of that name, one of `PLANNERS`, on this workload, whose jobs train on GPUs.

    It changes jobs at the same costs as the workload's last policy_setup, so that only the policies differ.
    """
    ours = workload.policy_setups[-1]
    says = f"rebuilt from its authors' description; changes cost what they cost {ours.name}"
    return PolicySetup(name, PLANNERS[name](workload), ours.costs, ours.profiles, says=says)
