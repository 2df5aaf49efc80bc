"""The Python client: finds the coordinator, passes on its words, and says so when nobody answers."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from tests.fakes.coordinator_api import TOKEN, Live

GOOD = {"command": ["true"], "optional_num_gpus": [1, 2]}


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live.url, TOKEN)


def test_a_job_goes_in_and_comes_out(client: Client) -> None:
    assert client.submit({**GOOD, "job_id": "a"})["state"] == "submitted"
    assert client.job("a") == client.jobs()[0]
    assert client.reshape("a", 2) == "wish-a-2"
    assert client.cancel("a")["state"] == "cancelled"
    assert client.jobs() == []
    assert [j["job_id"] for j in client.jobs(include_ended=True)] == ["a"]


@pytest.mark.parametrize("name", ["a/b", "../jobs", "?x=1", "é ü", "%2e", "a\nb", "none"])
def test_any_text_is_looked_up_as_it_is(client: Client, name: str) -> None:
    with pytest.raises(CoordinatorRefused) as refusal:
        client.job(name)
    assert (refusal.value.status, repr(name) in str(refusal.value)) == (404, True)


def test_a_refusal_has_the_coordinators_sentence_and_problems(client: Client) -> None:
    with pytest.raises(CoordinatorRefused, match="not accepted") as refusal:
        client.submit({"job_id": "x y"})
    assert len(refusal.value.problems) == 3


def test_a_wrong_token_is_refused_not_unreachable(live: Live) -> None:
    with pytest.raises(CoordinatorRefused) as refusal:
        Client(live.url, "wrong").jobs()
    assert refusal.value.status == 401


def test_events_are_followed_and_resumed(client: Client, live: Live) -> None:
    for _ in range(3):
        live.coordinator.tell({"type": "gpu"})
    events = client.events(after=1)
    assert [next(events)["_id"], next(events)["_id"]] == [2, 3]
    threading.Thread(target=live.coordinator.tell, args=({"type": "late"},)).start()
    assert next(events)["type"] == "late"
    events.close()


def test_health_is_told_also_when_it_is_bad(client: Client, live: Live) -> None:
    assert client.health()["ok"] is True
    live.coordinator.store_down = True
    assert client.health() == {"ok": False, "sentence": "The store does not answer."}


def test_nobody_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(CoordinatorUnreachable, match="reshape up"):
            Client(url, "x").jobs()
        with pytest.raises(CoordinatorUnreachable, match="reshape up"):
            next(Client(url, "x").events())
    with pytest.raises(CoordinatorUnreachable, match="reshape up"):
        Client.find(tmp_path)


def test_a_coordinator_that_breaks_off_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CoordinatorUnreachable, match="broke off"):
            Client(f"http://127.0.0.1:{server.getsockname()[1]}", "x").jobs()
        thread.join()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 3, "token": "x"}', '{"url": "ftp://x", "token": "x"}'])
def test_a_damaged_state_folder_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "up.json").write_text(text)
    with pytest.raises(CoordinatorUnreachable):
        Client.find(tmp_path)


def test_the_token_may_stand_in_the_file_or_beside_it(tmp_path: Path, live: Live) -> None:
    (tmp_path / "secret").write_text(f"{TOKEN}\n")
    for where in ({"token": TOKEN}, {"token_file": "secret"}, {"token_file": str(tmp_path / "secret")}):
        (tmp_path / "up.json").write_text(json.dumps({"url": live.url, **where}))
        assert Client.find(tmp_path).jobs() == []


def test_no_token_file_is_like_no_coordinator(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "token_file": "token"}))
    with pytest.raises(CoordinatorUnreachable, match="reshape up"):
        Client.find(tmp_path)
