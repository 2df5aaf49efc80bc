"""How fast jobs grow, by what their sidecars report: read when it is due, kept where a successor finds it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from adaptive_scheduler.settings import FlowCon, Settings, SpeCon
from coordinator.model import states as s
from coordinator.model.progress import TrainingSpeed
from coordinator.model.records import JobRecord, Moment
from coordinator.telemetry.progress_tracker import MOST_HEARD, Curve, ProgressTracker, _Timing
from sidecar.protocol import Heartbeat
from tests import patience
from tests.unit.coordinator.situations import job, seen

SETTINGS = Settings(specon=SpeCon(interval_s=10.0), flowcon=FlowCon(interval_s=10.0, min_dt_s=1.0))


class Cluster:
    """One job on CPU, a clock, and the monitors that look at it."""

    def __init__(self, settings: Settings = SETTINGS, **doc: Any) -> None:
        self.tracker, self.now = ProgressTracker(settings), 100.0
        self.job = job(s.RUNNING, node="c", optional_num_gpus=[0], **doc)
        self.beat: Heartbeat = seen()
        self.kept: list[dict[str, Any]] = []
        self.look()

    def look(self, after_s: float = 0.0) -> None:
        self.now += after_s
        at = Moment(self.now, self.now + 1e6)
        self.kept += self.tracker.look({"one": self.job}, lambda _: self.beat, at).values()

    def measures(self, value: float, cpu: float = 1.0, after_s: float = 10.0, **shim: Any) -> None:
        """A heartbeat with a new value, then the monitors' next look."""
        seq = self.beat.progress.evaluations + 1
        self.beat = seen(**{"generation": self.job.generation, **shim})
        self.beat.progress.value, self.beat.progress.evaluations = value, seq
        self.beat.usage.cpu_cores = cpu
        self.tracker.heard(self.job, self.beat)
        self.look(after_s)

    @property
    def category(self) -> str:
        return self.tracker.progress_of_job(self.job)[0].category


def falling(cluster: Cluster, times: int) -> None:
    for n in range(times):
        cluster.measures(1.0 * 0.01**n)


def test_a_job_that_hardly_grows_any_more_is_watched_and_then_converged() -> None:
    cluster = Cluster()
    falling(cluster, 2)
    assert cluster.category == "PC"
    cluster.measures(1e-4)
    assert cluster.category == "WC"
    cluster.measures(1e-6)
    assert cluster.category == "CC"


def test_between_two_intervals_nothing_is_read() -> None:
    cluster = Cluster()
    for n in range(20):
        cluster.measures(0.01**n, after_s=0.1)
    assert cluster.tracker.progress_of_job(cluster.job)[0].growth is None


def test_a_system_that_may_not_act_is_not_measured_for() -> None:
    cluster = Cluster(Settings(systems=("elastic",)))
    falling(cluster, 6)
    assert cluster.category == "PC" and cluster.kept == []
    assert not cluster.tracker.progress_of_job(cluster.job)[1].measured


def test_efficiency_is_growth_for_the_cores_that_were_used() -> None:
    cluster = Cluster()
    cluster.measures(1.0, cpu=2.0)
    cluster.measures(0.5, cpu=2.0)
    efficiency = cluster.tracker.progress_of_job(cluster.job)[1]
    assert efficiency.measured
    assert efficiency.raw["cpu"] == 0.5 / 10.0 / 2.0


def test_a_job_that_was_stopped_and_started_in_between_is_measured_from_there() -> None:
    cluster = Cluster()
    falling(cluster, 3)
    before = cluster.tracker.progress_of_job(cluster.job)[0].growth
    cluster.job = JobRecord({**cluster.job.doc, "generation": 2})
    cluster.measures(0.9, generation=2)
    assert cluster.tracker.progress_of_job(cluster.job)[0].growth == before, "the jump belongs to the restart (X8)"


def test_a_job_under_an_operation_or_not_training_is_not_read() -> None:
    cluster = Cluster()
    cluster.job = JobRecord({**cluster.job.doc, "reshape": {"kind": "move", "to": [], "generation": 2}})
    falling(cluster, 4)
    assert cluster.tracker.progress_of_job(cluster.job)[0].last is None


def test_only_a_change_of_category_or_list_is_kept_and_a_successor_goes_on_from_it() -> None:
    cluster = Cluster()
    falling(cluster, 5)
    assert cluster.category == "CC" and 0 < len(cluster.kept) <= 3
    successor = Cluster(**cluster.kept[-1])
    growth, efficiency, _ = successor.tracker.progress_of_job(successor.job)
    old_growth, old_efficiency, _ = cluster.tracker.progress_of_job(cluster.job)
    assert (growth.category, growth.high, growth.converged_s) == ("CC", 1.0, old_growth.converged_s)
    assert (efficiency.list, efficiency.peak) == (old_efficiency.list, old_efficiency.peak)
    assert successor.kept == [], "what was read is not written again"


def test_how_fast_it_trains_is_known_with_the_cores_of_the_same_iterations_also_while_it_moves() -> None:
    cluster = Cluster()
    for iterations, seconds, cores in [(10, 0.5, 2.0), (20, 0.5, 2.0), (60, 1.0, 0.5), (70, 1.0, 1.0)]:
        cluster.beat.progress.iterations, cluster.beat.progress.seconds_per_iteration = iterations, seconds
        cluster.beat.usage.cpu_cores = cores
        cluster.tracker.heard(cluster.job, cluster.beat)
    assert cluster.tracker.speed(cluster.job) == TrainingSpeed(1.0, 0.75, 2.0), (
        "the first two are longer ago than a speed is"
    )
    cluster.beat = seen("none")
    cluster.tracker.heard(cluster.job, cluster.beat)
    assert cluster.tracker.speed(cluster.job) == TrainingSpeed(1.0, 0.75, 2.0)


def test_an_interval_in_which_a_limit_was_set_does_not_make_a_job_look_slower() -> None:
    """X5: its growth is that of as many iterations as it did without one."""
    cluster, done, value = Cluster(), 0, 1.0
    for limits in (0, 0, 0, 1):
        cluster.job = JobRecord({**cluster.job.doc, "limits": limits})
        done, value = done + (10 if limits else 100), value - (0.01 if limits else 0.1)
        cluster.beat = seen(steps=done)
        cluster.beat.progress.value, cluster.beat.progress.evaluations = value, done
        cluster.look(10.0)
    growth = cluster.tracker.progress_of_job(cluster.job)[0]
    assert growth.growth == pytest.approx(0.1 / 0.21), "not a tenth of it: 0.21 is the range so far"


def test_junk_in_the_document_counts_as_not_known() -> None:
    cluster = Cluster(category="XX", growth=3, efficiency={"list": 1, "peak": {"cpu": "x"}})
    assert cluster.tracker.progress_of_job(cluster.job)[0].category == "PC"
    assert cluster.tracker.progress_of_job(cluster.job)[1].peak == {}


def test_jobs_that_have_ended_are_forgotten() -> None:
    cluster = Cluster()
    falling(cluster, 5)
    cluster.tracker.look({}, lambda _: None, Moment(cluster.now, 0.0))
    cluster.tracker.heard(cluster.job, cluster.beat)
    assert cluster.category == "PC"


def test_a_target_that_comes_nearer_says_how_many_iterations_it_still_needs() -> None:
    cluster = Cluster(target={"value": 0.9})
    for n in range(1, 9):
        cluster.beat = seen(steps=100 * n)
        cluster.beat.progress.value, cluster.beat.progress.value_name = 1 - 1 / (1 + 0.01 * 100 * n), "val_accuracy"
        cluster.tracker.heard(cluster.job, cluster.beat)
        cluster.look(after_s=10.0)
    needs = cluster.tracker.progress_of_job(cluster.job)[2]
    assert needs == pytest.approx(900, rel=0.1), "1/(1 + 0.01 k) is 0.1 at k = 900"


def test_without_a_target_no_end_is_predicted() -> None:
    cluster = Cluster()
    falling(cluster, 8)
    assert cluster.tracker.progress_of_job(cluster.job)[2] is None


def test_a_job_that_stands_still_for_days_takes_no_more_memory() -> None:
    timing = _Timing()
    for _ in range(2 * MOST_HEARD):
        beat = seen()
        beat.progress.iterations, beat.progress.seconds_per_iteration, beat.usage.cpu_cores = 7, 0.5, 2.0
        timing.heard(beat)
    assert len(timing.lately) == MOST_HEARD
    assert timing.speed == TrainingSpeed(2.0, 2.0, 2.0)


def test_use_is_kept_only_for_who_will_read_it() -> None:
    """Of a job on GPUs nobody measures the efficiency of its cores (X4)."""
    cluster = Cluster()
    cluster.job = job(s.RUNNING, node="n", optional_num_gpus=[1])
    cluster.measures(1.0, after_s=0.0)
    watched = cluster.tracker._watched["one"]
    assert (len(watched.for_growth.samples), len(watched.for_efficiency.samples)) == (1, 0)


# when the loop turns


def test_the_loop_need_not_turn_for_readings_of_nobody() -> None:
    assert ProgressTracker(SETTINGS).next_s(100.0) > 1e9
    assert Cluster(Settings(systems=("elastic",))).tracker.next_s(100.0) > 1e9


def test_the_next_turn_is_due_with_the_next_reading_of_either_kind() -> None:
    for systems in (("specon",), ("flowcon",), ("specon", "flowcon")):
        cluster = Cluster(Settings(systems=systems, specon=SpeCon(interval_s=10.0), flowcon=FlowCon(interval_s=10.0)))
        cluster.look()
        assert cluster.tracker.next_s(cluster.now + 4.0) == 6.0
        assert cluster.tracker.next_s(cluster.now + 40.0) == 0.0
        cluster.look(40.0)
        assert cluster.tracker.next_s(cluster.now) == 10.0


def test_a_heartbeat_is_taken_while_curves_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own thread takes it, and would answer nobody meanwhile."""
    cluster, taken = Cluster(target={"value": 0.01, "above": False, "name": "loss"}), list[bool]()

    def needs(curve: Curve, *_: object) -> None:
        hears = threading.Thread(target=cluster.tracker.heard, args=(cluster.job, cluster.beat), daemon=True)
        hears.start()
        hears.join(patience.patient(2))
        taken.append(not hears.is_alive())

    monkeypatch.setattr(Curve, "needs", needs)
    cluster.look()
    assert taken == [True]
