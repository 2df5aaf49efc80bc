"""Says in words what jobs and decisions are about: durations, sizes, progress, expected times. Pure.

The terminal (`reshape/output/render.py`) and the dashboard's pages say the same by these. What users wrote comes
through as it is: callers escape it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

View = Mapping[str, Any]

NONE = "-"
SHORT_S = 600.0  # of an interval whose seconds are shown
MEASURED_BY = {"prometheus": "Prometheus, over the last two minutes"}  # of a job's use; else its own reports
ENDED_WITH = re.compile(r"^the training process ended with (exit code \d+: )?")  # what follows tells more: the error
UNITS = {
    "cpu": (1, "core"),
    "memory": (2**30, "GiB"),
    "block_io": (2**20, "MiB/s of disk"),
    "network_io": (2**20, "MiB/s of network"),
}


def facts(view: View, moment: Callable[[float], str], now: float) -> dict[str, str]:
    """What is known of one job, by name, in the order to show it. `moment` formats seconds since 1970, as `now` is."""
    usage = view.get("usage") or {}
    known: dict[str, Any] = {
        "job": text(view.get("job_id")),
        "owner": view.get("owner"),
        "state": state(view),
        "message": message(view),
        "because": view.get("because"),
        "left alone": view.get("left_alone"),
        "receipt": (view.get("lost") or {}).get("sentence"),
        "predicted": (view.get("receipt") or {}).get("sentence"),
        "fault": view.get("fault") if not view.get("finish_ts") else None,
        "gpus": gpu_count(view) + joined(view.get("gpu_ids"), ": ", ", "),
        "allowed": joined(view.get("optional_num_gpus"), "", " or ") or None,
        "node": view.get("node"),
        "pinned to": view.get("pinned"),
        "weight": measured(view.get("weight"), "{:g}"),
        "sla": _time(view.get("sla")),
        "estimate": _time(view.get("estimate")),
        "time limit": _time_limit(view),
        "target": target(view),
        "webhook": view.get("notify"),
        "type": view.get("job_type"),
        "progress": progress(view),
        "epochs": measured(view.get("epochs_done"), lambda epochs: f"{round(epochs, 2):g}"),
        view.get("value_name") or "value": measured(view.get("value"), "{:.6g}"),
        "speed": measured(view.get("seconds_per_iteration"), "{:.4g} s per iteration"),
        "starts": starts(view, moment, now),
        "ends": ends(view, moment, now),
        "deadline": missed(view),
        "cpu": measured(usage.get("cpu_cores"), "{:.2f} cores"),
        "cpu limit": _limit(usage),
        "not limited": view.get("unlimitable"),
        "memory": measured(usage.get("memory"), size),
        "disk": measured(usage.get("block_io"), rate),
        "network": measured(usage.get("network_io"), rate),
        "measured by": MEASURED_BY.get(str(usage.get("used_from"))),
        "efficiency": _efficiency(view.get("growth_efficiency") or {}),
        "category": view.get("category"),
        "reshapes": view.get("reshapes"),
        "restart": view.get("restart"),
        "can open": view.get("gpu_access"),
        "moves": view.get("moves") or None,
        "sent back": view.get("preempts") or None,
        "generation": view.get("generation"),
        "submitted": measured(view.get("submit_ts"), moment),
        "started": measured(view.get("start_ts"), moment),
        "finished": measured(view.get("finish_ts"), moment),
    }
    return {name: str(fact) for name, fact in known.items() if fact is not None}


def state(view: View) -> str:
    """The state; of a job that waits until it is resumed `held` or `suspended`."""
    if view.get("held"):
        return "held"
    waits = view.get("suspended") and view.get("state") == "submitted"
    return "suspended" if waits else text(view.get("state"))


def acceptance(view: View) -> str:
    """Return the state; of a document that was refused that it is not accepted."""
    return "not accepted" if _is_refused(view) else state(view)


def _is_refused(view: View) -> bool:
    """Return whether a document was refused. One that was let in is open or closed, whatever a hand has written."""
    return bool(view.get("problems")) and view.get("closed") is None


def starts(view: View, moment: Callable[[float], str], now: float) -> str | None:
    """When a waiting job starts: as an interval, else about when; None if unknown."""
    return between(view.get("starts_between"), moment, now) or expected_start(view)


def ends(view: View, moment: Callable[[float], str], now: float) -> str | None:
    """When an open job ends, likewise."""
    return between(view.get("ends_between"), moment, now) or measured(view.get("eta_s"), lambda s: f"in {seconds(s)}")


def between(times: Any, moment: Callable[[float], str], now: float) -> str | None:
    """`between 14:02 and 14:20 (90 %)`; with dates of other days than today, with seconds where it is short.

    `before 14:20 (90 %)` where it may come at any moment.
    """
    if not isinstance(times, list):
        return None
    today = moment(now).partition(" ")[0]
    shown = [_without_day(moment(float(at)), today) for at in times]
    if " " in shown[0]:  # of another day: its end need not say again of which
        shown[1] = shown[1].removeprefix(shown[0].partition(" ")[0] + " ")
    if times[1] - times[0] >= SHORT_S:
        shown = [at.rpartition(":")[0] for at in shown]
    return f"before {shown[1]} (90 %)" if times[0] <= now else f"between {shown[0]} and {shown[1]} (90 %)"


def _without_day(at: str, today: str) -> str:
    """Return a time of today without its date, and of tomorrow with that word."""
    try:
        tomorrow = date.fromisoformat(today) + timedelta(days=1)
    except (ValueError, OverflowError):  # no calendar has that day
        return at
    return at.removeprefix(f"{today} ").replace(f"{tomorrow} ", "tomorrow ")


def expected_start(view: View) -> str | None:
    """Format the expected start of a waiting job; marked as a guess if it rests on unknown lengths."""
    start, guesses = view.get("start_in_s"), view.get("start_guesses")
    if not isinstance(start, int | float):
        return None
    doubt = f", a guess: nobody knows how long {listed(guesses)} will take" if guesses else ""
    return f"in about {seconds(start)}{doubt}" if start or doubt else "at any moment"


def missed(view: View) -> str | None:
    """A deadline that has passed."""
    return measured(view.get("late_s"), lambda late: f"missed by {seconds(late)}")


def never_starts(view: View, largest: int) -> str | None:
    """Why a waiting job can never start on the nodes that there are; `largest`: GPUs of the largest; else None."""
    counts = view.get("optional_num_gpus")
    waits = view.get("state") == "submitted" and not view.get("problems") and view.get("gpus_per_pod") is None
    if not waits or not isinstance(counts, list) or not counts or not all(isinstance(count, int) for count in counts):
        return None
    least = min(counts)
    if least <= largest:
        return None
    return f"cannot start: it needs {least} GPUs of one node, and the largest has {largest}"


def deadline_margin(view: View, moment: Callable[[float], str], now: float) -> str | None:
    """Return its deadline, and the time that the latest likely end leaves to it; None without one."""
    at = view.get("deadline_ts")
    ends = view.get("ends_between")
    if (late := missed(view)) is not None:
        return f"deadline {late}"
    if not isinstance(at, int | float):
        return None
    said = f"deadline {moment(at)}"
    if view.get("finish_ts"):
        return f"{said}, kept"
    latest = float(ends[1]) if isinstance(ends, list) else None
    if latest is None and isinstance(view.get("eta_s"), int | float):
        latest = now + view["eta_s"]
    if latest is None:
        return said
    return (
        f"{said}, {seconds(at - latest)} to spare"
        if latest <= at
        else f"{said}, likely missed by {seconds(latest - at)}"
    )


def unchanged(view: View) -> str | None:
    """What a decision predicted for the case that nothing is changed; None if it predicted nothing."""
    if not view.get("unchanged_makespan_s"):
        return None
    guesses = view.get("unchanged_guesses")
    doubt = f" (a guess: the length of {listed(guesses)} was unknown)" if guesses else ""
    done = exact(view["unchanged_makespan_s"])
    return f"If nothing changed, the jobs that ran would have been done in {done}, as predicted then{doubt}."


def listed(names: Any) -> str:
    """Some of these names, and how many more."""
    names = [str(name) for name in names] if isinstance(names, list) else []
    more = [f"{len(names) - 2} more"] if len(names) > 3 else []
    named = [*(names[:2] if more else names), *more]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def progress(view: View) -> str:
    """`120/400 (30 %)`, or what is known of it; of a job with a target, `120, about 3.2 epochs to its target`."""
    done, total = view.get("iters_done") or 0, view.get("iterations")
    if nearer := _to_target(view):
        return f"{done}, {nearer}"
    return f"{done}/{total} ({100 * done // total} %)" if total else str(done) if done else NONE


def _to_target(view: View) -> str | None:
    """Format the distance to the target, predicted or at most; None if unknown."""
    epochs = measured(view.get("epochs_left"), "{:.1f} epochs")
    left = epochs or measured(view.get("iterations_left"), "{:.0f} iterations")
    return (
        f"{'at most' if view.get('length_unsure') else 'about'} {left} to its target"
        if has_target(view) and left
        else None
    )


def has_target(view: View) -> bool:
    """Return whether it ends once a measure that it prints is there."""
    return isinstance(view.get("target"), dict) or view.get("target_top5") is not None


def seconds(value: float) -> str:
    """A duration as people say it: 4.2 s, 12 min 5 s, 3 h 20 min."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def brief(value: float) -> str:
    """A duration for a table, to two units: 45s, 12m, 3h20m, 2d4h."""
    whole = max(0, round(value))
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def coarse(value: float, rounded: Callable[[float], int] = round) -> str:
    """Format a duration that is a guess or a bound, in one unit and at most two digits: 45s, 85m, 5h, 3d."""
    for unit, size_s, least in (("d", 86400, 48 * 3600), ("h", 3600, 90 * 60), ("m", 60, 99)):
        if value >= least:
            return f"{rounded(value / size_s)}{unit}"
    return f"{max(0, rounded(value))}s"


def hours(value: float) -> str:
    """GPU-hours, as exact as they are read."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def size(value: float) -> str:
    """Bytes, in MiB or GiB."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def memory(gpu: View) -> str | None:
    """The memory of a GPU in use, and how much of it others than its job hold; None where nothing is known."""
    used, total = (measured(gpu.get(field), size) for field in ("memory_used", "memory_total"))
    others = measured(gpu.get("memory_others") or None, size)
    shown = f"{used} of {total}" if used and total else used or total
    return f"{shown}, {others} by others" if others and used else shown


def rate(value: float) -> str:
    """Bytes per second."""
    return f"{value / 2**20:.1f} MiB/s" if value >= 2**20 else f"{value / 2**10:.1f} KiB/s"


def what(view: View) -> str:
    job_id, count = text(view.get("job_id")), view.get("num_gpus")
    gpus = f"{count} GPU{'s' * (count != 1)}" if count else f"the cores of {text(view.get('node'))}"
    match view.get("kind"):
        case "start":
            taking = "".join(f", job {victim} keeps {count}" for victim, count in _victims(view))
            return f"start job {job_id} on {gpus}{taking}"
        case "reshape":
            return f"reshape job {job_id} to {gpus}"
        case "move":
            return f"move job {job_id} to {gpus}" + (f" of {text(view.get('node'))}" if count else "")
        case "limit":
            cores = measured(view.get("cores"), "{:.3g} cores")
            return f"limit job {job_id} to {cores}" if cores else f"lift the CPU limit of job {job_id}"
        case "requeue":
            return f"send job {job_id} back to the queue"
        case "finish":
            return f"end job {job_id} at its target"
        case "end":
            return f"end job {job_id} at its time limit"
        case "hold":
            return f"let job {job_id} wait"
        case "stay":
            return f"leave job {job_id} as it is"
        case "wish" | "signal" as kind:
            return f"an operator's {kind} for job {job_id}"
    return f"{text(view.get('kind'))} job {job_id}"


def target(view: View) -> str | None:
    """Describe the target that ends the job; None if there is none."""
    target = view.get("target")
    if isinstance(target, dict):
        falls = target.get("above") is False
        return f"{target.get('name') or 'value'} {'at most' if falls else 'at least'} {target.get('value')}"
    top5 = view.get("target_top5")
    return None if top5 is None else f"Top-5 accuracy at least {top5}"


def message(view: View) -> Any:
    """Return a message that says more than the state; None if there is none."""
    message = view.get("message")
    return None if message == view.get("state") else message or None


def remark(view: View) -> str | None:
    """What to know of a job in one line: a missed deadline, what is wrong with its document, why it is as it is."""
    problems = view.get("problems") or ()
    refused = "not accepted: " if _is_refused(view) else ""
    late, means = missed(view), _with_reason(view, message(view))
    said = [f"deadline {late}" if late else None, f"{refused}{problems[0]}" if problems else means]
    return "; ".join(str(one) for one in said if one) or None


def news(view: View) -> str | None:
    """Return the same; None where it only trains."""
    said = remark(view)
    return None if said == "trains" else said


def short_reason(view: View) -> str | None:
    """Return the same without what stands beside it: its name, and that it waits, is held or trains."""
    if state(view) == "suspended":
        return "until it is resumed"
    said = news(view)
    if said is None:
        return None
    for before in (f"{view.get('job_id')} ", "waits: ", "trains; ", "is ", "held: ", "it "):
        said = said.removeprefix(before)
    said = ENDED_WITH.sub("", said)
    return said if said.startswith("waits for ") else said.removeprefix("waits ")


def _with_reason(view: View, message: Any) -> Any:
    """Add the reason why a job is not reshaped, if it could train on other counts."""
    why, counts = view.get("left_alone"), view.get("optional_num_gpus")
    several = isinstance(counts, list) and len(counts) > 1
    return f"trains; {why}" if why and several and message in (None, "trains") else message


def measured(value: Any, form: Any) -> str | None:
    """`value` in the form given (a format or a function); None where it is no number."""
    if not isinstance(value, int | float):
        return None
    return str(form.format(value) if isinstance(form, str) else form(value))


def middle_cut(text: str, width: int, columns: Callable[[str], int] = len) -> str:
    """The text in at most so many columns, with a mark in the middle: names often differ at their ends."""
    if columns(text) <= width:
        return text
    kept = text if len(text) <= 2 * width else text[:width] + text[-width:]  # one by one takes long of a long one
    while columns(kept) >= width:
        at = len(kept) // 2
        kept = kept[:at] + kept[at + 1 :]
    at = (len(kept) + 1) // 2
    return f"{kept[:at]}…{kept[at:]}"


def text(value: Any) -> str:
    return NONE if value is None else str(value)


def exact(value: float) -> str:
    """Format seconds for comparison: candidates often differ by less than a minute."""
    return f"{value:.1f} s"


def _victims(view: View) -> list[tuple[Any, Any]]:
    """Return the jobs from which a start or a candidate takes GPUs, with the counts that they keep."""
    if view.get("victim") is None:
        return []
    more = view.get("more_victims") or ()
    further = [(one.get("job"), one.get("num_gpus")) for one in more if isinstance(one, dict)]
    return [(view.get("victim"), view.get("victim_num_gpus")), *further]


NODE = "Node"
TAKEN = "Taken from"
CANDIDATE = ("", "GPUs", NODE, TAKEN, "Makespan", "Sum", "This job", "Why not")


def candidate(view: View) -> tuple[str, ...]:
    """The cells of one candidate of a decision under the heads `CANDIDATE`; the chosen one has an arrow."""
    source = "; ".join(f"{victim}, which keeps {count}" for victim, count in _victims(view)) or NONE
    doubt = " ~" if is_doubtful(view) else ""
    makespan, total, own = (measured(view.get(f), exact) or NONE for f in ("makespan_s", "sum_s", "job_s"))
    if view.get("possible") is False:  # its times leave the wait out, and would look better than the chosen ones
        makespan, total, own = NONE, NONE, NONE
    chosen = not view.get("rejected")
    gpus, node = text(view.get("num_gpus")), text(view.get("node"))
    return ("->" if chosen else "", gpus, node, source, makespan + doubt, total, own, view.get("rejected") or "chosen")


def is_doubtful(candidate: View) -> bool:
    """Return whether times of the candidate are shown that rest on a speed or a length that was never measured."""
    return bool(candidate.get("low_confidence")) and candidate.get("possible") is not False


def _time(given: Any) -> str | None:
    """Return a time as the user wrote it; a plain number is seconds."""
    return None if given is None else f"{given} s" if isinstance(given, int | float) else str(given)


def _time_limit(view: View) -> str | None:
    """Format the limit of its training time, and what of it is left to an open job."""
    limit = _time(view.get("time_limit"))
    left = measured(view.get("time_left_s"), seconds)
    return f"{limit}, {left} of training left" if limit and left else limit


def measured_use(view: View) -> str | None:
    """What it uses, where that is not from its own reports: what decisions about it count."""
    usage = view.get("usage") or {}
    if (by := MEASURED_BY.get(str(usage.get("used_from")))) is None:
        return None
    parts = measured(usage.get("cpu_cores"), "{:.2f} cores"), measured(usage.get("memory"), size)
    return f"{' and '.join(filter(None, parts))}, by {by}"


def _limit(usage: View) -> str | None:
    """Format the CPU limit; names jobs that cannot be limited."""
    cores = measured(usage.get("cpu_limit"), "{:.2f} cores")
    return cores and f"{cores} ({usage.get('limited_by') or 'its machine has no way to hold it'})"


def _efficiency(view: View) -> str | None:
    """Format the growth efficiency (FlowCon): change of the value per second and used resource."""
    found = view.get("per_unit") or {}
    parts = [f"{found[r] * scale:.3g} per {unit}" for r, (scale, unit) in UNITS.items() if r in found]
    share = (view.get("shares") or {}).get("cpu")
    peak = f"{share:.0%} of its best; " if isinstance(share, int | float) else ""
    return f"{peak}{', '.join(parts)}" if parts else None


def gpu_count(view: View) -> str:
    count = view.get("num_gpus") or 0
    return text(count) + (" (emulated)" if count and view.get("emulated") else "")


def joined(values: Any, before: str, between: str) -> str:
    """A list in one line; nothing where it is empty, or no list because a user wrote something else."""
    return before + between.join(str(v) for v in values) if isinstance(values, list) and values else ""
