"""Jobs and GPUs as people see them: the document and the newest report in one."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.api import views
from coordinator.api.views import gpu_view, job_view, pause, pods_view
from coordinator.dashboard import words
from coordinator.dashboard.words import facts
from coordinator.model import states as s
from coordinator.model.records import GpuRecord
from coordinator.telemetry.heartbeats import heartbeat_row
from reshape.output import render
from sidecar.protocol import GpuReading
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.coordinator.situations import job, mine, seen


def test_a_running_job_shows_what_its_sidecar_says() -> None:
    beat = seen(steps=40)
    beat.progress.seconds_per_iteration = 0.5
    view = job_view(job(s.RUNNING, "a", iterations=100, command="x"), beat, {}, emulated=True)
    assert (view["iterations"], view["iters_done"], view["eta_s"], view["emulated"]) == (100, 40, 30.0, True)
    assert (view["sidecar_pid"], view["shim_pid"], view["sidecar_url"], view["command"]) == (3, 2, "u", "x")


@pytest.mark.parametrize(
    ("cold", "warm", "said"),
    [
        ("", "", None),
        ("no memory", "", "its last start was cold (no memory)"),
        ("no memory", "ready (80 MiB)", "its last start was cold (no memory); the next one is warm"),
        ("", "ready (8 MiB); early imports end before a (b)", "the next one is warm; early imports end before a (b)"),
        ("", "no Python", "the next one is cold (no Python)"),
        ("", "begins to wait", "an interpreter begins to wait for the next one"),
    ],
)
def test_a_running_job_says_whether_its_starts_are_cold_and_why(cold: str, warm: str, said: str | None) -> None:
    beat = seen(steps=40)
    beat.shim.cold, beat.shim.warm = cold, warm
    assert job_view(job(s.RUNNING, "a"), beat, {}, emulated=True)["restart"] == said


def test_a_running_job_says_which_gpus_it_can_open() -> None:
    beat = seen(steps=40)
    assert job_view(job(s.RUNNING, "a"), beat, {}, emulated=True)["gpu_access"] is None
    beat.shim.gpu_access = "only its own GPUs (device filter)"
    view = job_view(job(s.RUNNING, "a"), beat, {}, emulated=False)
    assert view["gpu_access"] == "only its own GPUs (device filter)"
    assert facts(view, str, 0.0)["can open"] == "only its own GPUs (device filter)"


def test_a_training_with_a_large_state_says_how_long_a_reshape_would_pause_it() -> None:
    beat = msgspec.structs.replace(seen(steps=40), checkpoint_bytes=15_700_000_000)
    assert pause(job(s.RUNNING, "a"), beat, 33.2) == {"pause": "pause 33 s: 15.7 GB to disk"}
    assert pause(job(s.RUNNING, "a"), seen(steps=40), 2.2) == {"pause": None}
    assert pause(job(s.SUBMITTED), beat, 33.2) == {}, "the report of a job back in the queue is of what is gone"
    shown = {"pause": "pause 33 s: 15.7 GB to disk"}
    assert render.present(shown) == "Now: reshape: pause 33 s: 15.7 GB to disk."


def test_a_job_with_a_target_shows_the_epochs_that_its_curve_says_are_left() -> None:
    beat = seen(steps=40)
    beat.progress.seconds_per_iteration = 0.5
    aims = job(s.RUNNING, "a", epochs=10, dataset_size=200, batch_size=10, target_top5=0.9)
    view = job_view(aims, beat, {}, emulated=False, needs=100)
    facts = ("iterations_left", "epochs_left", "eta_s", "length_unsure", "target_top5")
    assert [view[f] for f in facts] == [60, 3.0, 30.0, False, 0.9]
    unsure = job_view(aims, beat, {}, emulated=False)
    assert [unsure[f] for f in facts[:4]] == [160, 8.0, 80.0, True]


def test_a_job_back_in_the_queue_shows_no_process_and_no_end() -> None:
    beat = seen(steps=40)
    beat.progress.seconds_per_iteration = 0.5
    view = job_view(job(s.SUBMITTED, iterations=100), beat, {}, emulated=False)
    assert (view["iters_done"], view["eta_s"], view["seconds_per_iteration"]) == (40, None, None)
    assert "trainer_pid" not in view


def test_an_ended_job_has_nothing_left() -> None:
    view = job_view(job(s.COMPLETED, iterations=100, iters_done=40), None, {}, emulated=False, needs=90)
    assert (view["iterations_left"], view["epochs_left"]) == (None, None)


def test_a_time_that_a_hand_wrote_into_an_ended_job_counts_as_missing() -> None:
    view = job_view(job(s.COMPLETED, finish_ts="x", start_ts=["y"]), None, {}, emulated=False)
    assert (view["finish_ts"], view["start_ts"]) == (None, None)


def test_a_held_job_that_was_cancelled_is_shown_as_cancelled() -> None:
    held = job_view(job(s.SUBMITTED, held="it failed"), None, {}, emulated=False)
    cancelled = job_view(job(s.CANCELLED, held="it failed"), None, {}, emulated=False)
    assert (words.state(held), words.state(cancelled)) == ("held", "cancelled")


def test_until_the_sidecar_reports_again_the_stored_progress_is_shown() -> None:
    view = job_view(job(s.RUNNING, "a", iters_done=5), None, {"iters_done": 30}, emulated=False)
    assert (view["iters_done"], view["eta_s"], view["seconds_per_iteration"]) == (30, None, None)


def test_an_ended_job_shows_no_living_process() -> None:
    view = job_view(job(s.COMPLETED, iters_done=100, message="completed"), seen(steps=100), {}, emulated=False)
    assert "trainer_pid" not in view
    assert (view["num_gpus"], view["message"], view["iters_done"]) == (0, "completed", 100)


def test_a_document_that_intake_refused_shows_its_problems() -> None:
    view = job_view(job("submitted", problems=["command is missing"], optional_num_gpus=None), None, {}, emulated=False)
    assert view["problems"] == ["command is missing"]


def test_a_gpu_shows_its_newest_reading_else_the_stored_one() -> None:
    (gpu,) = mine("a")
    record = GpuRecord({**gpu.doc, "gpu_id": "a", "node": "n", "gpu_type": "T", "memory_total": 16})
    reading = GpuReading("a", utilisation=0.5, memory_used=4)
    live = gpu_view(record, reading, {"utilisation": 0.1})
    assert (live["utilisation"], live["memory_used"], live["memory_total"], live["held_by"]) == (0.5, 4, 16, "one")
    assert gpu_view(record, None, {"utilisation": 0.1})["utilisation"] == 0.1
    assert gpu_view(record, None, {})["utilisation"] is None


def test_a_gpu_shows_what_its_job_holds_apart_from_what_others_hold() -> None:
    (gpu,) = mine("a")
    record = GpuRecord({**gpu.doc, "gpu_id": "a", "node": "n", "gpu_type": "T", "memory_total": 80})
    beat = seen(steps=40)
    beat.gpus = [GpuReading("a", memory_used=26, memory_own=3, memory_others=23)]
    for view in (gpu_view(record, beat.gpus[0], {}),
                 gpu_view(record, None, heartbeat_row(job(s.RUNNING, "a"), beat, 7.0)["gpus"][0])):  # fmt: skip
        assert (view["memory_used"], view["memory_own"], view["memory_others"]) == (26, 3, 23)
    old = msgspec.json.decode(b'{"gpu_id": "a", "memory_used": 26}', type=GpuReading)  # of an older sidecar
    shown = gpu_view(record, old, {})
    assert (shown["memory_used"], shown["memory_own"], shown["memory_others"]) == (26, None, None)


def test_what_is_kept_of_a_heartbeat_is_enough_to_show_the_job_after_a_restart() -> None:
    beat = seen(steps=40)
    beat.gpus = [GpuReading("a", utilisation=0.5, memory_used=4)]
    row = heartbeat_row(job(s.RUNNING, "a"), beat, 7.0)
    assert (row["job_id"], row["at"], row["iters_done"]) == ("one", 7.0, 40)
    assert row["gpus"][0]["gpu_id"] == "a"
    assert job_view(job(s.RUNNING, "a"), None, row, emulated=False)["iters_done"] == 40


def test_each_pod_of_a_gang_is_shown_with_its_gpus_and_what_its_trainer_does() -> None:
    gang = job(s.RUNNING, "a", "b", "c", "d", gpus_per_pod=2)
    gpus = {n: GpuRecord({"_id": n, "node": "one" if n in "ab" else "two"}) for n in "abcd"}
    shown = pods_view(gang, {0: seen("exited", exit_code=3)}, gpus)
    facts = ("pod", "node", "gpu_ids", "trainer", "exit_code", "sidecar_url")
    assert [[pod[f] for f in facts] for pod in shown] == [
        [0, "one", ["a", "b"], "exited", 3, "u"],
        [1, "two", ["c", "d"], None, None, None],
    ]
    assert pods_view(job(s.RUNNING, "a", "b"), {0: seen()}, gpus) == []
    assert pods_view(job(s.SUBMITTED, gpus_per_pod=2), {}, gpus) == []


def test_a_training_that_is_not_heard_from_says_for_how_long_and_where_to_look() -> None:
    trains = job(s.RUNNING, "a")
    view = job_view(trains, seen(), {}, emulated=False)
    assert views.no_report(trains, view, 13.4) == {
        "message": "not heard from for 13 s: it may train on, and what is shown is old; look whether its sidecar "
        "(process 3) or shim (process 2) is stopped, or its machine overloaded"
    }
    for other in (job(s.RUNNING, "a", up=None), job(s.INITIALIZING, "a"), job(s.SUBMITTED), job(s.COMPLETED)):
        assert views.no_report(other, view, 13.4) == {}, "a report is not expected, or another message says more"


def test_a_command_that_is_not_answered_says_for_how_long_and_why() -> None:
    message = views.no_answer({}, "stop", 7.0, "the shim did not answer within 5 s; is it stopped?")["message"]
    assert message == (
        "could not be told to stop for 7 s, and is told again (the shim did not answer within 5 s; is it stopped?); "
        "look whether its sidecar or shim is stopped, or its machine overloaded"
    )


def test_a_suspension_that_the_sidecar_does_not_answer_is_shown_until_it_does() -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=10_000))
    w.run(lambda w: w.states()["one"] == s.RUNNING)
    w.machines.of("one").partitioned = True
    w.api.operator.suspend("one")
    w.pass_time(3.0)
    said = w.api.jobs.job("one")["message"]
    assert said.startswith("could not be told to stop for ") and "does not answer" in said
    w.machines.of("one").partitioned = False
    w.run(lambda w: w.states()["one"] == s.SUBMITTED)
    assert "could not be told" not in w.api.jobs.job("one")["message"]


@pytest.mark.parametrize(("closed", "shown"), [(None, "not accepted"), (False, "completed"), (True, "completed")])
def test_only_a_document_that_was_refused_is_called_not_accepted(closed: bool | None, shown: str) -> None:
    """Judge by how the document was taken: a field that a hand has broken later is another matter."""
    view = {"state": "completed", "closed": closed, "problems": ["wanted must be a number; it is passed over"]}
    assert words.acceptance(view) == shown
    assert str(words.remark(view)).startswith("not accepted: ") == (closed is None)
