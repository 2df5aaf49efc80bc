"""What pods can open follows the books: closed before a GPU is another job's, open before a trainer starts on it.

A reshape down and up is played with the coordinator killed at every failpoint in turn. The filters are those of the
fake machines' launches, and live on as in a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator.errors import Transient
from coordinator.model import states as s
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import JobRow
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

LONG = Behaviour(iterations=4_000)


class Filters:
    """The filters of all pods: which GPUs each launch can open, and the highest generation that was obeyed."""

    def __init__(self, alive: Callable[[str, int], bool]) -> None:
        self._alive = alive
        self.opened: dict[tuple[str, int], frozenset[str]] = {}
        self.obeyed: dict[tuple[str, int], int] = {}
        self.silent = False
        self.calls: list[tuple[str, str, int, tuple[str, ...]]] = []

    def open(self, doc: JobRow, generation: int, gpu_ids: Sequence[Sequence[str]]) -> None:
        wanted = frozenset(gpu_id for part in gpu_ids for gpu_id in part)
        pod = self._obey("open", doc, generation, sorted(wanted))
        self.opened = {other: found - wanted for other, found in self.opened.items()} | {pod: wanted}

    def keep(self, doc: JobRow, generation: int, gpu_ids: Sequence[str]) -> None:
        pod = self._obey("keep", doc, generation, gpu_ids)
        self.opened[pod] = self.opened.get(pod, frozenset()) & frozenset(gpu_ids)

    def _obey(self, verb: str, doc: JobRow, generation: int, gpu_ids: Sequence[str]) -> tuple[str, int]:
        job = JobRecord(doc)
        pod = job.id, job.launch
        if self.silent:
            raise Transient("the agent of node n1 does not answer")
        if generation < self.obeyed.get(pod, 0):
            raise Transient(f"generation {self.obeyed[pod]} was obeyed before")
        self.calls.append((verb, job.id, generation, tuple(gpu_ids)))
        self.obeyed[pod] = generation
        return pod

    def opens(self, job: str) -> set[str]:
        """Return what living pods of a job can open."""
        return {
            gpu for (of, launch), found in self.opened.items() if of == job and self._alive(of, launch) for gpu in found
        }


class Node(World):
    """A world whose pods have filters; `broken` says when they and the books differ."""

    filters: Filters

    def boot(self) -> None:
        if not hasattr(self, "filters"):
            self.filters = Filters(self._alive)
        super().boot()
        self.c.reconciler._access = self.filters

    def _alive(self, job: str, number: int) -> bool:
        return any(one.job == job and one.number == number and one.alive for one in self.machines.launches.values())

    def broken(self) -> list[str]:
        rows = {gpu.id: gpu.held_by for gpu in map(GpuRecord, self.users.list("gpus"))}
        jobs = sorted({job for job, _ in self.filters.opened})
        wrong = [
            f"{gpu} is open to {job}, but the books say {rows[gpu]}"
            for job in jobs
            for gpu in sorted(self.filters.opens(job))
            if rows[gpu] != job
        ]
        for one in self.machines.launches.values():
            given = set(one.status.gpu_ids)
            if one.alive and one.status.trainer == "running" and not given <= self.filters.opens(one.job):
                wrong.append(f"{one.job} trains on {given}, but opens {self.filters.opens(one.job)}")
        return [*super().broken(), *wrong]


def down_and_up(world: Node) -> None:
    """Job one gives two of its four GPUs to job two, which trains to its end, and takes them back."""
    world.submit("one", [2, 4], LONG)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.submit("two", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states().get("two") == s.COMPLETED and len(w.job("one").gpu_ids) == 4)
    world.run(lambda w: w.states()["one"] == s.RUNNING and w.job("one").operation is None)


def test_filters_follow_the_books_wherever_the_coordinator_is_killed() -> None:
    first = Node()
    down_and_up(first)
    assert {"open", "keep"} == {verb for verb, *_ in first.filters.calls}
    for position in range(len(first.passed)):
        world = Node()
        world.crash_at = position
        down_and_up(world)


def test_a_gpu_is_closed_to_the_one_before_the_books_give_it_to_the_other() -> None:
    world = Node()
    down_and_up(world)
    shrinks = next(i for i, call in enumerate(world.filters.calls) if call[:2] == ("keep", "one"))
    starts = next(i for i, call in enumerate(world.filters.calls) if call[:2] == ("open", "two"))
    assert shrinks < starts, world.filters.calls
    keeps = world.filters.calls[shrinks][3]
    assert len(keeps) == 2 and not set(keeps) & set(world.filters.calls[starts][3])


def test_nothing_starts_or_is_given_away_while_the_agent_is_silent() -> None:
    world = Node()
    world.submit("one", [4], LONG)
    world.filters.silent = True
    world.pass_time(30)
    assert world.machines.owners == {}, "it did not start"
    why: Any = world.c.reconciler.unanswered("one")
    assert why.command == "open" and why.why == "the agent of node n1 does not answer"
    said = world.api.jobs.job("one")["message"]
    assert said.startswith("its GPUs have not been opened to its pod for ") and "`reshape doctor`" in said
    world.filters.silent = False
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.filters.silent = True
    world.users.update("jobs", "one", {}, {"cancel": True})
    world.run(lambda w: w.job("one").state == s.CANCELLED)
    world.submit("two", [4], LONG)
    world.run(lambda w: not w._alive("one", 1))
    world.filters.silent = False
    world.run(lambda w: w.states()["two"] == s.RUNNING)


def test_who_waits_for_gpus_that_an_agent_does_not_close_is_told_so_until_it_does() -> None:
    world = Node()
    world.submit("one", [2, 4], LONG)
    world.run(lambda w: w.states() == {"one": s.RUNNING} and len(w.job("one").gpu_ids) == 4)
    world.filters.silent = True
    world.submit("two", [2], Behaviour(iterations=20))

    def told(w: World) -> bool:
        return any("closed to the pod that gives" in str(w.api.jobs.job(job)["message"]) for job in ("one", "two"))

    world.run(told)
    said = [world.api.jobs.job(job)["message"] for job in ("one", "two")]
    (waits,) = [each for each in said if "closed to the pod that gives them up" in each]
    assert "(the agent of node n1 does not answer); look at the agent of that node" in waits
    world.filters.silent = False
    world.run(lambda w: w.states()["two"] == s.COMPLETED)
    world.run(lambda w: not told(w))


def test_a_late_call_of_a_coordinator_that_no_longer_acts_opens_nothing() -> None:
    world = Node()
    world.submit("one", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states() == {"one": s.COMPLETED})
    _, _, generation, gpu_ids = next(call for call in world.filters.calls if call[0] == "open")
    with pytest.raises(Transient, match="obeyed before"):
        world.filters.open(world.job("one").doc, generation, [gpu_ids])
