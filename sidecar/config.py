"""Reads one sidecar's settings, once at startup.

Promise: an unusable value stops the start with its name and what to do; the launch key is never printed. The launcher
writes `launch.json` (shared with the shim, which reads other fields of it), `launch.key` and, where operators may make
requests, `operator.token`. On one machine they are in the launch's folder; in a pod, in a separate folder that the
training code cannot see.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

LAUNCH, KEY, URL, TOKEN = "launch.json", "launch.key", "sidecar.url", "operator.token"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class ConfigError(Exception):
    """Raised when a setting cannot be used; one sentence for the user."""


class ProgressSource(msgspec.Struct, frozen=True):
    """Where progress comes from, if not from output in a known format."""

    pattern: str | None = None  # regular expression with some of the groups iteration, epoch, value, total
    file: str | None = None  # JSON file, read instead of the output; relative to the working directory
    measure: str = ""  # the evaluation value that the job names; empty: the best-ranked one
    never: str = ""  # values with this in their name rank last: "loss" where the target is reached from below


class LaunchFile(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `launch.json` that the sidecar uses."""

    job_id: str
    launch: int
    member: Annotated[int, msgspec.Meta(ge=0)] = 0  # which pod of a gang this is
    pod_uid: str = ""  # if it runs in one
    command: list[Any] = []  # of the trainer; empty in a pod, where the container has it
    env: dict[str, Any] = {}  # the trainer's, on top of the shim's own
    hooks: bool = False  # whether the shim loads our hooks into the trainer
    coordinator: str  # base URL, as http://127.0.0.1:8080
    output: str  # the trainer's log file
    checkpoints: str = ""  # folder; empty: no checkpoints are reported
    workdir: str | None = None
    host: str = "127.0.0.1"  # address to listen on and to report
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # 0: any free one
    pod: bool = False  # whether the shim is a container's first process
    sidecar: list[str] | None = None  # the sidecar's command for the shim; None in a pod: it has its own container
    gpus: Literal["nvml", "emulated", "none"] = "nvml"
    gpu_memory: Annotated[int, msgspec.Meta(ge=0)] | None = None  # bytes of each emulated GPU
    progress: ProgressSource | None = None
    heartbeat_s: Seconds = 5.0
    private: bool = False  # whether other users of this machine may learn nothing of it here
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 20.0  # before the end of a lease, when the shim stops the trainer


@dataclass(frozen=True)
class SidecarSettings:
    folder: Path  # holds the shim's socket and our files
    launch: LaunchFile
    key: bytes = field(repr=False)  # the launch key
    keys: Path  # holds launch.json, launch.key and operator.token

    @property
    def apart(self) -> bool:
        """Return whether the trainer is in another container, with its own processes, limits and control groups."""
        return self.launch.pod and not self.launch.sidecar

    @property
    def checkpoints(self) -> Path | None:
        return Path(self.launch.checkpoints) if self.launch.checkpoints else None

    @property
    def progress(self) -> ProgressSource:
        return self.launch.progress or ProgressSource()

    @property
    def pattern(self) -> str | None:
        return self.launch.progress.pattern if self.launch.progress else None

    @property
    def progress_file(self) -> Path | None:
        named = self.launch.progress.file if self.launch.progress else None
        return Path(self.launch.workdir or ".") / named if named else None


def read(folder: Path, keys: Path | None = None, address: str = "") -> SidecarSettings:
    """Return the settings.

    Raises `ConfigError` if a value is missing or bad. `address`: overrides the launch's `host`.
    """
    keys = keys or folder
    try:
        launch = msgspec.json.decode(_bytes(keys / LAUNCH), type=LaunchFile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{LAUNCH} cannot be used: {error}") from None
    key = _bytes(keys / KEY).strip()
    if not key:
        raise ConfigError(f"{KEY} is empty; let the launcher write it again")
    if address:
        launch = msgspec.structs.replace(launch, host=address)
    _check(launch)
    return SidecarSettings(folder, launch, key, keys)


def _check(launch: LaunchFile) -> None:
    url = urlsplit(launch.coordinator)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"coordinator in {LAUNCH} must be an address such as http://127.0.0.1:8080")
    if not launch.job_id or not launch.job_id.isascii() or not launch.job_id.isprintable():
        raise ConfigError(f"job_id in {LAUNCH} must be printable ASCII: it is sent in a header")
    try:
        re.compile(launch.progress.pattern or "" if launch.progress else "")
    except re.error as error:
        raise ConfigError(f"progress.pattern in {LAUNCH} is no regular expression: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read ({error.strerror}); let the launcher write it again") from None
