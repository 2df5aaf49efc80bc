"""Policies that others published, rebuilt from their descriptions, by name; one module for each family.

A rival answers like `decide()` and is carried out by the same world. Called by `run.py` for a policy that a
workload does not bring along, and by `validation`, which checks each against its authors' own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments import optimal_schedule
from experiments.comparison_policies import gavel_rounds, round_policies, voda
from simulator.scenario import Contender, Planner, Workload

RIVALS: Mapping[str, Callable[[Workload], Planner]] = {
    **voda.RIVALS,
    **round_policies.RIVALS,
    **gavel_rounds.RIVALS,
    **optimal_schedule.RIVALS,
}
"""By name: from the workload that it is run on (its jobs and nodes) to who decides."""


def contender(name: str, workload: Workload) -> Contender:
    """The rival of that name, one of `RIVALS`, on this workload, whose jobs train on GPUs.

    It changes jobs at the same costs as the workload's last contender, so that only the policies differ.
    """
    ours = workload.contenders[-1]
    says = f"rebuilt from its authors' description; changes cost what they cost {ours.name}"
    return Contender(name, RIVALS[name](workload), ours.costs, ours.profiles, says=says)
