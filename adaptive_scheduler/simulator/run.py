"""Simulate: every policy that is asked for, on every seed. The one door for callers.

Called by `reshape simulate` and `reshape paper`, and by tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_scheduler.simulator import report, rivals
from adaptive_scheduler.simulator.live import Outcome
from adaptive_scheduler.simulator.scenario import Contender, NoWorkload, Workload
from adaptive_scheduler.simulator.workloads import build, is_drawn
from adaptive_scheduler.simulator.world import World


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one seed: what happened, and the same as a row of numbers."""

    workload: Workload
    policy: str
    outcome: Outcome
    row: report.Row


def runs(name: str, seeds: int, policies: Sequence[str] = (), data: Path | None = None) -> Iterator[Run]:
    """One after the other, seeds 0 to `seeds` - 1; a workload in which nothing is drawn runs once.

    No `policies` means all that the workload knows. Raises `NoWorkload` with a sentence for a name it
    does not know, or for data that is not there.
    """
    for seed in range(seeds if is_drawn(name) else 1):
        yield from compare(build(name, seed, data), policies)


def compare(workload: Workload, policies: Sequence[str] = ()) -> Iterator[Run]:
    """These policies on this workload. Raises as `runs`.

    Jobs trained on CPU are also compared one by one with what the workload's first policy made of them.
    """
    chosen = _choose(workload, policies)
    bounds = report.bounds_of(workload)
    first = workload.contenders[0]
    against = World(workload, first).run() if _uses_cpu(workload) else None
    for contender in chosen:
        outcome = against if contender is first and against is not None else World(workload, contender).run()
        before = None if contender is first else against
        yield Run(workload, contender.name, outcome, report.row(contender.name, workload, outcome, bounds, before))


def simulate(name: str, seeds: int, policies: Sequence[str] = (), data: Path | None = None) -> dict[str, Any]:
    """All runs as one object (`report.summary`). Raises as `runs`."""
    done = list(runs(name, seeds, policies, data))
    return report.summary(done[0].workload, [run.row for run in done])


def _uses_cpu(workload: Workload) -> bool:
    return any(job.cpu is not None for job in workload.jobs)


def _choose(workload: Workload, policies: Sequence[str]) -> list[Contender]:
    known = {c.name: c for c in workload.contenders}
    others = [] if _uses_cpu(workload) else [name for name in rivals.RIVALS if name not in known]  # they share out GPUs
    known |= {name: rivals.contender(name, workload) for name in policies if name in others}
    if unknown := [name for name in policies if name not in known]:
        names = ", ".join(dict.fromkeys([*known, *others]))
        raise NoWorkload(f"{workload.name} knows no policy {unknown[0]!r}; take one of {names}.")
    return [known[name] for name in dict.fromkeys(policies)] if policies else list(known.values())
