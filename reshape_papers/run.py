"""Simulates the requested policies on one workload.

Called by `reshape simulate` and `reshape paper`, and by tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshape_papers import comparison_policies, report
from simulator.cluster import SimulatedCluster
from simulator.scenario import NoWorkload, PolicySetup, Workload
from simulator.state import SimulationOutcome


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """Outcome of one policy on one seed, and its row of measures."""

    workload: Workload
    policy: str
    outcome: SimulationOutcome
    row: report.Row


def compare(workload: Workload, policies: Sequence[str] = (), *, bounded: bool = True) -> Iterator[SimulationRun]:
    """Simulate these policies on the workload in turn; if none is named, all of the workload's.

    Compares each job trained on CPU with its JCT under the workload's first policy. Raises `NoWorkload` for an unknown
    policy. Lower bounds (`bounded`) take a second for 40 jobs, twice as long as simulating a policy.
    """
    chosen = _choose(workload, policies)
    bounds = report.bounds_of(workload) if bounded else {}
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
    )  # comparison policies allocate only GPUs
    known |= {name: comparison_policies.policy_setup(name, workload) for name in policies if name in others}
    if unknown := [name for name in policies if name not in known]:
        names = ", ".join(dict.fromkeys([*known, *others]))
        raise NoWorkload(f"{workload.name} knows no policy {unknown[0]!r}; take one of {names}.")
    return [known[name] for name in dict.fromkeys(policies)] if policies else list(known.values())
