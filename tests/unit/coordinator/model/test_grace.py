"""How long one that is cancelled may take: by its record, and as its saves and evaluations have taken."""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.model import states as s
from coordinator.model.grace import MOST_S, grace_s
from sidecar.protocol import Heartbeat, Progress
from tests.unit.coordinator.situations import job, seen


def measured(**progress: float) -> Heartbeat:
    return replace(seen(), progress=Progress(**progress))


def test_the_grace_is_that_of_the_record_else_the_usual_one() -> None:
    assert grace_s(job(s.RUNNING), seen(), 20.0) == 20.0
    assert grace_s(job(s.RUNNING, grace_s=5), seen(), 20.0) == 5.0


def test_one_whose_saves_or_evaluations_take_longer_gets_longer_but_not_for_ever() -> None:
    assert grace_s(job(s.RUNNING), measured(save_s=30.0), 20.0) == 60.0
    assert grace_s(job(s.RUNNING), measured(save_s=30.0, longest_gap_s=60.0), 20.0) == 120.0
    assert grace_s(job(s.RUNNING), measured(longest_gap_s=1e9), 20.0) == MOST_S
