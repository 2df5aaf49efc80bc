"""A job as the coordinator showed it, with the calls of the client that concern it, for notebooks.

It is a dictionary of the fields in `docs/reference/http-api.md`, so that `job["state"]` works. Made by `Client`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reshape.client import progress_bar as progress
from reshape.client.connection import View
from reshape.client.job_output import has_ended
from reshape.client.job_plot import JobPlot

if TYPE_CHECKING:
    from reshape.client.client import Client


class SubmittedJob(dict[str, Any]):
    """One job as it was when it was asked for last; `refresh` and `wait` ask again."""

    def __init__(self, client: Client, view: View) -> None:
        super().__init__(view)
        self._client = client

    @property
    def id(self) -> str:
        """Return the id of the job, or of the Slaml that was submitted."""
        return str(self["slaml"] if "slaml" in self and "job_id" not in self else self["job_id"])

    @property
    def job_id(self) -> str:
        """Return the id of the job. Raises `TypeError` if this is a Slaml, which is several jobs."""
        if "job_id" not in self:
            raise TypeError(f"{self.id} is a Slaml, several jobs: Client.slamls() and Client.jobs() show how they are.")
        return str(self["job_id"])

    @property
    def state(self) -> str:
        """Return the state that the job has now; asks the coordinator, unless the job had ended when it was asked last.

        One of submitted, initializing, initialized, running, adjusting, restarting, held, and at the end completed,
        failed or cancelled.
        """
        if not has_ended(self):
            self.refresh()
        return str(self["state"])

    def refresh(self) -> SubmittedJob:
        """Ask how the job is now, and return it."""
        return self._become(self._client.job(self.job_id))

    def wait(self, timeout_s: float | None = None, progress: bool = True) -> SubmittedJob:
        """Wait until the job has ended, as `Client.wait` does, and return it.

        Raises nothing for a job that failed: its `state` says so. Ctrl-C and `TimeoutError` leave the job as it is.
        """
        return self._become(self._client.wait(self.job_id, timeout_s, progress))

    def follow(self) -> Iterator[str]:
        """Yield the lines that the training prints, until the job ends."""
        return self._client.follow(self.job_id)

    def logs(self) -> str:
        """Return what the training has printed so far."""
        return self._client.output(self.job_id)

    def curve(self) -> View:
        """Return its value, its speed and its GPUs by iterations, as `Client.curve` does."""
        return self._client.curve(self.job_id)

    def plot(self) -> JobPlot:
        """Return a picture of how its training goes, or went, that a notebook shows; `save` writes it into a file."""
        return self._client.plot(self.job_id)

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
        """Stop the job for good, and return it as it is now; it has ended once `wait` returns."""
        return self._become(self._client.cancel(self.job_id))

    def __repr__(self) -> str:
        told = ", ".join(text for name, text in self._shown() if text and name != "job")
        return f"<Job {self.id}: {told}>" if told else f"<Job {self.id}>"

    def _repr_html_(self) -> str:
        """Return the job as a table of one row; a notebook calls this."""
        return html_table([self])

    def _become(self, view: View) -> SubmittedJob:
        self.clear()
        self.update(view)
        return self

    def _shown(self) -> list[tuple[str, str]]:
        return [
            ("job", self.id),
            ("state", progress.state_in_words(self)),
            ("progress", progress.iterations_done(self)),
            ("expected", progress.expected(self)),
            ("message", progress.reason(self)),
        ]


class JobList(list[SubmittedJob]):
    """Jobs in the order in which they were asked for; a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return html_table(self) if self else "No jobs."


def html_table(jobs: Sequence[SubmittedJob]) -> str:
    """Return the jobs as a table of a page, without the columns that are empty."""
    rows = [dict(job._shown()) for job in jobs]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(name, row, job)}</td>' for name in names)}</tr>"
        for row, job in zip(rows, jobs, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, row: Mapping[str, str], job: SubmittedJob) -> str:
    bar = progress.html_bar(job) if name == "progress" else ""
    return bar or html.escape(row[name])
