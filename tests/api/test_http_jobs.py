"""Jobs over HTTP: what a caller gets back, and that bad input is answered with a sentence, never a crash."""

from __future__ import annotations

import logging

import pytest

from coordinator.errors import Conflict, Fatal
from tests.api.caller import GOOD, Caller
from tests.fakes.coordinator_api import TOKEN, Live


def test_a_submitted_job_is_there(call: Caller) -> None:
    made = call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    assert (made.status, made.headers["Location"]) == (201, "/v1/jobs/a")
    assert call("GET", "/v1/jobs/a").doc["state"] == "submitted"
    assert [j["job_id"] for j in call("GET", "/v1/jobs").doc["jobs"]] == ["a"]


def test_ended_jobs_are_listed_only_when_asked_for(call: Caller) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    assert call("DELETE", "/v1/jobs/a").status == 202
    assert call("GET", "/v1/jobs").doc["jobs"] == []
    assert len(call("GET", "/v1/jobs?ended=true").doc["jobs"]) == 1
    assert "ended" in call("GET", "/v1/jobs?ended=perhaps").sentence


def test_a_refused_document_lists_all_its_problems(call: Caller) -> None:
    refused = call("POST", "/v1/jobs", {"job_id": "../x"})
    assert refused.status == 400
    assert len(refused.doc["error"]["problems"]) == 3


def test_the_same_job_twice_is_a_conflict(call: Caller) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    assert call("POST", "/v1/jobs", {**GOOD, "job_id": "a"}).status == 409


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b'{"env": {"A": "1", "A": "2"}}', "A is given twice"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[]", "a list"),
        (b"null", "null"),
        (b'{"lr": NaN}', "lr"),
        (b'{"a": {"b": [0, -Infinity]}}', "a.b[1]"),
        (b'{"a": 1e999}', "a must be a finite"),
        (b'{"a": 9223372036854775808}', "a is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too large"),
        (b'{"a": "\\ud800"}', "a has half"),
        (b'{"\\udfff": 1}', "has half"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested"),
        (b"[" * 60_000, "nested"),
    ],
)
def test_a_bad_body_is_refused_with_a_sentence_that_names_the_place(call: Caller, body: bytes, named: str) -> None:
    refused = call("POST", "/v1/jobs", body)
    assert refused.status == 400
    assert named in refused.sentence


def test_a_body_of_another_type_is_refused(call: Caller) -> None:
    refused = call("POST", "/v1/jobs", b"command=true", Content_Type="application/x-www-form-urlencoded")
    assert refused.status == 415
    assert "application/json" in refused.sentence


@pytest.mark.parametrize("body", [{}, {"gpus": "two"}, {"gpus": True}, {"gpus": 0}, {"gpus": 1.0}, {"gpus": 1, "x": 1}])
def test_a_wish_names_what_is_wrong_with_it(call: Caller, body: object) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    refused = call("POST", "/v1/jobs/a/reshape", body)
    assert refused.status == 400
    assert "gpus" in refused.sentence


def test_a_wish_is_answered_with_a_decision_id_and_can_be_withdrawn(call: Caller, live: Live) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    assert call("POST", "/v1/jobs/a/reshape", {"gpus": 2}).doc == {"decision_id": "wish-a-2"}
    answer = call("POST", "/v1/jobs/a/reshape", {"gpus": None})
    assert (answer.status, live.coordinator.documents["a"]["wanted"]) == (202, None)


def test_logs_are_read_piece_by_piece_without_losing_a_byte(call: Caller, live: Live) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    live.coordinator.outputs["a"] = written = bytes(range(256)) * 2000
    read, offset = b"", 0
    while part := call("GET", f"/v1/jobs/a/logs?offset={offset}"):
        if not part.raw:
            break
        read, offset = read + part.raw, int(part.headers["X-Reshape-Offset"])
    assert read == written


@pytest.mark.parametrize("offset", ["-1", "x", "1_0", "٣", "99999999999999999999", "1e3"])
def test_an_offset_that_is_no_number_is_refused(call: Caller, offset: str) -> None:
    from urllib.parse import quote

    refused = call("GET", f"/v1/jobs/a/logs?offset={quote(offset)}")
    assert refused.status == 400
    assert "offset" in refused.sentence


@pytest.mark.parametrize("path", ["/v1/jobs/none", "/v1/jobs/none/logs", "/v1/jobs/%00", "/v1/jobs/a%2Fb", "/nothing"])
def test_what_is_not_there_is_answered_404(call: Caller, path: str) -> None:
    answer = call("GET", path)
    assert answer.status == 404
    assert answer.sentence


@pytest.mark.parametrize("path", ["/v1/jobs/{}", "/v1/jobs/{}/logs", "/v1/decisions?job={}", "/v1/decisions/{}"])
def test_a_name_of_thousands_of_digits_is_answered_404(call: Caller, path: str) -> None:
    assert call("GET", path.format("9" * 5000)).status == 404


def test_a_path_that_is_not_utf8_is_refused(call: Caller) -> None:
    assert call("GET", "/v1/jobs/%ff").status == 400


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "BREW", "POST"])
def test_a_method_that_is_not_there_is_answered_405_with_those_that_are(call: Caller, method: str) -> None:
    answer = call(method, "/v1/gpus")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.sentence


def test_head_and_options_answer_without_a_body(call: Caller) -> None:
    head = call("HEAD", "/v1/gpus")
    assert (head.status, head.raw) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(call("GET", "/v1/gpus").raw)
    options = call("OPTIONS", "/v1/jobs", Authorization=None)
    assert (options.status, options.headers["Allow"]) == (204, "GET, POST, HEAD, OPTIONS")
    assert call("HEAD", "/v1/events").status == 200


def test_profiles_are_stored_all_or_none(call: Caller, live: Live) -> None:
    rows = [{"job_type": "t", "seconds": 0.1}, {"seconds": 0.2}]
    refused = call("POST", "/v1/profiles/speed_profiles", {"rows": rows})
    assert (refused.status, refused.doc["error"]["problems"]) == (400, ["row 2: job_type is missing"])
    assert call("POST", "/v1/profiles/speed_profiles", {"rows": rows[:1]}).doc == {"imported": 1}
    assert call("GET", "/v1/profiles/speed_profiles").doc == {"rows": rows[:1]}
    assert call("POST", "/v1/profiles/speed_profiles", {"rows": [1]}).doc["error"]["problems"]
    assert call("POST", "/v1/profiles/speed_profiles", {"rows": []}).status == 400
    assert call("GET", "/v1/profiles/jobs").status == 404


def test_profiles_may_be_larger_than_jobs(call: Caller) -> None:
    rows = [{"job_type": "t" * 1000}] * 100
    assert call("POST", "/v1/jobs", {"rows": rows}).status == 413
    assert call("POST", "/v1/profiles/overheads", {"rows": rows}).doc == {"imported": 100}


def test_while_the_store_is_down_callers_are_told_to_come_back(call: Caller, live: Live) -> None:
    live.coordinator.store_down = True
    for method, path in (("GET", "/v1/jobs"), ("GET", "/v1/events"), ("DELETE", "/v1/jobs/a")):
        answer = call(method, path)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert "store" in answer.sentence
    health = call("GET", "/healthz")
    assert (health.status, health.doc["ok"]) == (503, False)


def test_a_lost_race_is_a_conflict(call: Caller, live: Live) -> None:
    live.coordinator.broken = Conflict("Somebody else changed this job; look again.")
    assert call("GET", "/v1/gpus").status == 409


def test_a_mistake_of_ours_is_logged_under_the_id_that_the_caller_gets(
    call: Caller, live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    live.coordinator.broken = KeyError("inner secret")
    answer = call("GET", "/v1/gpus")
    assert answer.status == 500
    assert "inner secret" not in answer.sentence
    assert answer.doc["error"]["id"] in caplog.text
    assert "inner secret" in caplog.text


def test_a_fatal_error_keeps_its_own_sentence(call: Caller, live: Live) -> None:
    live.coordinator.broken = Fatal("The books are newer than this coordinator; update it.")
    assert call("GET", "/v1/gpus").sentence == "The books are newer than this coordinator; update it."


def test_neither_token_nor_query_is_ever_logged(call: Caller, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    call("GET", f"/v1/jobs?token={TOKEN}")
    call("GET", f"/v1/jobs?token={TOKEN}", Authorization=None)
    call("GET", f"/v1/jobs?token={TOKEN}", Authorization=f"Basic {TOKEN}")
    assert "/v1/jobs" in caplog.text
    assert TOKEN not in caplog.text


def test_numbers_that_json_cannot_hold_are_written_as_null(call: Caller, live: Live) -> None:
    live.coordinator.gpu_rows[0]["utilisation"] = float("nan")
    assert call("GET", "/v1/gpus").doc["gpus"][0]["utilisation"] is None


def test_decisions_are_found_by_job_and_by_id(call: Caller, live: Live) -> None:
    live.coordinator.stored_decisions = [{"decision_id": f"{j}-v{i}", "job_id": j} for i, j in enumerate("aba")]
    assert [d["decision_id"] for d in call("GET", "/v1/decisions?job=a").doc["decisions"]] == ["a-v2", "a-v0"]
    assert len(call("GET", "/v1/decisions?limit=1").doc["decisions"]) == 1
    assert call("GET", "/v1/decisions?limit=0").status == 400
    assert call("GET", "/v1/decisions/b-v1").doc["job_id"] == "b"
    assert call("GET", "/v1/decisions/none").status == 404


def test_metrics_and_the_description_need_no_token(call: Caller) -> None:
    assert call("GET", "/metrics", Authorization=None).raw == b"reshape_jobs 0\n"
    assert call("GET", "/v1/openapi.yaml", Authorization=None).raw.startswith(b"openapi: 3")


def test_a_wish_that_would_lose_work_is_refused_unless_it_is_forced(call: Caller, live: Live) -> None:
    call("POST", "/v1/jobs", {**GOOD, "job_id": "a"})
    live.coordinator.documents["a"]["elastic"] = False
    refused = call("POST", "/v1/jobs/a/reshape", {"gpus": 2})
    assert (refused.status, "--force" in refused.sentence) == (409, True)
    odd = call("POST", "/v1/jobs/a/reshape", {"gpus": 2, "force": "yes"})
    assert (odd.status, "force must be true" in odd.sentence) == (400, True)
    assert call("POST", "/v1/jobs/a/reshape", {"gpus": 2, "force": True}).status == 202
