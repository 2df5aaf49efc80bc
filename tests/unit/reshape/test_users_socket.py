"""Which coordinator a client calls on a machine that its users share: a personal one that runs, else the shared one."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshape.client import Client, CoordinatorUnreachable
from reshape.output.terminal import CliSettings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RESHAPE_URL", "RESHAPE_TOKEN", "RESHAPE_STATE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".reshape").mkdir()
    return tmp_path


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of all users; its path is short, as the kernel wants it."""
    with tempfile.TemporaryDirectory(prefix="rs-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/s"
        listener.bind(path)
        listener.listen()
        monkeypatch.setenv("RESHAPE_SOCKET", path)
        yield f"unix:{path}"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def written(state: Path, port: int) -> str:
    url = f"http://127.0.0.1:{port}"
    (state / "up.json").write_text(json.dumps({"url": url, "token": "t"}))
    return url


def test_without_a_personal_coordinator_the_shared_one_is_called(home: Path, shared: str) -> None:
    assert (Client().url, Client().here) == (shared, True)
    found = CliSettings(home / ".reshape").client()
    assert (found.url, found.here) == (shared, True)


def test_a_personal_coordinator_that_runs_comes_first(home: Path, shared: str, listener: socket.socket) -> None:
    url = written(home / ".reshape", listener.getsockname()[1])
    assert Client().url == url
    listener.close()
    assert Client().url == shared, "one that has ended is not called"


def test_who_names_a_coordinator_is_not_led_to_another_one(
    home: Path, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHAPE_STATE", str(tmp_path / "mine"))
    with pytest.raises(CoordinatorUnreachable, match="No coordinator is known"):
        Client()
    with pytest.raises(CoordinatorUnreachable):
        CliSettings(tmp_path / "mine").client()


def test_a_socket_can_be_named_and_needs_no_token(home: Path, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHAPE_URL", shared)
    assert (Client().url, Client().here) == (shared, True)
    settings = CliSettings(home, url=shared)
    assert (settings.client().url, settings.here) == (shared, True)


def test_a_machine_without_either_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHAPE_SOCKET", str(home / "none"))
    with pytest.raises(CoordinatorUnreachable, match="No coordinator is known"):
        Client()
    with pytest.raises(CoordinatorUnreachable, match="ask the administrator"):
        Client(f"unix:{home / 'none'}").jobs()
