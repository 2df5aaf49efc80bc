"""Defines the verb `volcano`: lets a cluster's Volcano ask our extender, and ends that.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import click

from reshape.output.terminal import CliSettings, Group

_CONTEXT = click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")


@click.group(cls=Group)
def volcano() -> None:
    """Connect Volcano's scheduler to the coordinator, or disconnect it."""


@volcano.command()
@_CONTEXT
@click.pass_obj
def connect(settings: CliSettings, context: str | None) -> None:
    """Add one entry to Volcano's scheduler configuration, so that it asks whether a job may start.

    All else there stays, with its comments. Repeat it after an upgrade of Volcano, which brings its own configuration.
    """
    from launcher.cluster.api import KubernetesApi
    from launcher.volcano_connection import connect as connect_scheduler

    for sentence in connect_scheduler(KubernetesApi(context=context or settings.context)):
        click.echo(sentence)


@volcano.command()
@_CONTEXT
@click.pass_obj
def disconnect(settings: CliSettings, context: str | None) -> None:
    """Take that entry out again; do it before volcano-reshape is removed."""
    from launcher.cluster.api import KubernetesApi
    from launcher.volcano_connection import disconnect as disconnect_scheduler

    for sentence in disconnect_scheduler(KubernetesApi(context=context or settings.context)):
        click.echo(sentence)
