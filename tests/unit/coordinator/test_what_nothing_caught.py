"""One-line breaks that once passed every test: each has one here that goes red."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.adapters.sidecars import HttpSidecars
from coordinator.errors import Conflict, Transient
from coordinator.model import states as s
from coordinator.ports import Doc
from coordinator.reconcile.actions import WriteGpu
from coordinator.reconcile.gpu_allocation import releases
from coordinator.stores.cache import Cache
from coordinator.stores.elector import Elector, Holder
from sidecar.protocol import HEADER_SIGNATURE, ShimStatus, StartCall, StopCall, sign
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock, World
from tests.unit.coordinator.situations import gpu, job, world

# the coordinator's clock is not the one on the wall


def test_time_is_read_from_the_clock_that_nobody_can_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 7.0}.get(clock, 5.0))
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert (SystemClock().now(), SystemClock().wall()) == (7.0, 5.0)


@pytest.mark.parametrize("by", [86_400.0, -86_400.0])
def test_a_clock_on_the_wall_that_is_set_disturbs_no_training(by: float) -> None:
    w = World()
    w.submit("one", [1, 2], Behaviour(iterations=600))
    w.run(lambda w: w.job("one").state == s.RUNNING)
    before, wall = w.job("one"), w.clock.wall
    w.clock.wall = lambda: wall() + by  # type: ignore[method-assign]
    for _ in range(60):
        w.tick()
        assert w.broken() == [] and w.c.elector.leads
    after = w.job("one")
    assert (after.state, after.generation, after.launch) == (s.RUNNING, before.generation, before.launch), w.story()


# a GPU is freed only from the job that frees it


class _Stale:
    """Books that have read the table of GPUs, before somebody else changed it."""

    def __init__(self, doc: Doc) -> None:
        self.store = MemoryStore()
        self.store.put("gpus", {"version": 1, "node": "n", **doc})
        self.cache = Cache(self.store)
        self.cache.refresh()

    def free(self, of: str) -> Mapping[str, Any] | None:
        """The GPU in the store after job `of` has freed it by these books."""
        (record,) = self.cache.gpus().values()
        (step,) = releases(world(job(s.COMPLETED, name=of), None, [record]))
        assert isinstance(step, WriteGpu) and step.name == "free"
        self.cache.write_gpu(record, step.expect, step.changes)
        return self.store.get("gpus", "a")


OWNERS = [
    {"state": s.IN_USE, "job_id": "one", "held_by": "one"},  # its own
    {"state": s.RESERVED, "job_id": "two", "held_by": "one"},  # promised to a newcomer
    {"state": s.RESERVED, "job_id": "one", "held_by": "two"},  # promised to it, and held by its victim
]


@pytest.mark.parametrize("owners", OWNERS)
def test_a_gpu_that_was_given_to_another_job_meanwhile_is_not_freed(owners: Doc) -> None:
    stale = _Stale({"_id": "a", **owners})
    other = {"state": s.IN_USE, "job_id": "three", "held_by": "three", "version": 2}
    stale.store.put("gpus", {"_id": "a", "node": "n", **other})
    with pytest.raises(Conflict):
        stale.free("one")
    kept = stale.store.get("gpus", "a")
    assert kept is not None and {field: kept[field] for field in other} == other


@pytest.mark.parametrize("owners", OWNERS)
def test_a_gpu_that_is_still_its_own_is_freed(owners: Doc) -> None:
    after = _Stale({"_id": "a", **owners}).free("one")
    assert after is not None and "one" not in (after["job_id"], after["held_by"])


def test_the_filter_of_every_freeing_names_the_job() -> None:
    cache = [gpu("a", "one", "one"), gpu("b", "two", "one"), gpu("c", "one", "two")]
    steps = list(releases(world(job(s.COMPLETED, name="one"), None, cache)))
    assert [step.expect.get("job_id") for step in steps if isinstance(step, WriteGpu)] == ["one", "two", "one"]


# a term runs from when the question went


class _SlowStore(MemoryStore):
    """One whose answers take their time."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self._clock, self.seconds = clock, seconds

    def insert(self, table: str, doc: Doc) -> None:
        super().insert(table, doc)
        self._clock.time += self.seconds

    def update(self, table: str, key: Any, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        doc = super().update(table, key, expect, changes)
        self._clock.time += self.seconds
        return doc


@pytest.mark.parametrize("renews", [False, True])
def test_a_term_ends_t_after_it_was_asked_for_however_late_the_answer_came(renews: bool) -> None:
    clock = FakeClock()
    store = _SlowStore(clock, 0.0)
    first = Elector(store, clock, 15.0, Holder("another machine", 1, "5"))
    if renews:
        assert first.try_to_lead()
        clock.time += 6.0
    store.seconds, asked_at = 10.0, clock.now()
    assert first.try_to_lead() and first.leads
    clock.time = asked_at + 14.9
    assert first.leads
    clock.time = asked_at + 15.1
    assert not first.leads, "another one may act from now on"


# only a sidecar's own word is believed

KEY, JOB = b"k" * 64, "job-1"
SAYS = msgspec.json.encode(ShimStatus(trainer="exited", generation=9, exit_code=0))


@contextmanager
def _answers(signature: str | None, body: bytes = SAYS) -> Iterator[str]:
    """Whoever listens at the address of a sidecar, and what it signs with."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            if signature is not None:
                self.send_header(HEADER_SIGNATURE, signature)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _stop(url: str) -> ShimStatus:
    return HttpSidecars().stop(url, KEY, JOB, 1, StopCall(generation=9, command_id="c", grace_s=1.0))


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        sign(b"x" * 64, "REPLY", "/v1/stop", SAYS),
        sign(KEY, "REPLY", "/v1/start", SAYS),
        sign(KEY, "POST", "/v1/stop", SAYS),
        sign(KEY, "REPLY", "/v1/stop", SAYS + b" "),
    ],
)
def test_an_answer_that_is_not_signed_for_this_call_is_not_believed(signature: str | None) -> None:
    with _answers(signature) as url, pytest.raises(Transient, match="not signed with its launch key"):
        _stop(url)


def test_every_call_wants_its_answer_signed() -> None:
    with _answers(None) as url:
        start = StartCall(generation=9, command_id="c", gpu_ids=["a"])
        for ask in (
            lambda: HttpSidecars().start(url, KEY, JOB, 1, start),
            lambda: HttpSidecars().read_output(url, KEY, JOB, 1, 0, 10),
        ):
            with pytest.raises(Transient, match="not signed"):
                ask()


def test_a_rightly_signed_answer_is_believed() -> None:
    with _answers(sign(KEY, "REPLY", "/v1/stop", SAYS)) as url:
        assert _stop(url).generation == 9
