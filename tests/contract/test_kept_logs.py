"""Logs of jobs whose pods are gone, on every store: what the coordinator asks for, and what it makes of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.adapters.launches import Launches
from coordinator.adapters.logs import AGAIN_S
from coordinator.errors import Rejected, Transient
from coordinator.ports import Store
from launcher.names import launch_name
from sidecar.protocol import launch_key
from tests.fakes.world import FakeClock

Doc = dict[str, Any]

MASTER = b"master"
JOB: Doc = {"_id": 7, "job_id": "j", "uid": "u", "launch": 2, "state": "completed", "command": ["x"], "closed": True}
KEPT: Doc = {**JOB, "checkpoint_claim": "kept"}
READER = launch_name("j", "u", 0)


class Sidecars:
    """Only `read_output`; `away`: addresses where nobody answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.away: set[str] = set()

    def read_output(self, url: str, *call: Any) -> tuple[bytes, int]:
        if url in self.away:
            raise Transient("connection refused")
        self.asked.append((url, *call))
        return b"text", 4


class Ground:
    def __init__(self, store: Store, claimed: bool = False) -> None:
        self.store, self.sidecars, self.clock = store, Sidecars(), FakeClock()
        about: Any = self.sidecars, MASTER, 8477, launch_name, self.clock, claimed
        self.launches = Launches(store, *about)

    def read(self, doc: Doc = KEPT) -> tuple[bytes, int]:
        return self.launches.output(doc, 0, 100)

    def reader(self) -> Doc:
        return self.store.get("readers", READER) or {}


@pytest.fixture
def ground(store: Store) -> Ground:
    return Ground(store)


def test_asking_for_a_log_asks_for_one_reader_and_reads_from_it_once_it_serves(ground: Ground) -> None:
    for _ in range(2):
        with pytest.raises(Transient, match="being fetched"):
            ground.read()
    assert (ground.reader()["job"], ground.reader()["version"]) == (7, 1)
    ground.store.update("readers", READER, {}, {"ip": "10.0.0.1"})
    assert ground.read() == (b"text", 4)
    assert ground.sidecars.asked == [("http://10.0.0.1:8477", launch_key(MASTER, "u", 0), "j", 0, 0, 100)]
    ground.sidecars.away.add("http://10.0.0.1:8477")
    with pytest.raises(Transient, match="being fetched"):
        ground.read()


def test_that_it_is_still_read_is_written_now_and_then(ground: Ground) -> None:
    with pytest.raises(Transient):
        ground.read()
    first = ground.reader()["asked"]
    ground.clock.time += AGAIN_S - 1
    with pytest.raises(Transient):
        ground.read()
    assert ground.reader()["asked"] == first
    ground.clock.time += 1
    with pytest.raises(Transient):
        ground.read()
    assert ground.reader()["asked"] == first + AGAIN_S


def test_what_keeps_it_from_being_read_is_told_and_it_is_not_asked_for_again_meanwhile(ground: Ground) -> None:
    with pytest.raises(Transient):
        ground.read()
    ground.store.update("readers", READER, {}, {"failure": "there is no such claim"})
    before = ground.reader()
    ground.clock.time += 100
    with pytest.raises(Rejected, match="cannot be read now: there is no such claim"):
        ground.read()
    assert ground.reader() == before


def test_without_a_claim_it_went_with_the_pod(ground: Ground) -> None:
    with pytest.raises(Rejected, match="went with its pod; give such jobs a checkpoint_claim") as refusal:
        ground.read(JOB)
    assert refusal.value.status == 410
    assert ground.read({**JOB, "state": "submitted"}) == (b"", 0), "its next pod begins another one"
    assert ground.store.list("readers") == []


def test_a_claim_for_all_jobs_counts(store: Store) -> None:
    with pytest.raises(Transient, match="being fetched"):
        Ground(store, claimed=True).read(JOB)


@pytest.mark.parametrize(
    "doc",
    [{**KEPT, "launch": 0}, {**KEPT, "state": "initializing"}, {**KEPT, "state": "running"}],
)
def test_a_job_that_never_trained_or_whose_next_pod_comes_up_has_nothing_to_show_yet(ground: Ground, doc: Doc) -> None:
    assert ground.read(doc) == (b"", 0)
    assert ground.store.list("readers") == []


def test_a_pod_that_is_still_there_is_asked_itself_until_it_has_ended(ground: Ground) -> None:
    ground.launches.launch(KEPT)
    name = launch_name("j", "u", 2)
    ground.store.update("launches", name, {}, {"pod": {"ip": "10.0.0.2", "ended": False}})
    assert ground.read() == (b"text", 4) and ground.sidecars.asked[0][0] == "http://10.0.0.2:8477"
    ground.sidecars.away.add("http://10.0.0.2:8477")
    with pytest.raises(Transient, match="being fetched"):
        ground.read()
    with pytest.raises(Transient, match="refused"):
        ground.read({**KEPT, "state": "running"})
    ground.sidecars.away.clear()
    ground.store.update("launches", name, {}, {"pod": {"ip": "10.0.0.2", "ended": True}})
    with pytest.raises(Transient, match="being fetched"):
        ground.read()
