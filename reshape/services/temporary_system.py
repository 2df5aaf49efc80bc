"""Runs a `reshape up` of its own for a demo or an experiment, and follows its jobs by their events.

Promises: whatever happens, Ctrl-C too, all jobs are cancelled, the process is ended, by its recorded id, and so is what
it leaves of their launches; its log and the jobs' output stay in the folder. Used over HTTP, as any user does. Raises
`RunFailed` with a sentence.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.errors import Transient
from launcher import shim_command
from launcher.local import unlocked
from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from reshape.client.connection import EventStream, refused

View = dict[str, Any]

START_S = 300.0  # for `reshape up` to answer
END_S = 120.0  # for all jobs to end once they are cancelled, and for `reshape up`
ENDED = ("completed", "failed", "cancelled")


class RunFailed(Exception):
    """Raised if the run did not reach its end; the sentence says why."""


@contextlib.contextmanager
def running(
    folder: Path, options: Sequence[str], variables: Mapping[str, str], module: str = "reshape"
) -> Iterator[Client]:
    """Run `reshape up` with its state in `folder`/state; at the end, also after an error, stop it and all its jobs.

    `module`: the program that does, with these options.
    """
    state = folder / "state"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, "--state", str(state), "up", *options]
    with (state / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | dict(variables), start_new_session=True
        )
    try:
        client = _wait_up(process, state)
        try:
            yield client
        finally:
            _cancel_all(client)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end_launches(state)


def submit(client: Client, doc: View) -> None:
    try:
        client.submit(doc)
    except (CoordinatorRefused, CoordinatorUnreachable) as error:
        raise RunFailed(str(error)) from None


class Follower:
    """Reads events after number `after` until a condition holds, or gives up at the deadline (`time.monotonic`).

    `may_end`: the jobs that may be cancelled.
    """

    def __init__(
        self,
        client: Client,
        show: Callable[[View, float], None],
        deadline: float,
        after: int = 0,
        may_end: Collection[str] = (),
    ) -> None:
        self.events: list[View] = []
        self._client, self._show, self._after, self._deadline = client, show, after, deadline
        self._may_end = may_end
        self._stream: EventStream | None = None
        self._failure: RunFailed | None = None

    def until(self, wanted: Callable[[View], bool]) -> None:
        late = RunFailed("the jobs took longer than this run waits; see `reshape up`'s log in the output folder")
        timer = threading.Timer(self._deadline - time.monotonic(), self.give_up, [late])
        timer.daemon = True
        timer.start()
        try:
            while True:
                self._stream = self._stream or self._client.events(self._after)
                for event in self._stream:
                    self._take(event)
                    if wanted(event):
                        return
                    if self._failure:
                        raise self._failure
                if self._failure:
                    raise self._failure
                self._stream = None
        finally:
            timer.cancel()

    def give_up(self, failure: RunFailed) -> None:
        """Have `until` raise this; called from any thread."""
        self._failure = failure
        if self._stream is not None:
            self._stream.close()

    def _take(self, event: View) -> None:
        self.events.append(event)
        self._after = event["_id"]
        first = next((e["at"] for e in self.events if e["type"] == "submitted"), event["at"])
        self._show(event, event["at"] - first)
        ended = event["type"] == "cancelled" and event["job_id"] not in self._may_end
        if ended or event["type"] in ("failed", "refused"):
            raise RunFailed(f"job {event['job_id']}: {event.get('sentence') or event.get('problems')}")


def _wait_up(process: subprocess.Popen[bytes], state: Path) -> Client:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailed("`reshape up` did not start: " + (state / "up.log").read_text().strip()[-500:])
        with contextlib.suppress(CoordinatorUnreachable):
            client = Client.find(state)
            if client.health()["ok"]:
                return client
        time.sleep(0.05)
    raise RunFailed(f"`reshape up` did not answer within {START_S:.0f} s")


def _cancel_all(client: Client) -> None:
    """Cancel all open jobs and wait for their end, after Ctrl-C, too."""
    with contextlib.suppress(CoordinatorRefused, CoordinatorUnreachable):
        list(refused([str(job["job_id"]) for job in client.jobs()], client.cancel))
        deadline = time.monotonic() + END_S
        while any(j["state"] not in ENDED or not _closed(client, j) for j in client.jobs(include_ended=True)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)


def _end_launches(state: Path) -> None:
    """End the launches that `reshape up` has left: it was killed, or has not waited so long."""
    for launch in (state / "jobs").glob("*-l*"):
        if not unlocked(launch / "shim.lock"):
            with contextlib.suppress(Transient):
                shim_command.run("remove", launch, timeout_s=END_S)


def _closed(client: Client, job: View) -> bool:
    return job["launch"] == 0 or bool(client.job(str(job["job_id"])).get("closed"))
