"""The verbs of the parts of a cluster, which its manifests start, each from its RESHAPE_* variables.

Called by `cli.py`. Loads nothing but click until one of them runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_KEYS = click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_KEYS",
    required=True,
    help="Folder with the keys that `reshape setup` makes.  [env: RESHAPE_KEYS]",
)


@click.command()
@click.option(
    "--store",
    metavar="URL",
    envvar="RESHAPE_STORE",
    required=True,
    help="mongodb://HOST/NAME; one with a password belongs in the variable, since arguments can be read by "
    "everybody.  [env: RESHAPE_STORE]",
)
@_KEYS
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    envvar="RESHAPE_PORT",
    default=8080,
    show_default=True,
    help="Port to listen on.  [env: RESHAPE_PORT]",
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
def coordinator(**options: Any) -> int | None:
    """Coordinate the jobs of a cluster, or stand by while another one does."""
    from reshape import foreign

    foreign.check()
    from reshape.services.coordinator import run

    return run(**options)


@click.command()
@click.option("--node", metavar="NAME", envvar="RESHAPE_NODE", required=True, help="This node.  [env: RESHAPE_NODE]")
@click.option(
    "--coordinator", metavar="URL", envvar="RESHAPE_COORDINATOR", required=True, help="[env: RESHAPE_COORDINATOR]"
)
@_KEYS
@click.option(
    "--emulated",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_EMULATED",
    help="Its file `gpus` has lines such as node-a=4xV100, for nodes without GPUs.  [env: RESHAPE_EMULATED]",
)
@click.option(
    "--heartbeat",
    metavar="S",
    type=click.FloatRange(0.1),
    envvar="RESHAPE_HEARTBEAT_S",
    default=5.0,
    show_default=True,
    help="How often to report until the coordinator says how often.  [env: RESHAPE_HEARTBEAT_S]",
)
def agent(**options: Any) -> int | None:
    """Tell the coordinator which GPUs this node has."""
    from reshape import foreign

    foreign.check()
    from reshape.services.node_agent import run

    return run(**options)


@click.command()
def launcher() -> int:
    """Launch jobs as pods, let users' Volcano Jobs in, and answer the API server's webhook.

    Told by variables: RESHAPE_STORE, RESHAPE_KEYS, RESHAPE_TLS, RESHAPE_COORDINATOR and RESHAPE_IMAGE.
    """
    import logging
    import os

    from reshape import foreign

    foreign.check()
    from launcher.cluster.process import run
    from reshape import shipped

    logging.basicConfig(level=os.environ.get("RESHAPE_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    return run(os.environ, shipped.folder("playbooks"))


@click.command()
@click.option(
    "--mongodb",
    metavar="HOST:PORT",
    help="Also make the Secret reshape-store: user and password of the MongoDB of our own at this address.",
)
def setup(mongodb: str | None) -> None:
    """Make a cluster's keys and certificate, and keep those that are there."""
    from coordinator.adapters.clock import SystemClock
    from launcher.admission.setup import set_up
    from launcher.cluster.api import KubernetesApi

    for sentence in set_up(KubernetesApi(), SystemClock().wall(), mongodb):
        click.echo(sentence)


@click.command()
@click.option("--context", metavar="NAME", help="Of the kubeconfig.  [default: the current one]")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=0.0, metavar="S", help="How long all may take.")
def doctor(context: str | None, wait_s: float) -> int:
    """Check a cluster: what is there, what is missing, what to do about it."""
    from reshape.doctor import run

    return run(context, wait_s)


_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.option("--name", required=True, help="Of the image, such as registry.example/me/train:1.")
@click.option("--base", required=True, metavar="IMAGE", help="To begin from, or docker-archive:FILE; has python3.")
@click.option("--code", type=_FOLDER, required=True, help="Folder that becomes /code, where the training starts.")
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File that lists framework and packages, as pip reads it.",
)
@click.option("--dataset", help="Path or address of the data; the training finds it in RESHAPE_DATASET.")
@click.option("--wheels", type=_FOLDER, help="Folder of wheels to install from, without a network.")
@click.option(
    "--archive", type=click.Path(path_type=Path, dir_okay=False), help="Also write the image here, as docker-archive."
)
def containerize(**options: Any) -> None:
    """Build the image of a training, with shim and sidecar in it."""
    from launcher.containerize import Image, build
    from reshape import shipped

    image = Image(**options)
    build(image, shipped.folder("playbooks") / "containerize.yml")
    click.echo(f"Image {image.name} is built." + (f" Archive: {image.archive}" if image.archive else ""))
