"""The page of environment variables: those that become fields of settings, options of commands, and the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from adaptive_scheduler.settings import Settings
from coordinator.config import Config
from launcher.admission.inject import PodSettings
from launcher.cluster.config import LauncherSettings
from launcher.image_builder import BuilderSettings
from reference_pages.command_line import subcommands
from reference_pages.markdown import field_docs, table
from reshape.cli.main import cli

OTHERS = {
    "RESHAPE_NOTIFY_ME": "Webhook of each command or script that you submit from this shell or notebook "
    "(`docs/how-to/notifications.md`)",
    "RESHAPE_LOG": "How much coordinator, launcher, node agent and `reshape up` log: `DEBUG`, `INFO`, `WARNING`; `INFO` on a cluster, else `WARNING`",
    "RESHAPE_LOG_FORMAT": "`text`, for people, or `json`, one object a line, of the same processes and of the sidecars of pods (`text`)",
    "RESHAPE_SOCKET": "The Unix socket of a shared machine, of `reshape up --shared` and of all who call it (`/run/reshape/reshape.sock`)",
    "RESHAPE_DATA": "Folder with measured speeds and traces of others, for `reshape simulate` and `paper`",
    "RESHAPE_GPU_LOCKS": "Folder in which each training locks a file per GPU, so that two users of one GPU are noticed: tests and the demo",
}  # fmt: skip
OF_A_JOB = {
    "RESHAPE_WARM": "0: no interpreter waits with its imports done; another number: seconds to wait after the announcement and the newest import (3)",
    "RESHAPE_MEMORY": "0: a reshape in place saves to the disk at once, not in memory first",
    "RESHAPE_MTBF_S": "Seconds between two failures of a training, from which follows how often it saves by itself (86400); 0: only when asked",
}  # fmt: skip
FOUND = {
    "RESHAPE_JOB_ID": "The job",
    "RESHAPE_GENERATION": "Grows with each start",
    "RESHAPE_GPUS": "The job's GPUs now, as UUIDs. A script that sets `CUDA_VISIBLE_DEVICES` to others is not reshaped",
    "RESHAPE_CHECKPOINTS": "Folder to save in",
    "RESHAPE_CHECKPOINT": "Checkpoint to begin from; empty: the newest good one",
    "RESHAPE_ANNOUNCE": "File to make, to show that the script saves on SIGTERM",
    "RESHAPE_DATASET": "`dataset` of the job's document",
    "RESHAPE_EMULATED_SPEED": "Seconds per iteration by GPU count; there only where GPUs are emulated",
    "RESHAPE_EXIT_CODES": "Exit codes that mean `stopped, and saved`",
}
HEAD = """\
# Settings
Environment variables. Written by `make reference` from the classes that hold them: change them there. A value that makes
no sense stops the start, with the variable's name. Durations are in seconds, switches are 0 or 1, lists are written `a,b`.

`reshape up` and `reshape coordinator` read them once, at their start. On a cluster they stand in the ConfigMap
`reshape-settings` (`settings` of the Helm chart, or `manifests/base/kustomization.yaml`), for coordinator and launcher together. `reshape policy` shows which
values of the scheduler are in force.
"""
SCHEDULER = """\
## The scheduler
Each with its reason: [policies.md](policies.md). Ids such as G7 are those of [algorithms.md](../algorithms.md).

"""


def page() -> str:
    """Return the text of docs/reference/settings.md."""
    return "\n".join(
        [
            HEAD,
            "## The coordinator\n" + _of(Config),
            SCHEDULER + _of(Settings),
            "## The launcher, and the pods that it makes\nOn a cluster only.\n\n"
            + _of(LauncherSettings, {"RESHAPE_STORE", "RESHAPE_KEYS", "RESHAPE_TERM_S"})
            + _of(PodSettings, set(_names(Config)) | {"RESHAPE_PULL_POLICY", "RESHAPE_GPU_MEMORY"}, head=False)
            + "| `RESHAPE_IMAGE_PULL_POLICY` | `IfNotPresent` | Of the containers that are added to pods |\n",
            "## The builder of images\n`reshape builder`, which reads RESHAPE_STORE, too.\n\n"
            + _of(BuilderSettings, {"RESHAPE_STORE", "RESHAPE_IMAGE_REPOSITORY", "RESHAPE_RETRY_S", "RESHAPE_TERM_S"}),
            "## Options of commands\nAn option that is written wins.\n\n"
            + table(("Variable", "Instead of"), _options()),
            "## Others\n" + table(("Variable", "Meaning"), _rows(OTHERS)),
            "## In the `env` of a job\nFor that job only.\n\n" + table(("Variable", "Meaning"), _rows(OF_A_JOB)),
            "## What a training finds\nBeside `CUDA_VISIBLE_DEVICES`; more: "
            "[examples/README.md](../../examples/README.md).\n\n" + table(("Variable", "Meaning"), _rows(FOUND)),
        ]
    )


def _rows(meanings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text) for name, text in meanings.items())


def _of(kind: type, without: set[str] = frozenset(), head: bool = True) -> str:  # type: ignore[assignment]
    whole = table(("Variable", "Default", "Meaning"), _settings(kind, without))
    return whole if head else "".join(whole.splitlines(keepends=True)[2:])


def _names(kind: type) -> Iterator[str]:
    return (f"RESHAPE_{field.name.upper()}" for field in fields(kind))


def _settings(kind: type, without: set[str], prefix: str = "RESHAPE_") -> Iterator[tuple[str, str, str]]:
    docs, hints = field_docs(kind), get_type_hints(kind)
    for field in fields(kind):
        name = prefix + field.name.upper()
        if is_dataclass(field.default):
            yield from _settings(type(field.default), without, f"{name}_")
        elif name not in without:
            text = " ".join(docs[field.name].split())
            yield f"`{name}`", _default(field), text + _choices(hints[field.name])


def _default(field: Field[Any]) -> str:
    value = field.default
    if value is MISSING:
        return "needed"
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, bool):
        value = int(value)
    if value is None or value == "":
        return "none"
    return f"`{value:.10g}`" if isinstance(value, float) else f"`{value}`"


def _choices(hint: Any) -> str:
    """Return the words that a setting may have."""
    words = get_args(hint) if get_origin(hint) is Literal else ()
    listed = ", ".join(f"`{word}`" for word in words)
    return f" ({listed})" if words else ""


def _options(group: click.Group = cli, called: str = "reshape") -> Iterator[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for name, option in _all_options(group, called):
        found.setdefault(str(option.envvar), []).append(f"`{name} {max(option.opts, key=len)}`")
    return ((f"`{name}`", ", ".join(options)) for name, options in found.items())


def _all_options(command: click.Command, called: str) -> Iterator[tuple[str, click.Option]]:
    yield from ((called, each) for each in command.params if isinstance(each, click.Option) and each.envvar)
    if isinstance(command, click.Group):
        for name, inner in subcommands(command, click.Context(command)):
            yield from _all_options(inner, f"{called} {name}")
