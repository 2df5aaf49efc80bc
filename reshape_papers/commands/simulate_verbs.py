"""Defines the verbs `simulate` and `paper`: options, usage errors and help.

Entry points of the group `reshape.commands`. Imports only click until a verb runs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from reshape import foreign
from reshape.output.terminal import NODES, CliSettings, printing

LIVE_ONLY = ("scale", "runs", "trainer", "out")  # options of `paper`
_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="RESHAPE_DATA",
    help="Folder with measured speeds or traces.  [env: RESHAPE_DATA]",
)
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
    foreign.check()
    if options.pop("validate"):
        from reshape_papers.commands import validate

        return validate.run(output=output or settings.output, data=options["data"])
    if (name is None) == (trace is None) or (trace is None and (count or nodes)):
        raise click.UsageError("Name a --workload, a --trace (with --jobs and --node if you like), or --validate.")

    from reshape_papers.commands import simulate
    from reshape_papers.failures import DrawnFailures

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
        from reshape_papers.commands import coverage

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
    foreign.check()
    source = click.get_current_context().get_parameter_source
    if other := [o for o in (("seeds", "plot") if live else LIVE_ONLY) if source(o) is ParameterSource.COMMANDLINE]:
        raise click.UsageError(f"--{other[0]} goes {'without' if live else 'only with'} --live.")
    if live:
        from reshape_papers.live_paper import all_experiments, runner

        given = {"data": options["data"], "scale": scale, "runs": runs, "trainer": trainer, "out": out}
        if options["name"] == all_experiments.ALL:
            return all_experiments.run(**given, output=settings.output)
        return runner.run(name=options["name"], **given, output=settings.output)
    from reshape_papers.commands.paper import paper as run_paper

    return run_paper(output=settings.output, **options)
