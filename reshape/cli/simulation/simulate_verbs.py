"""Defines the verbs `simulate`, `paper` and `what-if`: options, usage errors and help.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reshape.output.terminal import NODES, CliSettings, print_out, printing

if TYPE_CHECKING:
    from reshape.what_if.live import LiveState

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


def _gpu_changes(_: click.Context, __: click.Parameter, given: tuple[tuple[str, str], ...]) -> list[tuple[int, str]]:
    for count, kind in given:
        if not re.fullmatch(r"[+-]?[1-9][0-9]{0,4}", count) or kind.startswith("-"):
            raise click.BadParameter(f"'{count} {kind}' {_GPUS}")
    return [(int(count), kind) for count, kind in given]


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
@click.option("--submit", "files", type=click.File("rb"), multiple=True, help="Job documents, JSON or YAML.")
@click.option(
    "--gpus",
    type=(str, str),
    multiple=True,
    callback=_gpu_changes,
    metavar="N TYPE",
    help="More GPUs (+2 V100), or fewer (-2 V100).",
)
@click.option("--drain", "drained", multiple=True, metavar="NODE", help="Close a node; its jobs go elsewhere.")
@click.option("--policy", type=click.Choice(["sidecar", "termination", "default"]), help="Another policy.")
@click.option(
    "--queue-order", type=click.Choice(["arrival", "shortest", "deadline"]), help="Another order of waiting jobs."
)
@click.option("--deadline", "deadlines", multiple=True, metavar="JOB=TIME", help="Another deadline, such as a=30m.")
@printing
@click.pass_obj
def what_if(settings: CliSettings, /, **changes: Any) -> None:
    """Predict who starts and ends when, as things stand and with changes; touches nothing."""
    from reshape import foreign

    foreign.check_simulation()
    from reshape.what_if import report
    from reshape.what_if.forecast import forecast
    from reshape.what_if.live import LiveState

    live = LiveState.of(settings.client())
    now, changed = forecast(live), _changed(live, **changes)
    then = forecast(changed) if any(changes.values()) else None
    print_out(settings, report.as_object(now, then), lambda _: report.as_table(now, then, live.left_out))


def _changed(
    live: LiveState, files: Any, gpus: Any, drained: Any, policy: str | None, queue_order: Any, deadlines: Any
) -> LiveState:
    """Return the state with all changes made."""
    from dataclasses import replace

    from reshape.cli import documents

    for file in files:
        live = live.with_jobs(documents.read(file.read()))
    for count, kind in gpus:
        live = live.with_gpus(count, kind)
    for node in drained:
        live = live.drained(node)
    for given in deadlines:
        live = live.with_deadline(*_deadline(given))
    if policy is not None:
        live = _with_policy(live, policy)
    if queue_order is not None:
        live = replace(live, settings=replace(live.settings, queue_order=queue_order))
    return live


def _deadline(given: str) -> tuple[str, float]:
    from coordinator.model import requirements

    job_id, _, text = given.rpartition("=")
    seconds = requirements.seconds(float(text) if text.replace(".", "", 1).isdecimal() else text)
    if not job_id or seconds is None:
        raise click.BadParameter(f"{given!r} names no job and time; write JOB=30m, or 90s or 2h.")
    return job_id, seconds


def _with_policy(live: LiveState, name: str) -> LiveState:
    """Return the state under a policy of `reshape up`; what that leaves open stays as it is."""
    from dataclasses import replace

    from adaptive_scheduler.settings import DEFAULTS
    from reshape.services.up import POLICIES

    for_config, for_settings = POLICIES[name]
    settings = {"systems": live.settings.systems or DEFAULTS.systems, **for_settings}
    return replace(
        live, settings=replace(live.settings, **settings), relaunches=for_config.get("reshape_by") == "relaunch"
    )
