"""Defines the verbs for clusters: services that the manifests start, set-up, checks and image builds.

Added to the command by `main.py`. Imports only click until a verb runs.
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
    help="mongodb://HOST/NAME; put a URL with a password into the variable, since other users can read "
    "arguments.  [env: RESHAPE_STORE]",
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
    """Run a coordinator of a cluster; it stands by while another one acts."""
    from reshape import foreign

    foreign.check()
    from reshape.services.coordinator import run

    return run(**options)


@click.command()
@click.option(
    "--node", metavar="NAME", envvar="RESHAPE_NODE", required=True, help="Name of this node.  [env: RESHAPE_NODE]"
)
@click.option(
    "--coordinator", metavar="URL", envvar="RESHAPE_COORDINATOR", required=True, help="[env: RESHAPE_COORDINATOR]"
)
@_KEYS
@click.option(
    "--emulated",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_EMULATED",
    help="Emulate GPUs, for nodes without any, by lines such as node-a=4xV100 in the file `gpus` of this folder.  "
    "[env: RESHAPE_EMULATED]",
)
@click.option(
    "--heartbeat",
    metavar="S",
    type=click.FloatRange(0.1),
    envvar="RESHAPE_HEARTBEAT_S",
    default=5.0,
    show_default=True,
    help="Seconds between reports until the coordinator sets the interval.  [env: RESHAPE_HEARTBEAT_S]",
)
def agent(**options: Any) -> int | None:
    """Run the node agent, which reports the GPUs of this node."""
    from reshape import foreign

    foreign.check()
    from reshape.services.node_agent import run

    return run(**options)


@click.command()
def launcher() -> int:
    """Run the launcher: launch jobs as pods, admit Volcano Jobs, serve the webhook.

    Configured by the variables RESHAPE_STORE, RESHAPE_KEYS, RESHAPE_TLS, RESHAPE_COORDINATOR and RESHAPE_IMAGE.
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
    help="Also make the Secret reshape-store, with user and password for the MongoDB at this address.",
)
def setup(mongodb: str | None) -> None:
    """Create the keys and the certificate of a cluster; keeps existing ones."""
    from coordinator.adapters.clock import SystemClock
    from launcher.admission.setup import set_up
    from launcher.cluster.api import KubernetesApi

    for sentence in set_up(KubernetesApi(), SystemClock().wall(), mongodb):
        click.echo(sentence)


@click.command()
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0), default=0.0, metavar="S", help="Seconds to wait for what is missing."
)
def doctor(context: str | None, wait_s: float) -> int:
    """Check a cluster, and say what is missing and how to mend it."""
    from reshape.doctor import run

    return run(context, wait_s)


_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.option("--name", required=True, help="Name of the image, such as registry.example/me/train:1.")
@click.option("--base", required=True, metavar="IMAGE", help="Base image with python3, or docker-archive:FILE.")
@click.option("--code", type=_FOLDER, required=True, help="Folder that is copied to /code, where the training starts.")
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Requirements file of pip with framework and packages.",
)
@click.option("--dataset", help="Path or address of the data; the training finds it in RESHAPE_DATASET.")
@click.option("--wheels", type=_FOLDER, help="Folder of wheels to install from, without a network.")
@click.option(
    "--archive", type=click.Path(path_type=Path, dir_okay=False), help="Also write the image here, as docker-archive."
)
def containerize(**options: Any) -> None:
    """Build the image of a training, with shim and sidecar."""
    from launcher.containerize import Image, build
    from reshape import shipped

    image = Image(**options)
    build(image, shipped.folder("playbooks") / "containerize.yml")
    click.echo(f"Image {image.name} is built." + (f" Archive: {image.archive}" if image.archive else ""))
