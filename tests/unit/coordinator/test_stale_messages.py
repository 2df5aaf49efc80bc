"""Messages that are out of date, repeated or of a job that has ended are not believed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.errors import Rejected
from coordinator.model import states as s
from sidecar.protocol import (
    GpuReading,
    Heartbeat,
    HeartbeatReply,
    OperatorRequest,
    ShimStatus,
    StopCall,
    launch_key,
    sign,
    signed,
)
from tests.fakes.shims import Behaviour
from tests.fakes.world import MASTER, World


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
    world = World.training([4], Behaviour(iterations=20))
    world.run(lambda w: w.at_rest(), 120)
    job = world.job("one")
    body, signature = world.api.messages.heartbeat(*beat(world, gpus=[GpuReading("gpu-0", utilisation=1.0)]))
    assert signed(launch_key(MASTER, job.uid, job.launch), "REPLY", "/v1/heartbeats", body, signature)
    assert msgspec.json.decode(body, type=HeartbeatReply).known is False
    assert world.c.telemetry.reports.all() == []


def test_an_answer_that_a_heartbeat_overtook_is_not_taken_for_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.training([1, 2, 4])
    real = world.machines.stop

    def late(url: str, key: bytes, job: str, launch: int, call: StopCall) -> ShimStatus:
        status = real(url, key, job, launch, call)
        world.clock.time += 3
        world.machines.advance()
        world.carry()
        return status

    monkeypatch.setattr(world.machines, "stop", late)
    world.api.operator.request("one", 2, None)
    world.turn()
    assert world.machines.executed["one:2:start"] == 1, "in the same turn: the end was known"
    world.run(lambda w: w.states()["one"] == s.RUNNING and len(w.job("one").gpu_ids) == 2, 30)


def test_a_captured_wish_is_fulfilled_once() -> None:
    world = World.training([1, 2, 4])
    job = world.job("one")
    raw = msgspec.json.encode(OperatorRequest(job_id="one", launch=job.launch, seq=5, gpus=2))
    captured = "one", job.launch, raw, sign(launch_key(MASTER, job.uid, job.launch), "POST", "/v1/wishes", raw)
    world.api.messages.take_request(*captured)
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING, 60)
    world.api.operator.request("one", 1, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == 1 and w.states()["one"] == s.RUNNING, 60)
    with pytest.raises(Rejected) as refusal:
        world.api.messages.take_request(*captured)
    assert refusal.value.status == 409
    world.pass_time(20)
    assert (len(world.job("one").gpu_ids), world.job("one").wanted) == (1, 1)


def test_a_sidecar_is_not_believed_any_more_once_its_successor_has_reported() -> None:
    world = World.training([4])
    world.api.messages.heartbeat(*beat(world, sidecar_pid=40))
    newest = world.c.telemetry.reports.newest_of_job(world.job("one"))
    exited = ShimStatus(trainer="exited", exit_code=0, generation=world.job("one").generation)
    body, _ = world.api.messages.heartbeat(*beat(world, seq=10**6 - 1, sidecar_pid=30, shim=exited))
    assert world.c.telemetry.reports.newest_of_job(world.job("one")) is newest
    assert msgspec.json.decode(body, type=HeartbeatReply).known
    world.settle()
    assert world.states() == {"one": s.RUNNING}
