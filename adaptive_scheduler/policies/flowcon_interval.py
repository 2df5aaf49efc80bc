"""When FlowCon looks at the jobs of a node again: its interval, its back-off, its listeners (seed 001). Pure.

The last lines of Algorithm 1 and all of Algorithm 2. Called by the coordinator and by the simulator, which keep
one `FlowConInterval` a node and ask it whenever jobs of that node may have changed, and when it is due.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adaptive_scheduler.profiles.growth import Efficiency
from adaptive_scheduler.settings import FlowCon

Pool = frozenset[tuple[str, int]]
"""The jobs that train on a node, each with its generation: another one after a move or a GPU change (X14)."""


@dataclass(frozen=True, slots=True)
class FlowConInterval:
    """What is known between two looks; `interval_s` is 0 and `due_s` has passed before the first."""

    pool: Pool = frozenset()
    interval_s: float = 0.0
    due_s: float = -math.inf

    def is_due(self, now: float, pool: Pool) -> bool:
        """Whether to measure now: the interval is over, or another set of jobs is there (F6: ids, not counts)."""
        return now >= self.due_s or pool != self.pool

    def stepped(self, now: float, pool: Pool, measured: Sequence[Efficiency], settings: FlowCon) -> FlowConInterval:
        """After the jobs of the pool have been measured: when next. Any change of the pool resets the back-off."""
        present = self.interval_s if pool == self.pool else settings.interval_s
        interval_s = next_interval_s(present, measured, settings)
        return FlowConInterval(pool, interval_s, now + interval_s)


def next_interval_s(present: float, measured: Iterable[Efficiency], settings: FlowCon) -> float:
    """Twice the present one, up to the cap, while all jobs are converging; else the initial one (F5).

    A node without jobs has the initial one.
    """
    lists = {record.list for record in measured}
    if lists != {"CL"}:
        return settings.interval_s
    longest = settings.interval_s * settings.interval_max_factor or math.inf
    return max(settings.interval_s, min(2 * present, longest))
