"""The awaited client: the same calls as the other one, and nothing is left waiting when it is given up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.model import states as s
from reshape import AsyncClient, Client
from reshape.client import CoordinatorUnreachable
from tests.fakes.coordinator_api import TOKEN, Live
from tests.patience import patient

DOC = {"job_id": "a", "command": ["true"], "optional_num_gpus": [1]}


@pytest.fixture
def client(live: Live) -> AsyncClient:
    return AsyncClient(live.url, TOKEN)


def test_it_has_every_call_of_the_other_one() -> None:
    calls = {name for name in vars(Client) if not name.startswith("_")} - {"find"}
    assert calls <= set(vars(AsyncClient))


def test_jobs_go_in_and_come_out(client: AsyncClient) -> None:
    async def main() -> None:
        submitted = await asyncio.gather(*(client.submit({**DOC, "job_id": name}) for name in ("a", "b")))
        assert [job["state"] for job in submitted] == [s.SUBMITTED] * 2
        listed = {job["job_id"]: job for job in await client.jobs()}  # which came first is left to the two requests
        assert listed["a"] == await client.job("a") and set(listed) == {"a", "b"}
        assert await client.reshape("a", gpus=1) == "wish-a-1"
        await client.cancel("a")
        assert (await client.wait("a"))["state"] == s.CANCELLED

    asyncio.run(main())


def test_output_and_events_are_followed(client: AsyncClient, live: Live) -> None:
    async def main() -> None:
        await client.submit(DOC)
        live.coordinator.outputs["a"] = "step=1\nklein: \u00e4\nend".encode()
        live.coordinator.documents["a"]["state"] = s.COMPLETED
        assert [line async for line in client.follow("a")] == ["step=1", "klein: \u00e4", "end"]
        live.coordinator.tell({"type": "gpu", "job_id": "b"})
        live.coordinator.tell({"type": "running", "job_id": "a"})
        async for event in client.events(after=0, job_id="a"):
            assert event["job_id"] == "a"
            if event["type"] == "running":
                break

    asyncio.run(main())


@pytest.mark.parametrize("call", ["wait", "events", "follow"])
def test_what_is_given_up_leaves_no_thread_that_the_program_waits_for(
    client: AsyncClient, live: Live, call: str
) -> None:
    """A job never ends here and no event comes: only giving up can end it, and with it the threads of the loop."""
    client.blocking.submit(DOC)
    waiting: dict[str, Callable[[], object]] = {
        "wait": lambda: client.wait("a"),
        "events": lambda: anext(client.events(after=10_000)),
        "follow": lambda: anext(client.follow("a")),
    }

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting[call](), 0.2)  # type: ignore[arg-type]

    program = threading.Thread(target=asyncio.run, args=(main(),))
    program.start()
    program.join(patient(10))
    assert not program.is_alive()


def test_waiting_has_an_end_if_one_is_given_and_the_job_goes_on(client: AsyncClient) -> None:
    client.blocking.submit(DOC)
    with pytest.raises(TimeoutError, match="did not end within 0 s; it keeps running"):
        asyncio.run(client.wait("a", timeout_s=0))
    assert client.blocking.job("a")["state"] == s.SUBMITTED


def test_without_arguments_it_is_found_by_the_environment(
    live: Live, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESHAPE_URL", raising=False)
    monkeypatch.setenv("RESHAPE_STATE", str(state))
    assert Client().url == live.url
    monkeypatch.setenv("RESHAPE_STATE", str(tmp_path / "other"))
    monkeypatch.setenv("RESHAPE_URL", live.url)
    monkeypatch.setenv("RESHAPE_TOKEN", TOKEN)
    assert Client().jobs() == []
    monkeypatch.delenv("RESHAPE_TOKEN")
    with pytest.raises(CoordinatorUnreachable, match="needs its token: set RESHAPE_TOKEN"):
        Client()
