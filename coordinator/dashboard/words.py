"""Says in words what jobs and decisions are about: durations, sizes, progress, expected times. Pure.

The terminal (`reshape/output/render.py`) and the dashboard's pages say the same by these. What users wrote comes
through as it is: callers escape it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

View = Mapping[str, Any]

NONE = "-"


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
    aims = isinstance(view.get("target"), dict) or view.get("target_top5") is not None
    epochs = measured(view.get("epochs_left"), "{:.1f} epochs")
    left = epochs or measured(view.get("iterations_left"), "{:.0f} iterations")
    return f"{'at most' if view.get('length_unsure') else 'about'} {left} to its target" if aims and left else None


def seconds(value: float) -> str:
    """A duration as people say it: 4.2 s, 12 min 5 s, 3 h 20 min."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float) -> str:
    """Bytes, in MiB or GiB."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def rate(value: float) -> str:
    """Bytes per second."""
    return f"{value / 2**20:.1f} MiB/s" if value >= 2**20 else f"{value / 2**10:.1f} KiB/s"


def what(view: View) -> str:
    job_id, count = text(view.get("job_id")), view.get("num_gpus")
    gpus = f"{count} GPU{'s' * (count != 1)}" if count else f"the cores of {text(view.get('node'))}"
    match view.get("kind"):
        case "start":
            victim = view.get("victim")
            taking = "" if victim is None else f", job {victim} keeps {view.get('victim_num_gpus')}"
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
        case "hold" | "stay":
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


def measured(value: Any, form: Any) -> str | None:
    """`value` in the form given (a format or a function); None where it is no number."""
    if not isinstance(value, int | float):
        return None
    return str(form.format(value) if isinstance(form, str) else form(value))


def text(value: Any) -> str:
    return NONE if value is None else str(value)
