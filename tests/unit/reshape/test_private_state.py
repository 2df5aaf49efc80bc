"""Nobody else reads or sets the secrets of a state folder, and one that cannot be used is said."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from coordinator.errors import Rejected
from reshape.services.private_state import close_to_others, secret


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    secret(folder / "api.token")
    secret(folder / "master.key")
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_and_for_its_owner(state: Path) -> None:
    token = secret(state / "api.token")
    assert len(token) == 64 and secret(state / "api.token") == token
    assert mode(state / "api.token") == 0o600
    assert list(close_to_others(state)) == []


def test_rights_of_others_are_taken_away_and_told(state: Path) -> None:
    (state / "api.token").chmod(0o644)
    (state / "master.key").chmod(0o666)
    state.chmod(0o777)
    said = list(close_to_others(state))
    assert [sentence.partition(";")[0] for sentence in said] == [
        f"Other users could write in {state}",
        f"Other users could read or change {state}/api.token",
        f"Other users could read or change {state}/master.key",
    ]
    assert (mode(state), mode(state / "api.token"), mode(state / "master.key")) == (0o755, 0o600, 0o600)
    assert list(close_to_others(state)) == []


def test_a_folder_for_all_users_keeps_its_mode(state: Path) -> None:
    state.chmod(0o1777)
    assert list(close_to_others(state)) == [] and mode(state) == 0o1777


@pytest.mark.parametrize("name", ["api.token", "."])
def test_what_belongs_to_another_user_is_refused(state: Path, name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(state / name, 12345, 12345)
    with pytest.raises(Rejected, match="belongs to user 12345, who could use it to act as you"):
        list(close_to_others(state))


@pytest.mark.parametrize(("content", "why"), [(b"", "is empty"), (b"\n", "is empty"), (b"\xff", "cannot be read")])
def test_a_damaged_secret_is_told(state: Path, content: bytes, why: str) -> None:
    (state / "api.token").write_bytes(content)
    with pytest.raises(Rejected, match=rf"{state}/api.token {why}.*put a copy of it back"):
        secret(state / "api.token")


def test_a_pipe_or_a_folder_in_its_place_is_told(state: Path) -> None:
    for make in (os.mkfifo, os.mkdir):
        path = state / make.__name__
        make(path)
        with pytest.raises(Rejected, match="is not a regular file: remove it"):
            secret(path)
