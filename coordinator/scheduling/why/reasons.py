"""Adds to the reason why a job waits the smallest change that would start it now. Pure but for memory.

Promises: one text, made here, which the decision, the job's message and its event carry; at most `SEARCHES` searches a
turn, none while nothing has changed that an answer depends on, and another one for the same only after `AGAIN_S`; jobs
that ask for the same share one answer. Of many such jobs only the first `TOLD` are told by themselves, each other one
once somebody asks about it. Called by the decision loop, and by the API service from other threads.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from adaptive_scheduler.decision import Decision, Hold
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after
from coordinator.scheduling.decision_records import rule_of
from coordinator.scheduling.why.change import Change
from coordinator.scheduling.why.search import alone, smallest_change

log = logging.getLogger(__name__)

SEARCHES = 2
TOLD = 10
AGAIN_S = 10.0


@dataclass(frozen=True)
class Turn:
    """What was decided last, and on what."""

    snapshot: ClusterSnapshot
    decisions: tuple[Decision, ...]
    held: Mapping[str, Hold]  # by waiting job
    now: float

    @cached_property
    def world(self) -> ClusterSnapshot:
        return after(self.snapshot, *self.decisions)

    @cached_property
    def state(self) -> int:
        """A number for all that answers depend on besides what a job asks for: equal while that is the same."""
        nodes = (
            (
                n.name,
                n.gpu_type,
                n.idle,
                n.healthy,
                n.used_by_others,
                n.schedulable,
                n.drained,
                n.cordoned,
                n.heard,
                n.cores,
                len(self.world.on_cpu[n.name]),
            )
            for n in self.world.nodes
        )
        jobs = (
            (j.id, j.num_gpus, j.node, j.state, j.busy, j.rigid, j.wanted, j.cooling_until > self.now, j.optional)
            for j in self.world.placed
        )
        return hash((tuple(nodes), tuple(jobs)))


@dataclass(frozen=True)
class Answer:
    """What a search has found in a state."""

    state: int
    change: Change | None
    at_s: float
    rule: str  # by which the job waited then, see `rule_of`; nothing is known of another one


class WaitingReasons:
    """Remembers answers by what is asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn: Turn | None = None
        self._answers: dict[object, Answer] = {}  # the oldest first
        self._told: set[str] = set()  # jobs whose reason says what would start them

    def told(self, snapshot: ClusterSnapshot, decisions: Sequence[Decision], now: float) -> tuple[Decision, ...]:
        """Return the decisions of a turn with the reasons to wait completed."""
        queue = {job.id for job in snapshot.queue}
        held = {one.job: one for one in decisions if isinstance(one, Hold) and one.job in queue}
        self._turn = turn = Turn(snapshot, tuple(decisions), held, now)
        if not held:
            self._answers, self._told = {}, set()
            return turn.decisions
        requests = {name: _request(snapshot.job[name]) for name in held}
        self._choose(requests)
        found = self._answers.copy()
        first = {key: name for name, key in reversed(requests.items())}
        fresh = [
            key
            for key in dict.fromkeys(requests.values())
            if key not in found or found[key].rule != rule_of(held[first[key]])
        ]
        stale = [key for key, one in found.items() if one.state != turn.state and now - one.at_s >= AGAIN_S]
        for key in dict.fromkeys([*fresh, *stale][:SEARCHES]):
            self._search(turn, first[key])
        return tuple(self._with_change(turn, one) if one.job in self._told else one for one in turn.decisions)

    def reason_of_job(self, job_id: str) -> tuple[str, Change | None]:
        """Return why a job waits, and the change that would start it; empty if it does not wait for the scheduler."""
        turn = self._turn
        if turn is None or job_id not in turn.held:
            return "", None
        self._told.add(job_id)
        request = _request(turn.snapshot.job[job_id])
        known = self._answers.get(request)
        if known is None or known.state != turn.state or known.rule != rule_of(turn.held[job_id]):
            self._search(turn, job_id)
        told = self._with_change(turn, turn.held[job_id])
        return told.explanation.sentence, self._change(turn, job_id)

    def known(self, job_id: str) -> Change | None:
        """Return what would start a job if that was told or asked already."""
        turn = self._turn
        return self._change(turn, job_id) if turn and job_id in turn.held and job_id in self._told else None

    def _choose(self, requests: Mapping[str, object]) -> None:
        """Tell the first of each request, and drop what nobody asks for any more."""
        # Copies, since callers may ask from another thread meanwhile; what they add now may have to be asked again.
        told = [name for name in list(self._told) if name in requests]
        count = Counter(requests[name] for name in told)
        for name, key in requests.items():
            if count[key] < TOLD and name not in self._told:
                count[key] += 1
                told.append(name)
        asked = set(requests.values())
        self._told = set(told)
        self._answers = {key: answer for key, answer in self._answers.copy().items() if key in asked}

    def _search(self, turn: Turn, job_id: str) -> None:
        job = turn.snapshot.job[job_id]
        try:
            change = smallest_change(alone(turn.world, job), job, turn.now, self._settings)
        except Exception:  # no reason to wait is worth a turn: what was decided has still to be carried out
            log.exception("what would start job %s was not found", job_id)
            change = None
        request = _request(job)
        self._answers.pop(request, None)
        self._answers[request] = Answer(turn.state, change, turn.now, rule_of(turn.held[job_id]))

    def _change(self, turn: Turn, job_id: str) -> Change | None:
        answer = self._answers.get(_request(turn.snapshot.job[job_id]))
        return answer.change if answer is not None and answer.rule == rule_of(turn.held[job_id]) else None

    def _with_change(self, turn: Turn, decision: Decision) -> Decision:
        if not isinstance(decision, Hold) or decision.job not in turn.held:
            return decision
        if (change := self._change(turn, decision.job)) is None:
            return decision
        why = decision.explanation
        more = f" {decision.job} would start now {change.remedy}."
        return replace(decision, explanation=replace(why, sentence=why.sentence + more))


def _request(job: Job) -> object:
    """What a job asks for; jobs of equal requests wait for the same."""
    place = job.gpu_type, job.pinned, job.max_workers, job.gpus_per_pod, job.tasks
    return job.type, job.optional, job.sla_s is None, job.stays, job.owner, job.queue, job.preemption, *place
