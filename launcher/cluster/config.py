"""Reads the launcher's settings on a cluster: RESHAPE_* variables and two mounted folders, once at the start.

A bad value stops the start with the variable's name. Called by `launcher.cluster.process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import from_environment
from coordinator.errors import Rejected
from launcher.admission.inject import PodSettings

MASTER_KEY = "master.key"


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Times in seconds."""

    store: str = ""
    """URL of the store that the coordinators act on."""
    keys: str = ""
    """Folder with master.key."""
    tls: str = ""
    """Folder with tls.crt and tls.key of the webhook; empty: no webhook is served."""
    namespaces: tuple[str, ...] = ()
    """The namespaces of launches and users' Volcano Jobs; empty: all."""
    registries: tuple[str, ...] = ()
    """Registries, such as docker.io, that are asked without a password what an image starts if a Slaml does not say."""
    webhook_port: int = 8443
    """Port that the webhook is served on."""
    launch_timeout_s: float = 60.0
    """How long one playbook may take."""
    term_s: float = 15.0
    """How long a launcher acts after it last renewed its term, as a coordinator does."""
    workdir: str = "/tmp/reshape-launcher"
    """Where playbooks work."""

    def __post_init__(self) -> None:
        for name in ("launch_timeout_s", "term_s"):
            if not 0 < getattr(self, name) < 3600:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)!r}")
        if not self.store.startswith("mongodb"):
            raise ValueError("store must be the mongodb:// URL that the coordinators use")


def read(environment: Mapping[str, str]) -> tuple[LauncherSettings, PodSettings]:
    """Return the settings. `Rejected` with the variable that is missing or wrong."""
    try:
        settings = from_environment(LauncherSettings, environment)
        for name in ("image", "coordinator", "keys"):
            if not environment.get(f"RESHAPE_{name.upper()}"):
                raise ValueError(f"RESHAPE_{name.upper()} is missing")
        given: dict[str, Any] = {
            "image": environment["RESHAPE_IMAGE"],
            "coordinator": environment["RESHAPE_COORDINATOR"],
            "pull_policy": environment.get("RESHAPE_IMAGE_PULL_POLICY", "IfNotPresent"),
            "checkpoint_claim": environment.get("RESHAPE_CHECKPOINT_CLAIM") or None,
            "gpu_memory": None,
        }
        return settings, from_environment(PodSettings, environment, **given)
    except ValueError as error:
        raise Rejected(f"{error}.") from None


def secret(path: Path) -> str:
    """Return the content of a mounted Secret's file. `Rejected` if it is missing or empty."""
    try:
        found = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Rejected(f"{path} cannot be read ({error.strerror}): has `reshape setup` run?") from None
    if not found:
        raise Rejected(f"{path} is empty: delete its Secret and run `reshape setup` again.")
    return found
