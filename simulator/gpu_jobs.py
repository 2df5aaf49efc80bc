"""Simulates jobs on GPUs: launch, training, stop, restart, end, and handing over GPUs.

Promises: a GPU has one holder at a time; every overhead takes its time, in the order of the sequences A to E
(`algorithms.md` 1.3). Called by `cluster.py`.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from adaptive_scheduler.decision import Move, Reshape, Start, workers_of
from adaptive_scheduler.snapshot import Gpu, Job
from simulator.scene import RunContext
from simulator.snapshots import gpu_view
from simulator.state import Occupancy, SimulatedGpu, SimulatedJob, SimulationStuck


class GpuJobs:
    """All GPUs of a run, and the jobs on them."""

    def __init__(self, scene: RunContext) -> None:
        self._scene = scene
        self._gpus = {
            n.name: [SimulatedGpu(g.id, n.name, faulty=g.state == "faulty") for g in n.gpus]
            for n in scene.workload.nodes
        }
        self._gpu_types = {n.name: n.gpu_type for n in scene.workload.nodes}
        self._views: dict[str, tuple[Gpu, ...]] = {}

    def view(self, node: str) -> tuple[Gpu, ...]:
        """Return a node's GPUs for the snapshot, rebuilt only after a change."""
        if node not in self._views:
            self._views[node] = tuple(gpu_view(gpu) for gpu in self._gpus[node])
        return self._views[node]

    @property
    def are_held(self) -> bool:
        """Return whether any process holds one of these GPUs."""
        return any(gpu.holder is not None for gpus in self._gpus.values() for gpu in gpus)

    def place(self, job: SimulatedJob, like: Job) -> None:
        """Place a job on its GPUs at the beginning, as a live cluster has it; it trains once it is ready."""
        own = {gpu.id: gpu for gpus in self._gpus.values() for gpu in gpus if gpu.id in job.given.gpus}
        self._promise(job, [own[gpu_id] for gpu_id in job.given.gpus])
        for gpu in job.gpus:
            gpu.holder = job.given.id
        job.holds, job.node, job.began_s = job.gpus, like.node, self._scene.now
        job.state = like.state
        job.busy = True
        self._scene.later(job, job.given.ready_s, partial(self._train, job))

    # operations that a decision begins

    def start(self, job: SimulatedJob, decision: Start) -> None:
        """Start a job: sequence A, or B with victims, which train on until the newcomer is launched."""
        self._scene.starts(job, decision.node)
        job.grew_from = 0
        own = [g for worker in workers_of(decision) for g in self._idle(worker.node)[: worker.num_gpus]]
        for giver in decision.victims:
            victim = self._scene.active[giver.job]
            victim.busy = True
            victim.gives_to = job
            job.victims.append(victim)
            given = self._release(victim, len(victim.gpus) - giver.num_gpus, decision.node)
            own += given[: decision.num_gpus - len(own)]
        self._promise(job, own)
        self._scene.later(job, self._scene.costs_of(job).launch, partial(self._launched, job))

    def reshape(self, job: SimulatedJob, decision: Reshape) -> None:
        """Reshape a job in place, at once: sequence C, or the second half of B."""
        job.busy = True
        job.node = decision.node
        wanted = workers_of(decision)
        keeps = {w.node: w.num_gpus for w in wanted}
        is_gang = job.given.like is not None and job.given.like.gpus_per_pod > 0  # keeps its first pods as they are
        for node, here in Counter(g.node for g in job.gpus).items():
            self._release(job, here - keeps.get(node, 0), node, faulty_first=not is_gang)
        for worker in wanted:
            here = sum(g.node == worker.node for g in job.gpus)
            self._promise(job, self._idle(worker.node)[: max(0, worker.num_gpus - here)])
        self._stop(job)

    def move(self, job: SimulatedJob, decision: Move) -> None:
        """Move a job: sequence D. It keeps its GPUs until its pod is gone, and is launched elsewhere after that."""
        job.busy = True
        job.moves = True
        job.node = decision.node
        job.gpus = []
        self._promise(job, self._idle(decision.node)[: decision.num_gpus])
        self._stop(job)

    def requeue(self, job: SimulatedJob) -> None:
        """Checkpoint and stop the job, remove its pod, and put it back in the queue."""
        job.busy = True
        self._leave(job)

    def next_task(self, job: SimulatedJob) -> None:
        """Queue the next task; the last one's pod has ended with it."""
        job.busy = True
        job.saved = job.done
        self._leave(job)

    def finish(self, job: SimulatedJob) -> None:
        """End the job. Its GPUs are free for decisions at once; its process holds them until it has saved."""
        self._give_up(job)
        self._scene.ends(job)
        self._scene.later(job, self._scene.costs_of(job).end, partial(self._let_go, job))

    # later steps of an operation

    def _launched(self, job: SimulatedJob) -> None:
        job.state = "initialized"
        self._stop_victims(job)
        job.waits_for_gpus = True
        self._begin_if_free(job)

    def _stop_victims(self, job: SimulatedJob) -> None:
        victims = job.victims
        job.victims = []
        for victim in victims:
            # A job that crashed meanwhile stops as soon as it trains again.
            if victim.finished_s is None and victim.state == "running":
                self._stop(victim)

    def crashed(self, job: SimulatedJob) -> None:
        """Restart the job's process on the GPUs that it keeps."""
        job.stopped_gpus = len(job.gpus)
        self._scene.later(job, self._scene.costs_of(job).grown, partial(self._train, job))

    def fails(self, node: str) -> None:
        """Fail a node: every job with a GPU there is lost and releases its other GPUs, too.

        This includes jobs that are arriving or leaving. A surviving victim of a lost newcomer shrinks anyway.
        """
        self._set_up(node, False)
        hit = [j for j in self._scene.outcome.jobs if any(g.node == node for g in (*j.gpus, *j.holds))]
        lost = [job for job in hit if job.finished_s is None]
        # Withdraw all promises before releasing the GPUs, so that no lost job begins on one.
        for job in lost:
            self._scene.is_lost(job)
            self._give_up(job)
            job.waits_for_gpus = False
            if job.gives_to is not None and job in job.gives_to.victims:
                job.gives_to.victims.remove(job)
            job.gives_to = None
        for job in hit:
            self._let_go(job)
        for job in lost:
            self._stop_victims(job)
            self._scene.queues(job, resumes=job.done > 0)

    def returns(self, node: str) -> None:
        self._set_up(node, True)

    def _leave(self, job: SimulatedJob) -> None:
        job.gpus, job.node = [], None
        self._stop(job)

    def _stop(self, job: SimulatedJob) -> None:
        job.gives_to, job.stopped_gpus = None, len(job.holds)
        self._scene.stops(job)
        costs, leaves = self._scene.costs_of(job), job.moves or not job.gpus
        self._scene.later(job, costs.stop + (costs.leave if leaves else 0.0), partial(self._stopped, job))

    def _stopped(self, job: SimulatedJob) -> None:
        job.waits_for_gpus = bool(job.gpus) and not job.moves
        job.saved = job.done
        self._let_go(job)
        if job.moves:
            job.state = "restarting"
            self._scene.ask()
            self._scene.later(job, self._scene.costs_of(job).launch, partial(self._launched, job))
        elif not job.gpus:
            self._scene.resumed(job)
            self._scene.queues(job, resumes=job.done > 0)

    def _begin_if_free(self, job: SimulatedJob) -> None:
        if not job.waits_for_gpus or any(g.holder is not None for g in job.gpus):
            return
        job.waits_for_gpus = False
        for gpu in job.gpus:
            gpu.holder, gpu.since = job.given.id, self._scene.now
            self._views.pop(gpu.node, None)
        job.holds = job.gpus
        costs = self._scene.costs_of(job)
        seconds = costs.begin
        if job.stopped_at is not None and not job.moves:
            seconds = costs.shrunk if len(job.gpus) < job.stopped_gpus else costs.grown
        self._scene.later(job, seconds, partial(self._train, job))

    def _train(self, job: SimulatedJob) -> None:
        gpu_type, hosts = self._gpu_types[job.node or ""], len({g.node for g in job.holds})
        speed = self._scene.profiles.speed(job.given.type, gpu_type, len(job.holds), hosts)
        if speed is None:
            raise SimulationStuck(f"job {job.given.id} of type {job.given.type} has no known speed; give its profile.")
        self._count(job)
        self._scene.begins(job)
        self._scene.trains(job, speed.seconds * job.given.pace, self)
        job.busy = job.gives_to is not None
        if job.gives_to is not None and job not in job.gives_to.victims:
            self._stop(job)
        self._scene.ask()

    def _count(self, job: SimulatedJob) -> None:
        """Count a finished change and its cost; a mere crash starts no cool-down."""
        outcome, now, since = self._scene.outcome, self._scene.now, job.stopped_at
        cost = self._scene.resumed(job)
        if since is None or cost is None:
            return
        outcome.stops += [
            Occupancy(g.id, job.given.id, max(since, g.since) if job.moves else since, now) for g in job.gpus
        ]
        outcome.adds += len(job.gpus) > job.stopped_gpus
        outcome.removes += len(job.gpus) < job.stopped_gpus
        outcome.moves += job.moves
        if len(job.gpus) > job.stopped_gpus:
            job.grew_from = job.stopped_gpus
        if job.moves:
            job.moves = False
            cost = job.reshape_cost_s or self._scene.profiles.overheads(job.given.type).reshape
        elif len(job.gpus) == job.stopped_gpus:
            return
        else:
            job.reshape_cost_s = cost
        job.cooling_until = now + self._scene.settings.cooldown_factor * cost
        if job.cooling_until > now:
            self._scene.event_queue.at(job.cooling_until, self._scene.ask)

    # GPUs

    def _idle(self, node: str) -> list[SimulatedGpu]:
        """Return the node's idle GPUs, those without a process first: they can be used at once."""
        idle = (g for g in self._gpus[node] if g.owner is None and not g.faulty)
        return sorted(idle, key=lambda g: g.holder is not None)

    def _promise(self, job: SimulatedJob, gpus: list[SimulatedGpu]) -> None:
        for gpu in gpus:
            gpu.owner = job.given.id
            self._views.pop(gpu.node, None)
        job.gpus = job.gpus + gpus

    def _release(self, job: SimulatedJob, count: int, node: str, faulty_first: bool = False) -> list[SimulatedGpu]:
        """Release the job's last `count` GPUs there; its process holds them until it stops.

        `faulty_first`: release faulty ones before the last ones.
        """
        here = [g for g in job.gpus if g.node == node]
        if faulty_first:
            here.sort(key=lambda g: g.faulty)
        taken = here[max(0, len(here) - count) :] if count > 0 else []
        job.gpus = [g for g in job.gpus if g not in taken]
        for gpu in taken:
            gpu.owner = None
            self._views.pop(gpu.node, None)
        return taken

    def _give_up(self, job: SimulatedJob) -> None:
        """Release all GPUs of the job; its process may still hold them."""
        for gpu in job.gpus:
            gpu.owner = None
            self._views.pop(gpu.node, None)
        job.gpus = []

    def _set_up(self, node: str, is_up: bool) -> None:
        for gpu in self._gpus[node]:
            gpu.is_up = is_up
        self._views.pop(node, None)

    def _let_go(self, job: SimulatedJob) -> None:
        owners: dict[str, None] = {job.given.id: None}
        holds, job.holds = job.holds, []
        for gpu in holds:
            self._scene.outcome.held.append(Occupancy(gpu.id, job.given.id, gpu.since, self._scene.now))
            gpu.holder = None
            if gpu.owner == job.given.id and gpu not in job.gpus:
                gpu.owner = None
            self._views.pop(gpu.node, None)
            if gpu.owner is not None:
                owners[gpu.owner] = None
        for owner in owners:
            if owner in self._scene.active:
                self._begin_if_free(self._scene.active[owner])
