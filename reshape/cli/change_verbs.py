"""Defines the verbs by which operators change jobs and nodes; each says what it did.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

from typing import Any

import click

from reshape.cli import slaml_verbs
from reshape.output.terminal import JOB_ID, CliSettings, print_out, printing

_NODE = click.argument("node", metavar="NODE")


@click.command()
@JOB_ID
@printing
@click.pass_obj
def cancel(settings: CliSettings, job_id: str) -> None:
    """Stop a job for good and free its GPUs; of a Slaml (slaml.NAMESPACE.NAME) all its jobs."""
    if slaml_verbs.cancelled(settings, job_id):
        return
    print_out(settings, settings.client().cancel(job_id), _cancelled)


def _cancelled(job: dict[str, Any]) -> str:
    ended = f"had ended already: it is {job['state']}" if job["finish_ts"] else "is being cancelled"
    return f"Job {job['job_id']} {ended}."


@click.command()
@JOB_ID
@click.option("--gpus", "count", type=click.IntRange(1), help="New GPU count.")
@click.option("--auto", is_flag=True, help="Let the scheduler choose the count again.")
@click.option("--force", is_flag=True, help="Stop a job that has not shown that it resumes; work may be lost.")
@printing
@click.pass_obj
def reshape(settings: CliSettings, job_id: str, count: int | None, auto: bool, force: bool) -> None:
    """Change the GPU count of a running job."""
    if (count is None) != auto:
        raise click.UsageError("Give either --gpus N or --auto.")
    answer = {"decision_id": settings.client().reshape(job_id, count, force)}
    outcome = "is sized by the scheduler again" if auto else f"shall run on {count} GPU{'s' * (count != 1)}"
    print_out(settings, answer, lambda a: f"Job {job_id} {outcome}; `reshape explain {job_id}` shows the result.")


@click.command()
@JOB_ID
@printing
@click.pass_obj
def suspend(settings: CliSettings, job_id: str) -> None:
    """Let a job save, give all its GPUs up and wait until it is resumed."""
    client = settings.client()
    answer = {"decision_id": client.suspend(job_id)}
    waits = settings.output == "table" and client.job(job_id)["state"] == "submitted"
    does = "is not started" if waits else "saves, gives its GPUs up and waits"
    print_out(settings, answer, lambda _: f"Job {job_id} {does} until `reshape resume {job_id}`.")


@click.command()
@JOB_ID
@printing
@click.pass_obj
def resume(settings: CliSettings, job_id: str) -> None:
    """Let a suspended job start again, from where it had saved."""
    answer = {"decision_id": settings.client().resume(job_id)}
    print_out(settings, answer, lambda _: f"Job {job_id} is in the queue again; it starts as soon as there is room.")


@click.command()
@_NODE
@printing
@click.pass_obj
def drain(settings: CliSettings, node: str) -> None:
    """Start nothing new on a node, and let its jobs leave where they can."""
    print_out(settings, settings.client().drain(node), _drained)


def _drained(answer: dict[str, Any]) -> str:
    from reshape.output.tables import plain

    node, jobs = plain(answer["node"]), answer["jobs"]
    leave = [plain(str(job["job_id"])) for job in jobs if not job["stays"]]
    lines = [f"Node {node} takes no new work until `reshape undrain {node}`."]
    if leave:
        lines.append(f"Moved or shrunk away as soon as there is room: {', '.join(leave)}; see `reshape jobs`.")
    lines += [f"Job {plain(str(job['job_id']))} {plain(job['stays'])}." for job in jobs if job["stays"]]
    return "\n".join(lines if jobs else [*lines, "Nothing runs there."])


@click.command()
@_NODE
@printing
@click.pass_obj
def undrain(settings: CliSettings, node: str) -> None:
    """Let a drained node take jobs again."""
    print_out(settings, settings.client().undrain(node), lambda answer: f"Node {answer['node']} takes jobs again.")


@click.command()
@JOB_ID
@printing
@click.pass_obj
def rerun(settings: CliSettings, job_id: str) -> None:
    """Submit a job that has ended once more, from the beginning, under its name."""
    print_out(settings, settings.client().rerun(job_id), lambda job: f"Job {job['job_id']} is submitted again.")


@click.command()
@JOB_ID
@printing
@click.pass_obj
def rm(settings: CliSettings, job_id: str) -> None:
    """Remove a job that has ended from the lists; its output and checkpoints stay where they are."""
    print_out(settings, settings.client().remove(job_id), lambda job: f"Job {job['job_id']} is removed from the lists.")
