"""Rehearses a training: runs it on each GPU count, stops it and starts it again between, and measures both.

What is learned stays as the profile of the job's type, which the next job of that command uses. A training that ends
meanwhile is run whole instead (`compare`): twice undisturbed and once stopped, in copies of its folder, and what these
leave behind is compared. Promises: a rehearsal
is a job of its own, with checkpoints of its own, and is cancelled at its end, after a fault and after Ctrl-C, too.
Called by `reshape rehearse`. Raises what `Client` raises, and `RehearsalFailed`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshape.client import CoordinatorRefused
from reshape.run_differences import Difference, RunResult, differences

if TYPE_CHECKING:
    from reshape.client import Client, View

POLL_S = 0.5
ENDED = ("completed", "failed", "cancelled")
PATIENCE_S = 60.0  # for a request that was granted and then undone
STOPS = (0.25, 0.5, 0.75)  # of a training that is run whole
MOST_COPIED = 64 << 20  # bytes of a folder in whose copies a training is run whole
NOT_COPIED = (".git", ".venv", "venv", "__pycache__", "node_modules")
SEEDS_OF = "RESHAPE_SEEDS_OF"  # the name by which a training is given its seeds, in place of the job's
STEPS = 3  # iterations on one count before its speed is believed


class RehearsalFailed(Exception):
    """The training did not run, or not to the end of the rehearsal; the one argument is a sentence."""


class Completed(RehearsalFailed):
    """The training came to its end before it was measured."""


@dataclass(frozen=True)
class MeasuredCount:
    """One GPU count. Times in seconds, None where nothing was seen."""

    gpus: int
    seconds_per_iteration: float | None
    restart_s: float | None  # how long it stood still to come to this count; None: it began on it
    value: float | None
    value_name: str | None
    lost: str  # the work that was repeated after that restart, as a sentence; empty if none was
    refused: str = ""  # why it was not tried
    restarted: bool = False  # whether it was stopped and started again to come to this count


@dataclass
class Rehearsal:
    """The result."""

    job_type: str
    counts: list[MeasuredCount] = field(default_factory=list)
    saves_s: float | None = None  # between SIGTERM and the end of the process, as measured for this type
    starts_s: float | None = None  # between the start of the process and its first step
    restarts_s: float | None = None  # the same beside its sidecar, where an interpreter may wait with its imports done
    shown_by: str | None = None  # hook or checkpoint; None: nothing showed that it resumes

    @property
    def restarts(self) -> int:
        return sum(one.restarted for one in self.counts)

    @property
    def lost(self) -> str:
        """The first loss; empty if none."""
        return next((one.lost for one in self.counts if one.lost), "")

    @property
    def verdict(self) -> str:
        """One sentence: whether this training can be reshaped."""
        if self.lost:
            return f"It does not resume: it {self.lost}. A job of it keeps its GPUs until it ends (docs/starting.md)."
        if not self.restarts:
            return "It was not restarted, as it ran on one GPU count only: give two or more to try that."
        times = f"{self.restarts} restart{'s' * (self.restarts != 1)}"
        if all(one.seconds_per_iteration is None for one in self.counts):
            return f"Its progress cannot be seen, so nothing is known of what {times} cost (progress_pattern)."
        if self.shown_by is None:
            return f"No work was lost in {times}, but nothing announced that it saves: submit it with --elastic."
        return f"It saves and resumes: no work was lost in {times}."


def rehearse(
    client: Client,
    name: str,
    counts: Sequence[int],
    seconds: float,
    tell: Callable[[str], None],
    poll_s: float = POLL_S,
) -> Rehearsal:
    """Train the submitted job `name` for `seconds` on each of `counts`, then cancel it; `tell` hears what begins."""
    try:
        run = _Run(client, name, tell, poll_s)
        first = run.until(_trains)
        result = Rehearsal(str(first["job_type"]))
        for gpus in _order(counts, int(first["num_gpus"])):
            result.counts.append(run.measure(gpus, seconds))
        last = client.job(name)
        result.shown_by = last["resumes"]
        _add_overheads(result, client.profiles("overheads"))
        return result
    finally:
        _end(client, name, poll_s)


@dataclass(frozen=True)
class Comparison:
    """How a training that was stopped differs from undisturbed ones. `refused`: why it could not be stopped."""

    differences: list[Difference]
    stops: int
    refused: str = ""

    @property
    def verdict(self) -> str:
        """One line, or one for each difference."""
        if self.refused and not self.stops:
            return f"It was not stopped, so nothing is known of what that costs: {self.refused}"
        if not self.stops:
            return "It ended before it could be stopped: rehearse it with more epochs."
        times = f"{self.stops} time{'s' * (self.stops != 1)}"
        if not self.differences:
            return f"Stopped {times}, it leaves the same files, rows and printed lines as an undisturbed run."
        head = f"Stopped {times}, it does not end as an undisturbed run does (docs/how-to/files.md):"
        return "\n".join([head, *(f"{one.kind}: {one.sentence}" for one in self.differences)])


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """Return which of these a copy leaves out: pipes and sockets, too, which a demo that ran here has left."""
    left_out = shutil.ignore_patterns(*NOT_COPIED)(folder, names)
    paths = [Path(folder, name) for name in names]
    return left_out | {path.name for path in paths if not (path.is_file() or path.is_dir() or path.is_symlink())}


def kept_copy(folder: Path, target: Path) -> bool:
    """Copy a folder as it is before a training, without what is no part of it; False if it is too large.

    Links lead where they led.
    """
    size = 0
    target.mkdir()
    for path in sorted(folder.iterdir()):
        if path.name in NOT_COPIED:
            continue
        if path.is_symlink():
            (target / path.name).symlink_to(path.resolve())
        elif path.is_dir():
            size += sum(one.lstat().st_size for one in path.rglob("*") if one.is_file())
            if size > MOST_COPIED:
                return False
            shutil.copytree(path, target / path.name, symlinks=True, ignore=_not_copied)
        elif path.is_file():
            size += path.stat().st_size
            if size > MOST_COPIED:
                return False
            shutil.copy2(path, target / path.name)
    return True


def compare(
    client: Client,
    doc: Mapping[str, Any],
    stem: str,
    before: Path,
    tell: Callable[[str], None],
    poll_s: float = POLL_S / 5,
) -> Comparison:
    """Run the document's command three times whole, each in a copy of the folder `before`; the third is stopped.

    Two undisturbed runs say what varies by itself. On the fewest GPUs only: other counts round sums in another way. All
    three draw the same random numbers where the script sets no seed, so that values can be compared, too.
    """
    gpus = [min(doc["optional_num_gpus"])]
    env = {SEEDS_OF: stem, "PYTHONHASHSEED": "1", **(doc.get("env") or {})}
    with tempfile.TemporaryDirectory(prefix="reshape-rehearsal-") as place:
        runs: list[_Whole] = []
        for number, what in enumerate(("undisturbed", "undisturbed once more", "with stops")):
            tell(f"runs whole, {what}")
            folder = Path(place, str(number))
            shutil.copytree(before, folder, symlinks=True)
            total = runs[0].steps if runs else 0
            at = [int(part * total) for part in STOPS] if number == 2 else []
            given = {**doc, "code": str(folder), "optional_num_gpus": gpus, "env": env}
            runs.append(_run_whole(client, given, stem, folder, at, poll_s))
    first, second, stopped = runs
    return Comparison(differences(first.result, second.result, stopped.result), stopped.stops, stopped.refused)


@dataclass(frozen=True)
class _Whole:
    result: RunResult
    steps: int
    stops: int
    refused: str


def _run_whole(client: Client, doc: Mapping[str, Any], stem: str, folder: Path, at: list[int], poll_s: float) -> _Whole:
    """Run a job to its end; suspend and resume it at each of these steps."""
    name = str(client.submit_as(doc, stem)["job_id"])
    stops = 0
    refused = ""
    held = ""
    try:
        while True:
            view = client.job(name)
            held = str(view["held"] or "")
            if view["state"] in ENDED or held:
                break
            if view["suspended"] and view["state"] == "submitted" and not view["reshape"]:
                client.resume(name)
            elif at and not view["suspended"] and _trains(view) and int(view["iters_done"]) >= at[0]:
                try:
                    client.suspend(name)
                    at = at[1:]
                    stops += 1
                    refused = ""
                except CoordinatorRefused as refusal:  # also where it has only not announced itself yet
                    refused = str(refusal)
            time.sleep(poll_s)
    finally:
        _end(client, name, poll_s)
    view = client.job(name)
    found = re.search(r"exit code (\d+)", str(view["message"]))
    code = 0 if view["state"] == "completed" else int(found[1]) if found else None

    def without_own_names(text: bytes) -> bytes:
        """Return the text with one name for the folder and the job, which each run calls otherwise."""
        if b"\0" in text:
            return text
        return text.replace(os.fsencode(folder), b".").replace(name.encode(), stem.encode())

    left = {
        os.fsdecode(without_own_names(os.fsencode(path.relative_to(folder)))): without_own_names(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }
    printed = without_own_names(client.output(name).encode()).decode()
    return _Whole(RunResult(left, printed, code, held), int(view["iters_done"] or 0), stops, refused)


def _order(counts: Iterable[int], first: int) -> list[int]:
    """The counts, beginning with the one that it runs on already."""
    rest = sorted(set(counts) - {first})
    return [first, *rest]


def _trains(view: View) -> bool:
    return bool(view["state"] == "running" and not view["reshape"])


def _settled(steps: int, took_s: float, seconds: float) -> bool:
    """Whether enough was seen; a training without visible progress gets three times as long."""
    return took_s >= seconds and (steps >= STEPS or took_s >= 3 * seconds)


def _end(client: Client, name: str, poll_s: float) -> None:
    if client.job(name)["state"] not in ENDED:
        client.cancel(name)
    while not client.job(name)["closed"]:
        time.sleep(poll_s)


def _add_overheads(result: Rehearsal, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row.get("job_type") == result.job_type and row.get("origin") == "measured":
            known = set(row.get("measured") or ())
            result.saves_s = row["proc_term"] + row["ckpt"] if {"proc_term", "ckpt"} & known else None
            result.starts_s = row["proc_init"] if "proc_init" in known else None
            result.restarts_s = row["proc_restart"] if "proc_restart" in known else None


class _Run:
    """The job of one rehearsal, watched by polling."""

    def __init__(self, client: Client, name: str, tell: Callable[[str], None], poll_s: float) -> None:
        self._client, self._name, self._tell, self._poll_s = client, name, tell, poll_s
        self._said = ""

    def until(self, there: Callable[[View], object]) -> View:
        """Return the job's view once `there` holds. `RehearsalFailed` if the job ends before."""
        while True:
            view = self._client.job(self._name)
            if there(view):
                return view
            if view["held"]:
                raise RehearsalFailed(f"The training does not start again after a stop: {view['held']}.")
            if view["state"] in ENDED or (view["problems"] and not view["launch"]):
                if view["state"] == "completed":
                    raise Completed("The training completed before its rehearsal was over.")
                why = "; ".join(view["problems"]) or view["message"] or view["state"]
                outcome = "was cancelled" if view["state"] == "cancelled" else "failed"
                raise RehearsalFailed(f"The training {outcome} before its rehearsal was over: {why}.")
            if view["state"] == "submitted" and view["message"] not in ("", self._said):
                self._said = str(view["message"])
                self._tell(self._said)
            time.sleep(self._poll_s)

    def measure(self, gpus: int, seconds: float) -> MeasuredCount:
        """Bring the job to this count, train, and return what was seen."""
        before = self._client.job(self._name)
        moved = int(before["num_gpus"]) != gpus
        if moved:
            try:
                self._client.reshape(self._name, gpus, force=True)  # its work is only that of the rehearsal
            except CoordinatorRefused as refusal:
                return MeasuredCount(gpus, None, None, None, None, "", str(refusal))
            asked = time.monotonic()
            there = self.until(
                lambda view: _trains(view) and (int(view["num_gpus"]) == gpus or time.monotonic() - asked >= PATIENCE_S)
            )
            if int(there["num_gpus"]) != gpus:
                return MeasuredCount(gpus, None, None, None, None, "", str(there["message"]))
        self._tell(f"trains on {gpus} GPU{'s' * (gpus != 1)}")
        began = time.monotonic()
        start = int(self._client.job(self._name)["iters_done"])
        after = self.until(lambda view: _settled(int(view["iters_done"]) - start, time.monotonic() - began, seconds))
        lost = after["lost"] if moved and after["lost"] != before["lost"] else None
        return MeasuredCount(
            gpus,
            after["seconds_per_iteration"],
            after["reshape_cost_s"] if moved else None,
            after["value"],
            after["value_name"],
            "" if lost is None else str(lost["sentence"]),
            "",
            moved,
        )
