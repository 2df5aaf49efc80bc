"""Defines the verbs `simulate`, `paper`, `what-if` and `replay`: options, usage errors and help.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from reshape.output.terminal import NODES, POLICY_NAMES, REFUSED, CliSettings, print_out, printing, tell_trouble

LIVE_ONLY = ("scale", "runs", "trainer", "out")  # options of `paper`
_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="RESHAPE_DATA",
    help="Folder with measured speeds or traces.  [env: RESHAPE_DATA]",
)
_GPUS = "must be a count and a type of GPUs, such as --gpus +2 V100, or --gpus -2 V100 for fewer."
_SEEDS = click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Number of random draws.")


def _finite(_: click.Context, __: click.Parameter, given: float | None) -> float | None:
    if given is not None and not math.isfinite(given):
        raise click.BadParameter(f"{given} is not a finite number; leave the option out to simulate no failures.")
    return given


_ABOVE_0 = click.FloatRange(0, min_open=True)


@click.command()
@click.option(
    "--workload", metavar="NAME", help="Workload, such as case-study or elastic-w1; an unknown name lists all."
)
@click.option("--trace", metavar="FORMAT", help="Simulate a trace in --data, such as philly or gavel:traces/debug.csv.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Simulate only the first N jobs of the trace.")
@NODES
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Simulate this policy; repeat for several, an unknown name lists all.  [default: those of the workload]",
)
@_SEEDS
@click.option(
    "--node-mtbf", metavar="S", type=_ABOVE_0, callback=_finite, help="Mean time to failure of a node, seconds."
)
@click.option("--node-repair", metavar="S", type=_ABOVE_0, callback=_finite, help="Repair time of a node, seconds.")
@click.option(
    "--job-crashes",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    callback=_finite,
    help="Share of jobs that crash once, 0 to 1.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), help="Output format.")
@click.option(
    "--plot", type=click.Path(path_type=Path, file_okay=False), help="Write charts of the first seed to this folder."
)
@_DATA
@click.option("--validate", is_flag=True, help="Compare the simulator with published figures instead.")
@click.option("--coverage", is_flag=True, help="Measure how often intervals of predicted starts and ends hold instead.")
@click.pass_obj
def simulate(settings: CliSettings, /, output: str | None, **options: Any) -> None:
    """Simulate scheduling policies on a workload or a trace; needs no GPU."""
    name, trace, count, nodes = (options.pop(given) for given in ("workload", "trace", "jobs", "nodes"))
    mtbf_s, repair_s, crashes = (options.pop(given) for given in ("node_mtbf", "node_repair", "job_crashes"))
    if (mtbf_s is None) != (repair_s is None):
        raise click.UsageError("Give both --node-mtbf and --node-repair, or neither.")
    from reshape import foreign

    foreign.check_simulation()
    if options.pop("validate"):
        from reshape.cli.simulation import validate

        return validate.run(output=output or settings.output, data=options["data"])
    if (name is None) == (trace is None) or (trace is None and (count or nodes)):
        raise click.UsageError("Name a --workload, a --trace (with --jobs and --node if you like), or --validate.")

    from experiments.failures import DrawnFailures
    from reshape.cli.simulation import simulate

    jobs = simulate.JobSource(
        trace if name is None else name,
        name is None,
        count,
        nodes,
        DrawnFailures(mtbf_s, repair_s or 0.0, crashes or 0.0),
    )
    if options.pop("coverage"):
        if options.pop("policies") or options.pop("plot"):
            raise click.UsageError("Leave --policy and --plot out: --coverage is of the workload's last policy.")
        from reshape.cli.simulation import coverage

        return coverage.run(jobs, output=output or settings.output, seeds=options["seeds"], data=options["data"])
    return simulate.simulate(jobs, output=output or settings.output, **options)


@click.command()
@click.argument("name")
@click.option("--seeds", type=click.IntRange(1), help="Number of random draws.  [default: 20]")
@_DATA
@click.option(
    "--plot",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw its figures to this folder, under their numbers in the paper.",
)
@click.option("--live", is_flag=True, help="Run it with real trainings on emulated nodes of this machine.")
@click.option(
    "--scale",
    type=_ABOVE_0,
    callback=_finite,
    metavar="F",
    help="With --live: multiply all times of the paper by F, such as 0.1.  [default: by experiment]",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="With --live: number of draws.")
@click.option(
    "--trainer",
    type=click.Choice(["replay", "numpy", "keras"]),
    default="replay",
    show_default=True,
    help="With --live: on CPU replay the loss of a model, train a small NumPy network in its place, or the model "
    "itself in Keras, which starts slowly.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="reshape-live",
    show_default=True,
    help="With --live: write NAME.json and, with the figures of all that ran, live.json to this folder.",
)
@printing
@click.pass_obj
def paper(
    settings: CliSettings, /, live: bool, scale: float | None, runs: int, trainer: str, out: Path, **options: Any
) -> int:
    """Rerun a published experiment, such as case-study or elastic-w1, or all; an unknown NAME lists them.

    In a clone, all also writes what came out into docs/papers.md; it takes a few minutes. With --live, all trains
    SpeCon, FlowCon and elastic-w1 over night, and the same command goes on where it was interrupted. specon-save-resume
    shows what reshape record --saving measured of stopping trainings and starting them again.
    """
    from reshape import foreign

    foreign.check_simulation()
    source = click.get_current_context().get_parameter_source
    if other := [o for o in (("seeds", "plot") if live else LIVE_ONLY) if source(o) is ParameterSource.COMMANDLINE]:
        raise click.UsageError(f"--{other[0]} goes {'without' if live else 'only with'} --live.")
    if live:
        foreign.check()
        from reshape.live_paper import all_experiments, runner

        given = {"data": options["data"], "scale": scale, "runs": runs, "trainer": trainer, "out": out}
        if options["name"] == all_experiments.ALL:
            return all_experiments.run(**given, output=settings.output)
        return runner.run(name=options["name"], **given, output=settings.output)
    from reshape.cli.simulation.paper import paper as run_paper

    return run_paper(output=settings.output, **options)


def _gpu_changes(_: click.Context, __: click.Parameter, given: tuple[tuple[str, str], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for count, kind in given:
        if not re.fullmatch(r"[+-]?[1-9][0-9]{0,4}", count) or kind.startswith("-"):
            raise click.BadParameter(f"'{count} {kind}' {_GPUS}")
        found[kind] = found.get(kind, 0) + int(count)
    return found


def _documents(_: click.Context, __: click.Parameter, given: tuple[Any, ...]) -> list[Any]:
    if not given:
        return []
    from reshape.cli import documents

    return [doc for file in given for doc in documents.read(file.read())]


class _WhatIf(click.Command):
    """Says how `--gpus` is written where its type was left out, of which click only says that it wants 2 arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            if error.option_name == "--gpus":
                raise click.BadOptionUsage("--gpus", f"--gpus {_GPUS}", ctx) from None
            raise


@click.command("what-if", cls=_WhatIf)
@click.option(
    "--submit", type=click.File("rb"), multiple=True, callback=_documents, help="Job documents, JSON or YAML."
)
@click.option(
    "--gpus",
    type=(str, str),
    multiple=True,
    callback=_gpu_changes,
    metavar="N TYPE",
    help="More GPUs (+2 V100), or fewer (-2 V100).",
)
@click.option("--drain", multiple=True, metavar="NODE", help="Close a node; its jobs go elsewhere.")
@click.option("--policy", type=click.Choice(POLICY_NAMES), help="Another policy.")
@click.option(
    "--queue-order", type=click.Choice(["arrival", "shortest", "deadline"]), help="Another order of waiting jobs."
)
@click.option("--deadline", "deadlines", multiple=True, metavar="JOB=TIME", help="Another deadline, such as a=30m.")
@printing
@click.pass_obj
def what_if(settings: CliSettings, /, deadlines: tuple[str, ...], **changes: Any) -> None:
    """Predict who starts and ends when, as things stand and with changes; touches nothing."""
    from reshape import foreign

    foreign.check()
    from reshape.output import forecast_table

    client = settings.client()
    found = client.what_if(**changes, deadlines=dict(map(_deadline, deadlines)))
    print_out(settings, forecast_table.as_object(found), lambda _: forecast_table.as_table(found))
    tell_trouble(client)


def _deadline(given: str) -> tuple[str, float]:
    from coordinator.errors import Rejected
    from coordinator.forecasts.what_if import deadline_s

    job_id, _, time = given.rpartition("=")
    try:
        return job_id, deadline_s(job_id, time)
    except Rejected as refused:
        raise click.BadParameter(str(refused)) from None


@click.command()
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICY_NAMES),
    help="Replay under this policy; repeat for several.  [default: all but the one that ran]",
)  # fmt: skip
@click.option("--since", metavar="TIME", help="Only jobs that are open or ended in the last TIME, such as 6h.")
@printing
@click.pass_obj
def replay(settings: CliSettings, /, policies: tuple[str, ...], since: str | None) -> int:
    """Simulate what happened once more under other policies, and tell the regret in GPU-hours; touches nothing."""
    from reshape import foreign

    foreign.check()
    from coordinator.model import requirements
    from reshape.output import replay_table
    from reshape.what_if.replay import replay as simulate_again

    within_s = None if since is None else requirements.seconds(since)
    if since is not None and not within_s:
        raise click.BadParameter(f"{since!r} is no time; write 90s, 30m or 6h.", param_hint="--since")
    found = simulate_again(settings.client(), policies, math.ceil(within_s or 0))
    if not found.came.jobs:
        click.echo("There is nothing to replay: no job on GPUs has started in that time.", err=True)
        return REFUSED
    print_out(settings, replay_table.as_object(found), lambda _: replay_table.as_table(found))
    return 0
