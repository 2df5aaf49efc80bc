"""What somebody found who had not built it: each of these went wrong once on a real or faked cluster.

In one thread on a clock moved by hand; the first on real processes too: `tests/faults/test_second_coordinator.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import GpuRecord
from coordinator.scheduling import loop as loop_module
from coordinator.stores.bootstrap import FoundGpu, register_gpus
from coordinator.stores.elector import TERM, Elector, Holder
from sidecar.protocol import GpuReading, Heartbeat, HeartbeatReply, ShimStatus, StopCall, Wish, launch_key, sign, signed
from tests.e2e.up import wait_for
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import GPU_TYPE, MASTER, NODE, SHORT, FakeClock, World

ELSEWHERE = Holder("another machine", 7, "5")


class Waiting(threading.Event):
    """The coordinator's pause, in which the world's time passes instead of ours."""

    def __init__(self, world: World, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._world, self._meanwhile = world, meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._world.clock.time += timeout or 0.0
        self._meanwhile()
        return False


def succeed(world: World, meanwhile: Callable[[], object] = lambda: None) -> float:
    """A new coordinator process begins as `start` does; the seconds that it waited for the term."""
    world.boot()
    world.c._stopping = Waiting(world, meanwhile)
    began = world.clock.time
    world.c._take_the_term()
    return world.clock.time - began


def training(counts: list[int], behaviour: Behaviour | None = None, **more: Any) -> World:
    """Job `one`, running."""
    world = World()
    world.submit("one", counts, behaviour or Behaviour(iterations=4_000), **more)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    return world


def pass_time(world: World, seconds: float) -> None:
    end = world.clock.time + seconds
    world.run(lambda w: w.clock.time >= end)


def message(world: World, job: str) -> str:
    return str(world.job(job).doc["message"])


# 1 a coordinator that vanished


def test_the_term_of_one_that_vanished_elsewhere_is_waited_out_and_then_acted_upon() -> None:
    world = World()
    assert Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE).try_to_lead()
    waited = succeed(world)
    assert SHORT.term_s * (1 + CLOCK_DRIFT) < waited < SHORT.term_s * (1 + CLOCK_DRIFT) + 1
    world.submit("one", [4], Behaviour(iterations=5))
    world.run(lambda w: w.states() == {"one": s.COMPLETED}, 60)


def test_a_living_one_elsewhere_is_waited_for_no_longer_and_named_in_the_refusal() -> None:
    world = World()
    other = Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE)
    assert other.try_to_lead()
    began = world.clock.time
    with pytest.raises(Rejected) as refusal:
        succeed(world, other.try_to_lead)
    assert str(refusal.value) == "Another coordinator (process 7) acts on this store; stop it first."
    assert world.clock.time - began < 2 * SHORT.term_s
    assert (other.leads, world.c.elector.leads) == (True, False)


def test_leases_that_another_one_renewed_until_its_end_are_waited_out_from_there() -> None:
    """While the successor waited, its predecessor may still have answered heartbeats."""
    world = training([4])
    world.machines.of("one").partitioned = True
    other = Elector(world.users, world.clock, SHORT.term_s, ELSEWHERE)
    world.c.elector.resign()
    other.try_to_lead()
    succeed(world)
    leads_since = world.clock.time
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert world.clock.time - leads_since > SHORT.wait_out_s


def test_a_holder_that_has_ended_is_dead_at_once_though_nobody_has_collected_it() -> None:
    store, clock = MemoryStore(), FakeClock()
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert Elector(store, clock, 15.0, Holder.of_process(process.pid)).try_to_lead()
        mine = Elector(store, clock, 15.0, Holder.of_process(os.getpid()))
        assert not mine.try_to_lead()
        process.kill()
        stat = Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", what="it is a zombie")
        assert mine.try_to_lead()
    finally:
        process.kill()
        process.communicate()


# 2 and 3 launches of jobs that are over


def test_a_job_cancelled_while_it_comes_up_leaves_no_launch_however_long_the_coordinator_is_up() -> None:
    world = World()
    pass_time(world, 3 * SHORT.wait_out_s)
    world.submit("one", [4], Behaviour(launch_s=10))
    world.run(lambda w: ("one", 1) in w.machines.launches, 10)
    world.users.update("jobs", "one", {}, {"cancel": True})
    world.run(lambda w: w.at_rest(), 60)
    launch = world.machines.launches["one", 1]
    assert (launch.removal_asked, launch.alive) == (True, False)
    assert world.states() == {"one": s.CANCELLED}
    pass_time(world, 30)
    assert list(world.machines.launches) == [("one", 1)]
    assert {world.gpu(f"gpu-{i}").state for i in range(4)} == {s.IDLE}


def beat(world: World, **more: Any) -> tuple[str, int, bytes, str]:
    """A signed heartbeat of job one's present launch."""
    job = world.job("one")
    fields: dict[str, Any] = {
        "job_id": "one", "launch": job.launch, "seq": 10**6, "url": f"one/{job.launch}", "sidecar_pid": 3,
        "shim": ShimStatus(trainer="running", generation=job.generation),
    }  # fmt: skip
    raw = msgspec.json.encode(Heartbeat(**{**fields, **more}))
    return "one", job.launch, raw, sign(launch_key(MASTER, job.uid, job.launch), "POST", "/v1/heartbeats", raw)


def test_what_reports_for_a_closed_job_is_told_to_end_and_not_believed() -> None:
    world = training([4], Behaviour(iterations=20))
    world.run(lambda w: w.at_rest(), 120)
    job = world.job("one")
    body, signature = world.api.heartbeat(*beat(world, gpus=[GpuReading("gpu-0", utilisation=1.0)]))
    assert signed(launch_key(MASTER, job.uid, job.launch), "REPLY", "/v1/heartbeats", body, signature)
    assert msgspec.json.decode(body, type=HeartbeatReply).known is False
    assert world.c.telemetry.reports.all() == []


# 6 an end that is none


def test_a_job_of_unknown_length_that_saves_and_ends_with_0_when_asked_goes_on_with_its_new_shape() -> None:
    behaviour = Behaviour(iterations=4_000, says_total=False, stop_code=0)
    world = training([1, 2, 4], behaviour, iterations=None)
    before = len(world.job("one").gpu_ids)
    wanted = {4: 2, 2: 1, 1: 2}[before]
    world.api.wish("one", wanted, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == wanted and w.states()["one"] == s.RUNNING, 60)
    (launch,) = world.machines.launches.values()
    assert (len(launch.status.gpu_ids), launch.status.trainer) == (wanted, "running")
    assert launch.base > 0, "from its checkpoint"


def test_unasked_the_same_end_completes_it() -> None:
    world = training([1, 2, 4], Behaviour(iterations=4_000, says_total=False, stop_code=0), iterations=None)
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest(), 60)
    assert world.states() == {"one": s.COMPLETED}


# 7 GPUs that are gone


def register(world: World, number: int) -> None:
    """As a start of the coordinator does; it begins with nothing in memory."""
    register_gpus(world.users, NODE, [FoundGpu(f"gpu-{i}", GPU_TYPE, None, True) for i in range(number)])
    world.boot()


def gpus(world: World) -> list[GpuRecord]:
    return [GpuRecord(doc) for doc in world.users.list("gpus")]


def gpu_states(world: World) -> list[tuple[str, str | None]]:
    return [(gpu.state, gpu.job) for gpu in gpus(world)]


def test_gpus_that_are_gone_stay_with_their_job_and_then_serve_nobody_until_they_are_back() -> None:
    world = training([4])
    register(world, 2)
    pass_time(world, 20)
    assert gpu_states(world) == [(s.IN_USE, "one")] * 2 + [(s.FAULTY, "one")] * 2
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest(), 60)
    assert gpu_states(world) == [(s.IDLE, None)] * 2 + [(s.FAULTY, None)] * 2
    world.submit("two", [1, 2, 4], Behaviour(iterations=100))
    world.submit("three", [3, 4], Behaviour(iterations=20))
    world.run(lambda w: w.states()["two"] == s.COMPLETED and w.job("two").doc["closed"], 200)
    assert world.states()["three"] == s.SUBMITTED
    assert {launch.doc["num_gpus"] for launch in world.machines.launches.values() if launch.job == "two"} <= {1, 2}
    register(world, 4)
    assert gpu_states(world) == [(s.IDLE, None)] * 4
    world.run(lambda w: w.states()["three"] == s.COMPLETED, 100)


def test_a_gpu_that_is_back_while_its_job_still_has_it_is_in_use_again() -> None:
    world = training([4])
    register(world, 2)
    pass_time(world, 5)
    register(world, 4)
    assert gpu_states(world) == [(s.IN_USE, "one")] * 4


def promised() -> World:
    """Job `one` trains on all four GPUs, and `two`, which is coming up, will get the last two."""
    world = training([1, 2, 4])
    world.submit("two", [2], Behaviour(launch_s=10, iterations=100))
    world.run(lambda w: {g.state for g in gpus(w)[2:]} == {s.RESERVED}, 60)
    return world


def test_a_gpu_that_was_only_promised_when_it_went_is_neither_used_nor_freed() -> None:
    world = promised()
    register(world, 2)
    for _ in range(200):
        world.tick()
        assert [gpu.state for gpu in gpus(world)[2:]] == [s.FAULTY] * 2, world.story()
        users = {world.machines.owners[g].job for g in ("gpu-2", "gpu-3") if g in world.machines.owners}
        assert "two" not in users, world.story()
    assert world.machines.violations == []


def test_a_promised_gpu_that_went_and_came_back_is_promised_still() -> None:
    world = promised()
    before = [(g.state, g.job, g.held_by) for g in gpus(world)]
    register(world, 2)
    register(world, 4)
    assert [(g.state, g.job, g.held_by) for g in gpus(world)] == before
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 200)


# 8 many that wait


def writes_but_terms(world: World) -> int:
    term = world.users.get("terms", TERM)
    return world.store.writes - (term["version"] if term else 0)


def test_many_that_wait_cost_no_decision_and_no_write_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world, numbers = training([4], Behaviour(iterations=10**6)), count()
    turned = loop_module.decide

    def counting(*given: Any) -> Any:
        """As decided, but with a number in each reason that is another one each time."""
        found = turned(*given)
        return [
            Hold(d.job, Explanation(d.explanation.algorithm, f"{d.explanation.sentence} {next(numbers)}.5 s to go"))
            if isinstance(d, Hold) else d for d in found
        ]  # fmt: skip

    monkeypatch.setattr(loop_module, "decide", counting)
    for n in range(20):
        world.submit(f"w{n:02}", [4], Behaviour())
    world.tick()
    stored, writes = len(world.users.list("decisions")), writes_but_terms(world)
    for _ in range(100):
        world.tick()
    holds = [d for d in world.users.list("decisions") if d["kind"] == "hold"]
    assert sorted(d["job_id"] for d in holds) == [f"w{n:02}" for n in range(20)]
    assert next(numbers) > 20 * 100
    assert len(world.users.list("decisions")) == stored
    assert writes_but_terms(world) == writes


def test_a_reason_that_really_changed_is_told_though_not_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world, words = training([4], Behaviour(iterations=10**6)), iter("abcdefghij" * 40)
    monkeypatch.setattr(
        loop_module, "decide", lambda *given: [Hold("two", Explanation("elastic.incoming", f"because {next(words)}"))]
        if "two" in {j.id for j in given[0].jobs} else [],
    )  # fmt: skip
    world.submit("two", [4], Behaviour())
    world.tick()
    told = []
    for _ in range(100):
        world.tick()
        told.append(message(world, "two"))
    changes = sum(a != b for a, b in pairwise(told))
    assert 8 <= changes <= 10, told
    assert [d["sentence"] for d in world.users.list("decisions") if d["kind"] == "hold"] == [told[-1]]


def test_why_each_wish_must_wait_is_told_at_once() -> None:
    world = training([1, 2, 3, 4], Behaviour(iterations=10**6))
    world.submit("two", [2], Behaviour(iterations=10**6))
    world.run(lambda w: w.states() == {"one": s.RUNNING, "two": s.RUNNING})
    for wanted in (4, 3):
        wish = world.api.wish("one", wanted, None)["decision_id"]
        world.tick()
        assert f"although {wanted} were wished" in message(world, "one")
        assert world.api.decision(wish)["sentence"] == message(world, "one")


# 10 documents that bring what only we write

FORGED: dict[str, Any] = {
    "retry_ts": 1e18, "checkpoint": {"name": "../../theirs", "step": 9, "generation": 9}, "iters_done": 10**9,
    "pinned": "another", "migrated_ts": 1.0, "up": 1, "down": 1,
    "start_ts": 1.0, "finish_ts": 1.0, "reshape_cost_s": 1e9, "retries": 99,
}  # fmt: skip


def test_a_document_that_brings_fields_of_ours_starts_as_if_it_had_not_and_changes_no_other_decision() -> None:
    world = training([1, 2])
    theirs = {d["_id"]: d for d in world.users.list("decisions")}
    (decision,) = theirs
    world.submit("two", [1, 2], Behaviour(iterations=20), wanted=1, wish_id=decision, **FORGED)
    world.tick()
    two = world.job("two")
    assert (two.wanted, two.retry_ts, two.retries, two.doc["wish_id"], two.doc["checkpoint"]) == (
        None,
        0,
        0,
        None,
        None,
    )
    world.run(lambda w: w.states()["two"] == s.RUNNING, 30)
    assert (world.job("two").node, len(world.job("two").gpu_ids)) == (NODE, 2)
    assert world.users.get("decisions", decision) == theirs[decision]
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 60)
    assert world.job("two").iterations_done == 20
    assert world.job("two").doc["finish_ts"] > 1.0


# 12 and 13 what is old


def test_an_answer_that_a_heartbeat_overtook_is_not_taken_for_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training([1, 2, 4])
    real = world.machines.stop

    def late(url: str, key: bytes, job: str, launch: int, call: StopCall) -> ShimStatus:
        status = real(url, key, job, launch, call)
        world.clock.time += 3
        world.machines.advance()
        world.carry()
        return status

    monkeypatch.setattr(world.machines, "stop", late)
    world.api.wish("one", 2, None)
    world.turn()
    assert world.machines.executed["one:2:start"] == 1, "in the same turn: the end was known"
    world.run(lambda w: w.states()["one"] == s.RUNNING and len(w.job("one").gpu_ids) == 2, 30)


def test_a_captured_wish_is_fulfilled_once() -> None:
    world = training([1, 2, 4])
    job = world.job("one")
    raw = msgspec.json.encode(Wish(job_id="one", launch=job.launch, seq=5, gpus=2))
    captured = "one", job.launch, raw, sign(launch_key(MASTER, job.uid, job.launch), "POST", "/v1/wishes", raw)
    world.api.wished(*captured)
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING, 60)
    world.api.wish("one", 1, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == 1 and w.states()["one"] == s.RUNNING, 60)
    with pytest.raises(Rejected) as refusal:
        world.api.wished(*captured)
    assert refusal.value.status == 409
    pass_time(world, 20)
    assert (len(world.job("one").gpu_ids), world.job("one").wanted) == (1, 1)


def test_a_sidecar_is_not_believed_any_more_once_its_successor_has_reported() -> None:
    world = training([4])
    world.api.heartbeat(*beat(world, sidecar_pid=40))
    newest = world.c.telemetry.reports.of(world.job("one"))
    exited = ShimStatus(trainer="exited", exit_code=0, generation=world.job("one").generation)
    body, _ = world.api.heartbeat(*beat(world, seq=10**6 - 1, sidecar_pid=30, shim=exited))
    assert world.c.telemetry.reports.of(world.job("one")) is newest
    assert msgspec.json.decode(body, type=HeartbeatReply).known
    world.settle()
    assert world.states() == {"one": s.RUNNING}
