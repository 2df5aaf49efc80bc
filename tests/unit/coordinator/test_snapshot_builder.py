"""From documents to the frozen snapshot: as it will be once the operations under way are done."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from adaptive_scheduler.profiles.observations import Observations
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.model import states as s
from coordinator.model.progress import ObservedJob, TrainingSpeed, iteration_counts
from coordinator.model.records import GpuRecord, JobRecord, Moment
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs
from sidecar.protocol import Checkpoint, Heartbeat
from tests.fakes.shims import Behaviour
from tests.fakes.world import World, as_submitted
from tests.unit.coordinator.situations import WALL, gpu, job, mine, reshape_of, seen, start_of

AT = Moment(now=50.0, wall=WALL)
NO_PROFILES, NO_OBSERVATIONS = Profiles(), Observations()


def take(jobs: list[JobRecord], gpus: list[GpuRecord], beats: dict[str, Heartbeat] | None = None) -> ClusterSnapshot:
    known = {name: ObservedJob(beat, 5.0) for name, beat in (beats or {}).items()}
    placed = {g.id: GpuRecord({"node": "n1", "gpu_type": "V100", **g.doc}) for g in gpus}
    return SnapshotBuilder().build({j.id: j for j in jobs}, placed, known, SnapshotInputs(), AT)


def test_gpus_come_by_node_in_their_own_order() -> None:
    docs = [("b", "n2", 0), ("a", "n1", 1), ("c", "n1", 0)]
    gpus = {i: GpuRecord({**gpu(i).doc, "node": n, "gpu_type": "T", "index": k}) for i, n, k in docs}
    nodes = SnapshotBuilder().build({}, gpus, {}, SnapshotInputs(), AT).nodes
    assert [(n.name, [g.id for g in n.gpus]) for n in nodes] == [("n1", ["c", "a"]), ("n2", ["b"])]


def test_an_idle_gpu_that_an_intent_names_is_not_given_away_twice() -> None:
    starting = job(s.INITIALIZING, "a", op=start_of("a"), generation=0)
    (node,) = take([starting], [gpu("a"), gpu("b")]).nodes
    assert node.idle == 1
    assert (node.gpus[0].state, node.gpus[0].job) == ("reserved", "one")


def test_a_job_under_an_operation_counts_with_what_it_will_have_and_is_leased() -> None:
    shrinking = job(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a",)), node="n1")
    (found,) = take([shrinking], mine("a", "b"), {"one": seen()}).jobs
    assert (found.num_gpus, found.busy, found.node) == (1, True, "n1")


def test_the_size_of_the_state_and_its_path_are_as_reported_and_not_known_from_an_older_sidecar() -> None:
    running, beat = job(s.RUNNING, "a", node="n1"), seen()

    def state(**more: Any) -> tuple[float, str]:
        (found,) = take([running], mine("a"), {"one": msgspec.structs.replace(beat, **more)}).jobs
        return found.state_bytes, found.state_path

    assert state() == (0.0, "disk")
    assert state(checkpoint_bytes=15_700_000_123) == (15.7e9, "disk"), "a few bytes more are no news"
    assert state(checkpoint_bytes=10**400)[0] == 1e15
    assert state(checkpoint_bytes=-5) == (0.0, "disk")
    kept = msgspec.structs.replace(beat.shim, in_memory=Checkpoint("g1-s10", 10, 1))
    assert state(checkpoint_bytes=2_000_000, shim=kept) == (2e6, "host memory")
    stays = msgspec.structs.replace(kept, on_gpu="state stays on GPU a (15.7 GB)")
    assert state(checkpoint_bytes=2_000_000, shim=stays) == (2e6, "GPU")


def test_a_running_job_may_be_reshaped_only_if_its_trainer_was_seen_running() -> None:
    running = job(s.RUNNING, "a", node="n1")
    assert take([running], mine("a")).jobs[0].busy
    assert not take([running], mine("a"), {"one": seen()}).jobs[0].busy
    assert take([running], mine("a"), {"one": seen("exited")}).jobs[0].busy
    cancelled = job(s.RUNNING, "a", node="n1", cancel=True)
    assert take([cancelled], mine("a"), {"one": seen()}).jobs[0].busy


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


def on_cpu(state: str = s.RUNNING, **more: object) -> JobRecord:
    return job(state, optional_num_gpus=[0], **{"node": "c", **more})


def test_nodes_have_the_cores_of_their_documents_and_are_as_used_as_their_jobs_report() -> None:
    beat = seen()
    beat.usage.cpu_cores, beat.usage.memory = 1.5, 2_000
    docs = {"c": {"_id": "c", "cores": 2.0, "memory": 8_000.0}, "away": {"_id": "away", "cores": 1.0, "heard": False}}
    nodes = (
        SnapshotBuilder().build({"one": on_cpu()}, {}, {"one": ObservedJob(beat)}, SnapshotInputs(nodes=docs), AT).node
    )
    assert (nodes["c"].gpu_type, nodes["c"].gpus, nodes["c"].cores) == ("", (), 2.0)
    assert (nodes["c"].cpu_use, nodes["c"].memory_use, nodes["c"].heard) == (0.75, 0.25, True)
    assert not nodes["away"].heard


def test_a_job_on_cpu_is_where_its_document_says_and_a_moving_one_where_it_goes() -> None:
    move = {"kind": "move", "to": [], "node": "d", "generation": 2}
    found = take([on_cpu(name="stays"), on_cpu(name="moves", op=move)], []).job
    assert (found["stays"].node, found["stays"].uses_cpu, found["stays"].busy) == ("c", True, True)
    assert (found["moves"].node, found["moves"].busy) == ("d", True)


def test_a_limit_is_seen_until_it_lifts_itself() -> None:
    held = on_cpu(name="held", cpu_limit=0.5, limit_ts=WALL + 30)
    found = take([held, on_cpu(name="was", cpu_limit=0.5, limit_ts=WALL), on_cpu(name="free")], []).job
    assert (found["held"].cpu_limit, found["held"].limit_until_s) == (0.5, AT.now + 30)
    assert [(found[j].cpu_limit, found[j].limit_until_s) for j in ("was", "free")] == [(None, None)] * 2


@pytest.mark.parametrize(
    ("asked", "most", "can_use"),
    [({}, 1.5, math.inf), ({"resources": {"cores": 1.0}}, 0.3, 1.0), ({"resources": {"cores": 1.0}}, 1.5, 1.5)],
)
def test_a_job_can_use_the_cores_it_asked_for_or_more_if_it_was_seen_to(
    asked: dict[str, object], most: float, can_use: float
) -> None:
    seen_so = ObservedJob(None, speed=TrainingSpeed(20.0, 0.3, most))
    found = SnapshotBuilder().build({"one": on_cpu(**asked)}, {}, {"one": seen_so}, SnapshotInputs(), AT).job["one"]
    assert (found.demand, found.rate, found.share) == (can_use, 20.0, 0.3)


@pytest.mark.parametrize("kind", ["requeue", "finish"])
def test_who_is_being_stopped_is_nowhere(kind: str) -> None:
    leaving = job(s.ADJUSTING, "a", op={"kind": kind, "to": [], "generation": 2}, node="n1")
    found = take([leaving, on_cpu(name="two", op={"kind": kind, "to": [], "generation": 2})], mine("a")).jobs
    assert [(j.node, j.num_gpus, j.busy) for j in found] == [(None, 0, True)] * 2


def test_times_of_documents_are_put_on_the_clock_that_nobody_can_set() -> None:
    record = queued(submit_ts=WALL - 20, migrated_ts=WALL - 5, run_ts=WALL - 7, ran_s=3.0)
    (found,) = take([record], []).jobs
    assert (found.submit_s, found.migrated_s, found.running_s, found.task_s) == (30.0, 45.0, 10.0, 10.0)


def test_what_a_user_asks_for_reaches_the_decision() -> None:
    asked = {
        "sla": "2m",
        "estimate": 30,
        "node": None,
        "pinned": "c",
        "max_workers": 2,
        "yields_to": ["x"],
        "preempts": 1,
    }
    (found,) = take([queued(resources={"cores": 2}, expected_s=9.0, **asked)], []).jobs
    assert (found.sla_s, found.estimate_s, found.pinned, found.max_workers) == (120.0, 30.0, "c", 2)
    assert (found.cores, found.yields_to, found.preempts, found.expected_s) == (2.0, ("x",), 1, 9.0)


def test_a_target_is_reached_by_what_was_measured_last() -> None:
    beat = seen()
    beat.progress.value, beat.progress.value_name = 0.91, "val_accuracy"
    aims = job(s.RUNNING, "a", target={"value": 0.9}, value=0.5, value_name="val_accuracy")
    assert take([aims], mine("a"), {"one": beat}).jobs[0].target_reached
    assert not take([aims], mine("a")).jobs[0].target_reached


@pytest.mark.parametrize(("needs", "left"), [(None, 90), (60.0, 50), (500.0, 90), (5.0, 20), (0.0, 20)])
def test_a_job_with_a_target_is_as_long_as_its_curve_says_but_never_longer_than_it_is_nor_over_within_an_epoch(
    needs: float | None, left: int
) -> None:
    known = ObservedJob(seen(steps=10), needs=needs)
    record = job(s.RUNNING, "a", iterations=100, target_top5=0.9, dataset_size=200, batch_size=10)
    (found,) = SnapshotBuilder().build({"one": record}, {}, {"one": known}, SnapshotInputs(), AT).jobs
    assert found.iterations_left == left
    assert found.length_unsure == (needs is None)


def test_of_a_job_without_progress_towards_its_target_nor_a_maximum_no_length_is_known() -> None:
    (found,) = take([job(s.RUNNING, "a", target_top5=0.9)], mine("a"), {"one": seen()}).jobs
    assert (found.iterations_left, found.length_unsure) == (None, True)


def test_gpus_on_several_hosts_are_told_host_by_host() -> None:
    gpus = {i: GpuRecord({**gpu(i, "one", "one").doc, "node": n, "gpu_type": "T"}) for i, n in [("a", "n"), ("b", "m")]}
    (found,) = SnapshotBuilder().build({"one": job(s.RUNNING, "a", "b", node="n")}, gpus, {}, SnapshotInputs(), AT).jobs
    assert [(w.node, w.num_gpus) for w in found.workers] == [("n", 1), ("m", 1)]


def test_ended_jobs_and_jobs_without_any_allowed_count_are_left_out() -> None:
    assert take([job(s.COMPLETED), queued(optional_num_gpus=[])], []).jobs == ()


def test_the_oldest_job_comes_first() -> None:
    jobs = [queued(name="b", submit_ts=2.0), queued(name="c", submit_ts=1.0), queued(name="a", submit_ts=2.0)]
    assert [j.id for j in take(jobs, []).queue] == ["c", "a", "b"]


def test_what_is_left_comes_from_the_document_or_from_what_the_trainer_says() -> None:
    told = seen(steps=30)
    told.progress.total_iterations = 80
    assert iteration_counts(job(s.RUNNING, "a", iterations=100, iters_done=20), told) == (30, 100)
    assert iteration_counts(job(s.RUNNING, "a", epochs=2, dataset_size=65, batch_size=32), None) == (0, 6)
    assert iteration_counts(job(s.RUNNING, "a", iters_done=40), told) == (40, 80)
    assert iteration_counts(job(s.RUNNING, "a"), None) == (0, None)
    assert take([job(s.RUNNING, "a", iterations=10)], mine("a"), {"one": told}).jobs[0].iterations_left == 0


def test_a_job_whose_earlier_pod_is_still_there_is_not_started() -> None:
    assert take([queued(held_back="waits until its earlier pod is gone")], []).jobs[0].busy
    assert not take([queued(held_back=None)], []).jobs[0].busy


def test_a_gang_has_its_pods_where_their_gpus_are_and_may_be_on_as_many_nodes_as_it_has_pods() -> None:
    gpus = [GpuRecord({**gpu(name, "1", "1").doc, "node": node}) for name, node in zip("abcd", "nnmm", strict=True)]
    gang = job(s.RUNNING, "a", "b", "c", "d", gpus_per_pod=2, optional_num_gpus=[2, 4, 6], node="n", devices="recreate")
    (found,) = take([gang], gpus).jobs
    assert (found.gpus_per_pod, found.pods, found.max_workers, found.relaunches) == (2, ("n", "m"), 3, False)


def test_what_pods_of_others_ask_for_is_not_there_for_our_jobs() -> None:
    held = {"cores": 1.5, "memory": 3e9}
    nodes = {"a": {"cores": 4.0, "memory": 8e9, "others": held}, "full": {"cores": 1.0, "memory": 1e9, "others": held}}
    seen = {
        n.name: (n.cores, n.memory)
        for n in SnapshotBuilder().build({}, {}, {}, SnapshotInputs(nodes=nodes), Moment(0.0, 0.0)).nodes
    }
    assert seen == {"a": (2.5, 5e9), "full": (0.0, 1.0)}, "0 bytes would mean that nobody knows how many"


def test_a_snapshot_built_on_the_last_one_equals_one_built_from_nothing_also_through_a_users_change() -> None:
    """`tests.fakes.world.Compared` compares at each turn."""
    world, seen = World(), list[ClusterSnapshot]()
    kept = world.c.loop._snapshots.build

    def noted(*inputs: Any) -> ClusterSnapshot:
        seen.append(kept(*inputs))
        return seen[-1]

    world.c.loop._snapshots.build = noted  # type: ignore[method-assign]
    world.submit("one", [1, 2, 4], Behaviour(iterations=400))
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    world.submit("two", [2], Behaviour(iterations=40))
    world.run(lambda w: w.job("one").doc.get("reshapes") == 1)
    world.users.update("jobs", "one", {}, {"sla": "2h"})
    world.run(World.at_rest)
    assert {job.sla_s for snapshot in seen for job in snapshot.jobs if job.id == "one"} == {None, 7200.0}
    assert len({node.idle for snapshot in seen for node in snapshot.nodes}) > 2


NAMES, GPUS, PLACES = ("one", "two", "three"), "abcd", ("n1", "n2")
STATES_OF_NODES = {"cores": 1.0}, {"cores": 4.0}, {"cores": 4.0, "drained": True}, {"cores": 4.0, "heard": False}


def some(rng: random.Random, *values: Any) -> Any:
    return rng.choice(values)


def document(rng: random.Random, name: str, at: Moment) -> JobRecord | None:
    """A job as it may be written by users and by the coordinator, or none."""

    def ts() -> float:
        return at.wall + rng.randrange(-200, 200) / 4

    fields = {
        "state": some(rng, s.SUBMITTED, s.RUNNING, s.RUNNING, s.COMPLETED), "node": some(rng, *PLACES, None),
        "gpu_ids": rng.sample(GPUS, rng.randrange(3)), "optional_num_gpus": some(rng, [1, 2], [1, 2], [0], []),
        "submit_ts": ts(), "run_ts": some(rng, None, ts()), "ran_s": some(rng, 0.0, 900.0),
        "retry_ts": some(rng, 0.0, ts()),
        "down": some(rng, None, 1), "cpu_limit": some(rng, None, 0.5),
        "limit_ts": ts(), "elastic": some(rng, True, False),
        "reshape": some(rng, None, None, operation(rng)), "uid": some(rng, "u1", "u2"),
        "launch": some(rng, 0, 1, 2), "gpus_per_pod": some(rng, None, None, 1), "cancel": some(rng, False, False, True),
        "checkpoint_claim": some(rng, None, "c"), "migrated_ts": some(rng, None, ts()),
    }  # fmt: skip
    return some(rng, None, *[JobRecord({**job(s.RUNNING, name=name).doc, **fields})] * 4)


def operation(rng: random.Random) -> dict[str, Any]:
    """An operation, which may promise GPUs that another job's promises, too."""
    kind = some(rng, "start", "reshape", "move", "requeue", "finish")
    to = [] if kind in ("requeue", "finish") else rng.sample(GPUS, 2)
    return {"kind": kind, "to": to, "generation": 2, "node": some(rng, *PLACES), "yields_to": some(rng, [], ["two"])}


def row(rng: random.Random, name: str) -> GpuRecord | None:
    owner = some(rng, None, *NAMES)
    place = {"node": some(rng, *PLACES), "gpu_type": "T"}
    return some(rng, None, *[GpuRecord({**gpu(name, owner, owner, some(rng, None, "faulty")).doc, **place})] * 4)


def heard(rng: random.Random) -> ObservedJob | None:
    beat = seen(some(rng, "running", "exited"), steps=rng.randrange(50))
    beat.usage.cpu_cores = some(rng, None, 0.5, 1.5)
    return some(rng, None, ObservedJob(beat), ObservedJob(beat))


@pytest.mark.parametrize("seed", range(4))
def test_through_any_history_a_snapshot_built_on_the_last_one_equals_one_built_from_nothing(seed: int) -> None:
    rng, builder, at = random.Random(seed), SnapshotBuilder(), AT
    jobs, gpus = dict[str, JobRecord](), dict[str, GpuRecord]()
    observed, nodes = dict[str, ObservedJob](), dict[str, Any]()
    known = SnapshotInputs(NO_PROFILES, NO_OBSERVATIONS)
    for _ in range(250):
        match some(rng, "document", "heard", "gpu", "node", "time", "time", "clock", "order", "inputs"):
            case "clock":  # somebody sets it, or it is put right
                at = Moment(at.now, at.wall + some(rng, -3_600, -0.25, 0.25, 3_600))
            case "order":  # which of two jobs that promise one GPU counts
                jobs = {name: jobs[name] for name in rng.sample(sorted(jobs), len(jobs))}
            case "inputs":
                tables = some(rng, known.profiles, Profiles()), some(rng, known.observations, Observations())
                known = SnapshotInputs(*tables, checkpoints_last=some(rng, True, False), in_pods=some(rng, True, False))
            case "time":
                passes = rng.randrange(1, 100) / 4
                at = Moment(at.now + passes, at.wall + passes)
            case "document":
                name = some(rng, *NAMES)
                jobs = _with(jobs, name, document(rng, name, at))
            case "heard":
                observed = _with(observed, some(rng, *NAMES), heard(rng))
            case "gpu":
                name = some(rng, *GPUS)
                gpus = _with(gpus, name, row(rng, name))
            case "node":
                nodes = _with(nodes, some(rng, *PLACES, "n3"), some(rng, None, *STATES_OF_NODES))
        known = replace(known, nodes=nodes)
        found = builder.build(jobs, gpus, observed, known, at)
        assert found == as_submitted(found, SnapshotBuilder().build(jobs, gpus, observed, known, at))
        assert builder.build(jobs, gpus, observed, known, at) is found


@pytest.mark.parametrize("jump", [-900.0, 86_400.0])
def test_a_jump_of_the_wall_clock_makes_no_job_wait_longer_or_less(jump: float) -> None:
    """So none is aged by it, and no deadline of 15 minutes is over."""
    builder, inputs = SnapshotBuilder(), SnapshotInputs()
    waiting = queued(submit_ts=WALL - 60.0, uid="u")
    (before,) = builder.build({"one": waiting}, {}, {}, inputs, AT).jobs
    later = Moment(AT.now + 5.0, AT.wall + 5.0 + jump)
    told = JobRecord({**waiting.doc, "message": "waits"})
    (after,) = builder.build({"one": told}, {}, {}, inputs, later).jobs
    assert before.submit_s == after.submit_s == AT.now - 60.0
    new = JobRecord({**waiting.doc, "uid": "another", "submit_ts": later.wall - 1.0})
    (found,) = builder.build({"one": new}, {}, {}, inputs, later).jobs
    assert found.submit_s == later.now - 1.0


def _with(rows: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    others = {key: one for key, one in rows.items() if key != name}
    return others if value is None else {**others, name: value}


def test_how_long_a_job_has_trained_is_told_in_steps_of_less_than_a_hundredth_of_it_and_of_a_second_at_least() -> None:
    since = queued(run_ts=WALL)
    for seconds in (0.5, 1.0, 59.5, 600.0, 3_601.0, 90_001.0):
        (found,) = SnapshotBuilder().build({"one": since}, {}, {}, SnapshotInputs(), Moment(50.0, WALL + seconds)).jobs
        assert 0 <= seconds - found.running_s < max(1.0, seconds / 100)


def test_a_job_that_could_not_be_worked_out_is_dropped_once_it_is_gone() -> None:
    builder, broken = SnapshotBuilder(), job(s.SUBMITTED)
    with pytest.raises(AttributeError):
        builder.build({"one": broken}, {}, {"one": None}, SnapshotInputs(), AT)  # type: ignore[dict-item]
    assert builder.build({}, {}, {}, SnapshotInputs(), AT).jobs == ()


def test_what_was_heard_of_jobs_as_they_could_not_all_be_looked_at_is_looked_at_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World.training([1])
    telemetry, jobs = world.c.telemetry, world.c.cache.jobs()
    world.clock.time += 1
    world.machines.advance()
    world.carry()
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(telemetry, "seen", lambda job: 1 / 0)
        telemetry.follow(jobs)
    telemetry.follow(jobs)
    assert telemetry.observed == {"one": telemetry.seen(jobs["one"])}


def test_a_job_that_names_no_owner_belongs_to_the_default_one() -> None:
    records = {
        name: job(s.SUBMITTED, job_id=name, **named) for name, named in (("hers", {"owner": "ada"}), ("his", {}))
    }
    made = SnapshotBuilder().build(records, {}, {}, SnapshotInputs(default_owner="bob"), AT)
    assert {one.id: one.owner for one in made.jobs} == {"hers": "ada", "his": "bob"}
