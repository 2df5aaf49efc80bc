"""Slaml objects become rows, written once and deleted only by the API server's word; their status is written back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.stores.sqlite import SqliteStore
from launcher.cluster.controllers.slaml import SlamlSync
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.registry import ImageCommands
from tests.fakes.kube import Kube
from tests.unit.launcher.test_volcano_job_controller import Time

Doc = dict[str, Any]

SPEC = {"isSla": True, "slaTarget": 50, "tasks": [{"taskName": "one", "modelParams": [{"a.b": 1, "$c": 2}]}]}
META = {"uid": "u1", "generation": 1, "creationTimestamp": "2023-11-14T22:13:20Z"}
REFUSED = {"type": "Accepted", "status": "False", "reason": "TargetTooSmall", "message": "Take 58."}


class Ground:
    def __init__(self, folder: Path, namespaces: tuple[str, ...] = ()) -> None:
        self.store, self.kube = SqliteStore(str(folder / "store.db")), Kube()
        self.slamls = SlamlSync(
            self.store,
            self.kube,
            EventWriter(self.kube, Time(), "test"),
            namespaces,
            lambda: None,
            ImageCommands((), lambda: None),
        )  # type: ignore[arg-type]

    def put(self, **more: Any) -> Doc:
        return self.kube.put("Slaml", "s", "team", spec=SPEC, meta={**META, **more})

    def turn(self) -> None:
        """With watches that have just listed."""
        for informer in self.slamls._informers:
            informer._read()
        self.slamls.turn()

    def row(self) -> Doc:
        (found,) = self.store.list("slamls")
        return found

    def say(self, *conditions: Doc, **status: Any) -> None:
        self.store.update("slamls", "u1", {}, {"status": {"conditions": list(conditions), **status}})

    def observed(self) -> Doc:
        return (self.kube.get("Slaml", "s", "team") or {}).get("status") or {}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.store.close()


def test_an_object_becomes_a_row_once_whatever_keys_it_has(ground: Ground) -> None:
    ground.put(annotations={"volcano-reshape.io/gpus": "1,2", "other": "x"}, labels={"volcano.sh/queue-name": "q"})
    ground.turn()
    row = ground.row()
    ground.turn()
    assert ground.row() == row
    assert (row["_id"], row["namespace"], row["name"], row["created"]) == ("u1", "team", "s", 1_700_000_000.0)
    assert json.loads(row["spec"]) == SPEC
    assert json.loads(row["notes"]) == {"volcano-reshape.io/gpus": "1,2", "volcano.sh/queue-name": "q"}


def test_a_changed_object_is_a_changed_row_and_what_others_wrote_there_stays(ground: Ground) -> None:
    ground.put()
    ground.turn()
    ground.store.update("slamls", "u1", {}, {"judged": {"accepted": True}})
    ground.put(generation=2)
    ground.turn()
    assert (ground.row()["generation"], ground.row()["judged"]) == (2, {"accepted": True})


def test_a_status_is_written_where_it_differs_and_news_are_told_once(ground: Ground) -> None:
    ground.put()
    ground.turn()
    ground.say(REFUSED, state="Refused", expected=60.0, latestStart=None)
    ground.turn()
    calls = len(ground.kube.calls)
    assert ground.observed() == {"conditions": [REFUSED], "state": "Refused", "expected": 60.0}
    assert ground.kube.events() == [("TargetTooSmall", "Take 58.")]
    assert ground.kube.of("Event")[0]["type"] == "Warning"
    ground.turn()
    assert {call[0] for call in ground.kube.calls[calls:]} <= {"list", "get"}
    ground.say({**REFUSED, "status": "True", "reason": "Accepted", "message": "Good."}, state="Queued")
    ground.turn()
    assert (ground.observed()["state"], "expected" in ground.observed()) == ("Queued", False)
    assert [event["type"] for event in ground.kube.of("Event")] == ["Warning", "Normal"]


@pytest.mark.parametrize(
    ("kind", "status", "reason", "told"),
    [
        ("AtRisk", "True", "ExpectedLate", ["AtRisk"]),
        ("AtRisk", "False", "InTime", []),
        ("Violated", "True", "TargetMissed", ["Violated"]),
        ("Completed", "True", "Completed", ["Completed"]),
        ("Completed", "False", "Failed", ["Failed"]),
        ("Completed", "False", "Running", []),
    ],
)
def test_what_becomes_an_event(ground: Ground, kind: str, status: str, reason: str, told: list[str]) -> None:
    ground.put()
    ground.turn()
    ground.say({"type": kind, "status": status, "reason": reason, "message": "Why."})
    ground.turn()
    assert [reason for reason, _ in ground.kube.events()] == told


def test_an_object_that_is_gone_is_a_row_that_says_so(ground: Ground) -> None:
    ground.put()
    ground.turn()
    ground.kube.vanish("Slaml", "s", "team")
    ground.turn()
    assert ground.row()["deleted"] is True


def test_one_that_is_being_deleted_is_gone_and_does_not_come_back(ground: Ground) -> None:
    ground.put()
    ground.turn()
    ground.put(deletionTimestamp="2023-11-14T22:14:20Z")
    ground.turn()
    assert ground.row()["deleted"] is True
    ground.store.delete("slamls", "u1")
    ground.turn()
    assert ground.store.list("slamls") == []


def test_one_that_only_our_watch_does_not_show_lives(ground: Ground) -> None:
    ground.put()
    ground.turn()
    for informer in ground.slamls._informers:
        informer._items = {}
    ground.slamls.turn()
    assert ground.row()["deleted"] is False


def test_nothing_is_said_of_a_namespace_that_nobody_watches(ground: Ground, tmp_path: Path) -> None:
    ground.put()
    ground.turn()
    other = Ground(tmp_path, ("elsewhere",))
    other.turn()
    assert other.row()["deleted"] is False
    other.store.close()


def test_while_the_watch_is_behind_nothing_is_done(ground: Ground) -> None:
    ground.put()
    ground.turn()
    ground.kube.vanish("Slaml", "s", "team")
    for informer in ground.slamls._informers:
        informer.in_step = False
    ground.slamls.turn()
    assert ground.row()["deleted"] is False


def test_a_task_without_command_waits_until_its_image_is_read(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Doc | None] = [None, {"why": "gone"}]
    monkeypatch.setattr(ground.slamls._images, "command_of_image", lambda image: answers.pop(0))
    spec = {"tasks": [{"taskName": "one", "containerImage": "img", "containerTag": "v1"}]}
    ground.kube.put("Slaml", "s", "team", spec=spec, meta=META)
    ground.turn()
    assert ground.store.list("slamls") == []
    ground.turn()
    assert json.loads(ground.row()["starts"]) == {"img:v1": {"why": "gone"}}
    ground.turn()
    assert not answers, "asked once for each generation"
