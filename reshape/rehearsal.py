"""Rehearses a training: runs it on each GPU count, stops it and starts it again between, and measures both.

What is learned stays as the profile of the job's type, which the next job of that command uses. Promises: a rehearsal
is a job of its own, with checkpoints of its own, and is cancelled at its end, after a fault and after Ctrl-C, too.
Called by `reshape rehearse`. Raises what `Client` raises, and `RehearsalFailed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshape.client import CoordinatorRefused

if TYPE_CHECKING:
    from reshape.client import Client, View

POLL_S = 0.5
ENDED = ("completed", "failed", "cancelled")
PATIENCE_S = 60.0  # for a request that was granted and then undone
STEPS = 3  # iterations on one count before its speed is believed


class RehearsalFailed(Exception):
    """The training did not run, or not to the end of the rehearsal; the one argument is a sentence."""


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
    client: Client, name: str, counts: Sequence[int], seconds: float, tell: Callable[[str], None],
    poll_s: float = POLL_S,
) -> Rehearsal:  # fmt: skip
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
            if view["state"] in ENDED or (view["problems"] and not view["launch"]):
                why = "; ".join(view["problems"]) or view["message"] or view["state"]
                raise RehearsalFailed(f"The training is {view['state']} before its rehearsal was over: {why}.")
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
            there = self.until(lambda view: _trains(view) and (
                int(view["num_gpus"]) == gpus or time.monotonic() - asked >= PATIENCE_S
            ))  # fmt: skip
            if int(there["num_gpus"]) != gpus:
                return MeasuredCount(gpus, None, None, None, None, "", str(there["message"]))
        self._tell(f"trains on {gpus} GPU{'s' * (gpus != 1)}")
        began = time.monotonic()
        start = int(self._client.job(self._name)["iters_done"])
        after = self.until(lambda view: _settled(int(view["iters_done"]) - start, time.monotonic() - began, seconds))
        lost = after["lost"] if moved and after["lost"] != before["lost"] else None
        return MeasuredCount(
            gpus, after["seconds_per_iteration"], after["reshape_cost_s"] if moved else None, after["value"],
            after["value_name"], "" if lost is None else str(lost["sentence"]), "", moved,
        )  # fmt: skip
