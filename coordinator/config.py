"""The coordinator's settings: read once at the start, then frozen. A bad value stops the start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import field as dataclass_field
from typing import Any, TypeVar

from coordinator.webhooks import WEBHOOK_WORDS, is_webhook

T = TypeVar("T")

ENDLESS_S = 10 * 365 * 86400.0  # a lease that ends no training

IMAGE_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")

CLOCK_DRIFT = 0.01  # the greatest rate by which two machines' clocks may differ (`reliability.md` 5)


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of the past: each kind up to an age in seconds and up to a number, the newest."""

    jobs: int = 10_000
    """Ended jobs, with their decisions, and as many documents that were refused. None goes in the hour after that."""
    jobs_s: float = 30 * 86400.0
    """How long they are kept."""
    decisions: int = 20_000
    """Decisions, which go with their job; of one that has not ended the newest 100 stay."""
    events: int = 200_000
    """Events; the newest 5,000 stay, however old."""
    events_s: float = 30 * 86400.0
    """How long they are kept."""
    usage_s: float = 400 * 86400.0
    """How long the accounts of GPU-hours are kept, which are by the hour."""
    observations: int = 10_000
    """Finished tasks from which the time of a task is predicted (Slaml)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be a number greater than 0, not {value!r}")

    def __str__(self) -> str:
        """What is kept of ended jobs, for a sentence."""
        return f"the newest {self.jobs:,}, for {self.jobs_s / 86400:g} days"


@dataclass(frozen=True, slots=True)
class Config:
    """Times in seconds. Defaults are those of `reliability.md` 5 and `algorithms.md` 1.9."""

    heartbeat_s: float = 5.0
    """Interval between two heartbeats of a sidecar."""
    lease_s: float = 300.0
    """L: how long a job may train without an answered heartbeat. The same as Kubernetes' node-lost time."""
    fences: bool = True
    """Whether a lease ends a training. Not on one machine, where a shim's lock proves whether it runs."""
    grace_s: float = 20.0
    """G: how long a trainer may take to save after SIGTERM before it is killed, where it is not waited for."""
    kill_s: float = 10.0
    """K: how long killing may take after that."""
    poll_s: float = 5.0
    """Interval between two readings of the store for new, edited and deleted jobs."""
    init_timeout_s: float = 300.0
    """How long a launch may take until its sidecar reports."""
    first_step_timeout_s: float = 30.0
    """A trainer that shows no progress for so long, but lives, counts as running."""
    no_step_s: float = 100.0
    """A training that lives and makes no step for so long may hang; longer where its steps or pauses take long."""
    retries: int = 3
    """Restarts of a crashed trainer before the job has failed."""
    retry_s: float = 1.0
    """Pause before the first restart; doubles each time."""
    term_s: float = 15.0
    """T: how long a coordinator acts after it last renewed its term."""
    reshape_by: str = "sidecar"
    """`sidecar`: in the living launch. `relaunch`: stop, remove and launch again (the
    termination baseline of SideCar scheduling; what the recreate device mode does)."""
    checkpoints_last: bool = True
    """Whether checkpoints outlive the launch that made them. Not in a pod without a claim."""
    many_pods: bool = True
    """Whether a job may have several pods (`gpus_per_pod`). Not on one machine, where launches are processes."""
    volcano: bool = True
    """Whether Volcano is used. Without it a job on a cluster has one pod."""
    early_initialization: bool = True
    """Whether a newcomer is initialized while its victim still trains (SideCar scheduling, III-A)."""
    others_seen: bool = True
    """Whether users of a shared machine, or tenants of a cluster, see names, owners, states and GPU counts of others'
    jobs. On a cluster the default is 0."""
    other_processes: bool = True
    """Whether cores and memory that other processes of the machine use are kept from jobs. Of one machine only."""
    keep: Keep = Keep()
    """What is kept of the past (`RESHAPE_KEEP_JOBS`, ...)."""
    pool_idle_s: float = 60.0
    """After how long without a training the GPU of a placeholder is given back to the cluster (mode `pool`)."""
    default_owner: str = ""
    """Whose the jobs are that name no `owner`; on one machine by default the user who runs `reshape up`."""
    queue: str = ""
    """Volcano's queue of jobs that name none, as the launcher has it; empty: `default`."""
    shares: str = ""
    """Path of the `shares.yaml` that says which queues there are and who may use how many GPUs; empty: none. On one
    machine by default `shares.yaml` in the state folder."""
    image_repository: str = ""
    """Where images of records with a `base` go, such as registry.example/trainings; empty: none is built."""
    prometheus: str = ""
    """Address of a Prometheus that scrapes kubelets and node exporters, for what nodes and jobs use."""

    notify: str = dataclass_field(default="", repr=False)
    """Webhook that is told of the end and the missed deadline of each job (`docs/how-to/notifications.md`)."""
    notify_command: str = dataclass_field(default="", repr=False)
    """Command for the shell that is told likewise, by JSON on its standard input; it runs as the coordinator does."""
    notify_jobs: bool = True
    """Whether jobs may name webhooks of their own (`notify`)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be a number greater than 0, not {value!r}")
        if self.reshape_by not in ("sidecar", "relaunch"):
            raise ValueError(f"reshape_by must be `sidecar` or `relaunch`, not {self.reshape_by!r}")
        if self.prometheus and not re.fullmatch(r"https?://[^/?#@]+(/[^?#]*)?", self.prometheus):
            raise ValueError(f"prometheus must be an address such as http://HOST:9090, not {self.prometheus!r}")
        if self.notify and not is_webhook(self.notify):
            raise ValueError(f"notify must be {WEBHOOK_WORDS}")
        if self.image_repository and not IMAGE_REPOSITORY.fullmatch(self.image_repository):
            raise ValueError(
                "image_repository must be a registry and a name without a tag, such as registry.example/trainings, "
                f"not {self.image_repository!r}"
            )
        if self.lease_s <= self.grace_s:
            raise ValueError(f"lease_s ({self.lease_s}) must be longer than grace_s ({self.grace_s})")

    def granted_s(self, leased: bool) -> float:
        """Seconds for which an answered heartbeat lets a training go on; `leased`: whether silence may end it."""
        return self.lease_s if self.fences and leased else ENDLESS_S

    @property
    def wait_out_s(self) -> float:
        """Seconds after its last handled heartbeat at which a silent launch with a lease has certainly fenced itself.

        Infinite on one machine (no `many_pods`), also with fences: it may have been granted an endless lease before.
        """
        if not (self.fences and self.many_pods):
            return math.inf
        return (self.lease_s + self.kill_s) * (1 + CLOCK_DRIFT)


def from_environment(kind: type[T], environment: Mapping[str, str], prefix: str = "RESHAPE_", **given: Any) -> T:
    """A settings dataclass with the values of `RESHAPE_<FIELD>` variables; `given` ones win.

    A field that is such a class itself is read from `RESHAPE_<FIELD>_<FIELD>`. Raises ValueError with the
    variable's name.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = prefix + field.name.upper()
        if is_dataclass(field.default) and field.name not in given:
            values[field.name] = from_environment(type(field.default), environment, f"{name}_")
        elif name in environment and field.name not in given:
            values[field.name] = _parse(name, environment[name], type(field.default))
    try:
        return kind(**values, **given)
    except ValueError as error:
        named, _, rest = str(error).partition(" ")
        raise ValueError(f"{prefix}{named.upper()} {rest}" if named in values else str(error)) from None


def _parse(name: str, text: str, kind: type) -> object:
    if kind is bool:
        if text not in ("0", "1"):
            raise ValueError(f"{name} must be 0 or 1, not {text!r}")
        return text == "1"
    if kind is tuple:
        return tuple(word.strip() for word in text.split(",") if word.strip())
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be a {'whole ' * (kind is int)}number, not {text!r}") from None
