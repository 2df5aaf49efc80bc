"""From documents to the frozen snapshot: as it will be once the operations under way are done."""

from __future__ import annotations

import pytest

from adaptive_scheduler.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.core import states as s
from coordinator.core.picture import Seen, iterations, picture
from coordinator.core.records import GpuRecord, JobRecord
from sidecar.protocol import Heartbeat
from tests.unit.coordinator.situations import WALL, gpu, job, mine, reshape_of, seen, start_of


def take(jobs: list[JobRecord], gpus: list[GpuRecord], beats: dict[str, Heartbeat] | None = None) -> ClusterSnapshot:
    known = {name: Seen(beat, 5.0) for name, beat in (beats or {}).items()}
    placed = {g.id: GpuRecord({**g.doc, "node": "n1", "gpu_type": "V100"}) for g in gpus}
    return picture({j.id: j for j in jobs}, placed, known, Profiles(), WALL)


def test_gpus_come_by_node_in_their_own_order() -> None:
    docs = [("b", "n2", 0), ("a", "n1", 1), ("c", "n1", 0)]
    gpus = {i: GpuRecord({**gpu(i).doc, "node": n, "gpu_type": "T", "index": k}) for i, n, k in docs}
    nodes = picture({}, gpus, {}, Profiles(), WALL).nodes
    assert [(n.name, [g.id for g in n.gpus]) for n in nodes] == [("n1", ["c", "a"]), ("n2", ["b"])]


def test_an_idle_gpu_that_an_intent_names_is_not_given_away_twice() -> None:
    starting = job(s.INITIALIZING, "a", op=start_of("a"), generation=0)
    (node,) = take([starting], [gpu("a"), gpu("b")]).nodes
    assert node.idle == 1
    assert (node.gpus[0].state, node.gpus[0].job) == ("reserved", "one")


def test_a_job_under_an_operation_counts_with_what_it_will_have_and_is_leased() -> None:
    shrinking = job(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a",)), node="n1")
    (found,) = take([shrinking], mine("a", "b"), {"one": seen()}).jobs
    assert (found.num_gpus, found.leased, found.node) == (1, True, "n1")


def test_a_running_job_may_be_reshaped_only_if_its_trainer_was_seen_running() -> None:
    running = job(s.RUNNING, "a", node="n1")
    assert take([running], mine("a")).jobs[0].leased
    assert not take([running], mine("a"), {"one": seen()}).jobs[0].leased
    assert take([running], mine("a"), {"one": seen("exited")}).jobs[0].leased
    cancelled = job(s.RUNNING, "a", node="n1", cancel=True)
    assert take([cancelled], mine("a"), {"one": seen()}).jobs[0].leased


def queued(**more: object) -> JobRecord:
    return job(s.SUBMITTED, **{"launch": 0, "generation": 0, **more})


@pytest.mark.parametrize(
    ("record", "gpus", "waits"),
    [
        (queued(), [], True),
        (queued(retry_ts=WALL + 1), [], False),
        (queued(retry_ts=WALL), [], True),
        (queued(), [gpu("a", "one")], False),
        (queued(), [gpu("a", "two", "one")], False),
        (queued(launch=2, down=1), [], False),
        (queued(launch=2, down=2), [], True),
        (queued(cancel=True), [], False),
    ],
)
def test_a_queued_job_is_started_only_when_nothing_of_it_is_left(
    record: JobRecord, gpus: list[GpuRecord], waits: bool
) -> None:
    assert bool(take([record], gpus).queue) == waits


def test_ended_jobs_and_jobs_without_any_allowed_count_are_left_out() -> None:
    assert take([job(s.COMPLETED), queued(optional_num_gpus=[])], []).jobs == ()


def test_the_oldest_job_comes_first() -> None:
    jobs = [queued(name="b", submit_ts=2.0), queued(name="c", submit_ts=1.0), queued(name="a", submit_ts=2.0)]
    assert [j.id for j in take(jobs, []).queue] == ["c", "a", "b"]


def test_what_is_left_comes_from_the_document_or_from_what_the_trainer_says() -> None:
    told = seen(steps=30)
    told.progress.total_iterations = 80
    assert iterations(job(s.RUNNING, "a", iterations=100, iters_done=20), told) == (30, 100)
    assert iterations(job(s.RUNNING, "a", epochs=2, dataset_size=65, batch_size=32), None) == (0, 6)
    assert iterations(job(s.RUNNING, "a", iters_done=40), told) == (40, 80)
    assert iterations(job(s.RUNNING, "a"), None) == (0, None)
    assert take([job(s.RUNNING, "a", iterations=10)], mine("a"), {"one": told}).jobs[0].iterations_left == 0
