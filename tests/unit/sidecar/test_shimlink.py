"""The connection to the shim, against shims that misbehave on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sidecar.links import shim_link
from sidecar.links.shim_link import ShimLink, ShimUnreachable, announced
from sidecar.protocol import ShimStatus
from tests.patience import patient

Shim = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = {"ok": True, "status": {"trainer": "none"}}


class Heard:
    def __init__(self) -> None:
        self.statuses: list[ShimStatus] = []
        self.outputs: list[float | None] = []
        self.gone = 0

    def lost(self) -> None:
        self.gone += 1

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(20)):
            while not true():
                await asyncio.sleep(0.01)


def against(folder: Path, shim: Shim, act: Callable[[ShimLink, Heard], Awaitable[None]]) -> None:
    async def run() -> None:
        heard = Heard()
        link = ShimLink(folder, heard.statuses.append, heard.outputs.append, heard.lost)
        async with await asyncio.start_unix_server(shim, folder / "shim.sock"):
            running = asyncio.create_task(link.run())
            await act(link, heard)
            running.cancel()

    asyncio.run(run())


def line(**doc: object) -> bytes:
    return json.dumps(doc).encode() + b"\n"


async def faithful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readline():
        writer.write(line(**ANSWER))
    writer.close()


def test_a_silent_shim_is_out_of_reach_though_it_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_link, "PATIENCE_S", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def act(link: ShimLink, heard: Heard) -> None:
        await heard.until(lambda: heard.gone >= 2)
        assert heard.statuses == []

    against(tmp_path, silent, act)


def test_a_quiet_shim_is_asked_and_stays_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_link, "SILENCE_S", 0.1)

    async def act(link: ShimLink, heard: Heard) -> None:
        await heard.until(lambda: len(heard.statuses) >= 3)
        assert heard.gone == 0

    against(tmp_path, faithful, act)


@pytest.mark.parametrize("junk", [b"\xff\n", b"[]\n", b"{\n", b"x" * 300_000, b'{"ok": 1}\n', b'{"event": 5}\n'])
def test_junk_ends_the_connection_and_the_next_one_serves(tmp_path: Path, junk: bytes) -> None:
    connections: list[int] = []

    async def shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        if len(connections) > 1:
            return await faithful(reader, writer)
        writer.write(junk)
        await reader.read()
        writer.close()
        return None

    async def act(link: ShimLink, heard: Heard) -> None:
        await heard.until(lambda: bool(heard.statuses))
        assert len(connections) == 2 and heard.gone == 1

    against(tmp_path, shim, act)


def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while raw := await reader.readline():
            request = json.loads(raw)
            if request["do"] == "slow":
                await gate.wait()
            writer.write(line(**ANSWER, error=request["do"]))
        writer.close()

    async def act(link: ShimLink, heard: Heard) -> None:
        await heard.until(lambda: bool(heard.statuses))
        with pytest.raises(ShimUnreachable, match="did not answer"):
            await link.ask({"do": "slow"}, 0.05)
        gate.set()
        assert (await link.ask({"do": "next"})).error == "next"

    against(tmp_path, shim, act)


def test_pushes_between_answers_are_told_apart(tmp_path: Path) -> None:
    async def shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(line(event="output", size=3, at=7.5) + line(event="status", status={"trainer": "running"}))
            writer.write(line(event="new in a later version") + line(**ANSWER))
        writer.close()

    async def act(link: ShimLink, heard: Heard) -> None:
        await heard.until(lambda: len(heard.statuses) >= 2)
        assert (await link.ask({"do": "status"})).ok
        assert heard.outputs[0] == 7.5 and [s.trainer for s in heard.statuses[:2]] == ["running", "none"]

    against(tmp_path, shim, act)


def test_a_question_fails_at_once_when_there_is_no_connection_or_it_ends(tmp_path: Path) -> None:
    async def shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(line(**ANSWER))
        await reader.readline()
        writer.close()

    async def act(link: ShimLink, heard: Heard) -> None:
        with pytest.raises(ShimUnreachable, match="not running"):
            await link.ask({"do": "status"})
        await heard.until(lambda: bool(heard.statuses))
        with pytest.raises(ShimUnreachable, match="ending"):
            await link.ask({"do": "status"})

    against(tmp_path, shim, act)


@pytest.mark.parametrize(
    ("lines", "hook", "why"),
    [
        ("SIGUSR1", True, ""),
        ("SIGUSR1 143 7@1\n", True, ""),
        ("SIGUSR1 143 7@1\nwithdrawn:the\u00a0disk\u00a0is\u00a0full 7@1\n", False, "the disk is full"),
        ("withdrawn:full 7@1\nSIGUSR1 143 7@1\n", True, ""),
        ("withdrawn:full 8@1\nSIGUSR1 143 9@1\n", False, "full"),
        ("withdrawn:full 8@1\nended 8@1\nSIGUSR1 143 9@1\n", True, ""),
        ("SIGUSR1 143 8@1\nended 8@1\n", False, shim_link.ENDED),
        ("SIGUSR1 143 7@1\nstopped 7@1\nended 7@1\n", True, ""),
        ("SIGUSR1 143 8@1234\nended 8@1234\n" * 20_000 + "SIGUSR1 143 7@1\n", True, ""),
        ("withdrawn:\x1b[2J" + "x" * 900 + " 7@1\n", False, " [2J" + "x" * (shim_link.WITHDRAWN_MOST - 4)),
    ],
)
def test_what_hooks_announce_counts_by_the_last_words_of_each_process_that_lives(
    tmp_path: Path, lines: str, hook: bool, why: str
) -> None:
    assert announced(tmp_path, 7) == (False, "")
    (tmp_path / shim_link.ANNOUNCE).write_text(lines)
    assert announced(tmp_path, 7) == (hook, why)


def test_an_announcement_that_is_a_link_or_a_pipe_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("SIGUSR1")
    (tmp_path / shim_link.ANNOUNCE).symlink_to(tmp_path / "elsewhere")
    assert announced(tmp_path) == (False, "")
    (tmp_path / shim_link.ANNOUNCE).unlink()
    os.mkfifo(tmp_path / shim_link.ANNOUNCE)
    assert announced(tmp_path) == (False, "")
