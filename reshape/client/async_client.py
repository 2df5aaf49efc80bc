"""The client whose calls are awaited, for programs that do several things at once.

    client = AsyncClient()
    ended = await asyncio.gather(*(client.wait(name) for name in names))

Every call is that of `Client`, made in a thread, so both say and do the same.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from reshape.client import job_output
from reshape.client.client import Client
from reshape.client.connection import View
from reshape.client.job import SubmittedJob
from reshape.client.progress_bar import progress_bar

P = ParamSpec("P")
T = TypeVar("T")

END = object()


def _in_thread(
    call: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The same call, to await."""

    @functools.wraps(call)
    async def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(call, self.blocking, *args, **kwargs)

    return run


class AsyncClient:
    """Calls one coordinator as `Client` does; `blocking` is that client."""

    def __init__(self, url: str | None = None, token: str = "") -> None:
        self.blocking = Client(url, token)

    submit = _in_thread(Client.submit)
    submit_as = _in_thread(Client.submit_as)
    map = _in_thread(Client.map)
    output = _in_thread(Client.output)
    explain = _in_thread(Client.explain)
    what_if = _in_thread(Client.what_if)
    remove = _in_thread(Client.remove)
    rerun = _in_thread(Client.rerun)
    slamls = _in_thread(Client.slamls)
    cancel_slaml = _in_thread(Client.cancel_slaml)
    policy = _in_thread(Client.policy)
    shares = _in_thread(Client.shares)
    set_shares = _in_thread(Client.set_shares)
    usage = _in_thread(Client.usage)
    jobs = _in_thread(Client.jobs)
    job = _in_thread(Client.job)
    cancel = _in_thread(Client.cancel)
    reshape = _in_thread(Client.reshape)
    suspend = _in_thread(Client.suspend)
    resume = _in_thread(Client.resume)
    set_priority = _in_thread(Client.set_priority)
    drain = _in_thread(Client.drain)
    undrain = _in_thread(Client.undrain)
    reserve = _in_thread(Client.reserve)
    reservations = _in_thread(Client.reservations)
    unreserve = _in_thread(Client.unreserve)
    logs = _in_thread(Client.logs)
    curve = _in_thread(Client.curve)
    plot = _in_thread(Client.plot)
    gpus = _in_thread(Client.gpus)
    nodes = _in_thread(Client.nodes)
    snapshot = _in_thread(Client.snapshot)
    journal = _in_thread(Client.journal)
    decisions = _in_thread(Client.decisions)
    decision = _in_thread(Client.decision)
    profiles = _in_thread(Client.profiles)
    import_profiles = _in_thread(Client.import_profiles)
    login_link = _in_thread(Client.login_link)
    make_token = _in_thread(Client.make_token)
    tokens = _in_thread(Client.tokens)
    revoke_token = _in_thread(Client.revoke_token)
    health = _in_thread(Client.health)

    async def wait(self, job_id: str, timeout_s: float | None = None, progress: bool = False) -> SubmittedJob:
        """Wait as `Client.wait` does; a bar only when asked for, since several jobs may be waited for at once."""
        view: View = {}
        with progress_bar(progress) as show:
            async for view in _patiently(job_output.until_ended(self.blocking, job_id, timeout_s)):
                show(view)
        return SubmittedJob(self.blocking, view)

    def follow(self, job_id: str) -> AsyncIterator[str]:
        """Yield the lines that a job's training prints, until the job ends."""
        return _patiently(job_output.lines(job_output.pieces(self.blocking, job_id, True)))

    async def events(
        self, after: int | None = None, job_id: str | None = None, follow: bool = True, until_end: bool = False
    ) -> AsyncIterator[View]:
        """Yield events as `Client.events` does."""
        stream = self.blocking.events(after, job_id, follow, until_end)
        try:
            async for event in _patiently(stream):
                yield event
        finally:
            stream.close()


async def _patiently(steps: Iterator[T | None]) -> AsyncIterator[T]:
    """Take each step in a thread, and sleep where it is None."""
    while (step := await asyncio.to_thread(next, steps, END)) is not END:
        if step is None:
            await asyncio.sleep(job_output.POLL_S)
        else:
            yield cast(T, step)
