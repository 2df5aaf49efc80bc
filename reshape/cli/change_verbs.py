"""Defines the verbs by which operators change jobs and nodes; each says what it did.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from reshape.cli import slaml_verbs
from reshape.output.terminal import JOB_ID, JOB_IDS, CliSettings, for_each_job, print_out, printing, with_job_id

if TYPE_CHECKING:
    from reshape.client import Client

_NODE = click.argument("node", metavar="NODE")
Job = Mapping[str, Any]


def _for_each(
    client: Client,
    job_ids: tuple[str, ...],
    every: bool,
    fits: Callable[[Job], bool],
    call: Callable[[str], object],
    *,
    ended: bool = False,
) -> int:
    """Call for the ids that were given, or with --all for those of the jobs that fit. Returns the exit code.

    `ended`: look at ended ones, too.
    """
    if every == bool(job_ids):
        raise click.UsageError("Name one or more jobs, or give --all.")
    if not every:
        return for_each_job(client, job_ids, (), call)
    found = [str(job["job_id"]) for job in client.jobs(include_ended=ended) if fits(job)]
    if not found:
        click.echo("There is no such job; `reshape jobs -a` lists all.", err=True)
    return for_each_job(client, (), found, call)


@click.command()
@JOB_IDS
@click.option("-a", "--all", "every", is_flag=True, help="All jobs that have not ended.")
@printing
@click.pass_obj
def cancel(settings: CliSettings, job_ids: tuple[str, ...], every: bool) -> int:
    """Stop jobs for good and free their GPUs; of a Slaml (slaml.NAMESPACE.NAME) all its jobs."""
    client = settings.client()

    def cancel_one(job_id: str) -> None:
        if not slaml_verbs.cancelled(settings, job_id):
            print_out(settings, client.cancel(job_id), _cancelled)

    return _for_each(client, job_ids, every, _is_open, cancel_one)


def _is_open(job: Job) -> bool:
    return not job.get("finish_ts")


def _has_ended(job: Job) -> bool:
    return bool(job.get("finish_ts"))


def _is_suspended(job: Job) -> bool:
    return bool(job.get("suspended"))


def _cancelled(job: dict[str, Any]) -> str:
    ended = f"has already ended: {job['state']}" if job["finish_ts"] else "is being cancelled"
    return f"Job {job['job_id']} {ended}."


@click.command()
@JOB_ID
@click.option("--gpus", "count", type=click.IntRange(1), help="New GPU count.")
@click.option("--auto", is_flag=True, help="Let the scheduler choose the count again.")
@click.option("--force", is_flag=True, help="Stop a job that has not shown that it resumes; work may be lost.")
@printing
@click.pass_obj
def reshape(settings: CliSettings, job_id: str, count: int | None, auto: bool, force: bool) -> None:
    """Change the GPU count of a job, or the one on which a waiting job starts."""
    if (count is None) != auto:
        raise click.UsageError("Give either --gpus N or --auto.")
    client = settings.client()

    def reshape_one(name: str) -> None:
        answer = {"decision_id": client.reshape(name, count, force)}
        outcome = _resize_outcome(client.job(name), count) if settings.output == "table" else ""
        print_out(settings, answer, lambda _: f"{outcome}; `reshape explain {name}` shows the result.")

    with_job_id(client, job_id, reshape_one)


def _resize_outcome(job: Job, count: int | None) -> str:
    """Return what a new GPU count means to a job as it is now; None lets the scheduler choose the count."""
    name = job["job_id"]
    waits = job["state"] == "submitted"
    if count is None:
        return f"The scheduler chooses on how many GPUs {name} starts" if waits else f"The scheduler sizes {name} again"
    gpus = f"{count} GPU{'s' * (count != 1)}"
    if waits:
        room = "it is" if count == 1 else "they are"
        return f"{name} starts on {gpus} once {'it is resumed' if job.get('suspended') else f'{room} free'}"
    return f"{name} keeps its {gpus}" if job["num_gpus"] == count else f"Resizing {name} to {gpus}"


@click.command()
@JOB_IDS
@click.option("-a", "--all", "every", is_flag=True, help="All jobs that have not ended.")
@printing
@click.pass_obj
def suspend(settings: CliSettings, job_ids: tuple[str, ...], every: bool) -> int:
    """Let jobs save, give all their GPUs up and wait until they are resumed."""
    client = settings.client()

    def suspend_one(job_id: str) -> None:
        answer = {"decision_id": client.suspend(job_id)}
        waits = settings.output == "table" and client.job(job_id)["state"] == "submitted"
        does = "is not started" if waits else "saves, gives its GPUs up and waits"
        print_out(settings, answer, lambda _: f"Job {job_id} {does} until `reshape resume {job_id}`.")

    def fits(job: Job) -> bool:
        return _is_open(job) and not _is_suspended(job)

    return _for_each(client, job_ids, every, fits, suspend_one)


@click.command()
@JOB_IDS
@click.option("-a", "--all", "every", is_flag=True, help="All suspended jobs.")
@printing
@click.pass_obj
def resume(settings: CliSettings, job_ids: tuple[str, ...], every: bool) -> int:
    """Let suspended or held jobs start again, from where they had saved."""
    client = settings.client()

    def resume_one(job_id: str) -> None:
        answer = {"decision_id": client.resume(job_id)}
        print_out(
            settings, answer, lambda _: f"Job {job_id} is in the queue again; it starts as soon as there is room."
        )

    return _for_each(client, job_ids, every, _is_suspended, resume_one)


@click.command(context_settings={"ignore_unknown_options": True})
@JOB_ID
@click.argument("number", metavar="N", type=int)
@printing
@click.pass_obj
def priority(settings: CliSettings, job_id: str, number: int) -> None:
    """Change the order of a job among those of its owner: the highest N goes first."""
    client = settings.client()

    def set_one(name: str) -> None:
        answer = {"decision_id": client.set_priority(name, number)}
        print_out(settings, answer, lambda _: f"Job {name} has priority {number} among the jobs of its owner.")

    with_job_id(client, job_id, set_one)


@click.command()
@_NODE
@click.option("--at", metavar="TIME", help="Begin at 22:00, 2026-05-31T22:00, or in a span such as 4h.  [default: now]")
@click.option("--until", metavar="TIME", help="Until then, likewise.  [default: until `reshape undrain`]")
@printing
@click.pass_obj
def drain(settings: CliSettings, node: str, at: str | None, until: str | None) -> None:
    """Start nothing new on a node, and let its jobs leave where they can.

    With --at or --until for a time: by then its jobs have moved, or saved and wait, and no job that could not leave in
    time starts there.
    """
    import time

    from reshape.cli.reserve_verbs import moment

    now = time.time()
    begins = None if at is None else moment("--at", at, now)
    ends = None if until is None else moment("--until", until, now, begins)
    answer = settings.client().drain(node, begins, ends)
    print_out(settings, answer, _drained if begins is None and ends is None else _plan_drain)


def _plan_drain(answer: dict[str, Any]) -> str:
    from reshape.cli.reserve_verbs import shown
    from reshape.output.tables import plain

    window = answer["window"]
    node = plain(answer["node"])
    lines = [f"Node {node} is drained from {shown(window['from'])} until {shown(window['until'])}."]
    lines += [f"Job {plain(str(job['job_id']))} {plain(job['stays'])}." for job in answer["jobs"] if job["stays"]]
    return "\n".join([*lines, f"`reshape unreserve {window['reservation_id']}` cancels that."])


def _drained(answer: dict[str, Any]) -> str:
    from reshape.output.tables import plain

    node, jobs = plain(answer["node"]), answer["jobs"]
    leave = [plain(str(job["job_id"])) for job in jobs if not job["stays"]]
    lines = [f"Node {node} takes no new work until `reshape undrain {node}`."]
    if leave:
        lines.append(f"Will move or shrink away as soon as there is room: {', '.join(leave)}; see `reshape jobs`.")
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
    client = settings.client()
    answer = with_job_id(client, job_id, client.rerun)
    print_out(settings, answer, lambda job: f"Job {job['job_id']} is submitted again.")


@click.command()
@JOB_IDS
@click.option("-a", "--all", "every", is_flag=True, help="All jobs that have ended.")
@printing
@click.pass_obj
def rm(settings: CliSettings, job_ids: tuple[str, ...], every: bool) -> int:
    """Remove jobs that have ended from the lists; their output and checkpoints stay where they are."""
    client = settings.client()

    def remove_one(job_id: str) -> None:
        print_out(settings, client.remove(job_id), lambda job: f"Job {job['job_id']} is removed from the lists.")

    return _for_each(client, job_ids, every, _has_ended, remove_one, ended=True)
