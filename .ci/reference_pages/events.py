"""The page of events, from the classes of coordinator/model/events.py."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import msgspec

from coordinator.model import events
from reference_pages.markdown import table

HEAD = """\
# Events
What happened to jobs and GPUs, numbered, in order. `reshape events` lists and follows them, `GET /v1/events` streams them
([http-api.md](http-api.md)), the dashboard shows those of a job. Written by `make reference` from `coordinator/model/events.py`:
change it there.

Each event has `_id` (its number), `at` (seconds since 1970), `type`, and of a job `job_id`, its `state` and `generation`. Besides:
"""
AFTER = """\
`sentence` is text for people and may change between versions; the other fields do not. `stages_s` names seconds of each stage of a
start or reshape, `gap_s` is how long training stood still. Events on Volcano Jobs and Slamls, which `kubectl describe` shows, are
others: [volcano-jobs.md](volcano-jobs.md), [deadlines.md](../deadlines.md).
"""


def page() -> str:
    """Return the text of docs/reference/events.md."""
    return "\n".join([HEAD, table(("`type`", "When", "Fields"), _rows()), AFTER])


def _rows() -> Iterator[tuple[str, str, str]]:
    for kind in vars(events).values():
        if (
            inspect.isclass(kind)
            and issubclass(kind, events.JobEvent)
            and kind not in (events.JobEvent, events.JobRunning)
        ):
            yield f"`{kind.__struct_config__.tag}`", inspect.getdoc(kind) or "", _fields(kind)


def _fields(kind: type[events.JobEvent]) -> str:
    if kind is events.GpuChanged:
        return "`gpu_id`, `state`, `job_id`, `held_by`"
    names = [field.encode_name for field in msgspec.structs.fields(kind) if field.name not in events.PRIVATE]
    return ", ".join(f"`{name}`" for name in names) or "-"
