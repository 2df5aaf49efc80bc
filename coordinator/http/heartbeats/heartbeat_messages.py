"""Messages between the coordinator and its heartbeat process: lists in msgpack, each behind its length (4 bytes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec

LENGTH = 4  # bytes of the number that says how long a list is


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """A heartbeat as its sidecar sent it; `number` tells the heartbeats of one process apart."""

    number: int
    job_id: str
    launch: int
    signature: str
    body: bytes


class Answered(msgspec.Struct, array_like=True, frozen=True):
    """The answer for the sidecar. Without a signature there is none: it shall ask the coordinator itself."""

    number: int
    body: bytes = b""
    signature: str = ""


T = TypeVar("T", Asked, Answered)
ENCODER = msgspec.msgpack.Encoder()


class MessageLink(asyncio.Protocol, Generic[T]):
    """One end of the socket: `take` gets each list that has come, `lost` is called once the other end is gone."""

    def __init__(self, kind: type[T], take: Callable[[list[T]], None], lost: Callable[[], None]) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
        self._take: Callable[[list[T]], None] = take
        self._lost = lost
        self._came = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        self._came += data
        begin, end = 0, self._end(0)
        while end <= len(self._came):
            self._take(self._decoder.decode(self._came[begin + LENGTH : end]))
            begin, end = end, self._end(end)
        del self._came[:begin]

    def _end(self, begin: int) -> int:
        """Where the list ends that begins there; beyond all that came if not even its length has."""
        length = int.from_bytes(self._came[begin : begin + LENGTH], "big")
        return begin + LENGTH + length

    def send(self, messages: Sequence[Asked | Answered]) -> None:
        """Nothing happens if the other end is gone."""
        if self._transport is not None:
            whole = ENCODER.encode(messages)
            self._transport.write(len(whole).to_bytes(LENGTH, "big") + whole)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
