"""Where `reshape up` listens, and what it says when it cannot or when others can listen in."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.policies import POLICIES
from reshape.output.terminal import POLICY_NAMES
from reshape.services import up


def test_a_port_that_is_taken_is_one_plain_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Rejected) as refusal, up.listen("127.0.0.1", port):
            pass
    assert str(refusal.value) == (
        f"Cannot listen on 127.0.0.1 port {port}: Address already in use; choose another --port."
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "::1", "\udcff"])
def test_a_host_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(Rejected) as refusal, up.listen(host, 0):
        pass
    assert str(refusal.value) == (
        f"--host {host} is not an IPv4 address or name of this machine: give one, such as 127.0.0.1."
    )


def test_listening_for_other_machines_is_warned_of_and_still_reached_from_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The socket is bound and never accepts: nobody else can connect to it."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        port = listener.getsockname()[1]
        assert up._url("0.0.0.0", listener) == f"http://127.0.0.1:{port}"
    assert "nothing is encrypted" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_listening_on_loopback_is_not_warned_of(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with up.listen(host, 0) as listener:
        assert up._url(host, listener) == f"http://{host}:{listener.getsockname()[1]}"
    assert capsys.readouterr().err == ""


def test_a_gpu_type_that_nobody_knows_ends_up_with_a_sentence(tmp_path: Path) -> None:
    given: dict[str, Any] = {"nodes": [], "store": None, "port": 0, "host": "127.0.0.1", "policy": "sidecar"}
    with pytest.raises(Rejected, match=r"the GPU type 'FOO'; known are .*V100.* such as 4xV100"):
        up.run(state=tmp_path, gpus="4xFOO", **given)


def test_the_command_line_offers_all_policies() -> None:
    assert tuple(POLICIES) == POLICY_NAMES, (
        "the command line repeats the names, to start without importing the coordinator"
    )


def test_no_other_user_can_lock_the_state_folder(tmp_path: Path) -> None:
    lock = tmp_path / "up.lock"
    lock.touch(mode=0o644)  # as an earlier version has made it
    lock.chmod(0o644)
    with up._alone(tmp_path):
        assert lock.stat().st_mode & 0o777 == 0o600
