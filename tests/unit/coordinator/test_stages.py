"""How long each part of a reshape took: only differences of one clock, parts that are missing stay out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.events.stages import Marks, direction, gap_s, learned, moved_gap_s, reshape_stages, span, start_stages
from coordinator.model.records import Operation
from sidecar.protocol import Checkpoint, Heartbeat, Progress, ShimStatus
from tests.unit.coordinator.situations import reshape_of, start_of

STOPPED = {"stop_at": 10.0, "checkpoint_at": 12.0, "exit_at": 13.0, "last_step_at": 9.5, "exit_code": 143}
BEAT = Heartbeat(
    job_id="one", launch=1, seq=1, url="u", sidecar_pid=1, shim=ShimStatus(spawn_at=14.0),
    progress=Progress(first_step_at=17.0, previous_last_step_at=9.0),
)  # fmt: skip
OP = Operation({**reshape_of(("a", "b"), ("a",)), "stopped": STOPPED, "how": "in place"})
MARKS = Marks(0.25, {"decided": 5.75, "newcomer ready": 8.75, "stop sent": 9.75, "launch": 1.0, "initialized": 4.0,
                     "start sent": 6.0})  # fmt: skip


def test_the_parts_of_a_reshape_follow_one_another() -> None:
    assert reshape_stages(OP, BEAT, MARKS) == {
        "decide": 0.25, "newcomer ready": 4.0, "signal": 0.25, "checkpoint": 2.0, "exit": 1.0, "spawn": 1.0,
        "first step": 3.0,
    }  # fmt: skip


def test_a_checkpoint_that_is_older_than_the_stop_is_not_part_of_it() -> None:
    old = Operation({**OP.doc, "stopped": {**STOPPED, "checkpoint_at": 4.0}})
    stages = reshape_stages(old, BEAT, Marks())
    assert stages == {"exit": 3.0, "spawn": 1.0, "first step": 3.0}


def test_the_gap_is_from_the_last_step_before_to_the_first_after() -> None:
    assert gap_s(OP, BEAT) == 8.0


def test_a_new_launch_does_not_know_the_last_step_but_the_operation_does() -> None:
    fresh = Heartbeat(**{f: getattr(BEAT, f) for f in ("job_id", "launch", "seq", "url", "sidecar_pid", "shim")},
                      progress=Progress(first_step_at=17.0))  # fmt: skip
    assert gap_s(OP, fresh) == 7.5
    assert gap_s(Operation(reshape_of(("a",), ("b",))), fresh) is None


def test_the_parts_of_a_move_are_joined_by_the_coordinators_clock_as_each_machine_has_its_own() -> None:
    move = {"kind": "move", "from": ["a"], "to": ["b"], "how": "relaunch", "launch": 2, "stopped": STOPPED}
    elsewhere = Heartbeat(
        job_id="one", launch=2, seq=1, url="u", sidecar_pid=1, shim=ShimStatus(spawn_at=900_000.0),
        progress=Progress(first_step_at=900_003.0),
    )  # fmt: skip
    marks = Marks(0.25, {"decided": 100.0, "stop sent": 104.0, "start sent": 107.5})
    stages = reshape_stages(Operation(move), elsewhere, marks)
    assert stages == {
        "decide": 0.25, "newcomer ready": 4.0, "checkpoint": 2.0, "exit": 1.0, "spawn": 0.5, "first step": 3.0,
    }  # fmt: skip
    assert moved_gap_s(Operation(move), elsewhere, marks) == 7.0
    assert moved_gap_s(Operation(move), elsewhere, Marks()) is None
    assert learned(Operation(move), elsewhere, marks) == {"ckpt": 2.0, "proc_term": 1.0, "proc_init": 3.5}
    assert learned(Operation({**move, "launch": None}), elsewhere, marks) == {}, "its launch is in it"


def test_the_parts_of_a_start() -> None:
    assert start_stages(BEAT, MARKS) == {"decide": 0.25, "launch": 3.0, "wait for GPUs": 2.0, "first step": 3.0}
    assert start_stages(BEAT, Marks()) == {"first step": 3.0}


def test_a_reshape_in_place_teaches_the_three_parts_that_add_up_to_its_cost() -> None:
    parts = learned(OP, BEAT, MARKS)
    assert parts == {"ckpt": 2.0, "proc_term": 1.0, "proc_restart": 4.0}
    assert learned(Operation(start_of("a")), BEAT, MARKS) == {"k8s_init": 3.0, "proc_init": 3.0}
    early = msgspec.structs.replace(BEAT, shim=msgspec.structs.replace(BEAT.shim, warm_s=2.5))
    assert learned(Operation(start_of("a")), early, MARKS) == {"k8s_init": 3.0, "proc_init": 5.5}
    assert learned(Operation({**OP.doc, "how": "relaunch"}), BEAT, MARKS) == {}


def test_what_a_reshape_teaches_names_the_size_and_the_path_of_the_state_that_it_was_measured_with() -> None:
    large = msgspec.structs.replace(BEAT, checkpoint_bytes=15_700_000_000)
    parts = learned(OP, large, MARKS)
    assert (parts["ckpt_state"], parts["restart_state"]) == pytest.approx((21.0, 9.7))
    kept = msgspec.structs.replace(large.shim, in_memory=Checkpoint("g1-s1", 1, 1))
    assert learned(OP, msgspec.structs.replace(large, shim=kept), MARKS)["ckpt_state"] == pytest.approx(16.8)
    moved = Operation({**OP.doc, "kind": "move", "how": "relaunch", "launch": 2})
    assert learned(moved, msgspec.structs.replace(large, shim=kept), MARKS)["ckpt_state"] == pytest.approx(21.0)
    small = msgspec.structs.replace(BEAT, checkpoint_bytes=400_000)
    assert "ckpt_state" not in learned(OP, small, MARKS)


@pytest.mark.parametrize(("begin", "end", "seconds"), [(1.0, 3.0, 2.0), (3.0, 1.0, 0.0), (None, 1.0, None)])
def test_a_span_is_never_negative_and_unknown_if_an_end_is(begin: float, end: float, seconds: float) -> None:
    assert span(begin, end) == seconds


def test_fewer_gpus_are_down_and_more_are_up() -> None:
    assert direction(OP) == "down"
    assert direction(Operation(reshape_of(("a",), ("a", "b")))) == "up"


STANDING_STILL = ("checkpoint", "exit", "spawn", "first step")
SPANS = st.lists(st.floats(0, 1e4), min_size=6, max_size=6)


@given(begin=st.floats(0, 1e6), spans=SPANS, saves=st.booleans(), sent_before=st.floats(0, 10))
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
