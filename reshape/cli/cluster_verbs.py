"""Defines the verbs for clusters: services that the manifests start, set-up, checks and image builds.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from reshape.output.terminal import CliSettings

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
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    envvar="RESHAPE_METRICS_PORT",
    help="Serve /metrics for Prometheus on this port.  [env: RESHAPE_METRICS_PORT]",
)
@click.option(
    "--pod-resources",
    metavar="SOCKET",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="RESHAPE_POD_RESOURCES",
    help="The kubelet's PodResources socket: GPUs of this node are used only while pods of ours hold them (mode "
    "`pool`).  [env: RESHAPE_POD_RESOURCES]",
)
@click.option(
    "--seats",
    type=click.Choice(["files", "cdi"]),
    envvar="RESHAPE_SEATS",
    help="Offer seats, by which pods see all GPUs of this node and open only their own: by the GPUs' device files and "
    "NVIDIA_VISIBLE_DEVICES, or by the CDI device nvidia.com/gpu=all.  [env: RESHAPE_SEATS]",
)
@click.option(
    "--machine",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="RESHAPE_MACHINE",
    help="Folders of this machine, for seats: device-plugins, pod-resources and pod-logs of the kubelet, and cgroup.  "
    "[env: RESHAPE_MACHINE]",
)
@click.option(
    "--pod-ip",
    metavar="ADDRESS",
    envvar="RESHAPE_POD_IP",
    help="Address of this pod, for seats.  [env: RESHAPE_POD_IP]",
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
    import os

    from reshape import foreign

    foreign.check()
    from launcher.cluster.process import run
    from reshape import shipped
    from reshape.services import process_log

    process_log.begin()
    return run(os.environ, shipped.folder("playbooks"))


@click.command()
def builder() -> int:
    """Build the images of records that have a base and no image, and push them; needs buildah.

    Configured by the variables RESHAPE_STORE, RESHAPE_IMAGE_REPOSITORY and RESHAPE_IMAGE_CODE.
    """
    from reshape import foreign

    foreign.check()
    from launcher.image_builder import run
    from reshape import shipped
    from reshape.services import process_log

    process_log.begin()
    return run(os.environ, shipped.folder("playbooks"))


@click.command()
@click.option(
    "--mongodb",
    metavar="HOST:PORT",
    help="Also make the Secret reshape-store, with user and password for the MongoDB at this address.",
)
@click.option(
    "--keep-certificate",
    is_flag=True,
    help="Trust the certificate in the Secret reshape-webhook-tls, which others made, and make none.",
)
@click.pass_obj
def setup(settings: CliSettings, mongodb: str | None, keep_certificate: bool) -> None:
    """Create the keys and the certificate of a cluster; keeps existing ones."""
    from coordinator.adapters.clock import SystemClock
    from launcher.admission.setup import set_up
    from launcher.cluster.api import KubernetesApi

    for sentence in set_up(KubernetesApi(context=settings.context), SystemClock().wall(), mongodb, keep_certificate):
        click.echo(sentence)


@click.command()
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0), default=0.0, metavar="S", help="Seconds to wait for what is missing."
)
@click.option("--machine", is_flag=True, help="Check this machine.  [default: where no kubeconfig names a cluster]")
@click.pass_obj
def doctor(settings: CliSettings, context: str | None, wait_s: float, machine: bool) -> int:
    """Check a cluster, or one machine, and say what is missing and how to mend it."""
    context = context or settings.context
    if machine and (context or wait_s):
        raise click.UsageError("--machine checks no cluster: leave --context and --wait out.")
    if machine or not (context or settings.cluster or _names_a_cluster()):
        from reshape.machine_doctor import run as run_here

        return run_here(settings.state.absolute())
    from reshape.doctor import run

    return run(context, wait_s)


def _names_a_cluster() -> bool:
    """Return whether there is a kubeconfig, or this is a pod."""
    named = os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")
    return bool(named) or (Path.home() / ".kube" / "config").exists()


_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.option(
    "--name",
    help="Name of the image, such as registry.example/me/train:1; without a tag it gets one that stands for its "
    "content, and an unchanged image is used again.  [default: `image` of the job document of --submit]",
)
@click.option(
    "--base",
    metavar="IMAGE",
    help="Base image with python3, or docker-archive:FILE.  [default: `base` of it]",
)
@click.option(
    "--code",
    type=_FOLDER,
    help="Folder that is copied to /code, where the training starts.  [default: `code` of it]",
)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Requirements file of pip with framework and packages.  [default: `requirements` of it]",
)
@click.option(
    "--dataset",
    help="Path or address of the data; the training finds it in RESHAPE_DATASET.  [default: `dataset` of it]",
)
@click.option("--wheels", type=_FOLDER, help="Folder of wheels to install from, without a network.")
@click.option(
    "--archive", type=click.Path(path_type=Path, dir_okay=False), help="Also write the image here, as docker-archive."
)
@click.option("--push", is_flag=True, help="Push it to the registry of its name.")
@click.option(
    "--submit",
    "source",
    type=click.File("rb"),
    help="Then submit this job document, to run in the image. Paths in it are seen from its own folder.",
)
@click.pass_obj
def containerize(settings: CliSettings, /, source: Any, **options: Any) -> None:
    """Build the image of a training, with shim and sidecar, and if you like submit its job."""
    from dataclasses import replace

    from launcher.containerize import build, has_tag, tagged
    from reshape import shipped
    from reshape.cli import documents

    doc = documents.record_of(source) if source else None
    image, playbooks = documents.image_of(options, doc, source), shipped.folder("playbooks")
    unchanged = not has_tag(image.name)
    if unchanged:
        image = replace(image, name=tagged(image, playbooks))
    record, where = ("", {}) if doc is None else _checked(settings, doc, image.name, own_code=bool(options["code"]))
    build(image, playbooks / "containerize.yml", record, where, unchanged)
    click.echo(f"Image {image.name} is built." + (f" Archive: {image.archive}" if image.archive else ""))
    if record:
        click.echo("Its job is submitted; `reshape jobs` shows how it stands.")


def _checked(settings: CliSettings, doc: dict[str, Any], image: str, own_code: bool) -> tuple[str, dict[str, str]]:
    """Return the job document with its image, as JSON, and the variables of its coordinator, which has checked it."""
    import json

    from reshape.cli import documents

    doc, client = documents.submitted(doc, image, own_code), settings.client()
    client.submit(doc, dry_run=True)
    return json.dumps(doc), client.variables
