"""Turns a job document into the `launch.json` of a launch on this machine. Pure.

Called by `local.py`. Shim and sidecar read the result. It alone decides which environment a job's processes see:
the shim itself starts with an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coordinator.adapters.accounts import UnixAccount
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from launcher import launch_file
from sidecar import device_filter

# The variables of `reshape up` that a job inherits. The others may hold our secrets: a job that needs more sets
# them in its `env`, as it has to on a cluster.
INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TZ",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
)

OF_THE_USER = ("HOME", "USER", "LOGNAME", "SHELL")
FOR_ALL = tuple(name for name in INHERITED if name not in (*OF_THE_USER, "TMPDIR"))  # on a shared machine


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of all launches on this machine. Times in seconds (`reliability.md` 5)."""

    gpus: Literal["emulated", "nvml"] = "emulated"  # where the sidecar reads GPU usage from
    gpu_memory: int | None = None  # bytes of one emulated GPU
    gpu_minors: Mapping[str, int] = field(default_factory=dict)  # numbers of real GPUs' device files
    unfiltered: str = ""  # why no device filter can keep jobs from other GPUs; empty where one can
    gpu_locks: Path | None = None  # folder of the oracle's lock files (demo and tests), given to trainers
    heartbeat_s: float = 5.0
    lease_s: float = 300.0  # L: a trainer is ended when its lease is not renewed for so long
    grace_s: float = 20.0  # G: for saving after SIGTERM
    kill_s: float = 10.0  # K: for everything to be gone after SIGKILL
    launch_timeout_s: float = 60.0
    node_cores: Mapping[str, float] = field(default_factory=dict)  # of emulated nodes that have cores of their own
    operator_token: str | None = field(default=None, repr=False)  # sidecars forward requests that carry it
    shared: bool = False  # whether each job runs as the user whose it is (`UnixAccount`), not as ours


DATASETS = "datasets"  # below the state folder


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one launch. `job` outlives the launch: it holds checkpoints and output."""

    launch: Path
    job: Path
    owner: int | None = None  # the uid of whom they belong to, on a shared machine

    @property
    def checkpoints(self) -> Path:
        return self.job / "checkpoints"

    @property
    def output(self) -> Path:
        return self.job / "output.log"

    @property
    def imports(self) -> Path:
        """Return where trainings of one user record what a script imports, so that the next one imports it early."""
        folder = self.launch.parent.parent / "imports"
        return folder if self.owner is None else folder / str(self.owner)

    @property
    def datasets(self) -> Path:
        """What was fetched for the trainings of this machine."""
        return self.launch.parent.parent / DATASETS


def launch_spec(
    job: JobRecord,
    folders: Folders,
    coordinator: str,
    sidecar: Sequence[str],
    settings: LocalSettings,
    environ: Mapping[str, str],
    account: UnixAccount | None = None,
) -> dict[str, Any]:
    """Return the content of `launch.json`.

    `job` has passed intake. `coordinator` is the base URL that heartbeats go to, `sidecar` the command that
    starts the sidecar, `environ` the environment that `INHERITED` is taken from. `account`: of the user that the job
    runs as on a shared machine.
    """
    doc = job.doc
    return {
        **launch_file.fields(job, coordinator, settings),
        "command": launch_file.argv(doc["command"]),
        "env": environment(doc, folders, settings, environ, account),
        "workdir": doc.get("code") or str(folders.job),
        "output": str(folders.output),
        "tee": False,
        "visible_gpus": None,
        "sidecar": list(sidecar),
        "host": "127.0.0.1",
        "port": 0,
        "gpus": settings.gpus,
        "gpu_memory": settings.gpu_memory,
        "gpu_major": device_filter.MAJOR,
        "gpu_minors": dict(settings.gpu_minors),
        "unfiltered": settings.unfiltered,
        "checkpoints": str(folders.checkpoints),
        "imports": str(folders.imports),
        **({} if account is None else {"private": True}),
    }


def environment(
    doc: JobRow,
    folders: Folders,
    settings: LocalSettings,
    environ: Mapping[str, str],
    account: UnixAccount | None = None,
) -> dict[str, str]:
    """Return the trainer's environment; ours wins over the user's. The shim adds what changes with each generation."""
    ours = launch_file.variables(doc, str(folders.checkpoints), str(folders.datasets))
    if settings.gpu_locks:
        ours["RESHAPE_GPU_LOCKS"] = str(settings.gpu_locks)
    names = INHERITED if account is None else FOR_ALL
    inherited = {name: environ[name] for name in names if name in environ}
    inherited |= account.environment() if account is not None else {}
    return inherited | dict(doc.get("env") or {}) | ours
