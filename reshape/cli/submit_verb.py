"""Defines the verb `submit`: submits a command or job documents, and waits for their end.

Added to the command by `main.py`. Imports only click until it runs. Exit codes with `--wait` and
`--follow`: 0 completed, 1 failed, cancelled or refused.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reshape.cli import slaml_verbs
from reshape.output.terminal import (
    INTERRUPTED,
    REFUSED,
    CliSettings,
    CommandVerb,
    complain,
    failed,
    print_out,
    printing,
)

if TYPE_CHECKING:
    from reshape.client import Client

MOST = 64  # counts of a range
OUTCOMES = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}
KEEPS = "it keeps what it starts with until it has shown that it resumes"


def counts(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    """Callback: `2`, `1,2,4` or `1-4` as the GPU counts that a job can run on."""
    if text is None:
        return None
    if span := re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII):
        first, last = int(span[1]), int(span[2])
        if 1 <= first <= last < first + MOST:
            return list(range(first, last + 1))
    elif re.fullmatch(r"\d{1,5}(,\d{1,5})*", text, re.ASCII):
        return sorted({int(n) for n in text.split(",")})
    raise click.BadParameter(
        f"{text!r} is not a GPU count: write one, such as 2, or all that it can run on, such as 1,2,4 or 1-4."
    )


def assignments(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str] | None:
    """Callback: each NAME=VALUE as an item of an object; None without any."""
    found = dict[str, str]()
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise click.BadParameter(f"{text!r} does not set a variable: write NAME=VALUE, such as LEARNING_RATE=0.1.")
        found[name] = value
    return found or None


@click.command(cls=CommandVerb)
@click.option(
    "-f", "--file", "source", type=click.File("rb"), help="Job documents, JSON or YAML; - for standard input."
)
@click.option(
    "--gpus",
    "--gpus-allowed",
    "gpus",
    callback=counts,
    metavar="N|N,N,…|N-N",
    help="GPU count, or the counts that the job can run on.  [default: 1]",
)
@click.option("--cpu", is_flag=True, help="Train on CPU, without any GPU.")
@click.option("--name", help="The job's id.  [default: after the script]")
@click.option("--code", metavar="DIR", help="Folder to run in.  [default: the current one]")
@click.option(
    "--elastic/--rigid",
    default=None,
    help="The job saves on SIGTERM and resumes, so that it can be reshaped at once; or it must never be stopped.  "
    "[default: once it has shown that it resumes]",
)
@click.option("--freeze", is_flag=True, help="NVIDIA's driver may freeze it in memory, so that it can give its GPU up.")
@click.option("--deadline", metavar="TIME", help="From now until its end, such as 90s, 15m or 2h.")
@click.option(
    "--time-limit", metavar="TIME", help="How long it may train, such as 90s, 15m or 2h; then it saves and ends."
)
@click.option(
    "--notify",
    metavar="URL",
    help="Webhook to call when it ends or misses its deadline.  [env: RESHAPE_NOTIFY_ME]",
)
@click.option("--queue", help="Its queue of shares.yaml; on a cluster of Volcano.")
@click.option("--priority", type=int, metavar="N", help="Of your own jobs the highest goes first.  [default: 0]")
@click.option(
    "--weight",
    type=float,
    metavar="W",
    help="How often its completion time counts in plans, against your other jobs.  [default: 1]",
)
@click.option(
    "--preemption",
    type=click.Choice(["any", "shrink", "never"]),
    help="What users with a right to GPUs may reclaim: all of it (it then waits), all but its smallest count, or "
    "nothing.  [default: any]",
)
@click.option("--hold", is_flag=True, help="Let it wait until `reshape release`, without a claim to any GPU.")
@click.option("--gpu-type", help="The only GPU type that it may run on.")
@click.option("--node", help="The only node that it may run on.")
@click.option("--after", multiple=True, metavar="ID", help="Start after this job has completed; repeat for several.")
@click.option(
    "--env", callback=assignments, multiple=True, metavar="NAME=VALUE", help="Set a variable; repeat for several."
)
@click.option("--job-type", help="Jobs of one type share measured speeds.")
@click.option("--iterations", type=click.IntRange(1), help="Length of the job in iterations.")
@click.option("--dry-run", is_flag=True, help="Only check, and print the documents that would be submitted.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the job to end, on a terminal with its progress; exit with 0 if it completed, else 1.",
)
@click.option("--follow", is_flag=True, help="Like --wait, and print the job's output.")
@click.argument("command", nargs=-1)
@printing
@click.pass_obj
def submit(settings: CliSettings, /, source: Any, command: tuple[str, ...], **options: Any) -> int:
    """Submit a job by its COMMAND after `--`, or the jobs and Slamls of a file."""
    wait, follow, dry_run = options.pop("wait"), options.pop("follow"), options.pop("dry_run")
    if dry_run and (wait or follow):
        raise click.UsageError("--dry-run submits nothing to wait for: leave --wait and --follow out.")
    given = {name: value for name, value in options.items() if value not in (None, False, ()) or name == "elastic"}
    given = {name: value for name, value in given.items() if value is not None}
    if source is not None and (given or command):
        raise click.UsageError("Give a file or a command with its options, not both.")
    if source is None and not command:
        raise click.UsageError("Give a COMMAND after --, or a file with -f.")
    if source is None:
        names, code = _typed(settings, command, given, dry_run)
    else:
        names, code = _of_file(settings, source, dry_run, follow)
    return max([code, *_until_ended(settings.client(), names, follow)] if wait or follow else [code])


def _of_file(settings: CliSettings, source: Any, dry_run: bool, follow: bool) -> tuple[list[str], int]:
    """Submit the documents of a file; a refused one does not stop the others."""
    from reshape.cli import documents
    from reshape.client import CoordinatorRefused

    beside = Path() if source.name == "<stdin>" else Path(source.name).parent
    docs = [_placed(doc, beside) for doc in documents.read(source.read())]
    if follow and (len(docs) > 1 or any(doc.get("kind") == documents.SLAML for doc in docs)):
        raise click.UsageError("--follow prints one job; wait for several with --wait, also for a Slaml.")
    client, code, names = settings.client(), 0, []
    for number, doc in enumerate(docs, 1):
        try:
            if dry_run:
                _would_be(settings, client, doc, "")
                continue
            made = client.submit(doc)
            names.append(str(made.get("job_id") or made["slaml"]))
            print_out(settings, made, _submitted)
        except CoordinatorRefused as refusal:
            alone = "" if len(docs) == 1 else f"Document {number}: "
            whose = alone if doc.get("job_id") is None else f"Job {doc['job_id']}: "
            code = failed(CoordinatorRefused(f"{whose}{refusal}", refusal.status, refusal.problems))
    return names, code


def _placed(doc: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The document with full paths of the folders that it runs in."""
    from reshape.cli import documents

    slaml = doc.get("kind") == documents.SLAML
    return documents.with_folders(doc, beside) if slaml else documents.with_full_code(doc, beside)


def _says_it_waits(doc: Mapping[str, Any], job_id: str) -> str:
    return f" It waits until `reshape release {job_id}`." if doc.get("hold") else ""


def _submitted(made: dict[str, Any]) -> str:
    if "slaml" not in made:
        return f"Job {made['job_id']} is submitted."
    return f"{made['slaml']} is submitted; `reshape slamls` shows how it stands."


# one command


def _would_be(settings: CliSettings, client: Client, doc: dict[str, Any], said: str) -> None:
    """Have a document checked, and print it."""
    from reshape.output.terminal import to_json

    job = client.submit(doc, dry_run=True)
    whose = str(job["slaml"]) if "slaml" in job else f"job {doc['job_id']}" if "job_id" in doc else "a job"
    done = f"Not submitted, as --dry-run says; the coordinator would accept {whose}{said}:"
    print_out(settings, job, lambda _: f"{done}\n{to_json(doc)}")


def _typed(
    settings: CliSettings, command: Sequence[str], given: Mapping[str, Any], dry_run: bool
) -> tuple[list[str], int]:
    from reshape.client.command import NOT_SENT, NotRunnable, fits_some_node, name

    client, here = settings.client(), settings.here
    doc, said = document(command, given, here)
    if here:
        try:
            fits_some_node(client.nodes(), doc["optional_num_gpus"], "--gpus ")
        except NotRunnable as fault:
            raise click.ClickException(str(fault)) from None
    if dry_run:
        _would_be(settings, client, doc, f" on {said}")
        return [], 0
    job = client.submit_as(doc, name(command))
    print_out(settings, job, lambda j: f"Job {j['job_id']} is submitted: {said}.{_says_it_waits(doc, j['job_id'])}")
    if not here and settings.output == "table":
        complain(NOT_SENT)
    return [str(job["job_id"])], 0


def document(command: Sequence[str], given: Mapping[str, Any], here: bool) -> tuple[dict[str, Any], str]:
    """Return the job document of a command and its description. `here`: the job runs on this machine."""
    from reshape.client import command as typed

    if given.get("cpu") and given.get("gpus", [0]) != [0]:
        raise click.UsageError("Give either --gpus or --cpu.")
    allowed = [0] if given.get("cpu") else given.get("gpus", [1])
    if here and not (folder := Path(given.get("code", "."))).is_dir():
        raise click.UsageError(f"--code: there is no folder {folder.absolute()}.")
    try:
        doc = typed.document(command, allowed, given, here)
    except typed.NotRunnable as fault:
        raise click.ClickException(str(fault)) from None
    said = [typed.gpus_in_words(allowed)]
    if here:
        path = typed.program(command[0], Path(doc["code"]), os.environ)
        said += [f"in {doc['code']}", f"with {typed.in_words(command[0], path, os.environ)}"]
    if len(allowed) > 1 and "elastic" not in given:
        said[0] += f" ({KEEPS})"
    return doc, ", ".join(said)


# waiting for the end


def _until_ended(client: Client, names: Sequence[str], follow: bool) -> list[int]:
    """Wait; return the exit code of each job. Ctrl-C ends only the waiting."""
    from reshape.client import CoordinatorUnreachable
    from reshape.client.job_output import patiently, pieces

    try:
        for name in names if follow else ():
            for piece in patiently(pieces(client, name, True)):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        return [_ended(client, name) for name in names]
    except KeyboardInterrupt:
        complain(_goes_on(names))
        return [INTERRUPTED]
    except CoordinatorUnreachable as error:
        raise CoordinatorUnreachable(f"{error} {_goes_on(names)}") from None


def _ended(client: Client, name: str) -> int:
    if slaml_verbs.known(client, name):
        return slaml_verbs.until_ended(client, name)
    from reshape.client.job_output import not_accepted, patiently, until_ended
    from reshape.output import progress_line
    from reshape.output.tables import plain

    job: dict[str, Any] = {}
    with progress_line.shown() as show:
        for job in patiently(until_ended(client, name)):
            show(job)
    refused = not_accepted(job)
    message = "; ".join(job["problems"]) if refused else str(job["message"])
    state = str(job["state"])
    outcome = "was not accepted" if refused else OUTCOMES.get(state, f"is {state}")
    click.echo(plain(f"Job {name} {outcome}{'' if message in ('', state) else ': ' + message}."), err=True)
    return 0 if state == "completed" and not refused else REFUSED


def _goes_on(names: Sequence[str]) -> str:
    if len(names) > 1:
        return "The jobs keep running; `reshape jobs` lists them."
    return (
        f"Job {names[0]} keeps running: `reshape logs -f {names[0]}` follows it, `reshape cancel {names[0]}` ends it."
    )
