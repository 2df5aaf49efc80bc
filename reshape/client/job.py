"""A job as the coordinator showed it, with the calls of the client that concern it, for notebooks.

It is a dictionary of the fields in `docs/reference/http-api.md`, so that `job["state"]` works. Made by `Client`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reshape.client.connection import View

if TYPE_CHECKING:
    from reshape.client.client import Client


class SubmittedJob(dict[str, Any]):
    """One job as it was when it was asked for last; `refresh` and `wait` ask again."""

    def __init__(self, client: Client, view: View) -> None:
        super().__init__(view)
        self._client = client

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return str(self["job_id"])

    def refresh(self) -> SubmittedJob:
        """Ask how the job is now, and return it."""
        return self._become(self._client.job(self.job_id))

    def wait(self, timeout_s: float | None = None, progress: bool = True) -> SubmittedJob:
        """Wait until the job has ended, as `Client.wait` does, and return it."""
        return self._become(self._client.wait(self.job_id, timeout_s, progress))

    def follow(self) -> Iterator[str]:
        """Yield the lines that the training prints, until the job ends."""
        return self._client.follow(self.job_id)

    def logs(self) -> str:
        """Return what the training has printed so far."""
        return self._client.output(self.job_id)

    def explain(self) -> str:
        """Return why the job has the GPUs that it has, or waits."""
        return self._client.explain(self.job_id)

    def reshape(self, gpus: int | None, force: bool = False) -> str:
        """Request a GPU count, as `Client.reshape` does; return the decision's id."""
        return self._client.reshape(self.job_id, gpus, force)

    def suspend(self) -> str:
        """Let the job save, give its GPUs up and wait; return the decision's id."""
        return self._client.suspend(self.job_id)

    def resume(self) -> str:
        """Let the suspended job start again; return the decision's id."""
        return self._client.resume(self.job_id)

    def cancel(self) -> SubmittedJob:
        """Stop the job for good."""
        return self._become(self._client.cancel(self.job_id))

    def __repr__(self) -> str:
        return f"<Job {' '.join(text for _, text in self._shown() if text)}>"

    def _repr_html_(self) -> str:
        """Show the job as a table of one line; a notebook calls this."""
        shown = [(name, text) for name, text in self._shown() if text]
        head = "".join(f"<th>{name}</th>" for name, _ in shown)
        cells = "".join(f"<td>{html.escape(text)}</td>" for _, text in shown)
        return f"<table><tr>{head}</tr><tr>{cells}</tr></table>"

    def _become(self, view: View) -> SubmittedJob:
        self.clear()
        self.update(view)
        return self

    def _shown(self) -> list[tuple[str, str]]:
        message = str(self.get("message") or "")
        state = str(self.get("state", ""))
        return [
            ("job", str(self.get("job_id", self.get("slaml", "")))),
            ("state", "suspended" if self.get("suspended") and state == "submitted" else state),
            ("GPUs", str(self["num_gpus"]) if self.get("num_gpus") else ""),
            ("progress", _progress(self.get("iters_done"), self.get("iterations"))),
            ("message", "" if message in ("", state) else message),
        ]


def _progress(done: Any, total: Any) -> str:
    if not isinstance(done, int):
        return ""
    return f"{done}/{total}" if isinstance(total, int) else str(done)
