"""Shares code between the verbs: settings, client, output and exit codes.

Imports only click until a verb needs more.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from reshape.client import Client

POLICY_NAMES = ("planner", "sidecar", "termination", "default")
"""Policies of coordinator/policies.py, which may be another project's file."""
REFUSED, UNREACHABLE, INTERRUPTED = 1, 3, 130

DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
NOT_FOUND = 404
MOST_NAMED = 5  # ids that one sentence names

Verb = TypeVar("Verb", bound=Callable[..., Any])
Answer = TypeVar("Answer")


class ClusterDoor(NamedTuple):
    """The way to a cluster's coordinator, and the kubeconfig's context that was chosen, for `kubectl reshape`."""

    client: Callable[[], Client]
    context: str | None


@dataclass(frozen=True)
class CliSettings:
    """Options before the verb."""

    state: Path
    output: str = "table"
    url: str | None = None
    token: str | None = None
    cluster: ClusterDoor | None = None

    @property
    def here(self) -> bool:
        """Whether jobs run on this machine, as far as the options tell."""
        from reshape.client.connection import UNIX

        return (self.url or UNIX).startswith(UNIX) and self.cluster is None

    @property
    def context(self) -> str | None:
        """The context of the kubeconfig that was chosen before the verb."""
        return self.cluster.context if self.cluster else None

    def client(self) -> Client:
        """The coordinator of the cluster or at `url`, or else the one that `reshape up` started."""
        from reshape.client import Client, CoordinatorUnreachable
        from reshape.client.client import token_for

        if self.cluster is not None:
            return self.cluster.client()
        if not self.url:
            return Client.find(self.state)
        try:
            return Client(self.url, token_for(self.url, self.token or ""))
        except CoordinatorUnreachable as no_token:
            raise click.UsageError(str(no_token)) from None


def trouble(client: Client) -> str:
    """Return why what is shown may be old, where the coordinator cannot work now, as on a full disk."""
    health = client.health()
    return "" if health["ok"] else f"What is shown may be old: {health['sentence']}"


def tell_trouble(client: Client) -> None:
    if sentence := trouble(client):
        complain(sentence)


def failed(error: Exception) -> int:
    from coordinator.errors import ReshapeError
    from reshape.client import CoordinatorRefused, CoordinatorUnreachable

    if isinstance(error, OSError) and error.errno in DISK_FAULTS and not error.filename:
        complain(
            f"The output cannot be written ({error.strerror}). The request may have been carried out: check before you "
            "repeat it."
        )
        return REFUSED
    if isinstance(error, OSError) and error.filename:
        complain(f"{error.filename!s} cannot be used: {error.strerror}.")
        return REFUSED
    if not isinstance(error, ReshapeError | CoordinatorRefused | CoordinatorUnreachable):
        raise error
    problems = getattr(error, "problems", ())
    complain(str(error))
    for problem in problems:
        if problem not in str(error):
            complain(f"  {problem}")
    return UNREACHABLE if isinstance(error, CoordinatorUnreachable) else REFUSED


def complain(text: str) -> None:
    from reshape.output.tables import plain

    click.echo(plain(text), err=True)


def writable_folder(folder: Path, option: str) -> None:
    """Make the folder of an option, and see that files can be written there, before work that takes long.

    Raises `Rejected` with a sentence.
    """
    import tempfile

    from coordinator.errors import Rejected

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Rejected(f"{folder} cannot take files ({error.strerror}); name another folder with {option}.") from None


def reader_has_gone() -> int:
    """Handle a reader that closed the pipe (`reshape jobs | head -1`); Python must not complain at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


Sections = Mapping[str, Sequence[str]]  # of a help: by heading the commands below it; aliases stand as `a, b`
WHOLE = 1_000  # characters of the first sentence of a command's help: none is cut


class Group(click.Group):
    """A group that lets a broken pipe through: click itself would end the process with 1."""

    group_class = type  # groups within it are of this class
    sections: Sections = {}

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(reader_has_gone())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, each with its whole first sentence."""
        for heading, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._sentence_of(ctx, name)) for name in names])

    def _sentence_of(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name.partition(",")[0])
        assert command is not None
        return command.get_short_help_str(WHOLE)


class CommandVerb(click.Command):
    """A verb that is given a command. Of an option that it does not know it says where those of the command go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in words:
                raise
            said = f"{error.format_message()} An option of your own command goes after `--`:"
            raise click.UsageError(f"{said} {ctx.command_path} -- python train.py {error.option_name}", ctx) from None


OUTPUT = click.Choice(["table", "json"])


def _job_ids(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Complete the id of a job; nothing where no coordinator answers."""
    from reshape.client import CoordinatorRefused, CoordinatorUnreachable

    given = ctx.find_root().params
    settings = CliSettings(Path(given["state"]).expanduser(), url=given.get("url"), token=given.get("token"))
    try:
        found = [str(job["job_id"]) for job in settings.client().jobs(within_s=86_400)]
    except (CoordinatorRefused, CoordinatorUnreachable, click.UsageError):
        return []
    return [job_id for job_id in found if job_id.startswith(begun)]


JOB_ID = click.argument("job_id", metavar="ID", shell_complete=_job_ids)
JOB_IDS = click.argument("job_ids", metavar="[ID]...", nargs=-1, shell_complete=_job_ids)


class NotOneJob(click.ClickException):
    """Raised where an id is empty or begins several ids; without the lines on usage, which it did not break."""

    exit_code = click.UsageError.exit_code


def with_job_id(client: Client, given: str, call: Callable[[str], Answer]) -> Answer:
    """Call with the id of a job, or with the only id that begins with what was given.

    Jobs that ended earlier than a day ago are meant if no other is. Raises the coordinator's own refusal where no job
    is meant, `NotOneJob` where several are, or the id is empty.
    """
    from reshape.client import LATELY_S, CoordinatorRefused

    if not given:  # every id begins with an empty one
        raise NotOneJob("The job id is empty: is a variable of your shell unset? `reshape jobs` lists the ids.")
    try:
        return call(given)
    except CoordinatorRefused as unknown:
        if unknown.status != NOT_FOUND:
            raise
        begun = _begin_with(given, client.jobs(within_s=LATELY_S)) or _begin_with(given, client.jobs(True))
        if not begun:
            raise
        if len(begun) > 1:
            raise NotOneJob(f"Several jobs begin with {given}: {_some(begun)}. Write more of the id.") from None
        return call(begun[0])


def _begin_with(begun: str, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [job_id for job in jobs if (job_id := str(job["job_id"])).startswith(begun)]


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"


def for_each_job(client: Client, named: Sequence[str], listed: Sequence[str], call: Callable[[str], object]) -> int:
    """Call once for each job, past those that are refused. Returns the exit code.

    `named`: ids as a user has written them, maybe only their beginnings; `listed`: those of the coordinator's lists.
    """
    from reshape.client.connection import refused

    code = 0
    for job_id in named:
        try:
            for _, refusal in refused([job_id], lambda given: with_job_id(client, given, call)):
                code = failed(refusal)
        except NotOneJob as fault:
            fault.show()
            code = fault.exit_code
    for job_id, refusal in refused(listed, call):
        if not job_id or job_id not in str(refusal):
            complain(f"Job {job_id!r} was not changed:")
        code = failed(refusal)
    return code


def printing(verb: Verb) -> Verb:
    """Add `-o` after the verb, where most users type it."""

    def keep(ctx: click.Context, _: click.Parameter, output: str | None) -> None:
        if output is not None:
            ctx.obj = replace(ctx.obj, output=output)

    option = click.option("-o", "--output", type=OUTPUT, callback=keep, expose_value=False, help="Output format.")
    return option(verb)


def print_out(settings: CliSettings, value: Any, as_table: Callable[[Any], str]) -> None:
    click.echo(to_json(value) if settings.output == "json" else as_table(value))


def to_json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2)


def width() -> int | None:
    """Columns of the terminal; None where the output goes to a file or another program: nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    """Whether the output goes to a terminal that shows colours, and its user has not forbidden them (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_inventory(_: click.Context, option: click.Parameter, given: Any) -> Any:
    """Callback of `--gpus` and `--node`: wrong usage is told before anything starts."""
    if given:
        from reshape import foreign

        foreign.check()
        from coordinator.errors import Rejected
        from reshape.services.inventory import inventory

        try:
            inventory(**({"gpus": given} if option.name == "gpus" else {"gpus": None, "nodes": given}))
        except Rejected as refused:
            raise click.UsageError(str(refused)) from None
    return given


NODES = click.option(
    "--node",
    "nodes",
    multiple=True,
    callback=as_inventory,
    metavar="NAME=NxTYPE|NAME=cpu:CORES",
    help="Emulate a node, such as a=8xV100 or c=cpu:2; repeat for several.",
)
