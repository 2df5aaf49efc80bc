"""Simulates ElasticFlow's cluster: event-driven, but with decisions at least a slot of 60 s apart.

Separate from our simulator: ElasticFlow's published deadline figures come from a model with jobs spread over hosts and
up to 64 GPUs. The policies are the same objects that our simulator runs. Called by `elasticflow_figures.py`. Pure,
deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reshape_papers.comparison_policies.allotment import Allot, AllotmentRequest

SLOT_S = 60.0

Standstill = Callable[[int, bool], float]
"""Seconds that a start on so many GPUs costs; the flag: every process is started anew."""

NextChange = Callable[[Sequence[AllotmentRequest], float], float]
"""When the policy next wants to look without anything having happened."""


@dataclass
class SlotJob:
    """One job; `left` in units of work, `rates` in units per second by count."""

    name: str
    submit_s: float
    due_s: float
    asked: int
    left: float
    rates: Mapping[int, float]
    has: int = 0
    still_s: float = 0.0
    attained: float = 0.0
    finished_s: float | None = None

    @property
    def ends_in_s(self) -> float:
        return self.still_s + self.left / self.rates[self.has] if self.has else math.inf

    def run(self, now: float, seconds: float) -> None:
        """Train for `seconds`. The end is exact, in whole seconds; GPUs are reassigned only at the next decision."""
        if not self.has:
            return
        if (end := math.ceil(self.ends_in_s - 1e-6)) <= seconds:
            self.finished_s = now + end
        still = min(self.still_s, seconds)
        self.still_s -= still
        self.left -= (seconds - still) * self.rates[self.has]
        self.attained += (seconds - still) * self.has

    def gets(self, count: int, standstill_s: float) -> None:
        if count and count != self.has:
            self.still_s = standstill_s
        self.has = count

    def request(self) -> AllotmentRequest:
        """Return the job as the policies see it."""
        return AllotmentRequest(
            id=self.name,
            submit_s=self.submit_s,
            counts=tuple(self.rates),
            asked=self.asked,
            has=self.has,
            attained=self.attained,
            seconds=lambda count: self.left / self.rates[count],
            due_s=self.due_s,
        )


def run(
    jobs: Sequence[SlotJob],
    gpus: int,
    allot: Allot,
    standstill: Standstill = lambda count, anew: 0.0,
    next_change: NextChange = lambda jobs, now: math.inf,
) -> list[SlotJob]:
    """Run until all jobs have ended; return copies of them, in order of submission."""
    jobs = sorted((replace(job) for job in jobs), key=lambda job: job.submit_s)
    to_come, alive, now, decisions = list(reversed(jobs)), list[SlotJob](), jobs[0].submit_s, 0
    while to_come or alive:
        while to_come and to_come[-1].submit_s <= now:
            alive.append(to_come.pop())
        requests = [job.request() for job in alive]
        given = allot(requests, gpus, now)
        decisions += 1
        anew = decisions % int(SLOT_S) == 0  # as there: every 60th decision restarts all processes
        for job in alive:
            count = given.get(job.name, 0)
            job.gets(count, standstill(count, anew) if count else 0.0)
            if anew and count:
                job.still_s = standstill(count, True)
        ends = min((now + job.ends_in_s for job in alive), default=math.inf)
        comes = to_come[-1].submit_s if to_come else math.inf
        then = max(now + SLOT_S, min(ends, comes, next_change([job.request() for job in alive], now)))
        for job in alive:
            job.run(now, then - now)
        alive = [job for job in alive if job.finished_s is None]
        now = then
    return jobs
