"""The edge's part of P9 (`reliability.md` 4; 7, rows 19 and 20): only the right caller gets anything, wrong ones learn
nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from coordinator.http.app import OPENAPI
from coordinator.http.auth import Failures, is_bearer
from sidecar.protocol import (
    HEADER_JOB,
    HEADER_LAUNCH,
    HEADER_SIGNATURE,
    Heartbeat,
    OperatorRequest,
    ShimStatus,
    sign,
    signed,
)
from tests.api.caller import GOOD, Caller
from tests.fakes.coordinator_api import KEY, TOKEN, Live
from tests.patience import patient

PATHS = yaml.safe_load(OPENAPI)["paths"]
OPERATIONS = [(m.upper(), p, d) for p, item in PATHS.items() for m, d in item.items() if m in ("get", "post", "delete")]
CLOSED = [
    (
        m,
        p.format(
            job_id="a",
            decision_id="d",
            table="overheads",
            node="n",
            slaml="slaml.a.b",
            token_id="t",
            reservation_id="r",
        ),
    )
    for m, p, d in OPERATIONS
    if "security" not in d
]
OPEN = {p for m, p, d in OPERATIONS if d.get("security") == []}
SIGNED = {p for m, p, d in OPERATIONS if d.get("security") == [{"signature": []}]}
WRONG = [
    None,
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Bearer {TOKEN}x",
    f"Basic {TOKEN}",
    TOKEN,
    f"Bearer {TOKEN} x",
    "Bearer é",
]


def beat(**changes: Any) -> bytes:
    fields = {"job_id": "a", "launch": 1, "seq": 7, "url": "http://127.0.0.1:1", "sidecar_pid": 2, "shim": ShimStatus()}
    return msgspec.json.encode(Heartbeat(**{**fields, **changes}))


def headers(path: str, body: bytes, key: bytes = KEY) -> dict[str, str]:
    return {HEADER_JOB: "a", HEADER_LAUNCH: "1", HEADER_SIGNATURE: sign(key, "POST", path, body)}


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_every_closed_address_wants_the_token_first(call: Caller, live: Live, method: str, path: str) -> None:
    live.coordinator.broken = AssertionError("an unknown caller reached the books")
    assert call(method, path, Authorization=None).status == 401
    assert call(method, f"{path}?token={TOKEN}&access_token={TOKEN}", Authorization=None).status == 401
    assert call(method, path, b"\xff" * 100_000, Authorization="Bearer wrong").status == 401


def test_who_may_what() -> None:
    """Everybody: what tells of health, and what Volcano's plugin asks, which can send no token."""
    probes = {"/healthz", "/readyz", "/livez", "/metrics", "/v1/openapi.yaml"}
    assert probes | {"/v1/extender/{verb}"} == OPEN
    assert {"/v1/heartbeats", "/v1/wishes", "/v1/nodes/{node}"} == SIGNED
    assert len(CLOSED) + len(OPEN) + len(SIGNED) == len(OPERATIONS)


@pytest.mark.parametrize("path", sorted(SIGNED))
def test_the_token_opens_nothing_that_wants_a_signature(call: Caller, path: str) -> None:
    named = path.format(node="n")
    call.headers |= {HEADER_JOB: "a", HEADER_LAUNCH: "1", HEADER_SIGNATURE: "0" * 64}
    assert call("POST", named, b"{}").status == 401


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_no_signature_opens_what_wants_the_token(call: Caller, method: str, path: str) -> None:
    call.headers = {HEADER_JOB: "a", HEADER_LAUNCH: "1", HEADER_SIGNATURE: sign(KEY, method, path, b"")}
    assert call(method, path).status == 401


def test_missing_and_wrong_tokens_get_the_same_answer(call: Caller) -> None:
    answers = [call("GET", "/v1/jobs", Authorization=wrong and wrong.encode().decode("latin-1")) for wrong in WRONG]
    assert {a.status for a in answers} == {401}
    assert len({a.sentence for a in answers}) == 1
    assert {a.headers["WWW-Authenticate"] for a in answers} == {"Bearer"}


def test_an_empty_token_opens_nothing() -> None:
    assert not is_bearer("Bearer ", "")
    assert is_bearer("bearer abc", "abc")


def test_who_guesses_is_slowed_and_the_owner_at_the_same_address_is_not(call: Caller) -> None:
    answers = [call("GET", "/v1/jobs", Authorization=f"Bearer {i}").status for i in range(25)]
    assert answers == [401] * 20 + [429] * 5
    slowed = call("GET", "/v1/jobs", Authorization="Bearer 26")
    assert slowed.headers["Retry-After"] == "10"
    assert call("GET", "/v1/jobs").status == 200


def test_failures_are_forgotten_after_a_window_and_their_memory_is_bounded() -> None:
    failures = Failures(limit=2, window_s=10.0, peers=3)
    assert [failures.add("a", now) for now in (0.0, 1.0, 2.0, 9.9, 10.0, 11.0)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    for i in range(100):
        failures.add(f"peer {i}", 12.0)
    assert len(failures._seen) == 3


@pytest.fixture(params=[False, True], ids=["not in memory", "in memory"])
def beats(request: pytest.FixtureRequest, call: Caller, live: Live) -> Caller:
    """Heartbeats of a job that is in memory, which need no handler, and of one that is not."""
    live.coordinator.in_memory = request.param
    return call


def test_a_signed_heartbeat_gets_a_signed_reply_without_any_token(beats: Caller) -> None:
    body = beat()
    beats.headers = headers("/v1/heartbeats", body)
    answer = beats("POST", "/v1/heartbeats", body)
    assert (answer.status, answer.doc["seq"]) == (200, 7)
    assert signed(KEY, "REPLY", "/v1/heartbeats", answer.raw, answer.headers[HEADER_SIGNATURE])


def test_a_heartbeat_of_a_job_in_memory_is_answered_with_the_headers_of_any_other(call: Caller, live: Live) -> None:
    call.headers, seen = headers("/v1/heartbeats", beat()), list[dict[str, str]]()
    for live.coordinator.in_memory in (False, True):
        seen.append(dict(call("POST", "/v1/heartbeats", beat()).headers.items()))
        assert seen[-1].pop("Date").endswith("GMT")
    assert seen[0] == seen[1]


def test_a_mistake_of_ours_is_explained_to_a_sidecar_too(beats: Caller, live: Live) -> None:
    def mistaken(*_: object) -> tuple[bytes, str]:
        raise KeyError("inner secret")

    live.coordinator.heartbeat = mistaken  # type: ignore[method-assign]
    beats.headers = headers("/v1/heartbeats", beat())
    answer = beats("POST", "/v1/heartbeats", beat())
    assert (answer.status, b"secret" in answer.raw) == (500, False)
    assert answer.doc["error"]["id"]


def test_a_captured_message_is_worth_nothing_elsewhere(beats: Caller) -> None:
    body = beat()
    beats.headers = headers("/v1/heartbeats", body)
    altered = beats("POST", "/v1/heartbeats", body.replace(b'"seq":7', b'"seq":8'))
    other_path = beats("POST", "/v1/wishes", body)
    beats.headers = headers("/v1/heartbeats", body, b"the key of another job")
    other_key = beats("POST", "/v1/heartbeats", body)
    assert {a.status for a in (altered, other_path, other_key)} == {401}
    assert len({a.sentence for a in (altered, other_path, other_key)}) == 1


BROKEN = [(name, value) for name in (HEADER_LAUNCH, HEADER_SIGNATURE) for value in (None, "", "-1", "x" * 5000)]


@pytest.mark.parametrize(("name", "value"), [*BROKEN, (HEADER_JOB, None), (HEADER_JOB, "")])
def test_a_message_with_a_broken_header_is_unauthorized(beats: Caller, name: str, value: str | None) -> None:
    body = beat()
    beats.headers = {k: v for k, v in {**headers("/v1/heartbeats", body), name: value}.items() if v is not None}
    assert beats("POST", "/v1/heartbeats", body).status == 401


def test_the_token_does_not_stand_in_for_a_signature(beats: Caller) -> None:
    assert beats("POST", "/v1/heartbeats", beat()).status == 401


def test_a_signed_message_that_makes_no_sense_is_refused(beats: Caller) -> None:
    for body in (b"", b"[]", b"{", b'{"job_id": 1}'):
        beats.headers = headers("/v1/heartbeats", body)
        assert beats("POST", "/v1/heartbeats", body).status == 400


def test_a_forwarded_wish_is_answered_like_an_operators_own(call: Caller, live: Live) -> None:
    live.coordinator.submit({**GOOD, "job_id": "a"})
    body = msgspec.json.encode(OperatorRequest(job_id="a", launch=1, seq=1, gpus=2))
    call.headers = headers("/v1/wishes", body)
    answer = call("POST", "/v1/wishes", body)
    assert (answer.status, answer.doc) == (202, {"decision_id": "wish-a-2"})
    assert signed(KEY, "REPLY", "/v1/wishes", answer.raw, answer.headers[HEADER_SIGNATURE])


def test_heartbeats_are_answered_while_every_other_thread_waits_for_the_store(call: Caller, live: Live) -> None:
    import threading

    over, waiting = threading.Event(), threading.Barrier(9)

    def slow() -> list[dict[str, Any]]:
        waiting.wait(patient(20))
        over.wait(patient(20))
        return []

    live.coordinator.gpus = slow  # type: ignore[method-assign]
    others = [threading.Thread(target=call, args=("GET", "/v1/gpus")) for _ in range(8)]
    for other in others:
        other.start()
    try:
        waiting.wait(patient(20))
        body = beat()
        assert Caller(live, headers("/v1/heartbeats", body))("POST", "/v1/heartbeats", body).status == 200
        assert call("GET", "/healthz").status == 200
    finally:
        over.set()
        for other in others:
            other.join()
