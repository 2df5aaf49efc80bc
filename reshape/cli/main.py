"""Defines the `reshape` command and most of its verbs.

Every verb imports its modules when it runs, so that `--help` loads only click.
Exit codes: `docs/reference/command-line.md`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reshape.cli.change_verbs import cancel, drain, priority, rerun, reshape, resume, rm, suspend, undrain
from reshape.cli.cluster_verbs import agent, builder, containerize, coordinator, doctor, launcher, setup
from reshape.cli.list_verbs import events, jobs, policy, queue, top
from reshape.cli.papers_verbs import GroupWithPapers, PapersVerb
from reshape.cli.rehearse_verb import rehearse
from reshape.cli.reserve_verbs import reservations, reserve, unreserve
from reshape.cli.run_verb import run_here
from reshape.cli.share_verbs import shares, usage
from reshape.cli.slaml_verbs import slamls
from reshape.cli.store_verbs import store
from reshape.cli.submit_verb import submit
from reshape.cli.token_verbs import token
from reshape.cli.volcano_verbs import volcano
from reshape.cli.what_if_verbs import replay, what_if
from reshape.output.terminal import (
    INTERRUPTED,
    JOB_ID,
    NODES,
    OUTPUT,
    POLICY_NAMES,
    CliSettings,
    ClusterDoor,
    as_inventory,
    failed,
    print_out,
    printing,
    reader_has_gone,
    tell_trouble,
    to_json,
    width,
    with_job_id,
)

if TYPE_CHECKING:
    from reshape.client import Client

SHARED_STATE = Path("/var/lib/reshape")
TABLES = ("speed_profiles", "accuracy_profiles", "overheads", "observations")


def main() -> None:
    """Run the console script, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str], cluster: ClusterDoor | None = None, called: str = "reshape") -> int:
    """Run one command line; returns the exit code. Never a traceback for what a user can cause."""
    try:
        if odd := next((one for one in arguments if not _is_text(one)), None):
            raise click.UsageError(f"The argument {odd!a} is not valid UTF-8.")
        code = cli.main(arguments, prog_name=called, standalone_mode=False, obj=cluster)
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


def _is_text(argument: str) -> bool:
    """False for bytes that are no UTF-8: no id and no path that the coordinator could keep."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    try:
        click.echo(f"reshape {metadata.version('volcano-reshape')}")
    except metadata.PackageNotFoundError:
        click.echo("reshape, run from its source folder without being installed")
    ctx.exit()


@click.group(cls=GroupWithPapers, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_STATE",
    default="~/.reshape",
    show_default=True,
    help="State folder of `reshape up`: address, token and store.  [env: RESHAPE_STATE]",
)
@click.option(
    "--url",
    metavar="URL",
    envvar="RESHAPE_URL",
    help="Address of a coordinator, such as http://127.0.0.1:8080, instead of --state.  [env: RESHAPE_URL]",
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="RESHAPE_TOKEN",
    help="Token of that coordinator; prefer the variable, since other users can read arguments.  [env: RESHAPE_TOKEN]",
)
@click.option("-o", "--output", type=OUTPUT, default="table", show_default=True, help="Output format.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context, state: Path, url: str | None, token: str | None, output: str) -> None:
    """Run elastic training jobs: they grow, shrink and move while they train."""
    ctx.obj = CliSettings(state.expanduser(), output, url, token, cluster=ctx.obj)


@cli.command()
@click.option("--gpus", callback=as_inventory, metavar="NxTYPE", help="Emulate GPUs of a type, such as 4xV100.")
@NODES
@click.option(
    "--store",
    metavar="URL",
    envvar="RESHAPE_STORE",
    help="sqlite:///FILE or mongodb://HOST/NAME; put a URL with a password into the variable, since "
    "other users can read arguments.  [env: RESHAPE_STORE; default: SQLite in the state folder]",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--policy",
    type=click.Choice(POLICY_NAMES),
    default="planner",
    show_default=True,
    help="Reshape running jobs in place by the best of several plans or by the paper's rules alone, relaunch them, or "
    "leave them alone.",
)
@click.option(
    "--shared",
    is_flag=True,
    help="Serve all users of this machine, each with their own jobs and rights; as root. State: /var/lib/reshape.",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background, until `reshape down`.")
@click.pass_context
def up(ctx: click.Context, /, detach: bool, **options: Any) -> int | None:
    """Run coordinator, launcher and node agent on this machine, until Ctrl-C."""
    from reshape import foreign

    foreign.check()
    state = ctx.obj.state
    chosen = ctx.find_root().get_parameter_source("state") is not click.core.ParameterSource.DEFAULT
    if options["shared"] and not chosen:
        state = SHARED_STATE
    if detach:
        from reshape.services.detached import start

        return start(state.absolute(), **options)
    from reshape.services.up import run as run_services

    return run_services(state=state, **options)


@cli.command()
@click.option("--cancel-all", is_flag=True, help="Cancel all jobs first, so that nothing keeps training.")
@click.pass_obj
def down(settings: CliSettings, cancel_all: bool) -> int:
    """Stop the `reshape up` of this state folder; running jobs keep training.

    Jobs that were cancelled or suspended are waited for, at most 80 s; one that has not stopped by then is named.
    """
    from reshape.services.detached import stop

    return stop(settings.state.absolute(), cancel_all)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what a shell needs to complete commands, options and job ids.

    bash: add `eval "$(reshape completion bash)"` to ~/.bashrc; zsh likewise to ~/.zshrc; fish: write the output to
    ~/.config/fish/completions/reshape.fish.
    """
    from click.shell_completion import get_completion_class

    if found := get_completion_class(shell):
        click.echo(found(cli, {}, "reshape", "_RESHAPE_COMPLETE").source())


@cli.command()
@JOB_ID
@printing
@click.pass_obj
def job(settings: CliSettings, job_id: str) -> None:
    """Show one job."""
    from reshape.output import render

    client = settings.client()
    print_out(settings, with_job_id(client, job_id, client.job), lambda view: render.job(view, time.time(), width()))
    tell_trouble(client)


@cli.command()
@JOB_ID
@printing
@click.pass_obj
def explain(settings: CliSettings, job_id: str) -> None:
    """Explain decisions: all about a job, or one by its id."""
    from reshape.output import render

    client = settings.client()
    decisions, job_id = with_job_id(client, job_id, lambda name: (_decisions(client, name), name))
    if not decisions and settings.output == "table":
        click.echo(f"Nothing has been decided about job {job_id} yet.", err=True)
    said = [str(d.get("sentence")) for d in decisions]
    now = _now(client, job_id, said) if settings.output == "table" else ""
    texts = [*(render.decision(d, width()) for d in reversed(decisions)), *([now] if now else [])]
    print_out(settings, decisions, lambda _: "\n\n".join(texts))
    tell_trouble(client)


def _now(client: Client, name: str, said: list[str]) -> str:
    """Return the present facts about a job; empty if `name` is a decision or a Slaml."""
    from reshape.client import CoordinatorRefused
    from reshape.output import render

    try:
        return render.present(client.job(name), said, time.time(), width())
    except CoordinatorRefused:
        return ""


def _decisions(client: Client, name: str) -> list[dict[str, Any]]:
    """Return the decisions about a job (or slaml.NAMESPACE.NAME), newest first; else the decision of that id."""
    from reshape.client import CoordinatorRefused

    try:
        if not (found := client.decisions(name)):
            client.job(name)
        return found
    except CoordinatorRefused as unknown:
        if unknown.status != 404:
            raise
        try:
            return [client.decision(name)]
        except CoordinatorRefused:
            raise unknown from None


@cli.command()
@printing
@click.pass_obj
def gpus(settings: CliSettings) -> None:
    """List GPUs and the jobs on them."""
    from reshape.output import render

    client = settings.client()
    print_out(settings, client.gpus(), lambda rows: render.gpus(rows, width()))
    tell_trouble(client)


@cli.command()
@printing
@click.pass_obj
def nodes(settings: CliSettings) -> None:
    """List nodes: their GPUs, and the cores for jobs trained on CPU."""
    from reshape.output import render

    client = settings.client()
    print_out(settings, client.nodes(), lambda rows: render.nodes(rows, width()))
    tell_trouble(client)


@cli.command()
@JOB_ID
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job ends.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Begin with the last N lines.")
@click.pass_obj
def logs(settings: CliSettings, job_id: str, follow: bool, tail: int | None) -> None:
    """Print the output of a job's training."""
    from reshape.client.job_output import last_lines, patiently, pieces

    client = settings.client()
    job_id = str(with_job_id(client, job_id, client.job)["job_id"])
    found = pieces(client, job_id, follow) if tail is None else last_lines(client, job_id, tail, follow)
    for piece in patiently(found):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@cli.command()
@printing
@click.pass_obj
def dashboard(settings: CliSettings) -> None:
    """Print a link that lets one browser into the dashboard, and open it where there is a screen."""
    from reshape.output.browser import forwarding_hint, open_privately

    if settings.cluster is not None:
        raise click.UsageError(
            "`kubectl reshape` closes its connection as it ends, so a browser cannot use it. Run `kubectl -n "
            "reshape-system port-forward service/reshape-coordinator 8080`, then `reshape dashboard` with RESHAPE_URL "
            "and RESHAPE_TOKEN."
        )
    link = settings.client().login_link()
    hint = forwarding_hint(link, os.environ)
    print_out(
        settings, {"link": link}, lambda a: f"{a['link']}\nIt lets one browser in, once, within five minutes.{hint}"
    )
    if settings.output == "table":
        open_privately(link)


@cli.command()
@click.option(
    "--trainer", type=click.Choice(["keras", "numpy"]), help="Training framework.  [default: keras if installed]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure-all", is_flag=True, help="Run both baselines instead of predicting them.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the charts.")
def demo(**options: Any) -> int | None:
    """Train two models on four emulated GPUs, which they share by reshaping."""
    from reshape.demo.case_study import run as run_demo

    return run_demo(**options)


for verb in (
    jobs,
    top,
    queue,
    shares,
    usage,
    events,
    policy,
    rerun,
    rm,
    cancel,
    reshape,
    suspend,
    resume,
    drain,
    undrain,
):
    cli.add_command(verb)
cli.add_command(reshape, "scale")
cli.add_command(resume, "release")
cli.add_command(priority)
cli.add_command(reserve)
cli.add_command(reservations)
cli.add_command(unreserve)
cli.add_command(submit)
cli.add_command(run_here)
cli.add_command(slamls)
cli.add_command(shares)
cli.add_command(usage)
cli.add_command(rehearse)
cli.add_command(what_if)
cli.add_command(replay)
cli.add_command(coordinator)
cli.add_command(launcher)
cli.add_command(builder)
cli.add_command(agent)
cli.add_command(setup)
cli.add_command(volcano)
cli.add_command(doctor)
cli.add_command(containerize)
cli.add_command(store)
cli.add_command(token)

PAPERS = ("simulate", "paper", "record")
for name in PAPERS:
    cli.add_command(PapersVerb(name))

cli.sections = {
    "Your jobs": (
        "submit",
        "run",
        "jobs",
        "job",
        "logs",
        "explain",
        "events",
        "cancel",
        "suspend",
        "resume, release",
        "reshape, scale",
        "priority",
        "rerun",
        "rm",
        "slamls",
        "rehearse",
    ),
    "The fleet": (
        "top",
        "queue",
        "gpus",
        "nodes",
        "drain",
        "undrain",
        "reserve",
        "reservations",
        "unreserve",
        "shares",
        "usage",
        "policy",
        "dashboard",
        "what-if",
        "replay",
        "profile",
    ),
    "This machine": ("up", "down", "doctor", "store", "token", "demo", "completion"),
    "A cluster": ("setup", "volcano", "containerize", "coordinator", "launcher", "builder", "agent"),
    "Science": PAPERS,
}


@cli.group()
def profile() -> None:
    """Show, import or export profiles: speeds, accuracies, overheads and task durations."""


_TABLE = click.argument("table", type=click.Choice(TABLES))


@profile.command("import")
@_TABLE
@click.argument("source", metavar="FILE", type=click.File("rb"))
@printing
@click.pass_obj
def import_(settings: CliSettings, table: str, source: Any) -> None:
    """Import rows from FILE (JSON or YAML), all or none; replaces rows of the same key."""
    from reshape.cli import documents

    answer = {"imported": settings.client().import_profiles(table, documents.read(source.read()))}
    print_out(settings, answer, lambda a: f"{a['imported']} row{'s' * (a['imported'] != 1)} imported into {table}.")


profile.add_command(PapersVerb("import-trace"))


@profile.command()
@_TABLE
@click.pass_obj
def export(settings: CliSettings, table: str) -> None:
    """Print all rows as JSON, as `import` reads them."""
    rows = [{k: v for k, v in row.items() if k not in ("_id", "version")} for row in settings.client().profiles(table)]
    click.echo(to_json(rows))


@profile.command()
@_TABLE
@printing
@click.pass_obj
def show(settings: CliSettings, table: str) -> None:
    """List all rows."""
    from reshape.output import render

    print_out(settings, settings.client().profiles(table), lambda rows: render.profiles(rows, width()))
