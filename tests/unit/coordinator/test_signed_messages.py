"""What sidecars tell the coordinator: signed both ways, believed only where it can be true. No socket."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec
import pytest

from coordinator.errors import Rejected, Transient, Unauthorized
from coordinator.model import states as s
from sidecar.protocol import Heartbeat, HeartbeatReply, OperatorRequest, Progress, ShimStatus, launch_key, sign, signed
from tests.fakes.shims import Behaviour
from tests.fakes.world import MASTER, World


@pytest.fixture
def training() -> World:
    """One job that trains on four GPUs and has a long way to go."""
    return World.training([1, 2, 4])


def beat(training: World, **more: Any) -> tuple[str, int, bytes, str]:
    """A signed heartbeat of job one's present launch."""
    job, launch = training.job("one"), training.machines.present("one")
    assert launch is not None
    fields: dict[str, Any] = {
        "job_id": "one", "launch": job.launch, "seq": 10**6, "url": launch.url, "sidecar_pid": launch.pid + 1,
        "shim": ShimStatus(trainer="running", generation=job.generation),
    }  # fmt: skip
    raw = msgspec.json.encode(Heartbeat(**{**fields, **more}))
    return "one", job.launch, raw, sign(launch_key(MASTER, job.uid, job.launch), "POST", "/v1/heartbeats", raw)


def test_a_heartbeat_renews_the_lease_and_its_answer_is_signed(training: World) -> None:
    job = training.job("one")
    body, signature = training.api.messages.heartbeat(*beat(training))
    assert signature == sign(launch_key(MASTER, job.uid, job.launch), "REPLY", "/v1/heartbeats", body)
    reply = msgspec.json.decode(body, type=HeartbeatReply)
    assert (reply.known, reply.lease_s, reply.grace_s) == (True, training.config.lease_s, training.config.grace_s)


def test_nobody_is_told_more_than_that_he_is_not_known(training: World) -> None:
    job, launch, raw, signature = beat(training)
    answers = set()
    for call in [(job, launch, raw, "x"), (job, launch + 1, raw, signature), ("two", launch, raw, signature),
                 (job, launch, raw + b" ", signature)]:  # fmt: skip
        with pytest.raises(Unauthorized) as refusal:
            training.api.messages.heartbeat(*call)
        answers.add(str(refusal.value))
    assert len(answers) == 1


def test_a_heartbeat_for_another_job_than_it_is_signed_for_is_refused(training: World) -> None:
    with pytest.raises(Rejected, match="The heartbeat is for another job or launch than its headers say"):
        training.api.messages.heartbeat(*beat(training, job_id="two"))


def test_a_coordinator_that_does_not_lead_renews_no_lease(training: World) -> None:
    call = beat(training)
    training.c.elector.resign()
    with pytest.raises(Transient):
        training.api.messages.heartbeat(*call)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e300])
def test_a_speed_that_cannot_be_true_is_not_learned_and_breaks_nothing(training: World, seconds: float) -> None:
    rows = training.store.list("speed_profiles")
    for seq in (10**6, 10**6 + 1):
        progress = Progress(iterations=500, seconds_per_iteration=seconds)
        training.api.messages.heartbeat(*beat(training, seq=seq, progress=progress))
    training.c.telemetry.estimator.flush()
    learned = [row for row in training.store.list("speed_profiles") if row not in rows]
    assert all(row["seconds_per_iteration"] != seconds for row in learned)


def test_a_wish_that_was_told_the_sidecar_is_carried_out(training: World) -> None:
    job = training.job("one")
    key = launch_key(MASTER, job.uid, job.launch)
    raw = msgspec.json.encode(OperatorRequest(job_id="one", launch=job.launch, seq=1, gpus=2))
    body, signature = training.api.messages.take_request("one", job.launch, raw, sign(key, "POST", "/v1/wishes", raw))
    assert signature == sign(key, "REPLY", "/v1/wishes", body)
    wish = msgspec.json.decode(body)["decision_id"]
    training.run(lambda w: w.job("one").doc["num_gpus"] == 2)
    assert training.api.history.decision(wish)["num_gpus"] == 2
    with pytest.raises(Unauthorized):
        training.api.messages.take_request("one", job.launch, raw, sign(key, "POST", "/v1/heartbeats", raw))


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b'{"job_id": 3}'])
def test_a_signed_message_that_cannot_be_read_is_refused_in_a_sentence(training: World, raw: bytes) -> None:
    job = training.job("one")
    signature = sign(launch_key(MASTER, job.uid, job.launch), "POST", "/v1/heartbeats", raw)
    with pytest.raises(Rejected, match="The message cannot be read"):
        training.api.messages.heartbeat("one", job.launch, raw, signature)


def test_a_cpu_limit_is_told_with_what_is_left_of_it_and_not_when_it_is_over(training: World) -> None:
    now = training.c.clock.wall()
    for until, told in [(now + 60.0, (0.5, 60.0)), (now - 1.0, (None, 0.0))]:
        training.c.cache.write_job(training.job("one"), {"cpu_limit": 0.5, "limit_ts": until}, "limit")
        body, _ = training.api.messages.heartbeat(*beat(training))
        reply = msgspec.json.decode(body, type=HeartbeatReply)
        assert (reply.limit, pytest.approx(reply.limit_s)) == told


def test_of_wishes_for_jobs_that_have_ended_nothing_is_kept(training: World) -> None:
    def wish(job_id: str) -> None:
        job = training.job(job_id)
        raw = msgspec.json.encode(OperatorRequest(job_id=job_id, launch=job.launch, seq=1, gpus=1))
        key = launch_key(MASTER, job.uid, job.launch)
        training.api.messages.take_request(job_id, job.launch, raw, sign(key, "POST", "/v1/wishes", raw))

    wish("one")
    training.api.operator.cancel("one")
    training.submit("two", [1], Behaviour(iterations=4_000))
    training.run(lambda w: w.states() == {"one": s.CANCELLED, "two": s.RUNNING} and "one" not in w.c.cache.jobs())
    wish("two")
    assert [job_id for job_id, _ in training.api.messages._request_seq] == ["two"]


def test_signatures_are_compared_in_a_time_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda ours, given: bool(compared.append(given)))
    assert not signed(b"key", "POST", "/v1/heartbeats", b"{}", "guessed")
    assert compared == [b"guessed"]
