"""Simulate: every policy that is asked for on one workload. The one door for callers.

Called by `reshape simulate` and `reshape paper`, and by tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments import comparison_policies, report
from simulator.cluster import SimulatedCluster
from simulator.scenario import NoWorkload, PolicySetup, Workload
from simulator.state import SimulationOutcome


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """One policy on one seed: what happened, and the same as a row of numbers."""

    workload: Workload
    policy: str
    outcome: SimulationOutcome
    row: report.Row


def compare(workload: Workload, policies: Sequence[str] = ()) -> Iterator[SimulationRun]:
    """These policies on this workload, one after the other; without any, all that it knows.

    Jobs trained on CPU are also compared one by one with what the workload's first policy made of them. Raises
    `NoWorkload` with a sentence for a policy that it does not know.
    """
    chosen = _choose(workload, policies)
    bounds = report.bounds_of(workload)
    first = workload.policy_setups[0]
    against = SimulatedCluster(workload, first).run() if _uses_cpu(workload) else None
    for policy_setup in chosen:
        outcome = (
            against if policy_setup is first and against is not None else SimulatedCluster(workload, policy_setup).run()
        )
        before = None if policy_setup is first else against
        yield SimulationRun(
            workload, policy_setup.name, outcome, report.row(policy_setup.name, workload, outcome, bounds, before)
        )


def _uses_cpu(workload: Workload) -> bool:
    return any(job.cpu is not None for job in workload.jobs)


def _choose(workload: Workload, policies: Sequence[str]) -> list[PolicySetup]:
    known = {c.name: c for c in workload.policy_setups}
    others = (
        [] if _uses_cpu(workload) else [name for name in comparison_policies.PLANNERS if name not in known]
    )  # they share out GPUs
    known |= {name: comparison_policies.policy_setup(name, workload) for name in policies if name in others}
    if unknown := [name for name in policies if name not in known]:
        names = ", ".join(dict.fromkeys([*known, *others]))
        raise NoWorkload(f"{workload.name} knows no policy {unknown[0]!r}; take one of {names}.")
    return [known[name] for name in dict.fromkeys(policies)] if policies else list(known.values())
