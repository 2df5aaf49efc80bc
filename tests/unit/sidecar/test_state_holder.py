"""What the process that holds a state on a GPU answers, with a driver's library without one (`tests/fakes/cuda`)."""

from __future__ import annotations

import ctypes
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks import plain
from reshape_hooks.adapters import held_memory
from sidecar import gpu_memory
from tests.fakes import cuda
from tests.patience import eventually

STATE = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cuda.build(tmp_path_factory.mktemp("cuda")) / "libcuda.so.1")


class Served:
    """A holder in this process, and connections to it."""

    def __init__(self, folder: Path, gpus: tuple[int, int] = (1, 1)) -> None:
        self.path, self.words = folder / plain.HOLDER, list[str]()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(8)
        self.holder = gpu_memory.StateHolder(listener, gpus, self.words.append)
        self.uuid = held_memory.uuid_of(0)

    def connect(self) -> plain.HolderConnection:
        return plain.HolderConnection(self.path)

    def reserve(self, connection: plain.HolderConnection, **changes: Any) -> dict[str, Any]:
        return connection.ask("reserve", **{"bytes": len(STATE), "reserved": 0, "uuid": self.uuid, **changes})


@pytest.fixture
def served(tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(gpu_memory, "DRIVER", driver)
    monkeypatch.setattr(held_memory, "DRIVER", driver)
    monkeypatch.setenv("RESHAPE_MEMORY", str(tmp_path))
    (tmp_path / plain.ROOM).touch()
    yield Served(tmp_path)


def handed_over(served: Served) -> dict[str, Any]:
    buffer = ctypes.create_string_buffer(STATE, len(STATE))
    pieces = [
        held_memory.Piece(ctypes.addressof(buffer) + at, size) for at, size in ((0, 1000), (1000, len(STATE) - 1000))
    ]
    return held_memory.hand_over(served.path.parent, pieces, 0, 0)


def made(size: int) -> tuple[Any, int]:
    buffer = ctypes.create_string_buffer(size)
    return buffer, ctypes.addressof(buffer)


def test_what_is_handed_over_is_taken_back_and_written_byte_for_byte(served: Served, tmp_path: Path) -> None:
    kept = handed_over(served)
    assert served.holder.token == kept["token"]
    assert served.holder.awaited()
    for _ in range(2):  # a trainer that dies as it loads does not take it away from the next one
        pieces = held_memory.take_back(kept, made)
        assert pieces is not None
        assert b"".join(piece.raw for piece in pieces) == STATE
    served.holder.write(kept["token"], str(tmp_path / "bulk"))
    data = (tmp_path / "bulk").read_bytes()
    parts = [data[begin : begin + size] for begin, size in zip(kept["begins"], kept["sizes"], strict=True)]
    assert b"".join(parts) == STATE
    assert not served.holder.wanted(), "it was taken, and is on the disk"
    assert served.words == ["ready", f"holds {kept['bytes']}"]


def test_what_is_not_sealed_is_nobodys_state(served: Served, tmp_path: Path) -> None:
    trainer, other = served.connect(), served.connect()
    token = served.reserve(trainer)["token"]
    assert not served.holder.holds()
    assert not other.ask("alive", token=token)["ok"]
    assert not other.ask("open", token=token, uuid=served.uuid)["ok"]
    with pytest.raises(gpu_memory.CudaFault):
        served.holder.write(token, str(tmp_path / "bulk"))
    trainer.close()  # it dies
    eventually(lambda: served.holder.token == "", "its memory is free")
    assert not other.ask("seal", token=token)["ok"]


def test_a_state_that_is_sealed_outlives_its_trainer(served: Served) -> None:
    trainer = served.connect()
    token = served.reserve(trainer)["token"]
    assert trainer.ask("seal", token=token)["ok"]
    trainer.close()
    other = served.connect()
    assert other.ask("alive", token=token)["ok"]
    assert not other.ask("alive", token="another")["ok"]
    assert not served.reserve(other)["ok"], "one at a time"


def test_a_sealed_state_outlives_a_call_that_the_driver_refuses(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be all that there is of it."""
    kept = handed_over(served)
    monkeypatch.setenv("FAKE_GPU_FAULT", "cuIpcGetMemHandle")
    assert held_memory.take_back(kept, made) is None
    monkeypatch.delenv("FAKE_GPU_FAULT")
    assert served.holder.token == kept["token"]
    served.holder.write(kept["token"], str(tmp_path / "bulk"))
    assert held_memory.take_back(kept, made) is not None


def test_the_memory_that_the_next_trainer_needs_is_left_to_it(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU of four a step's samples take four times the memory that is not the state."""
    monkeypatch.setattr(gpu_memory, "DRIVER", driver)
    monkeypatch.setattr(held_memory, "DRIVER", driver)
    monkeypatch.setenv("FAKE_GPU_FREE", str((4 << 30) + (100 << 20)))
    served = Served(tmp_path, gpus=(4, 1))
    connection = served.connect()
    refused = served.reserve(connection, bytes=1 << 30, reserved=2 << 30)
    assert not refused["ok"]
    assert refused["why"].startswith("4352 MiB would have to be free on the GPU, and ")
    assert served.words[-1] == f"refuses {refused['why']}"
    assert served.reserve(connection, bytes=1 << 30, reserved=1 << 30)["ok"], "without activations it fits"


def test_only_the_gpu_that_stays_takes_a_state_and_gives_it_back(served: Served) -> None:
    connection = served.connect()
    assert "another GPU" in served.reserve(connection, uuid="00" * 16)["why"]
    token = served.reserve(connection)["token"]
    connection.ask("seal", token=token)
    assert not connection.ask("open", token=token, uuid="00" * 16)["ok"]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"do": "reserve"}', b'{"do": "seal"}', b'{"do": "guess"}', b"\xff", b"null"]
)
def test_a_request_that_is_not_understood_is_answered_and_changes_nothing(served: Served, line: bytes) -> None:
    connection = served.connect()
    connection._socket.sendall(line + b"\n")
    assert json.loads(connection._socket.recv(4096))["ok"] is False
    assert served.reserve(connection)["ok"]
