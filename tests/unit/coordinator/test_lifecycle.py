"""What happens next, situation by situation: the seven steps, and what undoes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.model import states as s
from coordinator.model.events import JobInitialized, ResourcesGranted
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuChanges
from coordinator.reconcile.actions import RequestLaunch, StartTrainer, StopTrainer, Wait, WriteGpu, WriteJob
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ObservedState
from sidecar.protocol import ShimStatus
from tests.fakes.world import SHORT
from tests.unit.coordinator.situations import (
    BOOKED,
    EXITED,
    LATE,
    WALL,
    fresh,
    gpu,
    job,
    mine,
    newcomer,
    reshape_of,
    seen,
    start_of,
    victim,
    waits,
    world,
    written,
)

# a start on idle GPUs, step by step


STARTING = job(s.INITIALIZING, "a", "b", op=start_of("a", "b"), generation=0, up=None)


def test_1_a_newcomer_reserves_idle_gpus_in_order_and_does_not_hold_them() -> None:
    changes = written(world(STARTING, None, [gpu("b"), gpu("a")]), "claim")
    assert changes == {"state": s.RESERVED, "job_id": "one", "held_by": None, "generation": 1}
    step = next_step(world(STARTING, None, [gpu("b"), gpu("a")]))
    assert isinstance(step, WriteGpu)
    assert (step.gpu, step.expect) == ("a", {"state": s.IDLE, "job_id": None})


def test_1_the_second_gpu_follows_the_first() -> None:
    step = next_step(world(STARTING, None, [gpu("a", "one"), gpu("b")]))
    assert isinstance(step, WriteGpu)
    assert step.gpu == "b"


@pytest.mark.parametrize("other", [gpu("a", "two", "two"), gpu("a", "two"), gpu("a", state=s.FAULTY)])
def test_1_a_gpu_that_somebody_else_got_undoes_the_start(other: GpuRecord) -> None:
    changes = written(world(STARTING, None, [other, gpu("b")]), "undo")
    assert (changes["state"], changes["gpu_ids"], changes["num_gpus"], changes["retries"]) == (s.SUBMITTED, None, 0, 0)


def test_1_a_gpu_that_is_unknown_undoes_the_start() -> None:
    assert written(world(STARTING, None, []), "undo")["message"] == "GPU a is no longer there"


RESERVED = [gpu("a", "one"), gpu("b", "one")]


def test_2_with_its_gpus_reserved_it_is_launched_once() -> None:
    assert isinstance(next_step(world(STARTING, None, RESERVED)), RequestLaunch)
    waits(world(STARTING, None, RESERVED, launch_asked=True), "initializing")


def test_2_when_its_sidecar_reports_while_a_victim_has_its_gpus_it_is_initialized() -> None:
    changes = written(world(newcomer(), fresh("two"), BOOKED, victim()), "initialized")
    assert changes == {"state": s.INITIALIZED, "up": 1}
    waits(world(newcomer(s.INITIALIZED), fresh("two"), BOOKED, victim()), "still in use")


def test_2_and_4_where_its_gpus_are_free_it_is_initialized_and_granted_in_one_write() -> None:
    step = next_step(world(STARTING, fresh(), RESERVED, launch_asked=True))
    assert isinstance(step, WriteJob)
    assert (step.name, step.earlier, step.event) == ("grant", JobInitialized(), ResourcesGranted(2, ""))
    assert (step.changes["state"], step.changes["up"], step.changes["generation"]) == (s.INITIALIZED, 1, 1)


INITIALIZED = job(s.INITIALIZED, "a", "b", op=start_of("a", "b"), generation=0)
GRANTED = job(s.INITIALIZED, "a", "b", op=start_of("a", "b"))


def test_4_then_its_generation_is_granted_without_any_stop() -> None:
    changes = written(world(INITIALIZED, fresh(), RESERVED), "grant")
    assert (changes["generation"], changes["gpu_ids"], changes["num_gpus"]) == (1, ["a", "b"], 2)
    assert "launch" not in changes


def test_6_before_it_starts_its_gpus_are_marked_as_held() -> None:
    changes = written(world(GRANTED, fresh(), RESERVED), "occupy")
    assert changes == {"state": s.IN_USE, "held_by": "one", "worker_id": 0, "unleased": None}


def test_6_then_it_is_told_to_start_on_exactly_these_gpus() -> None:
    assert next_step(world(GRANTED, fresh(), mine("a", "b"))) == StartTrainer(1, ("a", "b"), None)


def test_6_it_goes_on_from_the_checkpoint_that_the_sidecar_verified() -> None:
    granted = job(s.INITIALIZED, "a", op=start_of("a"), checkpoint={"name": "old", "step": 1, "generation": 1})
    assert next_step(world(granted, fresh(), mine("a"))) == StartTrainer(1, ("a",), "old")
    newer = seen("exited", generation=1, verb="stop", stop_asked=True, exit_code=143)
    assert next_step(world(granted, newer, mine("a"))) == StartTrainer(1, ("a",), "g1-s10")


def test_6_it_waits_while_another_job_still_holds_a_gpu() -> None:
    waits(world(GRANTED, fresh(), [gpu("a", "one", "two"), gpu("b", "one")]), "still in use")


def test_7_it_runs_with_its_first_step_and_not_before() -> None:
    waits(world(GRANTED, seen(steps=0), mine("a", "b")), "no step yet")
    changes = written(world(GRANTED, seen(), mine("a", "b")), "running")
    assert (changes["state"], changes["reshape"], changes["up"], changes["start_ts"]) == (s.RUNNING, None, 1, WALL)
    assert "reshapes" not in changes


def test_7_a_trainer_that_shows_no_progress_but_lives_counts_as_running_after_a_while() -> None:
    beat, lived_s = seen(steps=0), SHORT.first_step_timeout_s
    changes = written(world(GRANTED, beat, mine("a", "b"), waited_s=lived_s), "running")
    assert changes["run_ts"] == changes["start_ts"] == WALL - lived_s, "it trains since it was started"


def test_7_the_time_of_one_that_ends_before_it_shows_progress_counts() -> None:
    over = seen("exited", steps=0, exit_code=0, exit_at=62.0)
    assert written(world(GRANTED, over, mine("a", "b")), "completed")["ran_s"] == 12.0
    queued = job(s.SUBMITTED, cancel=True, ran_s=12.0)
    assert written(world(queued, over, []), "cancelled")["ran_s"] == 12.0, "and once only"


def test_a_running_job_that_trains_is_left_alone() -> None:
    assert waits(world(job(s.RUNNING, "a"), seen(), mine("a"))).seconds is None


# with a victim


def test_the_newcomer_books_its_victim_before_it_takes_any_of_its_gpus() -> None:
    running = job(s.RUNNING, "c", "d", "a", "b")
    step = next_step(world(newcomer(), None, mine("a", "b", "c", "d"), running))
    assert isinstance(step, WriteJob)
    assert (step.name, step.job, step.changes["state"]) == ("book victim", "one", s.ADJUSTING)
    reshape = step.changes["reshape"]
    assert (reshape["to"], reshape["generation"], reshape["for"]) == (["c", "d"], 2, "two")


def test_then_its_gpus_are_reserved_while_the_victim_holds_them() -> None:
    changes = written(world(newcomer(), None, mine("a", "b", "c", "d"), victim()), "claim")
    assert (changes["state"], changes["job_id"], changes["held_by"]) == (s.RESERVED, "two", "one")


def test_the_newcomer_is_launched_while_the_victim_trains_on() -> None:
    assert isinstance(next_step(world(newcomer(), None, BOOKED, victim())), RequestLaunch)
    waits(world(victim(), seen(), BOOKED, newcomer()), "still initializing")


def test_without_early_initialization_the_victim_is_stopped_first_and_the_newcomer_launched_then() -> None:
    waits(world(newcomer(), None, BOOKED, victim(), config=LATE), "still in use")
    assert next_step(world(victim(), seen(), BOOKED, newcomer(), config=LATE)) == StopTrainer(
        2, in_place=True, gpu_ids=("c", "d")
    )


def test_3_the_victim_is_stopped_once_its_newcomer_is_initialized() -> None:
    ready = newcomer(s.INITIALIZED)
    assert next_step(world(victim(), seen(), BOOKED, ready)) == StopTrainer(2, in_place=True, gpu_ids=("c", "d"))
    saving = seen("stopping", generation=2, verb="stop", stop_asked=True)
    waits(world(victim(), saving, BOOKED, ready), "saving")


def test_the_victim_trains_on_while_its_newcomer_does_imports_that_need_no_gpu() -> None:
    ready = newcomer(s.INITIALIZED)

    def victims(warm: str, **more: float) -> ObservedState:
        beat = msgspec.structs.replace(fresh("two"), shim=ShimStatus(shim_pid=2, warm=warm))
        return world(victim(), seen(), BOOKED, ready, peer_seen=beat, **more)

    waits(victims("begins to wait"), "before it gets GPUs")
    for go_on in (victims("ready (9 MiB)"), victims("begins to wait", waited_s=SHORT.init_timeout_s)):
        assert next_step(go_on) == StopTrainer(2, in_place=True, gpu_ids=("c", "d"))


def test_4_the_victims_new_shape_is_written_with_its_checkpoint_when_its_trainer_is_gone() -> None:
    changes = written(world(victim(), EXITED, BOOKED, newcomer(s.INITIALIZED)), "grant")
    assert (changes["generation"], changes["gpu_ids"], changes["num_gpus"]) == (2, ["c", "d"], 2)
    assert changes["checkpoint"] == {"name": "g1-s10", "step": 10, "generation": 1, "launch": 1}
    assert changes["reshape"]["stopped"]["exit_at"] == 61.0


SHRUNK = job(s.ADJUSTING, "c", "d", op=reshape_of(("c", "d", "a", "b"), ("c", "d"), **{"for": "two"}), generation=2)


def test_5_only_then_the_newcomer_takes_over_what_it_waits_for() -> None:
    waiting = newcomer(s.INITIALIZED)
    assert next_step(world(SHRUNK, EXITED, BOOKED, waiting)) == StartTrainer(2, ("c", "d"), "g1-s10")
    assert written(world(waiting, fresh("two"), BOOKED, SHRUNK), "grant")["gpu_ids"] == ["a", "b"]
    granted = JobRecord({**waiting.doc, "generation": 1})
    step = next_step(world(granted, fresh("two"), BOOKED, SHRUNK))
    taken: GpuChanges = {"state": s.IN_USE, "held_by": "two", "worker_id": 0, "unleased": None}
    assert step == WriteGpu("occupy", "a", {"job_id": "two", "held_by": "one"}, taken)


WAITS_NO_MORE = {
    "gone": [],
    "back in the queue": [job(s.SUBMITTED, name="two", generation=0)],
    "to start again": [job(s.RESTARTING, "a", "b", name="two", op={**start_of("a", "b"), "kind": "restart"})],
    "launched on free GPUs only": [newcomer(devices="recreate")],
}


@pytest.mark.parametrize("others", WAITS_NO_MORE.values(), ids=list(WAITS_NO_MORE))
def test_5_else_it_says_itself_that_they_are_free(others: list[JobRecord]) -> None:
    step = next_step(world(SHRUNK, EXITED, BOOKED, *others))
    assert step == WriteGpu("free", "a", {"held_by": "one", "job_id": "two"}, {"held_by": None, "unleased": None})


@pytest.mark.parametrize("before", [victim(), job(s.ADJUSTING, "c", "d"), job(s.SUBMITTED)])
def test_5_a_newcomer_takes_nothing_over_before_its_victim_was_granted_fewer_gpus(before: JobRecord) -> None:
    waits(world(newcomer(s.INITIALIZED), fresh("two"), BOOKED, before), "still in use")


def test_6_and_7_it_starts_again_on_what_it_keeps_and_counts_the_reshape() -> None:
    freed = [gpu("a", "two"), gpu("b", "two"), *mine("c", "d")]
    assert next_step(world(SHRUNK, EXITED, freed)) == StartTrainer(2, ("c", "d"), "g1-s10")
    changes = written(world(SHRUNK, seen(generation=2), freed), "running")
    assert (changes["state"], changes["reshapes"]) == (s.RUNNING, 1)


def test_a_job_that_grows_takes_idle_gpus_at_once_and_is_then_stopped() -> None:
    growing = job(s.ADJUSTING, "a", op=reshape_of(("a",), ("a", "b")))
    assert written(world(growing, seen(), [*mine("a"), gpu("b")]), "claim")["state"] == s.IN_USE
    assert next_step(world(growing, seen(), mine("a", "b"))) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))


def test_a_growing_job_that_lost_the_race_for_a_gpu_trains_on_as_it_was() -> None:
    growing = job(s.ADJUSTING, "a", op=reshape_of(("a",), ("a", "b")))
    changes = written(world(growing, seen(), [*mine("a"), gpu("b", "x", "x")]), "undo")
    assert (changes["state"], changes["reshape"], "generation" in changes) == (s.RUNNING, None, False)


# undoing, and when it is too late for it


NO_LONGER = {
    "gone": [],
    "cancelled": [newcomer(cancel=True)],
    "back in the queue": [job(s.SUBMITTED, name="two", generation=0)],
    "started elsewhere": [job(s.INITIALIZING, "x", name="two", op=start_of("x"), generation=0)],
}


@pytest.mark.parametrize("others", NO_LONGER.values(), ids=list(NO_LONGER))
def test_a_victim_whose_newcomer_needs_nothing_trains_on_undisturbed(others: list[JobRecord]) -> None:
    changes = written(world(victim(), seen(), mine("a", "b", "c", "d"), *others), "undo")
    assert (changes["state"], changes["reshape"]) == (s.RUNNING, None)
    assert not {"generation", "gpu_ids", "launch"} & set(changes)


@pytest.mark.parametrize("others", NO_LONGER.values(), ids=list(NO_LONGER))
def test_but_first_it_takes_back_what_it_had_promised(others: list[JobRecord]) -> None:
    step = next_step(world(victim(), seen(), BOOKED, *others))
    back = {"state": s.IN_USE, "job_id": "one"}
    assert step == WriteGpu("take back", "a", {"job_id": "two", "held_by": "one"}, back)


def test_what_a_newcomer_reserved_while_its_victim_was_undone_is_taken_back_and_not_lost() -> None:
    running = job(s.RUNNING, "a", "b", "c", "d")
    step = next_step(world(running, seen(), BOOKED, newcomer()))
    back = {"state": s.IN_USE, "job_id": "one"}
    assert step == WriteGpu("take back", "a", {"job_id": "two", "held_by": "one"}, back)


@pytest.mark.parametrize("trainer", ["stopping", "exited"])
def test_once_the_shim_has_obeyed_the_stop_there_is_no_way_back(trainer: str) -> None:
    beat = seen(trainer, generation=2, verb="stop", stop_asked=True, exit_code=143)
    step = next_step(world(victim(), beat, BOOKED))
    assert isinstance(step, Wait) if trainer == "stopping" else getattr(step, "name", "") == "grant"


def test_a_newcomer_gives_back_what_its_victim_still_holds() -> None:
    queued = job(s.SUBMITTED, name="two", generation=0, down=1)
    step = next_step(world(queued, None, BOOKED, victim()))
    back = {"state": s.IN_USE, "job_id": "one"}
    assert step == WriteGpu("free", "a", {"job_id": "two", "held_by": "one"}, back)


def test_a_newcomer_is_undone_when_its_victim_is_changed_for_another_reason() -> None:
    busy = job(s.ADJUSTING, "a", "b", "c", "d", op=reshape_of(("a", "b", "c", "d"), ("a",)))
    assert written(world(newcomer(), None, mine("a", "b", "c", "d"), busy), "undo")["state"] == s.SUBMITTED
    other = job(s.RUNNING, "a", "b", "c", "d", generation=4)
    assert written(world(newcomer(), None, mine("a", "b", "c", "d"), other), "undo")


def test_a_victim_that_ends_by_itself_is_completed_and_hands_its_gpus_over() -> None:
    beat = seen("exited", exit_code=0, exit_at=70.0)
    assert written(world(victim(), beat, BOOKED, newcomer()), "completed")["state"] == s.COMPLETED
    ended = job(s.COMPLETED, generation=1)
    assert written(world(ended, beat, BOOKED, newcomer()), "free") == {"held_by": None, "unleased": None}
    idle = [gpu("a"), gpu("b"), gpu("c"), gpu("d")]
    assert written(world(newcomer(), None, idle, ended), "claim")["held_by"] is None
    waits(world(newcomer(), None, mine("a", "b"), ended), "come free")


def test_a_newcomer_that_does_not_come_up_goes_back_into_the_queue_and_pauses() -> None:
    for more in ({"launch_failure": "no disk"}, {"waited_s": SHORT.init_timeout_s + 1}):
        changes = written(world(newcomer(), None, BOOKED, victim(), launch_asked=True, **more), "undo")
        assert (changes["state"], changes["retries"], changes["retry_ts"]) == (s.SUBMITTED, 1, WALL + 1.0)


def test_after_its_last_try_it_has_failed_and_says_why() -> None:
    tired = newcomer(retries=SHORT.retries)
    changes = written(world(tired, None, BOOKED, victim(), launch_asked=True, launch_failure="no disk"), "failed")
    assert (changes["state"], changes["message"]) == (s.FAILED, "could not be launched: no disk")


def test_why_its_first_launch_failed_is_kept_until_one_has_come_up() -> None:
    def fails(why: str, **more: Any) -> Any:
        return world(newcomer(**more), None, BOOKED, victim(), launch_asked=True, launch_failure=why)

    assert written(fails("no python3"), "undo")["fault"] == "no python3"
    assert written(fails("its Volcano Job is Failed", fault="no python3"), "undo")["fault"] == "no python3"
    last = written(fails("its Volcano Job is Failed", fault="no python3", retries=SHORT.retries), "failed")
    assert last["message"] == "could not be launched: its Volcano Job is Failed; the first time: no python3"


def test_a_newcomer_whose_processes_die_before_it_starts_is_not_waited_for() -> None:
    changes = written(world(GRANTED, fresh(), mine("a", "b"), lost=True), "undo")
    assert (changes["state"], changes["retries"]) == (s.SUBMITTED, 1)
    changes = written(world(SHRUNK, EXITED, mine("c", "d"), lost=True), "restart")
    assert (changes["reshape"]["generation"], changes["retries"]) == (3, 1)
