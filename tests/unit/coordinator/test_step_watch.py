"""Which trainings stand still: those that live and make no step for far longer than they ever took."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.records import JobRecord, Moment
from coordinator.reconcile.actions import StopTrainer
from coordinator.reconcile.lifecycle import next_step
from coordinator.telemetry.step_watch import StepWatch
from sidecar.protocol import Checkpoint, Progress, Usage
from tests.unit.coordinator.situations import BOOKED, job, newcomer, seen, victim, world

WALL = 5_000.0  # what the wall clock says at time 0
BOOT = "one"
IDLE = Usage(cpu_cores=0.0, block_io=0.0)


class Watch:
    """A job that reports every five seconds."""

    def __init__(self, usual_s: float | None = 0.2, **known: Any) -> None:
        self.watch, self.now, self.steps, self.usual_s = StepWatch(100.0, 5.0), 0.0, 0, usual_s
        self.job = job(s.RUNNING, "a", **known)

    def report(
        self, steps: int, trainer: str = "running", use: Usage = IDLE, checkpoint: Checkpoint | None = None, **more: Any
    ) -> None:
        """One report later."""
        self.now += 5.0
        self.steps += steps
        last = self.now if steps else self.last
        self.last = last
        beat = seen(trainer, **more)
        progress = Progress(self.steps, first_step_at=51.0, last_step_at=last, seconds_per_iteration=self.usual_s)
        self.watch.heard(
            self.job,
            msgspec.structs.replace(beat, progress=progress, usage=use, checkpoint=checkpoint),
            Moment(self.now, WALL + self.now, BOOT),
        )

    last: float | None = None

    def trains(self, reports: int = 5) -> None:
        for _ in range(reports):
            self.report(25)

    def pauses(self, seconds: float, trainer: str = "running") -> None:
        for _ in range(int(seconds / 5)):
            self.report(0, trainer)

    def look(self) -> dict[str, Any]:
        """What the loop writes, which it also does."""
        changes = dict(self.watch.changes(self.job, Moment(self.now, WALL + self.now, BOOT)))
        self.job = JobRecord({**self.job.doc, **changes})
        return changes


def test_a_training_that_makes_no_step_for_far_longer_than_usual_stands_still_until_it_goes_on() -> None:
    watch = Watch()
    watch.trains()
    watch.pauses(100)
    assert watch.look() == {}
    watch.pauses(5)
    mark = {"ts": WALL + 25.0, "now": 25.0, "boot": BOOT}
    assert watch.look() == {"stalled": {"since": WALL + 25.0, "mark": mark, "usual_s": 0.2, "generation": 1}}
    watch.pauses(60)
    assert watch.look() == {} and watch.job.stalled, "it is told once"
    watch.trains(1)
    assert watch.look() == {"stalled": None, "pause_s": 170.0}


def test_a_pause_of_a_kind_that_the_job_has_shown_before_is_none() -> None:
    watch = Watch()
    for _ in range(2):  # an evaluation of 90 s after each epoch
        watch.trains()
        watch.pauses(90)
    watch.trains(1)
    watch.look()
    watch.pauses(250)
    assert watch.look() == {}
    watch.pauses(60)
    assert "stalled" in watch.look()


def test_slow_steps_are_none() -> None:
    watch = Watch(usual_s=60.0)
    watch.trains()
    watch.pauses(1_000)
    assert watch.look() == {}


def test_a_job_that_never_told_its_speed_never_stands_still() -> None:
    watch = Watch(usual_s=None)
    watch.trains(1)
    watch.pauses(10_000)
    assert watch.look() == {}


def test_silence_of_a_sidecar_is_none_and_teaches_no_pause() -> None:
    watch = Watch()
    watch.trains()
    watch.now += 3_600
    watch.report(0)
    assert watch.look() == {}
    watch.now += 3_600
    watch.report(1)
    watch.pauses(105)
    assert "stalled" in watch.look()


BUSY = Usage(cpu_cores=0.3)
SAVES = Usage(cpu_cores=0.0, block_io=1e6)


@pytest.mark.parametrize("use", [BUSY, SAVES, Usage()], ids=["computes", "writes", "not known"])
def test_a_training_that_does_something_after_it_was_asked_to_stop_does_not_stand_still(use: Usage) -> None:
    watch = Watch()
    watch.trains()
    for _ in range(100):
        watch.report(0, "stopping", use=use)
    assert watch.look() == {}


def test_one_that_does_nothing_after_it_was_asked_to_stop_is_told_until_it_does() -> None:
    watch = Watch(usual_s=None)
    watch.trains(1)
    watch.pauses(1_000)
    for _ in range(21):
        watch.report(0, "stopping", use=IDLE, generation=2)
    assert watch.look() == {}, "what it did before it was asked does not count"
    watch.report(0, "stopping", use=IDLE, generation=2)
    found = watch.look()["stalled"]
    assert (found["since"], found["generation"], found["stopping"]) == (WALL + 1_010.0, 1, True)
    assert watch.job.idle_in_stop and not watch.job.stalled, "it is stopped already"
    after = Moment(watch.now, WALL + watch.now + 1e6, BOOT)
    assert resumption.describe_standstill(watch.job, after).startswith(
        "does nothing since it was asked to stop, for 105 s"
    )
    watch.report(0, "stopping", use=BUSY, generation=2)
    assert watch.look() == {"stalled": None}
    for _ in range(22):
        watch.report(0, "stopping", use=IDLE, generation=2)
    assert watch.look()
    watch.report(0, "stopping", use=IDLE, generation=2, checkpoint=Checkpoint("g1-s11", 11, 1))
    assert watch.look() == {"stalled": None}, "it has saved"


def test_the_next_coordinator_takes_over_what_does_nothing_in_a_stop() -> None:
    watch = Watch()
    watch.trains()
    for _ in range(23):
        watch.report(0, "stopping", use=IDLE)
    told = watch.look()["stalled"]
    after = Watch(stalled=told)
    after.now, after.steps, after.last = watch.now, watch.steps, watch.last
    after.report(0, "stopping", use=IDLE)
    assert after.look() == {} and after.job.idle_in_stop["since"] == told["since"]


def test_the_next_coordinator_takes_over_what_stands_still_and_which_pauses_were_shown() -> None:
    watch = Watch()
    watch.trains()
    watch.pauses(105)
    told = watch.look()["stalled"]
    after = Watch(stalled=told, pause_s=30.0)
    after.now, after.steps, after.last = watch.now, watch.steps, watch.last
    after.report(0)
    assert after.look() == {} and after.job.stalled["since"] == told["since"]
    after.trains()
    went_on = after.look()
    assert went_on["stalled"] is None
    later = Watch(pause_s=went_on["pause_s"])
    later.trains()
    later.pauses(3 * went_on["pause_s"] - 10)
    assert later.look() == {}


def test_what_stood_still_in_an_earlier_generation_does_not_count() -> None:
    stalled = {"since": WALL, "usual_s": 0.2, "generation": 1}
    assert job(s.RUNNING, "a", stalled=stalled).stalled
    assert not job(s.RUNNING, "a", stalled=stalled, generation=2).stalled
    assert not job(s.SUBMITTED, stalled=stalled).stalled


def test_what_stands_still_is_not_stopped_unasked() -> None:
    stalled = {"since": WALL, "usual_s": 0.2, "generation": 1}
    hangs = victim(stalled=stalled)
    step = next_step(world(hangs, seen(), BOOKED, newcomer(s.INITIALIZED)))
    assert not isinstance(step, StopTrainer)
    assert isinstance(next_step(world(victim(), seen(), BOOKED, newcomer(s.INITIALIZED))), StopTrainer)
