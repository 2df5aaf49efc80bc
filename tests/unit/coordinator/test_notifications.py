"""Webhooks and the coordinator's command are told of ends and missed deadlines, each once; no secret is shown."""

from __future__ import annotations

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters import notice_sender
from coordinator.config import Config, from_environment
from coordinator.errors import Fatal, Transient
from coordinator.events import notifier
from coordinator.model import states as s
from coordinator.model.notices import Recipient
from coordinator.scheduling import intake
from tests.fakes.http_thread import serving_in_thread
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

SECRET = "T0K3N"
HOOK = f"https://chat.example.org/hooks/{SECRET}"


class Told:
    """In place of the sender: what was told, and how often it is in vain."""

    def __init__(self, world: World, *faults: Exception) -> None:
        self.world, self.sent, self.tried, self.faults = world, list[tuple[Recipient, dict[str, Any]]](), 0, [*faults]
        self.listen()

    def listen(self) -> None:
        self.world.c.notifier._send = self

    def __call__(self, recipient: Recipient, about: dict[str, Any]) -> None:
        self.tried += 1
        if self.faults:
            raise self.faults.pop(0)
        self.sent.append((recipient, about))

    def events(self) -> list[str]:
        return [about["event"] for _, about in self.sent]


def with_settings(**settings: Any) -> World:
    return World(config=Config(**{**{name: getattr(SHORT, name) for name in SHORT.__slots__}, **settings}))


def ended(world: World, iterations: int = 20, **more: Any) -> None:
    world.submit("one", [1], Behaviour(iterations=iterations), **more)
    world.run(lambda w: w.at_rest(), 600)


def kinds_of_events(world: World) -> list[str]:
    return [str(event["type"]) for event in world.c.event_log.after(0, 5_000)]


def test_the_webhook_of_a_job_is_told_of_its_end_once_and_of_what_it_was() -> None:
    world = World()
    told = Told(world)
    ended(world, notify=HOOK)
    assert told.sent == [], "only in its own thread"
    for _ in range(3):
        world.c.notifier.tell_due()
    ((recipient, about),) = told.sent
    assert recipient == Recipient("job", HOOK)
    assert about["text"] == "Job one is completed."
    assert (about["event"], about["job_id"], about["state"], about["iters_done"]) == (
        "completed",
        "one",
        "completed",
        20,
    )
    assert about["id"] == f"{world.job('one').uid}-completed"
    assert kinds_of_events(world).count("told") == 1


def test_a_failure_says_why_and_a_cancellation_is_an_end() -> None:
    world = with_settings(notify=HOOK)
    told = Told(world)
    world.submit("one", [1], Behaviour(iterations=20, exits=[1] * 9, exit_note="no such data"))
    world.submit("two", [1], Behaviour(iterations=10**6))
    world.run(lambda w: w.states() == {"one": s.FAILED, "two": s.RUNNING}, 300)
    world.api.operator.cancel("two")
    world.run(lambda w: w.at_rest(), 300)
    world.c.notifier.tell_due()
    said = {about["job_id"]: about["text"] for _, about in told.sent}
    assert said["one"].startswith("Job one has failed: ")
    assert said["two"] == "Job two was cancelled: cancelled by the user."


def test_a_missed_deadline_is_told_while_the_job_runs_and_once() -> None:
    world = World()
    told = Told(world)
    world.submit("one", [1], Behaviour(iterations=60), sla=20, notify=HOOK)
    world.run(lambda w: w.job("one").doc.get("missed_ts") is not None, 100)
    world.c.notifier.tell_due()
    assert told.events() == ["missed"]
    assert told.sent[0][1]["text"] == "Job one has missed its deadline."
    world.run(lambda w: w.at_rest(), 300)
    world.c.notifier.tell_due()
    assert told.events() == ["missed", "completed"]


def test_all_jobs_are_told_of_to_the_coordinators_own_webhook_and_command_besides() -> None:
    world = with_settings(notify="http://lab.example.org/", notify_command="mail lab")
    told = Told(world)
    ended(world, notify=HOOK)
    world.c.notifier.tell_due()
    assert [recipient.whose for recipient, _ in told.sent] == ["job", "all", "command"]


def test_one_that_does_not_answer_is_tried_again_and_then_given_up_and_said() -> None:
    world = World()
    told = Told(world, *[Transient("it answers with 503")] * 99)
    ended(world, notify=HOOK)
    for _ in range(400):
        world.clock.time += 1
        world.c.notifier.tell_due()
    assert told.tried == notifier.TRIES
    (said,) = [event["sentence"] for event in world.c.event_log.after(0, 5_000) if event["type"] == "not told"]
    assert said == (
        f"chat.example.org was not told that one is completed: it answers with 503, after {notifier.TRIES} tries"
    )
    assert world.states() == {"one": s.COMPLETED}


def test_what_will_never_be_taken_is_not_tried_again() -> None:
    world = World()
    told = Told(world, Fatal("it answers with 404"))
    ended(world, notify=HOOK)
    world.pass_time(1)
    world.c.notifier.tell_due()
    assert (told.tried, kinds_of_events(world).count("not told")) == (1, 1)


@pytest.mark.parametrize("tells_first", [False, True])
def test_the_next_coordinator_tells_what_is_left_and_nothing_twice(tells_first: bool) -> None:
    world = World()
    told = Told(world)
    ended(world, notify=HOOK)
    if tells_first:
        world.c.notifier.tell_due()
    for _ in range(2):
        world.boot()
        told.listen()
        world.c.notifier.begin()
        world.c.notifier.tell_due()
    assert told.events() == ["completed"]


def test_a_coordinator_that_ends_before_the_end_is_noted_leaves_it_to_its_successor() -> None:
    world = World()
    told = Told(world)
    world.submit("one", [1], Behaviour(iterations=20), notify=HOOK)
    world.c.notifier._note_outcome = lambda *_: None  # as if it were killed between these two writes
    world.run(lambda w: w.states()["one"] == s.COMPLETED, 300)
    world.boot()
    told.listen()
    world.c.notifier.begin()
    world.c.notifier.tell_due()
    assert told.events() == ["completed"]


def test_jobs_that_had_ended_before_somebody_was_to_be_told_are_not_told_of() -> None:
    world = World()
    ended(world)
    world.config = Config(notify=HOOK)
    world.boot()
    told = Told(world)
    world.c.notifier.begin()
    world.c.notifier.tell_due()
    assert told.sent == []


def test_no_secret_of_a_webhook_is_shown_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = with_settings(notify=f"https://lab.example.org/{SECRET}", notify_command=f"curl {SECRET}")
    Told(world, Transient("it answers with 503"), Fatal("no"))
    ended(world, notify=HOOK)
    world.c.notifier.tell_due()
    shown = [
        world.api.jobs.job("one"),
        world.api.jobs.list_jobs(True),
        world.c.event_log.after(0, 5_000),
        world.api.fleet.policy(),
    ]
    assert world.api.jobs.job("one")["notify"] == "chat.example.org"
    assert SECRET not in json.dumps(shown, default=str)
    assert SECRET not in caplog.text
    assert SECRET not in repr(world.config)
    for odd in (f"ftp://host/{SECRET}", f"https://me:{SECRET}@host/", f"https://host:port/{SECRET}", [SECRET], SECRET):
        (said,) = intake.problems({"job_id": "a", "state": "submitted", "command": "x", "num_gpus": 1, "notify": odd})
        assert said.startswith("notify must be the address of a webhook")
        assert SECRET not in said
        with pytest.raises(ValueError, match=r"RESHAPE_NOTIFY must be the address") as refused:
            from_environment(Config, {"RESHAPE_NOTIFY": str(odd)})
        assert SECRET not in str(refused.value)


def test_a_coordinator_may_forbid_webhooks_of_jobs() -> None:
    world = with_settings(notify_jobs=False)
    world.submit("one", [1], Behaviour(iterations=20), notify=HOOK)
    world.pass_time(5)
    assert world.job("one").doc["problems"] == [intake.NO_NOTICES]


# the sender itself


class Hook(BaseHTTPRequestHandler):
    """Answers with the code that its path names, and keeps what it was told."""

    heard: list[tuple[str, Any]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.heard.append((self.path, json.loads(body)))
        self.send_response(int(self.path[1:4]))
        self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "raised"), [(200, None), (204, None), (302, Fatal), (404, Fatal), (429, Transient), (503, Transient)]
)
def test_a_webhook_gets_json_and_no_redirect_is_followed(code: int, raised: type[Exception] | None) -> None:
    Hook.heard = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server, serving_in_thread(server):
        target = Recipient("job", f"http://127.0.0.1:{server.server_port}/{code}?{SECRET}")
        if raised is None:
            notice_sender.send(target, {"text": "é"})
        else:
            with pytest.raises(raised, match=f"^it answers with {code}$"):
                notice_sender.send(target, {"text": "é"})
    assert Hook.heard == [(f"/{code}?{SECRET}", {"text": "é"})]


def test_a_webhook_that_is_not_there_is_tried_again_and_named_by_its_host() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        port = server.server_port
    with pytest.raises(Transient, match=r"^127\.0\.0\.1 cannot be reached \(Connection refused\)$"):
        notice_sender.send(Recipient("job", f"http://127.0.0.1:{port}/{SECRET}"), {})


def test_the_command_gets_json_on_its_standard_input_and_its_exit_code_counts(tmp_path: Path) -> None:
    copy = tmp_path / "told.json"
    notice_sender.send(Recipient("command", f"cat > {copy}"), {"text": "é"})
    assert json.loads(copy.read_text()) == {"text": "é"}
    with pytest.raises(Transient, match=r"^it ended with exit code 3$"):
        notice_sender.send(Recipient("command", f"{sys.executable} -c 'raise SystemExit(3)'"), {"text": "x" * 200_000})


def test_a_command_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_sender, "COMMAND_S", 0.2)
    with pytest.raises(Transient, match="was killed"):
        notice_sender.send(Recipient("command", "sleep 100 & wait"), {})


def test_its_thread_tells_what_others_have_left_and_ends_when_asked() -> None:
    world = World()
    ended(world, notify=HOOK)
    world.boot()
    told, stopping = Told(world), threading.Event()
    world.c.elector.try_to_lead()
    thread = threading.Thread(target=world.c.notifier.run, args=(stopping, lambda: True))
    thread.start()
    while not told.sent:
        assert thread.is_alive()
    stopping.set()
    thread.join()
    assert told.events() == ["completed"]
