"""Events as a stream: nothing lost, nothing doubled, nobody left behind when a client goes."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from coordinator.http import base, events
from tests.api.caller import Caller
from tests.fakes.coordinator_api import TOKEN, FakeCoordinator, Live, serve
from tests.patience import eventually, patient


class Stream:
    """One client of the event stream."""

    def __init__(self, live: Live, path: str = "/v1/events", **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=patient(20))
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", **headers})
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        assert self.line() == "retry: 2000"  # sent once the stream stands
        self.line()

    def line(self) -> str:
        return self.response.readline().decode().rstrip("\n")

    def event(self) -> tuple[int, str, Any]:
        name = self.line()
        assert name.startswith("id: "), name
        kind, data = self.line(), self.line()
        assert self.line() == ""
        return int(name[4:]), kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def tell(live: Live, count: int) -> None:
    for _ in range(count):
        live.coordinator.tell({"type": "gpu", "gpu_id": "GPU-1"})


def test_a_new_client_gets_what_happens_from_now_on(live: Live) -> None:
    tell(live, 3)
    stream = Stream(live)
    tell(live, 1)
    number, kind, data = stream.event()
    assert (number, kind, data["gpu_id"]) == (4, "gpu", "GPU-1")
    stream.close()


def test_a_client_that_comes_back_misses_nothing_and_sees_nothing_twice(live: Live) -> None:
    tell(live, 5)
    stream = Stream(live, "/v1/events?after=0")
    assert [stream.event()[0] for _ in range(2)] == [1, 2]
    stream.close()
    tell(live, 1)
    again = Stream(live, "/v1/events?after=0", **{"Last-Event-ID": "2"})
    assert [again.event()[0] for _ in range(4)] == [3, 4, 5, 6]
    again.close()


def test_a_stream_that_is_not_followed_ends_with_what_is_kept(live: Live) -> None:
    tell(live, 3)
    stream = Stream(live, "/v1/events?after=1&follow=false")
    assert [stream.event()[0] for _ in range(2)] == [2, 3]
    assert stream.response.read() == b""
    stream.close()


def test_a_stream_ends_with_its_job_and_has_its_last_events(live: Live) -> None:
    live.coordinator.submit({"command": "x", "optional_num_gpus": [1], "job_id": "a"})
    stream = Stream(live, "/v1/events?until_end_of=a")
    tell(live, 1)
    assert stream.event()[1] == "gpu"
    live.coordinator.cancel("a")
    assert stream.event()[1] == "cancelled"
    assert stream.line() == "", "it goes on"
    stream.close()


@pytest.mark.parametrize("how", ["ended before", "not there", "not accepted"])
def test_a_stream_of_a_job_that_is_over_does_not_wait(live: Live, how: str) -> None:
    """It may have ended between two questions of the client, so that no event tells of it any more."""
    if how != "not there":
        live.coordinator.submit({"command": "x", "optional_num_gpus": [1], "job_id": "a"})
    if how == "ended before":
        live.coordinator.cancel("a")
    if how == "not accepted":
        live.coordinator.documents["a"] |= {"problems": ["command is missing"]}
        live.coordinator.set_aside.add("a")
    stream = Stream(live, "/v1/events?until_end_of=a")
    assert stream.line() == "", "it goes on"
    stream.close()


def test_many_events_arrive_in_order(live: Live) -> None:
    tell(live, 3 * events.BATCH)
    stream = Stream(live, "/v1/events?after=0")
    assert [stream.event()[0] for _ in range(3 * events.BATCH)] == list(range(1, 3 * events.BATCH + 1))
    stream.close()


def test_an_id_from_before_the_books_were_wiped_goes_on_with_what_is_new(live: Live) -> None:
    stream = Stream(live, "/v1/events?after=999")
    tell(live, 1)
    assert stream.event()[0] == 1
    stream.close()


def test_a_silent_stream_is_kept_alive(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.01)
    stream = Stream(live)
    assert [stream.line(), stream.line(), stream.line()] == [": keep-alive", "", ": keep-alive"]
    stream.close()


def test_a_stream_may_not_be_buffered_or_stored(live: Live) -> None:
    stream = Stream(live)
    assert stream.response.headers["X-Accel-Buffering"] == "no"
    assert stream.response.headers["Cache-Control"] == "no-store"
    assert stream.response.headers["Content-Type"].startswith("text/event-stream")
    stream.close()


def test_a_client_that_goes_is_forgotten(live: Live) -> None:
    streams = [Stream(live) for _ in range(5)]
    eventually(lambda: len(live.coordinator.callbacks) == 5)
    for stream in streams:
        stream.close()
    eventually(lambda: not live.coordinator.callbacks)


def test_no_type_of_event_can_break_the_stream(live: Live) -> None:
    stream = Stream(live)
    live.coordinator.tell({"type": "a\nid: 99\n\nb", "text": "line\n\nline\r"})
    number, kind, data = stream.event()
    assert (number, kind, data["text"]) == (1, "a-id:-99-b", "line\n\nline\r")
    stream.close()


def test_a_stream_ends_when_the_store_goes_down(live: Live) -> None:
    stream = Stream(live)
    live.coordinator.store_down = True
    tell(live, 1)
    assert stream.response.read() == b""
    eventually(lambda: not live.coordinator.callbacks)
    stream.close()


def test_stopping_the_server_ends_its_streams() -> None:
    with serve(FakeCoordinator()) as live:
        stream = Stream(live)
    with pytest.raises(http.client.IncompleteRead):
        stream.response.read()
    stream.close()


@pytest.mark.parametrize("after", ["x", "-1", "1.5"])
def test_a_place_that_is_no_number_is_refused(call: Caller, after: str) -> None:
    assert "after" in call("GET", f"/v1/events?after={after}").sentence
    assert "Last-Event-ID" in call("GET", "/v1/events", Last_Event_ID=after).sentence


def test_there_is_a_bound_on_streams(call: Caller, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_STREAMS", 1)
    stream = Stream(live)
    assert call("GET", "/v1/events").status == 503
    stream.close()
