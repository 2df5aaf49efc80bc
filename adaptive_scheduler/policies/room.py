"""Frees the GPUs of reservations that are about to begin, by ordinary operations: nothing is killed.

Running jobs on the node shrink; where that is not enough, some move to other nodes, or save and go back to the queue.
A job that cannot give its GPUs up keeps them, with the sentence that says why. The engine calls it after evictions,
`reserved_gpus.py` says what is due. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.decision import Explanation, Hold, Move, Requeue, Reshape, gpus_on
from adaptive_scheduler.models.prediction import t_keep, t_run
from adaptive_scheduler.policies.evictions import schedule_move
from adaptive_scheduler.reserved_gpus import RESERVED, ReservedGpus, kept_gpus, protected_part, why_kept
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.tentative_snapshot import after


class _Shrink(NamedTuple):
    """GPUs that one job can give on its node, and the seconds by which it ends later."""

    job: Job
    keeps: int
    gives: int
    costs_s: float


def schedule_room(snapshot: ClusterSnapshot, reserved: ReservedGpus) -> Iterator[Reshape | Move | Requeue | Hold]:
    """Yield what frees the GPUs that reservations lack, then why some jobs keep theirs."""
    world = snapshot
    for name in sorted({one.node for one in reserved.due}):
        node = world.node[name]
        missing = _missing_gpus(world, reserved, node)
        if missing <= 0:
            continue
        whose = " and ".join(sorted({one.whose for one in reserved.due if one.node == name}))
        kept = protected_part(world, reserved, name)
        for answer in _free_gpus(world, reserved, node, missing, kept, whose):
            world = after(world, answer)
            yield answer


def _missing_gpus(world: ClusterSnapshot, reserved: ReservedGpus, node: Node) -> int:
    """Return the GPUs that must be freed; those that are being freed count as free."""
    held = sum(gpus_on(job, node.name) for job in world.placed)
    return held + sum(reserved.spare(world, node.name).values()) - node.healthy


def _free_gpus(
    world: ClusterSnapshot, reserved: ReservedGpus, node: Node, missing: int, kept: Mapping[str, int], whose: str
) -> Iterator[Reshape | Move | Requeue | Hold]:
    there = [job for job in world.placed if gpus_on(job, node.name) > kept.get(job.id, 0)]
    free = [job for job in there if job.state == "running" and not job.busy]
    shrinks = [one for job in free for one in _possible_shrinks(world, node, job, kept.get(job.id, 0))]
    wholes = [job for job in free if not kept.get(job.id) and not kept_gpus(job, job.num_gpus)]
    leave = _jobs_that_leave(missing, shrinks, wholes, node)
    left = missing - sum(gpus_on(job, node.name) for job in leave)
    gone = {job.id for job in leave}
    chosen = _shrinks_that_suffice(left, [one for one in shrinks if one.job.id not in gone])
    for job in leave:
        why = f"its GPUs of {node.name} are reserved for {whose}"
        moved = schedule_move(reserved.seen_by(world, job), job, RESERVED, why)
        answer = moved if isinstance(moved, Move) else _back_to_queue(job, why)
        world = after(world, answer)
        yield answer
    for one in chosen:
        sentence = (
            f"{one.job.id} goes from {one.job.num_gpus} to {gpus(one.keeps)} on {node.name}: the others are reserved "
            f"for {whose}."
        )
        yield Reshape(one.job.id, node.name, one.keeps, Explanation(RESERVED, sentence))
    if left > sum(one.gives for one in chosen):
        changed = gone | {one.job.id for one in chosen}
        for job in free:
            if job.id not in changed and kept_gpus(job, job.num_gpus):
                sentence = (
                    f"{job.id} keeps its {gpus(job.num_gpus)} of {node.name}, which are reserved for {whose}: "
                    f"{why_kept(job)}."
                )
                yield Hold(job.id, Explanation(RESERVED, sentence))


def _back_to_queue(job: Job, why: str) -> Requeue:
    return Requeue(job.id, Explanation(RESERVED, f"{job.id} saves and waits for other GPUs: {why}."))


def _possible_shrinks(world: ClusterSnapshot, node: Node, job: Job, reserved: int) -> Iterator[_Shrink]:
    """Yield each smaller count of a job on one host that may be changed. `reserved`: what is its own user's."""
    if not job.stoppable or job.workers or job.gpus_per_pod or job.wanted is not None:
        return
    if job.stays and job.relaunches:
        return
    least = max(reserved, kept_gpus(job, job.num_gpus), 1)
    now_s = t_keep(world.profiles, job, node.gpu_type)
    for count in job.optional:
        if least <= count < job.num_gpus:
            later_s = t_run(world.profiles, job, node.gpu_type, count) - now_s
            yield _Shrink(job, count, job.num_gpus - count, later_s)


def _most_given(shrinks: Sequence[_Shrink], but: set[str]) -> int:
    most: dict[str, int] = {}
    for one in shrinks:
        if one.job.id not in but:
            most[one.job.id] = max(most.get(one.job.id, 0), one.gives)
    return sum(most.values())


def _jobs_that_leave(missing: int, shrinks: Sequence[_Shrink], wholes: Sequence[Job], node: Node) -> list[Job]:
    """Return the jobs that have to leave the node because the others cannot shrink by enough: as few as possible,
    the lowest priority first, and of equal ones the smallest that suffices."""
    chosen = list[Job]()
    left = missing
    others = list(wholes)
    while others and left > _most_given(shrinks, {job.id for job in chosen}):
        gone = {job.id for job in chosen}
        suffices = [job for job in others if gpus_on(job, node.name) + _most_given(shrinks, gone | {job.id}) >= left]
        job = min(
            suffices or others,
            key=lambda job: (job.priority, job.num_gpus if suffices else -job.num_gpus, job.unsaved_s, job.id),
        )
        others.remove(job)
        chosen.append(job)
        left -= gpus_on(job, node.name)
    return chosen


def _shrinks_that_suffice(missing: int, shrinks: Sequence[_Shrink]) -> list[_Shrink]:
    """Return one shrink that suffices, the cheapest, else the largest ones, each of another job."""
    if missing <= 0:
        return []
    one = min(
        (one for one in shrinks if one.gives >= missing),
        key=lambda one: (one.gives, one.costs_s, one.job.id),
        default=None,
    )
    if one is not None:
        return [one]
    chosen = dict[str, _Shrink]()
    left = missing
    for shrink in sorted(shrinks, key=lambda one: (-min(one.gives, missing), one.costs_s, one.job.id)):
        if left > 0 and shrink.job.id not in chosen:
            chosen[shrink.job.id] = shrink
            left -= shrink.gives
    return list(chosen.values())
