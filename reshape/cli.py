"""The `reshape` command: its verbs, what they print, and how they end.

Every verb imports what it needs by itself, so that `--help` loads nothing but click.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no coordinator answers, 130 Ctrl-C.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reshape.cli_cluster import agent, containerize, coordinator, doctor, launcher, setup
from reshape.cli_simulate import paper, simulate
from reshape.terminal import (
    INTERRUPTED,
    NODES,
    OUTPUT,
    Group,
    Settings,
    as_inventory,
    failed,
    print_out,
    printing,
    reader_has_gone,
    to_json,
    width,
)

if TYPE_CHECKING:
    from reshape.client import Client

TABLES = ("speed_profiles", "accuracy_profiles", "overheads", "observations")


def main() -> None:
    """The console script. Ends the process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. Never a traceback for what a user can cause."""
    try:
        code = cli.main(arguments, prog_name="reshape", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        return reader_has_gone()
    except Exception as error:
        return failed(error)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    try:
        click.echo(f"reshape {metadata.version('volcano-reshape')}")
    except metadata.PackageNotFoundError:
        click.echo("reshape, run from its source folder without being installed")
    ctx.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_STATE",
    default="~/.reshape",
    show_default=True,
    help="Folder of a coordinator: its address, token and books.  [env: RESHAPE_STATE]",
)
@click.option(
    "--url",
    metavar="URL",
    envvar="RESHAPE_URL",
    help="A coordinator elsewhere, such as http://127.0.0.1:8080, instead of one by --state.  [env: RESHAPE_URL]",
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="RESHAPE_TOKEN",
    help="What it asks for; better in the variable, since arguments can be read by everybody.  [env: RESHAPE_TOKEN]",
)
@click.option("-o", "--output", type=OUTPUT, default="table", show_default=True, help="How to print.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context, state: Path, url: str | None, token: str | None, output: str) -> None:
    """Running training jobs that grow and shrink for one another."""
    ctx.obj = Settings(state.expanduser(), output, url, token)


@cli.command()
@click.option(
    "--gpus", callback=as_inventory, metavar="NxTYPE", help="Emulate so many GPUs of this type, such as 4xV100."
)
@NODES
@click.option(
    "--store",
    metavar="URL",
    envvar="RESHAPE_STORE",
    help="sqlite:///FILE or mongodb://HOST/NAME; one with a password belongs in the variable, since arguments "
    "can be read by everybody.  [env: RESHAPE_STORE; default: SQLite in the state folder]",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--policy",
    type=click.Choice(["sidecar", "termination", "default"]),
    default="sidecar",
    show_default=True,
    help="Reshape running jobs, or stop and relaunch them, or never touch them.",
)
@click.pass_obj
def up(settings: Settings, /, **options: Any) -> int | None:
    """Start everything on this machine, until Ctrl-C."""
    from reshape.up import run as run_services

    return run_services(state=settings.state, **options)


def _counts(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", text, re.ASCII):
        raise click.BadParameter(f"{text!r} is not a list of GPU counts, such as 1,2,4.")
    return sorted({int(n) for n in text.split(",")})


@cli.command()
@click.option(
    "-f", "--file", "source", type=click.File("rb"), help="Job documents, JSON or YAML; - for standard input."
)
@click.option("--gpus-allowed", callback=_counts, metavar="N,N,…", help="GPU counts that the job can run on.")
@click.option("--job-type", help="Jobs of one type take equally long per iteration.")
@click.option("--iterations", type=click.IntRange(1), help="How long the job is.")
@click.option("--name", help="The job's id.")
@click.option("--code", type=click.Path(exists=True, file_okay=False, resolve_path=True), help="Folder to run in.")
@click.argument("command", nargs=-1)
@printing
@click.pass_obj
def submit(settings: Settings, /, source: Any, command: tuple[str, ...], **options: Any) -> int:
    """Submit jobs: from a file, or one by its COMMAND after `--`."""
    from reshape import documents

    names = {"gpus_allowed": "optional_num_gpus", "name": "job_id"}
    fields = {names.get(k, k): v for k, v in options.items() if v is not None}
    if source is not None and (fields or command):
        raise click.UsageError("Give a file or a command with its options, not both.")
    if source is None and not command:
        raise click.UsageError("Give a COMMAND after --, or a file with -f.")
    if source is None:
        if "optional_num_gpus" not in fields:
            raise click.UsageError("Say on how many GPUs the job can run, such as --gpus-allowed 1,2,4.")
        return _submit_all(settings, [{"command": list(command), **fields}])
    beside = Path() if source.name == "<stdin>" else Path(source.name).parent
    return _submit_all(settings, [documents.with_full_code(doc, beside) for doc in documents.read(source.read())])


def _submit_all(settings: Settings, docs: list[dict[str, Any]]) -> int:
    """One refused document does not keep the others back."""
    from reshape.client import Refused

    client, code = settings.client(), 0
    for number, doc in enumerate(docs, 1):
        try:
            job = client.submit(doc)
            print_out(settings, job, lambda j: f"Job {j['job_id']} is submitted.")
        except Refused as refusal:
            alone = "" if len(docs) == 1 else f"Document {number}: "
            whose = alone if doc.get("job_id") is None else f"Job {doc['job_id']}: "
            code = failed(Refused(f"{whose}{refusal}", refusal.status, refusal.problems))
    return code


@cli.command()
@click.option("-a", "--all", "ended", is_flag=True, help="Also those that have ended.")
@printing
@click.pass_obj
def jobs(settings: Settings, ended: bool) -> None:
    """List jobs."""
    from reshape import render

    rows = settings.client().jobs(ended)
    print_out(settings, rows, lambda r: render.jobs(r, width()))
    if not rows and settings.output == "table":
        click.echo("No jobs." if ended else "No running or waiting jobs; -a lists those that have ended.", err=True)


@cli.command()
@click.argument("job_id", metavar="ID")
@printing
@click.pass_obj
def job(settings: Settings, job_id: str) -> None:
    """Show one job."""
    from reshape import render

    print_out(settings, settings.client().job(job_id), render.job)


@cli.command()
@click.argument("job_id", metavar="ID")
@printing
@click.pass_obj
def explain(settings: Settings, job_id: str) -> None:
    """Show why: what was decided about a job, or one decision by its id."""
    from reshape import render

    client = settings.client()
    decisions = _decisions(client, job_id)
    if not decisions and settings.output == "table":
        click.echo(f"Nothing has been decided about job {job_id} yet.", err=True)
    now = _now(client, job_id) if settings.output == "table" else ""
    texts = [*(render.decision(d, width()) for d in reversed(decisions)), *([now] if now else [])]
    print_out(settings, decisions, lambda _: "\n\n".join(texts))


def _now(client: Client, name: str) -> str:
    """What is to be said of a job beside what was decided; a decision or a Slaml is no job."""
    from reshape import render
    from reshape.client import Refused

    try:
        return render.present(client.job(name))
    except Refused:
        return ""


def _decisions(client: Client, name: str) -> list[dict[str, Any]]:
    """Of the job (or slaml.NAMESPACE.NAME) of that name; else the one decision of that name. Newest first."""
    from reshape.client import Refused

    try:
        if not (found := client.decisions(name)):
            client.job(name)
        return found
    except Refused as unknown:
        if unknown.status != 404:
            raise
        try:
            return [client.decision(name)]
        except Refused:
            raise unknown from None


@cli.command()
@printing
@click.pass_obj
def gpus(settings: Settings) -> None:
    """List GPUs and who has them."""
    from reshape import render

    print_out(settings, settings.client().gpus(), lambda rows: render.gpus(rows, width()))


@cli.command()
@printing
@click.pass_obj
def nodes(settings: Settings) -> None:
    """List nodes: their GPUs, and the cores for jobs trained on CPU."""
    from reshape import render

    print_out(settings, settings.client().nodes(), lambda rows: render.nodes(rows, width()))


@cli.command()
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.pass_obj
def logs(settings: Settings, job_id: str, follow: bool) -> None:
    """Print what a job's training wrote."""
    from reshape.logs import pieces

    for piece in pieces(settings.client(), job_id, follow):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@cli.command()
@click.argument("job_id", metavar="ID")
@printing
@click.pass_obj
def cancel(settings: Settings, job_id: str) -> None:
    """Stop a job for good and free its GPUs."""
    print_out(settings, settings.client().cancel(job_id), lambda j: f"Job {j['job_id']} is being cancelled.")


@cli.command()
@click.argument("job_id", metavar="ID")
@click.option("--gpus", "count", type=click.IntRange(1), help="The GPU count that you want.")
@click.option("--auto", is_flag=True, help="Leave the count to the scheduler again.")
@printing
@click.pass_obj
def reshape(settings: Settings, job_id: str, count: int | None, auto: bool) -> None:
    """Change the GPU count of a running job."""
    if (count is None) != auto:
        raise click.UsageError("Give either --gpus N or --auto.")
    answer = {"decision_id": settings.client().reshape(job_id, count)}
    wish = "is the scheduler's to size again" if auto else f"shall run on {count} GPU{'s' * (count != 1)}"
    print_out(settings, answer, lambda a: f"Job {job_id} {wish}; `reshape explain {job_id}` tells what comes of it.")


@cli.command()
@click.option("--trainer", type=click.Choice(["keras", "numpy"]), help="What to train with.  [default: keras if there]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure-all", is_flag=True, help="Run both baselines, too, instead of predicting them.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the charts.")
@click.option("--short", is_flag=True, help="A smaller run, for tests.")
def demo(**options: Any) -> int | None:
    """Train two models that share four emulated GPUs."""
    from reshape.demo import run as run_demo

    return run_demo(**options)


cli.add_command(simulate)
cli.add_command(paper)
cli.add_command(coordinator)
cli.add_command(launcher)
cli.add_command(agent)
cli.add_command(setup)
cli.add_command(doctor)
cli.add_command(containerize)


@cli.group()
def profile() -> None:
    """What is known about job types: speeds, accuracies, overheads; and how long finished tasks took."""


_TABLE = click.argument("table", type=click.Choice(TABLES))


@profile.command("import")
@_TABLE
@click.argument("source", metavar="FILE", type=click.File("rb"))
@printing
@click.pass_obj
def import_(settings: Settings, table: str, source: Any) -> None:
    """Add the rows in FILE (JSON or YAML), all or none; one about the same thing is replaced."""
    from reshape import documents

    answer = {"imported": settings.client().import_profiles(table, documents.read(source.read()))}
    print_out(settings, answer, lambda a: f"{a['imported']} row{'s' * (a['imported'] != 1)} imported into {table}.")


@profile.command()
@_TABLE
@click.pass_obj
def export(settings: Settings, table: str) -> None:
    """Print all rows as JSON, as `import` reads them."""
    rows = [{k: v for k, v in row.items() if k not in ("_id", "version")} for row in settings.client().profiles(table)]
    click.echo(to_json(rows))


@profile.command()
@_TABLE
@printing
@click.pass_obj
def show(settings: Settings, table: str) -> None:
    """List all rows."""
    from reshape import render

    print_out(settings, settings.client().profiles(table), lambda rows: render.profiles(rows, width()))
