"""Defines the verb `run`: runs a command in this terminal on GPUs that a job of its own holds.

Added to the command by `main.py`. Imports only click until it runs. Exit code: that of the command; 1 if no GPU was
granted.
"""

from __future__ import annotations

import time
from typing import Any

import click

from reshape.output.terminal import INTERRUPTED, CliSettings, CommandVerb, complain

WAIT_S = 0.3  # between two looks whether GPUs are granted


@click.command("run", cls=CommandVerb)
@click.option("-i", "--interactive", is_flag=True, hidden=True, help="Always on; accepted for those used to it.")
@click.option("-t", "--tty", is_flag=True, hidden=True, help="Always on; accepted for those used to it.")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="How many GPUs.")
@click.option("--gpu-type", help="The only GPU type that it may run on.")
@click.option(
    "--time-limit", metavar="TIME", default="8h", show_default=True, help="How long it may run, such as 30m or 8h."
)
@click.option("--name", help="The job's id.  [default: run-1, run-2, …]")
@click.argument("command", nargs=-1, required=True)
@click.pass_obj
def run_here(settings: CliSettings, /, command: tuple[str, ...], gpus: int, name: str | None, **options: Any) -> int:
    """Run COMMAND in this terminal once GPUs are granted to it: a shell, a debugger, a notebook's server.

    A job of its own holds them: it waits for its turn as others do, is never resized, and ends with the command,
    when it is cancelled, or at its time limit. On the machine of `reshape up` only.
    """
    from reshape import interactive
    from reshape.client.command import NotRunnable, fits_some_node

    if not settings.here:
        raise click.UsageError(
            "`reshape run` runs on the machine of `reshape up`; on a cluster submit a job and enter its pod by "
            "kubectl exec."
        )
    client = settings.client()
    try:
        fits_some_node(client.nodes(), [gpus], "--gpus ")
    except NotRunnable as fault:
        raise click.ClickException(str(fault)) from None
    doc = {"optional_num_gpus": [gpus], "time_limit": options["time_limit"]}
    doc |= {field: value for field, value in (("gpu_type", options["gpu_type"]), ("job_id", name)) if value}
    try:
        with interactive.HeldGpus(client, doc, "run") as held:
            return _run(held, command)
    except interactive.NotGranted as why:
        raise click.ClickException(str(why)) from None
    except FileNotFoundError:
        raise click.ClickException(f"There is no program {command[0]}; is it on PATH?") from None
    except KeyboardInterrupt:
        complain("Stopped waiting; the job is cancelled.")
        return INTERRUPTED


def _run(held: Any, command: tuple[str, ...]) -> int:
    name = held.job.id
    told = False
    while (gpus := held.gpus()) is None:
        if not told:
            complain(f"Job {name} waits for its GPUs; `reshape explain {name}` says why. Ctrl-C cancels it.")
            told = True
        time.sleep(WAIT_S)
    complain(f"Job {name} holds {gpus}; it ends with this command.")
    over = f"Job {name} is ending: it reached its time limit, or was cancelled. The command was told to stop."
    code: int = held.run(command, gpus, lambda: complain(over))
    return code if code >= 0 else 128 - code
