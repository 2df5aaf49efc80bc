"""`python -m benchmarks gap --gpu`: how long training on a real GPU stands still, by the way in which it is restarted.

The same script of a user (`train.py`) is stopped and started again on the same GPU: killed and run again as a plain
process; and in place by a real shim and sidecar, started cold, by a waiting interpreter, and by one while the state
stays on the GPU. One after the other, since two large models do not fit beside each other. Needs a Python with PyTorch
and NumPy, and no coordinator. Each gap is checked: the next step is the next one, and the state is the same, bit by
bit. Ends in time with what it has measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.gap_on_gpus.sides import (
    COLD,
    HELD,
    KILL,
    WAITING,
    Gap,
    Side,
    TimeUp,
    in_place,
    plain_process,
)
from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.errors import ReshapeError
from sidecar.resources.gpus import list_gpus
from tests.interpreters import python_with

MODELS = ("resnet50", "124m", "350m", "1.3b", "1.3b-cpu")
ON_CPU = "-cpu"  # ends the name of a model that the script makes on the CPU
KNOWN = ("tiny", "resnet50", "124m", "350m", "1.3b")
WAYS = (KILL, COLD, WAITING, HELD)
ORDER = (KILL, *WAYS[:0:-1])  # in which they are measured: what matters most first, as time may run out
FLOORS = {"124m": 0.2, "1.3b": 0.03}  # of the state held on the GPU, of kill and run again
MOST_S = {"resnet50": 1.5, "124m": 1.5, "1.3b": 1.5}  # of a gap with the state held on the GPU
ROUNDS = 3
END_S = 15.0  # kept back to end the trainings and print
ASK = """
import importlib.util, json, torch
torchvision = importlib.util.find_spec("torchvision") is not None
print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.is_available(), "torchvision": torchvision}))
"""


@dataclass(frozen=True)
class Place:
    """The machine on which it is measured. `gpus`: as a launch names their kind."""

    python: str
    torch: str
    torchvision: bool
    gpu_ids: tuple[str, ...]
    gpu_type: str
    gpus: str


@dataclass
class Budget:
    """Shares the time that is left among what is still to be measured. Times as of `time.monotonic`."""

    until: float
    left: int  # ways, over all models

    def share(self, now: float) -> float:
        """Until when the next way may begin rounds beyond its first."""
        share = max(0.0, self.until - now) / max(1, self.left)
        self.left -= 1
        return now + share


@dataclass
class Measured:
    """Gaps by model and way. `wrong`: answers that were not what they must be; `unsaid`: what else went wrong."""

    gaps: dict[tuple[str, str], list[Gap]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> Result:
    models = chosen(options.models)
    began, rounds = time.monotonic(), options.rounds or ROUNDS
    until = began + max(options.most_s - END_S, options.most_s / 2) if options.most_s else float("inf")
    place, found = place_of(models), Measured()
    if "resnet50" in {model.removesuffix(ON_CPU) for model in models} and not place.torchvision:
        found.left_out.append("resnet50: this Python has no torchvision")
        models = [model for model in models if not model.startswith("resnet50")]
    budget = Budget(until, len(models) * len(ORDER))
    with tempfile.TemporaryDirectory(prefix="gap-gpu-") as name:
        try:
            for model in models:
                for way in ORDER:
                    measure(found, place, Path(name), model, way, rounds, budget)
        except TimeUp:
            found.left_out.append(f"the rest: {options.most_s:.0f} s are over")
    return report(found, place, rounds)


def chosen(names: str | None) -> list[str]:
    """The models that were asked for, all by default. Raises ReshapeError for one that there is not."""
    models = [name.strip() for name in names.split(",")] if names else list(MODELS)
    if unknown := [name for name in models if name.removesuffix(ON_CPU) not in KNOWN]:
        raise ReshapeError(
            f"there is no model {', '.join(map(repr, unknown))}; there are {', '.join(KNOWN)}, "
            f"each with {ON_CPU} behind it if it is to be made on the CPU"
        )
    return list(dict.fromkeys(models))


def place_of(models: Sequence[str]) -> Place:
    """Raises ReshapeError where these models cannot be trained."""
    gpus = list_gpus()
    if not gpus and any(model.removesuffix(ON_CPU) != "tiny" for model in models):
        raise ReshapeError(
            "no NVIDIA GPU was found here: run this on a machine that has one, with its driver and pynvml "
            "(pip install nvidia-ml-py); --models tiny shows on the CPU that it works"
        )
    python = python_with("torch")
    if python is None:
        raise ReshapeError("no Python here has PyTorch: run this with one that has (pip install torch)")
    known = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    if known.returncode:
        raise ReshapeError(f"PyTorch cannot be imported by {python}: {known.stderr.strip().splitlines()[-1]}")
    has = json.loads(known.stdout.splitlines()[-1])
    if gpus and not has["gpu"]:
        raise ReshapeError(f"PyTorch {has['torch']} of {python} does not use the GPU: install one that does")
    if not gpus:
        return Place(python, has["torch"], has["torchvision"], ("g0",), "none, on the CPU", "emulated")
    return Place(python, has["torch"], has["torchvision"], (gpus[0].gpu_id,), gpus[0].gpu_type, "nvml")


def measure(found: Measured, place: Place, parent: Path, model: str, way: str, rounds: int, budget: Budget) -> None:
    """Add the gaps of one model and way to what was `found`. Raises TimeUp."""
    gaps = found.gaps.setdefault((model, way), [])
    share = budget.share(time.monotonic())
    folder = parent / f"{model}-{ORDER.index(way)}"
    folder.mkdir()
    try:
        with opened(place, folder, model, way, budget.until) as side:
            side.start()
            while len(gaps) < rounds:
                round_at = time.monotonic()
                gaps.append(side.gap())
                print(f"{model}, {way}: {told(gaps[-1])}", file=sys.stderr, flush=True)
                found.wrong += wrong(model, way, gaps[-1])
                now = time.monotonic()
                if now + (now - round_at) > share:
                    break
    except (WrongAnswer, AssertionError, OSError) as fault:
        found.wrong.append(f"{model}, {way}: {fault}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def opened(place: Place, folder: Path, model: str, way: str, until: float) -> AbstractContextManager[Side]:
    """A training that has not begun. Its script lies in a folder of its own, as a user's does."""
    script = folder / "train.py"
    shutil.copy(Path(__file__).with_name("train.py"), script)
    command = [place.python, str(script), model.removesuffix(ON_CPU), "cpu" if model.endswith(ON_CPU) else "gpu"]
    if way == KILL:
        return plain_process(folder, command, until)
    return in_place(folder, command, place.gpu_ids, place.gpus, way, until)


def wrong(model: str, way: str, gap: Gap) -> Iterator[str]:
    if not gap.next_step:
        yield f"{model}, {way}: the step after the stop is not the next one"
    if not gap.same_state:
        yield f"{model}, {way}: weights or optimizer state after the start are not those before the stop"


def told(gap: Gap) -> str:
    stages = (("checkpoint", gap.checkpoint_s), ("exit", gap.exit_s), ("start to first step", gap.start_s))
    return f"{gap.seconds:.3f} s: " + ", ".join(f"{name} {seconds_of(value)}" for name, value in stages)


def seconds_of(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def report(found: Measured, place: Place, rounds: int) -> Result:
    sizes = {"GPU": place.gpu_type, "PyTorch": place.torch, "rounds": f"{rounds} at most"}
    notes = [f"Left out: {one}." for one in found.left_out]
    return Result(
        "gap", "R1 on a GPU", "training standing still in a stop and start on the same GPU",
        KILL, sizes, [*rows(found)], [*tables(found)], notes, found.wrong,
    )  # fmt: skip


def rows(found: Measured) -> Iterator[Row]:
    """Each way beside kill and run again; the last one beside its goal, too."""
    for (model, way), gaps in found.gaps.items():
        killed = found.gaps.get((model, KILL))
        if not gaps:
            continue
        ours = median(gap.seconds for gap in gaps)
        if way != KILL and killed:
            theirs = median(gap.seconds for gap in killed)
            floor = FLOORS.get(model) if way == HELD else None
            yield Row(f"{model}, {way}", ours, theirs, ours / theirs, "s", floor)
        if way == HELD and model in MOST_S:
            most = MOST_S[model]
            yield Row(f"{model}, {way}, against {most} s", ours, most, ours / most, "s", 1.0)


def tables(found: Measured) -> Iterator[Table]:
    measured = {key: gaps for key in in_order(found) if (gaps := found.gaps[key])}
    yield Table(
        "median seconds by stage; how often it went on at the very next step, with the very same state",
        ["MODEL", "STATE", "WAY", "GAP", "CHECKPOINT", "EXIT", "START TO FIRST STEP", "NEXT STEP", "SAME STATE"],
        [
            [
                model, f"{gaps[0].size / 1e9:.2f} GB", way, seconds_of(median(gap.seconds for gap in gaps)),
                middle([gap.checkpoint_s for gap in gaps]), middle([gap.exit_s for gap in gaps]),
                middle([gap.start_s for gap in gaps]), count([gap.next_step for gap in gaps]),
                count([gap.same_state for gap in gaps]),
            ]
            for (model, way), gaps in measured.items()
        ],
    )  # fmt: skip
    yield Table(
        "every round, seconds; the load of the machine at each stop",
        ["MODEL", "WAY", "GAPS", "LOAD"],
        [
            [model, way, ", ".join(f"{g.seconds:.3f}" for g in gaps), ", ".join(f"{g.load:.1f}" for g in gaps)]
            for (model, way), gaps in measured.items()
        ],
    )
    yield Table(
        "what the shim said",
        ["MODEL", "WAY", "STATE ON", "WAITING INTERPRETER"],
        [
            [model, way, each(gap.path for gap in gaps), each(gap.interpreter for gap in gaps)]
            for (model, way), gaps in measured.items()
            if way != KILL
        ],
    )


def in_order(found: Measured) -> list[tuple[str, str]]:
    """Models as they were measured, each with its ways from the plainest on."""
    models = dict.fromkeys(model for model, _ in found.gaps)
    return [(model, way) for model in models for way in WAYS if (model, way) in found.gaps]


def middle(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return seconds_of(median(known)) if known else "-"


def count(true: Sequence[bool]) -> str:
    return f"{sum(true)} of {len(true)}"


def each(texts: Iterator[str]) -> str:
    """Each text once, with how often if it was not always."""
    found = list(texts)
    return "; ".join(one if len(set(found)) == 1 else f"{one} ({found.count(one)})" for one in dict.fromkeys(found))
