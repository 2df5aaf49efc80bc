"""The platform of a cluster, on every store: what coordinators ask for and what the launcher answers."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.adapters.launches import Launches
from coordinator.adapters.present_use import LaunchedPod
from coordinator.errors import Fatal
from coordinator.ports import Store
from launcher.names import launch_name
from sidecar.protocol import launch_key
from tests.fakes.world import FakeClock

Doc = dict[str, Any]

MASTER = b"master"
DOC: Doc = {"_id": "j", "job_id": "j", "uid": "u", "launch": 1, "node": "node-a", "command": ["x"]}
NAME = launch_name("j", "u", 1)


class Sidecars:
    """Only `read_output`; it remembers who was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def read_output(self, *call: Any) -> tuple[bytes, int]:
        self.asked.append(call)
        return b"text", 4


@pytest.fixture
def sidecars() -> Sidecars:
    return Sidecars()


@pytest.fixture
def launches(store: Store, sidecars: Sidecars) -> Launches:
    return Launches(store, sidecars, MASTER, 8477, launch_name, FakeClock())  # type: ignore[arg-type]


def found(store: Store) -> Doc:
    doc = store.get("launches", NAME)
    assert doc is not None
    return doc


def answer(store: Store, **changes: Any) -> None:
    """What the launcher writes."""
    store.update("launches", NAME, {}, changes)


def test_asking_writes_what_is_wanted_once_however_often_and_by_however_many(launches: Launches, store: Store) -> None:
    launches.launch(DOC)
    first = found(store)
    assert (first["wanted"], first["doc"]["command"], first["origin"]) == ("launch", ["x"], "record")
    assert (first["job_id"], first["uid"], first["launch"]) == ("j", "u", 1)
    Launches(store, Sidecars(), MASTER, 8477, launch_name, FakeClock()).launch(DOC)  # type: ignore[arg-type]
    assert found(store) == first


def test_a_users_volcano_job_is_told_apart(launches: Launches, store: Store) -> None:
    launches.launch({**DOC, "origin": "volcano"})
    assert found(store)["origin"] == "volcano"


def test_a_failure_is_told_until_the_launch_is_asked_for_again(launches: Launches, store: Store) -> None:
    assert launches.failure(DOC) is None
    launches.launch(DOC)
    assert launches.failure(DOC) is None
    answer(store, failure="no such image")
    assert launches.failure(DOC) == "no such image"
    launches.launch({**DOC, "image": "other"})
    assert launches.failure(DOC) is None
    assert found(store)["doc"]["image"] == "other"


def test_what_is_to_be_removed_never_comes_up_again_whoever_asks_late(launches: Launches, store: Store) -> None:
    launches.launch(DOC)
    launches.remove(DOC)
    launches.remove(DOC)
    launches.launch(DOC)
    assert found(store)["wanted"] == "remove"
    assert launches.failure(DOC) == "this launch has been removed already"


def test_a_launch_that_its_job_leaves_by_a_move_is_told_apart(launches: Launches, store: Store) -> None:
    move = {"kind": "move", "generation": 2, "launch": 2, "from_launch": 1, "node": "node-b", "from": [], "to": []}
    moving = {**DOC, "reshape": move}
    launches.launch(DOC)
    launches.remove(moving)
    assert bool(found(store)["moved"])
    launches.launch({**moving, "launch": 2})
    launches.remove({**moving, "launch": 2})  # the move is undone: its next launch did not come up
    after = store.get("launches", launch_name("j", "u", 2))
    assert after is not None and (after["wanted"], after.get("moved")) == ("remove", None)


def test_one_that_nobody_asked_for_is_gone_and_stays_away(launches: Launches, store: Store) -> None:
    assert launches.gone(DOC)
    launches.remove(DOC)
    assert launches.gone(DOC)
    launches.launch(DOC)
    assert found(store)["wanted"] == "remove"


def test_gone_is_the_launchers_word(launches: Launches, store: Store) -> None:
    launches.launch(DOC)
    assert not launches.gone(DOC)
    answer(store, gone=True)
    assert launches.gone(DOC)


@pytest.mark.parametrize("job_id", ["7", 7])
def test_nothing_runs_of_a_missing_job_once_all_launches_under_its_name_are_gone(
    launches: Launches, store: Store, job_id: str | int
) -> None:
    first, second = ({**DOC, "job_id": job_id, "launch": number} for number in (1, 2))
    launches.launch(first)
    launches.launch(second)
    store.update("launches", launch_name("7", "u", 1), {}, {"gone": True})
    assert not launches.nothing_runs("7") and launches.nothing_runs("8")
    store.update("launches", launch_name("7", "u", 2), {}, {"gone": True})
    assert launches.nothing_runs("7")


def test_a_launch_that_came_up_is_not_gone_for_want_of_a_known_pod(launches: Launches, store: Store) -> None:
    launches.launch(DOC)
    answer(store, gone=True, applied=True)
    assert not launches.gone({**DOC, "up": 1})
    answer(store, pod={"uid": "p", "ended": True})
    assert launches.gone({**DOC, "up": 1})


def test_output_comes_from_the_pods_sidecar(launches: Launches, store: Store, sidecars: Sidecars) -> None:
    assert launches.output(DOC, 7, 100) == (b"", 7)
    launches.launch(DOC)
    assert launches.output(DOC, 7, 100) == (b"", 7)
    answer(store, pod={"uid": "p", "ip": "10.0.0.1"})
    assert launches.output(DOC, 7, 100) == (b"text", 4)
    answer(store, pod={"uid": "p", "ip": "fd00::1"})
    launches.output(DOC, 7, 100)
    assert [call[0] for call in sidecars.asked] == ["http://10.0.0.1:8477", "http://[fd00::1]:8477"]
    assert sidecars.asked[0][1:] == (launch_key(MASTER, "u", 1), "j", 1, 7, 100)


def test_all_pods_that_have_a_node_are_known_in_one_reading(launches: Launches, store: Store) -> None:
    launches.launch(DOC)
    assert launches.all_pods() == []
    answer(store, pod={"uid": "p", "namespace": "team", "name": "a", "node": None})
    assert launches.all_pods() == [], "it is not placed yet"
    first, second = ({"uid": n, "namespace": "team", "name": n, "node": f"node-{n}"} for n in "ab")
    answer(store, pod=first)
    assert launches.all_pods() == [LaunchedPod("u", 1, "team", "a", "node-a")]
    answer(store, pod=first, pods=[first, None, second])
    assert [(pod.name, pod.node) for pod in launches.all_pods()] == [("a", "node-a"), ("b", "node-b")]
    answer(store, gone=True)
    assert launches.all_pods() == []


def test_a_document_that_no_store_takes_is_said(launches: Launches) -> None:
    with pytest.raises(Fatal, match="cannot be handed to the launcher"):
        launches.launch({**DOC, "hyper_parameters": {"a.b": 1}})


def test_what_keeps_it_from_being_begun_is_the_launchers_word(launches: Launches, store: Store) -> None:
    assert launches.unplaced(DOC) is None
    launches.launch(DOC)
    assert launches.unplaced(DOC) is None
    answer(store, unplaced="Volcano finds no place for its pod")
    assert launches.unplaced(DOC) == "Volcano finds no place for its pod"
    answer(store, failure="exceeded quota", unplaced="exceeded quota")
    assert launches.unplaced(DOC) is None, "what was refused counts as a try"


# a job of several pods

GANG: Doc = {**DOC, "gpus_per_pod": 1, "gpu_ids": ["g0", "g1"], "num_gpus": 2}


def test_a_gang_is_asked_again_for_a_pod_more_or_less(launches: Launches, store: Store) -> None:
    launches.launch(GANG)
    answer(store, pod={"uid": "p0"}, pods=[{"uid": "p0"}, {"uid": "p1"}], applied=True)
    before = found(store)
    launches.launch(GANG)
    assert found(store) == before
    launches.launch({**GANG, "gpu_ids": ["g0", "g1", "g2"]})
    after = found(store)
    assert after["doc"]["gpu_ids"] == ["g0", "g1", "g2"]
    assert (after["pods"], after["applied"], after["wanted"]) == (before["pods"], True, "launch")


def test_a_growth_that_failed_is_taken_back(launches: Launches, store: Store) -> None:
    launches.launch({**GANG, "gpu_ids": ["g0", "g1", "g2"]})
    answer(store, failure="no such image", unplaced="there is no room")
    assert launches.failure(GANG) == "no such image"
    launches.launch(GANG)
    assert (launches.failure(GANG), launches.unplaced(GANG)) == (None, None)
    assert found(store)["doc"]["gpu_ids"] == ["g0", "g1"]


def test_a_launch_of_one_pod_is_as_it_is_whatever_gpus_its_job_got_since(launches: Launches, store: Store) -> None:
    launches.launch({**DOC, "gpu_ids": ["g0"]})
    launches.launch({**DOC, "gpu_ids": ["g0", "g1"]})
    assert found(store)["doc"]["gpu_ids"] == ["g0"]


def test_a_gang_that_is_to_be_removed_gets_no_pod_more(launches: Launches, store: Store) -> None:
    launches.launch(GANG)
    launches.remove(GANG)
    launches.launch({**GANG, "gpu_ids": ["g0", "g1", "g2"]})
    assert (found(store)["wanted"], found(store)["doc"]["gpu_ids"]) == ("remove", ["g0", "g1"])


def test_a_pod_has_vanished_if_its_object_was_deleted_before_its_end_was_known(
    launches: Launches, store: Store
) -> None:
    assert launches.vanished(GANG) == launches.vanished(DOC) == frozenset()
    launches.launch(GANG)
    answer(store, pods=[{"uid": "p0", "phase": "Running"}, None, {"uid": "p2", "phase": "Deleted"}])
    assert launches.vanished(GANG) == {2}


def test_which_pods_have_ended_is_the_launchers_word(launches: Launches, store: Store) -> None:
    assert launches.ended(GANG) == frozenset()
    launches.launch(GANG)
    assert launches.ended(GANG) == frozenset()
    answer(store, pods=[{"uid": "p0", "ended": True}, None, {"uid": "p2"}, {"uid": "p3", "ended": True, "left": True}])
    assert launches.ended(GANG) == {0}


def test_a_launch_whose_row_went_with_the_store_is_not_taken_for_gone_once_it_is_adopted(
    launches: Launches, store: Store
) -> None:
    launches.launch(DOC)
    answer(store, applied=True, pod={"uid": "p", "ended": False})
    store.delete("launches", NAME)
    up = {**DOC, "up": 1}
    assert launches.gone(up), "without its row nothing is known of it"
    launches.adopt(up)
    launches.adopt(up)
    assert not launches.gone(up) and launches.failure(up) is None and found(store)["applied"]
    assert launches.recall(()).records == (up,)
