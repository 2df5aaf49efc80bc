"""Defines the verbs `simulate` and `paper`: options, usage errors and help.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from reshape.output.terminal import NODES, CliSettings, printing

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
    return simulate.simulate(jobs, output=output or settings.output, **options)


@click.command()
@click.argument("name")
@_SEEDS
@_DATA
@printing
@click.pass_obj
def paper(settings: CliSettings, /, **options: Any) -> int:
    """Rerun a published experiment, such as case-study or elastic-w1; an unknown NAME lists all."""
    from reshape import foreign

    foreign.check_simulation()
    from reshape.cli.simulation.simulate import paper as run_paper

    return run_paper(output=settings.output, **options)
