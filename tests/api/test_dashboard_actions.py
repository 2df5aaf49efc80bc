"""Actions of the dashboard do what the API does, and only for a form of one of its pages."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest

from coordinator.model import states as s
from tests.api.browser import Browser
from tests.fakes.coordinator_api import serve
from tests.fakes.world import World


@pytest.fixture
def world() -> World:
    return World.training([1, 2, 4])


@pytest.fixture
def browser(world: World) -> Iterator[Browser]:
    with serve(world.api) as live:
        yield Browser.logged_in(live)


def test_a_job_is_reshaped_by_a_form_and_given_back_to_the_scheduler(browser: Browser, world: World) -> None:
    answer = browser.post("/jobs/one/reshape", {"csrf": browser.proof, "gpus": "2"})
    assert (answer.status, answer.headers["Location"]) == (303, "/jobs/one")
    world.run(lambda w: len(w.job("one").gpu_ids) == 2)
    assert '<option value="2" selected>' in browser.get("/jobs/one").raw.decode()
    assert browser.post("/jobs/one/reshape", {"csrf": browser.proof, "gpus": ""}).status == 303
    assert world.job("one").wanted is None


def test_a_job_is_cancelled_by_a_form_and_then_has_no_actions(browser: Browser, world: World) -> None:
    assert browser.post("/jobs/one/cancel", {"csrf": browser.proof}).status == 303
    world.run(lambda w: w.states()["one"] == s.CANCELLED)
    page = browser.get("/jobs/one").raw.decode().partition("<main")[2]
    assert not any(f"/jobs/one/{action}" in page for action in ("cancel", "reshape", "suspend"))


def test_a_job_is_suspended_and_resumed_by_forms() -> None:
    world = World.training([1, 2, 4], checkpoint_claim="saved")
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        assert browser.post("/jobs/one/suspend", {"csrf": browser.proof}).status == 303
        world.run(lambda w: w.states()["one"] == s.SUBMITTED)
        assert ">Resume<" in browser.get("/jobs/one").raw.decode()
        assert browser.post("/jobs/one/resume", {"csrf": browser.proof}).status == 303
        world.run(lambda w: w.states()["one"] == s.RUNNING)
        assert ">Suspend<" in browser.get("/jobs/one").raw.decode()


def test_a_job_that_has_ended_is_run_again_by_a_form(browser: Browser, world: World) -> None:
    world.api.operator.cancel("one")
    world.run(lambda w: bool(w.users.get("jobs", "one")["closed"]))
    assert "Run again" in browser.get("/jobs/one").raw.decode()
    answer = browser.post("/jobs/one/rerun", {"csrf": browser.proof})
    assert (answer.status, answer.headers["Location"]) == (303, "/jobs/one")
    world.run(lambda w: w.states()["one"] == s.RUNNING)


def test_a_job_is_submitted_by_a_form(browser: Browser, world: World) -> None:
    fields = {"command": "python train.py --name 'a b'", "gpus": "1, 2", "name": "new", "deadline": "2h", "code": "/p"}
    answer = browser.post("/submit", {"csrf": browser.proof, **fields, "image": ""})
    assert (answer.status, answer.headers["Location"]) == (303, "/jobs/new")
    doc = world.users.get("jobs", "new")
    assert doc["command"] == ["python", "train.py", "--name", "a b"]
    assert (doc["optional_num_gpus"], doc["sla"], doc["code"]) == ([1, 2], "2h", "/p")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": "", "gpus": "1"}, "Write the command that trains"),
        ({"command": "a 'b", "gpus": "1"}, "The command cannot be read: no closing quotation"),
        ({"command": "a", "gpus": "many"}, "are no counts"),
        ({"command": "a", "gpus": "1", "deadline": "soon"}, "sla"),
        ({"command": "a", "gpus": "1", "name": "one"}, "job_id 'one' belongs to another job"),
    ],
)
def test_a_form_that_is_no_job_says_why_and_keeps_what_was_written(
    browser: Browser, world: World, fields: dict[str, str], said: str
) -> None:
    answer = browser.post("/submit", {"csrf": browser.proof, **fields})
    page = answer.raw.decode()
    assert answer.status in (400, 409)
    assert said in html.unescape(page)
    assert f'value="{html.escape(fields["gpus"])}"' in page
    assert len(world.users.list("jobs")) == 1


def test_a_command_for_a_shell_is_given_to_one(browser: Browser, world: World) -> None:
    browser.post("/submit", {"csrf": browser.proof, "command": "cd x && python a.py", "gpus": "0", "name": "new"})
    assert world.users.get("jobs", "new")["command"] == ["sh", "-c", "cd x && python a.py"]


def test_a_node_is_drained_and_given_back_by_a_form(browser: Browser, world: World) -> None:
    assert "<option>n1</option>" in browser.get("/").raw.decode()
    assert browser.post("/drain", {"csrf": browser.proof, "node": "n1", "drained": "yes"}).status == 303
    world.tick()
    assert "<em>drained</em>" in browser.get("/").raw.decode()
    assert browser.post("/drain", {"csrf": browser.proof, "node": "n1", "drained": "no"}).status == 303
    world.tick()
    assert "<em>drained</em>" not in browser.get("/").raw.decode()
    assert browser.post("/drain", {"csrf": browser.proof, "node": "none", "drained": "yes"}).status == 404
    assert browser.post("/drain", {"node": "n1", "drained": "yes"}).status == 403


@pytest.mark.parametrize("action", ["cancel", "reshape", "suspend", "rerun"])
def test_an_action_without_the_pages_own_proof_changes_nothing(browser: Browser, world: World, action: str) -> None:
    before = dict(world.job("one").doc)
    for fields in ({"gpus": "2"}, {"gpus": "2", "csrf": "x"}):
        assert browser.post(f"/jobs/one/{action}", fields).status == 403
    other = {"gpus": "2", "csrf": browser.proof}
    assert browser.post(f"/jobs/one/{action}", other, Origin="http://127.0.0.1:1").status == 403
    assert browser.get(f"/jobs/one/{action}").status == 405
    assert Browser(browser.live).post(f"/jobs/one/{action}", other).status == 401
    assert world.job("one").doc == before


def test_nothing_is_submitted_without_the_pages_own_proof(browser: Browser, world: World) -> None:
    job = {"command": "sh", "gpus": "1"}
    assert browser.post("/submit", job).status == 403
    assert browser.post("/submit", {**job, "csrf": "x"}).status == 403
    assert browser.post("/submit", {**job, "csrf": browser.proof}, Origin="http://127.0.0.1:1").status == 403
    assert Browser(browser.live).post("/submit", {**job, "csrf": browser.proof}).status == 401
    assert len(world.users.list("jobs")) == 1


def test_an_output_is_for_those_who_are_logged_in(browser: Browser) -> None:
    assert Browser(browser.live).get("/jobs/one/log").status == 401


def test_what_cannot_be_done_is_told_in_a_sentence(browser: Browser) -> None:
    proof = browser.proof
    refused = browser.post("/jobs/one/reshape", {"csrf": proof, "gpus": "3"})
    assert refused.status == 400
    assert "Job one can run on 1 or 2 or 4 GPUs, not on 3." in refused.raw.decode()
    assert browser.post("/jobs/one/reshape", {"csrf": proof, "gpus": "many"}).status == 400
    assert browser.post("/jobs/none/cancel", {"csrf": proof}).status == 404
