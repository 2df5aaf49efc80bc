"""The stages of a reshape leave nothing out: together they are the time that training stood still."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.events.stages import Marks, gap_s, learned, reshape_stages
from coordinator.model.records import Operation
from sidecar.protocol import Heartbeat, Progress, ShimStatus

STANDING_STILL = ("checkpoint", "exit", "spawn", "first step")
SPANS = st.lists(st.floats(0, 1e4), min_size=6, max_size=6)


@given(begin=st.floats(0, 1e6), spans=SPANS, saves=st.booleans(), sent_before=st.floats(0, 10))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_from_the_stop_to_the_first_step_the_stages_add_up_to_the_gap(
    begin: float, spans: list[float], saves: bool, sent_before: float
) -> None:
    """A trainer that still steps after SIGTERM has the shorter gap; by no more than until it has saved."""
    last, stop, saved, gone, spawn, first = [begin + sum(spans[:n]) for n in range(1, 7)]
    stopped = {"stop_at": stop, "exit_at": gone, "checkpoint_at": saved if saves else None, "last_step_at": last}
    op = Operation({"kind": "reshape", "from": ["a", "b"], "to": ["a"], "generation": 2, "stopped": stopped})
    beat = Heartbeat(
        job_id="one", launch=1, seq=1, url="u", sidecar_pid=1, shim=ShimStatus(spawn_at=spawn),
        progress=Progress(first_step_at=first, previous_last_step_at=last),
    )  # fmt: skip
    marks = Marks(0.1, {"decided": 0.0, "newcomer ready": 2.0, "stop sent": stop - sent_before})
    stages, gap = reshape_stages(op, beat, marks), gap_s(op, beat)
    assert gap == pytest.approx(stop - last + sum(stages.get(name, 0.0) for name in STANDING_STILL), abs=1e-6)
    assert stages["signal"] == pytest.approx(sent_before, abs=1e-6)
    assert ("checkpoint" in stages) == saves
    cost = sum(seconds or 0.0 for seconds in learned(op, beat, marks).values())
    assert cost == pytest.approx(first - stop, abs=1e-6), "what is learned is what a reshape costs"
