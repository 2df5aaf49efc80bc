"""Holds seconds per iteration, overheads and accuracy of job types (SideCar scheduling, Tables IV and V).

An invalid row never reaches a prediction: it is skipped and listed in `problems`. Built once per tick by snapshot
builders from database rows. Imports no store and nothing of the coordinator. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

MEASURED = "measured"
EXTRAPOLATED = "extrapolated"
ASSUMED = "assumed"
DEFAULT_TYPE = "default"

LARGEST = 1e9
"""Upper bound of plausible seconds (31 years), which also keeps every sum finite."""

Row = Mapping[str, Any]
StatePath = Literal["disk", "host memory", "GPU"]
"""Where the state of a training is between two of its processes."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds per iteration, and whether it is measured, imported or extrapolated."""

    seconds: float
    origin: str

    @property
    def low_confidence(self) -> bool:
        return self.origin == EXTRAPOLATED


@dataclass(frozen=True, slots=True)
class Overheads:
    """The five overheads of a job type in seconds (SideCar scheduling, III-C). Starting and ending its launch, starting
    and ending its training process, a checkpoint. `proc_restart` (ours): starting it anew beside its shim, if known.
    `ckpt_state`, `restart_state` (ours): how much of `ckpt` and of a restart `models/pause.py` expects of the states
    that they were measured with; None if their size is not known."""

    k8s_init: float
    k8s_term: float
    proc_init: float
    proc_term: float
    ckpt: float
    origin: str
    proc_restart: float | None = None
    ckpt_state: float | None = None
    restart_state: float | None = None

    @property
    def restart(self) -> float:
        """Seconds of a process start on the same node."""
        return self.proc_init if self.proc_restart is None else self.proc_restart

    @property
    def reshape(self) -> float:
        """Seconds of a reshape on the same node: checkpoint, process end, process start."""
        return self.ckpt + self.proc_term + self.restart

    @property
    def finish(self) -> float:
        """Seconds from the last iteration to free GPUs: checkpoint, process end, launch end."""
        return self.ckpt + self.proc_term + self.k8s_term


DEFAULT_OVERHEADS = Overheads(
    k8s_init=83.0,
    k8s_term=54.0,
    proc_init=25.0,
    proc_term=7.0,
    ckpt=5.0,
    origin=ASSUMED,
    ckpt_state=0.0,
    restart_state=0.0,
)
"""Fit to the paper's case study, for a type without any row (`algorithms.md` 1.10). Of small states."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Top-5 accuracy in [0, 1] after so many iterations (SideCar scheduling, Table V)."""

    iterations: int
    top5: float
    origin: str


class _BadRow(Exception):
    """The row is invalid; the text gives the reason."""


@dataclass(frozen=True)
class Profiles:
    """All known profiles by job type. Built with `from_rows`; empty if nothing is known."""

    speeds: Mapping[tuple[str, str], Mapping[int, Speed]] = field(default_factory=dict)  # all GPUs on one host
    spread: Mapping[tuple[str, str, int, int], Speed] = field(default_factory=dict)  # type, GPU type, GPUs, hosts
    weak: bool = False  # see `scaled`
    overhead_rows: Mapping[str, Overheads] = field(default_factory=dict)
    accuracies: Mapping[str, tuple[Accuracy, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    _extrapolated: dict[tuple[str, str, int], Speed] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_rows(
        cls, speed_rows: Iterable[Row], overhead_rows: Iterable[Row] = (), accuracy_rows: Iterable[Row] = ()
    ) -> Profiles:
        """Build from rows; an invalid row never raises but is left out and named in `problems`. Of rows with the same
        key a measured one wins, among equals the later."""
        problems: list[str] = []
        flat = _collect(speed_rows, _speed_row, "speed", problems)
        speeds: dict[tuple[str, str], dict[int, Speed]] = {}
        for (job_type, gpu_type, num_gpus, hosts), speed in flat.items():
            if hosts == 1:
                speeds.setdefault((job_type, gpu_type), {})[num_gpus] = speed
        curves: dict[str, list[Accuracy]] = {}
        for (job_type, _), point in _collect(accuracy_rows, _accuracy_row, "accuracy", problems).items():
            curves.setdefault(job_type, []).append(point)
        return cls(
            speeds=speeds,
            spread={key: speed for key, speed in flat.items() if key[3] > 1},
            overhead_rows=_collect(overhead_rows, _overhead_row, "overhead", problems),
            accuracies={t: tuple(sorted(points, key=lambda p: p.iterations)) for t, points in curves.items()},
            problems=tuple(problems),
        )

    def scaled(self, batch_scaling: Literal["fixed", "weak"]) -> Profiles:
        """Return the profiles for this batch scaling (G12). "weak": n GPUs do n batches in the time of one iteration.
        Lengths are then counted in batches of one GPU. Prediction and training must use the same profiles."""
        if batch_scaling == "fixed" or self.weak:
            return self
        speeds = {key: {n: _per_batch(s, n) for n, s in known.items()} for key, known in self.speeds.items()}
        spread = {key: _per_batch(speed, key[2]) for key, speed in self.spread.items()}
        return replace(self, speeds=speeds, spread=spread, weak=True, _extrapolated={})

    def speed(self, job_type: str, gpu_type: str, num_gpus: int, hosts: int = 1) -> Speed | None:
        """Return the seconds per iteration; None if nothing is known of this type on this GPU type. An unknown count is
        extrapolated from the nearest known one by `speed_up`; an unmeasured placement over several hosts from one host
        by `spread_share`."""
        if hosts > 1:
            if measured := self.spread.get((job_type, gpu_type, num_gpus, hosts)):
                return measured
            together = self.speed(job_type, gpu_type, num_gpus)
            return together and Speed(together.seconds / spread_share(hosts), EXTRAPOLATED)
        known = self.speeds.get((job_type, gpu_type))
        if not known:
            return None
        if num_gpus in known:
            return known[num_gpus]
        # Cached: every decision of a tick needs the same few.
        key = (job_type, gpu_type, num_gpus)
        if key not in self._extrapolated:
            self._extrapolated[key] = _extrapolate(known, num_gpus)
        return self._extrapolated[key]

    def overheads(self, job_type: str) -> Overheads:
        """Return those of this type, else of the type "default", else `DEFAULT_OVERHEADS`."""
        return self.overhead_rows.get(job_type) or self.overhead_rows.get(DEFAULT_TYPE) or DEFAULT_OVERHEADS

    def accuracy(self, job_type: str) -> tuple[Accuracy, ...]:
        """Return the known points of the accuracy curve, fewest iterations first."""
        return self.accuracies.get(job_type, ())


def speed_up(num_gpus: int) -> float:
    """Return the assumed speed-up over one GPU, for counts that were not measured. 1 / 1.7 / 2.4 on 1 / 2 / 4 GPUs as
    SideCar scheduling, II prints for ResNet, 0.7 more with each doubling, capped at 8 GPUs: the paper reports no larger
    count and the gain must fade."""
    return 1.0 + 0.7 * math.log2(min(num_gpus, 8))


def spread_share(hosts: int) -> float:
    """Return the assumed share of its one-host speed that a job keeps on several hosts, where unmeasured. 0.94 on 2
    hosts and 0.71 on 4 are the medians of 20 and 10 measurements of five CNNs by Chronus
    (`placement_slowdown_chronus.json` of ElasticFlow's repository; a VGG16 keeps only 0.26, a ResNet 0.80). The same
    loss is assumed for each doubling beyond 4."""
    if hosts < 3:
        return 0.94 if hosts == 2 else 1.0
    return math.exp(math.log(0.71) * math.log2(hosts) / 2)


def _per_batch(speed: Speed, num_gpus: int) -> Speed:
    return replace(speed, seconds=speed.seconds / num_gpus)


def _extrapolate(known: Mapping[int, Speed], num_gpus: int) -> Speed:
    # The nearest on a log scale: 2 is to 4 what 4 is to 8. Ties go to the smaller count.
    nearest = min(known, key=lambda n: (abs(math.log2(n / num_gpus)), n))
    return Speed(known[nearest].seconds * speed_up(nearest) / speed_up(num_gpus), EXTRAPOLATED)


K = TypeVar("K")
V = TypeVar("V", Speed, Overheads, Accuracy)


def _collect(rows: Iterable[Row], read: Callable[[Row], tuple[K, V]], what: str, problems: list[str]) -> dict[K, V]:
    found: dict[K, V] = {}
    for position, row in enumerate(rows, start=1):
        try:
            if not isinstance(row, Mapping):
                raise _BadRow(f"it must be a document, not {row!r}")
            key, value = read(row)
        except _BadRow as bad:
            problems.append(f"{what} profile row {position} is left out: {bad}")
            continue
        if key in found and found[key].origin == MEASURED and value.origin != MEASURED:
            continue
        found[key] = value
    return found


def _speed_row(row: Row) -> tuple[tuple[str, str, int, int], Speed]:
    hosts = _count(row, "hosts") if "hosts" in row else 1
    key = (_text(row, "job_type"), _text(row, "gpu_type"), _count(row, "num_gpus"), hosts)
    return key, Speed(_number(row, "seconds_per_iteration", above=True), _origin(row))


def _overhead_row(row: Row) -> tuple[str, Overheads]:
    job_type = _text(row, "job_type")
    small = dict.fromkeys(("ckpt_state", "restart_state"), 0.0) if job_type == DEFAULT_TYPE else {}
    known = [name for name in ("proc_restart", "ckpt_state", "restart_state") if row.get(name) not in (None, "")]
    names = ("k8s_init", "k8s_term", "proc_init", "proc_term", "ckpt", *known)
    return job_type, Overheads(**{**small, **{name: _number(row, name) for name in names}}, origin=_origin(row))


def _accuracy_row(row: Row) -> tuple[tuple[str, int], Accuracy]:
    job_type, iterations = _text(row, "job_type"), _count(row, "iterations")
    top5 = _number(row, "top5")
    if top5 > 1:
        raise _BadRow(f"top5 must be between 0 and 1, not {top5!r}")
    return (job_type, iterations), Accuracy(iterations, top5, _origin(row))


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    # Table III numbers its job types, so a number is a type's name too.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise _BadRow(f"{name} must be a name, not {value!r}")
    return value


def _count(row: Row, name: str) -> int:
    value = row.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _BadRow(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _number(row: Row, name: str, *, above: bool = False) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise _BadRow(f"{name} must be a number below {LARGEST:.0e}, not {value!r}")
    if value < 0 or (above and value == 0):
        raise _BadRow(f"{name} must be {'above 0' if above else '0 or more'}, not {value!r}")
    return float(value)


def _origin(row: Row) -> str:
    origin = row.get("origin")
    return origin if isinstance(origin, str) and origin else "imported"
