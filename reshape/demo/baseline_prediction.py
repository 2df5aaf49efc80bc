"""Predicts the makespans of the case study's two baselines (SideCar scheduling) from the measurements of one run.

Pure. `default` queues job two until job one ends; `termination` reshapes by stopping, removing and
launching again (G15). The same iterations, speeds and overheads as the run that is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredTimes:
    """Measurements of the run with sidecars: seconds, and seconds per iteration by GPU count."""

    first_iterations: int
    second_iterations: int
    arrival_s: float  # when job two was submitted, since job one was
    speeds: Mapping[int, float]
    launch_s: float  # from the decision until the sidecar reports
    spawn_s: float  # from there to the first step, of a training that starts alone
    together_s: float  # the same, of two that start at once
    stop_s: float  # from the decision until the old process is gone
    remove_s: float  # until the launch is gone

    @property
    def start_s(self) -> float:
        return self.launch_s + self.spawn_s


def default(m: MeasuredTimes) -> float:
    """Return the makespan in seconds if job two's launch begins when job one has ended."""
    first_ends = m.start_s + m.first_iterations * m.speeds[4]
    return max(first_ends, m.arrival_s) + m.start_s + m.second_iterations * m.speeds[2]


def termination(m: MeasuredTimes) -> float:
    """Return the makespan in seconds if each reshape removes job one's launch, then launches again."""
    done = (m.arrival_s - m.start_s) / m.speeds[4]
    restarted = m.arrival_s + m.stop_s + m.remove_s + m.launch_s + m.together_s
    second_ends = restarted + m.second_iterations * m.speeds[2]
    done += (second_ends - restarted) / m.speeds[2]
    if done >= m.first_iterations:
        return second_ends
    grown = second_ends + m.stop_s + m.remove_s + m.start_s
    return grown + (m.first_iterations - done) * m.speeds[4]
