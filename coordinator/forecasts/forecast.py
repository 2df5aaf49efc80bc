"""Runs the simulator forward from a live state and tells who starts and ends when.

The simulator asks the same `decide` as the coordinator, with the profiles that it has measured. What nobody can know is
assumed as the scheduler assumes it, and marked as a guess: the length of a job that does not tell it, and the speed of
one that was never measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from adaptive_scheduler.candidates import nodes_for
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.prediction import is_certain, t_train
from adaptive_scheduler.profiles.profiles import EXTRAPOLATED, Overheads, Profiles, Speed
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from coordinator.forecasts.live_state import LiveState
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, PolicySetup, Submission, Workload
from simulator.state import Occupancy, SimulatedJob, SimulationStuck


@dataclass(frozen=True)
class JobForecast:
    """Seconds from now. `start_s` is None for a job that has its GPUs; `end_s` for one that never ends."""

    job_id: str
    start_s: float | None
    end_s: float | None
    submit_s: float
    sla_s: float | None
    guess: bool
    launch_s: float = 0.0  # what a launch of its type takes

    @property
    def late_s(self) -> float | None:
        """By how much it misses its deadline; None without one, infinite if it never ends."""
        if self.sla_s is None:
            return None
        return max(0.0, (math.inf if self.end_s is None else self.end_s) - self.submit_s - self.sla_s)


@dataclass(frozen=True)
class Forecast:
    """What becomes of all jobs. `gpu_s`: GPU-seconds that their processes hold; `held`: which GPUs, and when."""

    jobs: tuple[JobForecast, ...]
    gpu_s: float = 0.0
    held: tuple[Occupancy, ...] = ()

    @property
    def makespan_s(self) -> float | None:
        """Until the last job has ended; None if one never does."""
        ends = [job.end_s for job in self.jobs]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    @property
    def mean_completion_s(self) -> float | None:
        """Mean of the times from submission to end; None if a job never ends, or there is none."""
        times = [job.end_s - job.submit_s for job in self.jobs if job.end_s is not None]
        return math.fsum(times) / len(times) if times and len(times) == len(self.jobs) else None

    @property
    def busy_s(self) -> float | None:
        """Seconds during which any job has come and not ended; None if one never ends."""
        busy, until = 0.0, 0.0
        for job in sorted(self.jobs, key=lambda job: job.submit_s):
            if job.end_s is None:
                return None
            busy += max(0.0, job.end_s - max(job.submit_s, until))
            until = max(until, job.end_s)
        return busy

    @property
    def missed(self) -> int:
        return sum(bool(job.late_s) for job in self.jobs)


def forecast(live: LiveState, goes_on: Callable[[], bool] = lambda: True) -> Forecast:
    """Simulate until all jobs have ended, or none that is left can start.

    Where `goes_on` says no before, jobs that have not ended by then are left out.
    """
    world = _simulable(live.snapshot)
    profiles = world.profiles.scaled(live.settings.batch_scaling)
    types = {job.type: _costs(profiles.overheads(job.type), live.relaunches) for job in world.jobs}
    setup = PolicySetup(
        "live",
        partial(decide, settings=live.settings),
        _costs(profiles.overheads(""), live.relaunches),
        world.profiles,
        live.settings,
        costs_by_type=types,
    )
    jobs = tuple(_submission(world, job, profiles, types[job.type]) for job in world.jobs)
    workload = Workload(
        "live",
        0,
        jobs,
        world.nodes,
        (setup,),
        shares=world.shares,
        used=world.used,
        reservations=world.reservations,
        spent=world.spent,
    )
    simulated = SimulatedCluster(workload, setup)
    complete = True
    try:
        simulated.run(goes_on)
        complete = all(job.finished_s is not None for job in simulated.outcome.jobs)
    except SimulationStuck:  # who never starts has no end
        pass
    guesses = {job.id for job in live.snapshot.jobs if _is_guess(live.snapshot, job)}
    ended = [job for job in simulated.outcome.jobs if complete or job.finished_s is not None]
    found = [_forecast(job, types[job.given.type], guesses) for job in ended]
    held = tuple(simulated.outcome.held)
    gpu_s = sum(one.end_s - one.begin_s for one in held)
    return Forecast(tuple(sorted(found, key=lambda job: (job.submit_s, job.job_id))), gpu_s, held)


def _forecast(job: SimulatedJob, costs: Costs, guesses: set[str]) -> JobForecast:
    given = job.given
    start = None if given.gpus else job.trained_from_s
    end = None if job.finished_s is None else job.finished_s + costs.end
    return JobForecast(
        given.id, start, end, given.arrival_s, given.sla_s, given.id in guesses, costs.launch + costs.begin
    )


def _costs(overheads: Overheads, relaunches: bool) -> Costs:
    if relaunches:
        return Costs.relaunched(overheads)
    costs = Costs.in_place(overheads)
    again = overheads.reshape - costs.stop  # beside its shim, where that is known
    early = max(0.0, costs.begin - again)  # imports: a newcomer does them before it gets its GPUs
    return replace(costs, launch=costs.launch + early, begin=costs.begin - early, shrunk=again, grown=again)


def _simulable(world: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot without GPUs whose users are not simulated, and with a speed for each job type."""
    known = {job.id for job in world.placed}
    nodes = tuple(
        replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.state in ("idle", "faulty") or gpu.job in known))
        for node in world.nodes
    )
    return replace(world, nodes=nodes, profiles=_with_speeds(world))


def _with_speeds(world: ClusterSnapshot) -> Profiles:
    """Return the profiles with an assumed speed for each type that has none: what runs shows, else one per second."""
    speeds = {key: dict(of_type) for key, of_type in world.profiles.speeds.items()}
    for job in world.jobs:
        for node in _may_run_on(world, job):
            if not speeds.get((job.type, node.gpu_type)):
                shown = 1.0 / job.rate if job.rate else 1.0
                speeds[job.type, node.gpu_type] = {max(1, job.num_gpus): Speed(shown, EXTRAPOLATED)}
    return replace(world.profiles, speeds=speeds, _extrapolated={})


def _may_run_on(world: ClusterSnapshot, job: Job) -> Iterator[Node]:
    """Yield its node, then all that it may start on."""
    if (node := world.node.get(job.node or "")) is not None:
        yield node
    yield from nodes_for(world, job)


def _submission(world: ClusterSnapshot, job: Job, profiles: Profiles, costs: Costs) -> Submission:
    own = tuple(gpu.id for node in world.nodes for gpu in node.gpus if gpu.job == job.id) if job.node else ()
    like = replace(job, time_is_up=False)  # its iterations end with its time limit
    like = like if own else replace(like, num_gpus=0, node=None, workers=(), pods=())
    begins = {"initializing": costs.launch + costs.begin, "initialized": costs.begin, "running": 0.0}
    return Submission(
        id=job.id,
        type=job.type,
        arrival_s=job.submit_s,
        optional=job.optional,
        iterations=_iterations(world, like, profiles),
        fixed_gpus=max(job.optional),
        sla_s=job.sla_s,
        max_workers=job.max_workers,
        like=like,
        gpus=own,
        ready_s=begins.get(job.state, costs.stop + costs.grown),
    )


def _iterations(world: ClusterSnapshot, job: Job, profiles: Profiles) -> float:
    """Return the iterations left, at most those within its time limit; where unknown, as many as are assumed."""
    if job.iterations_left is not None and job.time_limit_s is None:
        return max(job.iterations_left, 0.0)
    for node in _may_run_on(world, job):
        speed = profiles.speed(job.type, node.gpu_type, job.num_gpus or min(job.optional))
        if speed is not None:
            return t_train(profiles, job, node.gpu_type, job.num_gpus or min(job.optional)) / speed.seconds
    return 1.0  # it can run nowhere


def _is_guess(world: ClusterSnapshot, job: Job) -> bool:
    count = job.num_gpus or min(job.optional)
    return not any(is_certain(world.profiles, job, node.gpu_type, count) for node in _may_run_on(world, job))
