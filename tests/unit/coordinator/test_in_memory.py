"""What the coordinator makes of a checkpoint that is in memory: it counts once the disk has it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.reconcile.actions import StartTrainer, StopTrainer
from coordinator.reconcile.lifecycle import next_step
from sidecar.protocol import Checkpoint, Heartbeat, Lost
from tests.unit.coordinator.situations import job, mine, reshape_of, seen, start_of, waits, world, written

OLD, COPY = Checkpoint("g1-s10", 10, 1), Checkpoint("g1-s20", 20, 1)
GROWS = reshape_of(("a",), ("a", "b"))


def stopped(checkpoint: Checkpoint | None = OLD, **more: Any) -> Heartbeat:
    shim = {"exit_code": 143, "stop_asked": True, "exit_at": 60.0, "in_memory": msgspec.to_builtins(COPY), **more}
    return msgspec.structs.replace(seen("exited", generation=2, verb="stop", steps=20, **shim), checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("op", "more", "in_place"),
    [
        (GROWS, {}, True),
        ({**GROWS, "how": "relaunch"}, {}, False),
        ({**GROWS, "kind": "requeue"}, {}, False),
        ({**GROWS, "kind": "finish"}, {}, False),
    ],
)
def test_only_what_goes_on_in_its_launch_may_save_in_memory(op: Any, more: Any, in_place: bool) -> None:
    state = world(job(s.ADJUSTING, "a", op=op, **more), seen(), mine("a", "b"))
    stays = ("a", "b") if in_place else ()  # so that its state may stay on a GPU
    assert next_step(state) == StopTrainer(2, in_place, gpu_ids=stays)


def test_a_cancelled_job_saves_on_the_disk() -> None:
    step = next_step(world(job(s.ADJUSTING, "a", op=GROWS, cancel=True), seen(), mine("a", "b")))
    assert isinstance(step, StopTrainer) and not step.in_place


@pytest.mark.parametrize(
    ("verified", "unwritten"), [(None, True), (OLD, True), (COPY, False), (Checkpoint("g2-s5", 5, 2), False)]
)
def test_a_copy_counts_as_unwritten_until_it_or_a_newer_one_is_verified(
    verified: Checkpoint | None, unwritten: bool
) -> None:
    assert stopped(verified).unwritten is unwritten
    assert not msgspec.structs.replace(seen(), checkpoint=verified).unwritten


def test_what_is_written_down_at_the_grant_is_the_checkpoint_on_the_disk() -> None:
    changes = written(world(job(s.ADJUSTING, "a", op=GROWS), stopped(), mine("a", "b")), "grant")
    assert changes["checkpoint"]["name"] == OLD.name
    assert changes["reshape"]["stopped"]["unwritten"] is True


def test_a_launch_that_is_lost_with_the_copy_is_a_fault_and_the_job_may_be_reshaped_afterwards() -> None:
    granted = {**GROWS, "stopped": {"exit_at": 60.0, "unwritten": True}}
    running = job(s.ADJUSTING, "a", "b", op=granted, generation=2, stopped_by_us=2, elastic=None, resumes="hook")
    lost: dict[str, Any] = {"lost": True, "remove_asked": True}
    restarting = written(world(running, stopped(), mine("a", "b"), **lost), "restart")
    again = JobRecord({**running.doc, **restarting, "retry_ts": 0.0})
    changes = written(world(again, stopped(), mine("a", "b"), **lost), "grant")
    assert changes["stopped_by_us"] is None
    after = JobRecord({**again.doc, **changes})
    repeated = msgspec.structs.replace(seen(generation=3), lost=Lost(10, 0.0, 3))
    found = resumption.reported_loss(after, repeated)
    assert found["lost"]["agreed"] is True and "lost 10 iterations" in found["message"]
    assert not resumption.rigid(JobRecord({**after.doc, **found}))


def test_a_job_is_held_in_its_launch_until_the_disk_has_its_copy() -> None:
    said = "OSError: [Errno 28] No space left on device"
    copy = msgspec.to_builtins(COPY)
    in_memory = seen("exited", 2, exit_code=1, exit_at=60.0, output_tail=said, in_memory=copy)
    in_memory = msgspec.structs.replace(in_memory, checkpoint=OLD)
    restart = {"kind": "restart", "from": ["a"], "to": ["a"], "generation": 2}
    again = job(s.RESTARTING, "a", op=restart, generation=2, retries=3, iters_done=20, elastic=True)
    kept = written(world(again, in_memory, mine("a")), "hold")
    assert (kept["state"], kept.get("suspended"), kept["retries"]) == (s.RESTARTING, None, 0)
    assert "it keeps its 1 GPU, until its disk has room for what it has saved in memory. Mend" in str(kept["message"])
    held = JobRecord({**again.doc, **kept})
    waits(world(held, in_memory, mine("a")), "held")
    on_disk = msgspec.structs.replace(in_memory, checkpoint=COPY)
    given_back = written(world(held, on_disk, mine("a")), "hold")
    assert (given_back["state"], given_back["suspended"], given_back["held"]) == (s.SUBMITTED, True, kept["held"])
    assert given_back["gpu_ids"] is None and given_back["checkpoint"]["name"] == COPY.name
    resumed = JobRecord({**held.doc, "held": None})
    assert written(world(resumed, in_memory, mine("a")), "grant")["generation"] == 3, "from memory, on a full disk"


def test_one_that_does_not_go_on_where_it_was_stopped_is_found_out_all_the_same() -> None:
    changes = written(world(job(s.ADJUSTING, "a", op=GROWS), stopped(), mine("a", "b")), "grant")
    after = JobRecord({**job(s.ADJUSTING, "a", elastic=None, resumes="hook").doc, **changes})
    repeated = msgspec.structs.replace(seen(generation=2), lost=Lost(10, 0.0, 2))
    assert resumption.reported_loss(after, repeated)["lost"]["agreed"] is False


@pytest.mark.parametrize(
    ("verified", "agreed"),
    [(None, True), (OLD, True), (Checkpoint("g2-s30", 30, 2), False), (Checkpoint("g3-s5", 5, 3), True)],
)
def test_a_copy_that_is_lost_with_its_holder_is_a_fault_unless_a_later_one_was_saved(
    verified: Checkpoint | None, agreed: bool
) -> None:
    """The next trainer is of generation 3; it may have saved by itself before its loss is told."""
    trains = job(s.RUNNING, "a", "b", generation=3, stopped_by_us=3, elastic=None, resumes="hook")
    beat = seen(generation=3, in_memory=msgspec.to_builtins(COPY), copy_lost=msgspec.to_builtins(COPY))
    told = msgspec.structs.replace(beat, checkpoint=verified, lost=Lost(10, 0.0, 3))
    found = resumption.reported_loss(trains, told)
    assert found["lost"]["agreed"] is agreed
    assert resumption.rigid(JobRecord({**trains.doc, **found})) is not agreed


@pytest.mark.parametrize(("unwritten", "checkpoint"), [(True, None), (False, OLD.name)])
def test_the_next_launch_takes_what_is_newest_if_the_copy_may_have_come_to_the_disk_since(
    unwritten: bool, checkpoint: str | None
) -> None:
    op = start_of("a", generation=2, kind="restart", stopped={"exit_at": 60.0, "unwritten": unwritten})
    kept = {"name": OLD.name, "step": 10, "generation": 1, "launch": 1}
    there = job(s.RESTARTING, "a", op=op, generation=2, launch=2, newest_launch=2, checkpoint=kept)
    beat = msgspec.structs.replace(seen("none", generation=0, verb="", steps=0), launch=2)
    step = next_step(world(there, beat, mine("a")))
    assert isinstance(step, StartTrainer) and step.checkpoint == checkpoint
