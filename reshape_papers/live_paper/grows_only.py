"""Runs `reshape up` with the `termination` of SideCar scheduling's evaluation in place of the scheduler (G15).

It only grows jobs, each by a new launch; that of `reshape up --policy termination` is the case study's, which shrinks
them, too. A program of its own, so that no user's policy changes: `runner.py` starts it.
"""

from __future__ import annotations

from pathlib import Path

import click

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from reshape_papers import sidecar_baselines


def decide(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Decision, ...]:
    """Decide as the simulated baseline does; it knows no settings."""
    return sidecar_baselines.termination(snapshot, now)


@click.group()
@click.option("--state", type=click.Path(path_type=Path), required=True)
@click.pass_context
def program(context: click.Context, state: Path) -> None:
    """Take the words of `reshape` that `runner.py` needs."""
    context.obj = state


@program.command()
@click.option("--node", "nodes", multiple=True)
@click.option("--policy", required=True)
@click.pass_obj
def up(state: Path, nodes: tuple[str, ...], policy: str) -> int:
    """Serve until SIGINT or SIGTERM."""
    from reshape.services.up import run

    return run(
        state=state,
        gpus=None,
        nodes=nodes,
        store=None,
        port=0,
        host="127.0.0.1",
        policy=policy,
        decide=decide,
    )


if __name__ == "__main__":
    program()
