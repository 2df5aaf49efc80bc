"""Defines `reshape profile import-trace`: the durations of a trace's jobs become observations.

An entry point of the group `reshape.commands`. Imports only click until it runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from reshape import foreign
from reshape.output.terminal import NODES, CliSettings, print_out, printing


@click.command("import-trace")
@click.argument("trace", metavar="FORMAT")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    envvar="RESHAPE_DATA",
    help="Folder of the trace.  [env: RESHAPE_DATA]",
)
@click.option(
    "--jobs",
    "count",
    type=click.IntRange(1),
    default=5_000,
    show_default=True,
    metavar="N",
    help="Import at most N jobs, evenly over the trace.",
)
@NODES
@printing
@click.pass_obj
def import_trace(settings: CliSettings, trace: str, data: Path, count: int, nodes: tuple[str, ...]) -> None:
    """Import how long the jobs of a trace took, such as Google's, as observations that deadlines are judged by.

    FORMAT and its folder are those of `reshape simulate --trace`; `google` takes the largest machine from --node.
    """
    foreign.check()
    from reshape_papers.commands import trace_rows

    rows, jobs = trace_rows.read(trace, data, count, nodes)
    client = settings.client()
    pieces = [rows[at : at + trace_rows.PIECE] for at in range(0, len(rows), trace_rows.PIECE)]
    answer = {"imported": sum(client.import_profiles("observations", piece) for piece in pieces), "jobs": jobs}
    print_out(settings, answer, lambda a: f"{a['imported']:,} of {a['jobs']:,} jobs imported into observations.")
