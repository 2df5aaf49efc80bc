"""Answers the dashboard's what-if form: reads its fields, simulates, and returns the cells of a table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from coordinator.dashboard.new_job import gpu_counts
from coordinator.errors import Rejected
from coordinator.forecasts.live_state import LiveState
from coordinator.forecasts.what_if import compare

BUDGET_S = 10.0  # of CPU time for both simulations
TOO_LONG = (
    f"There is too much to simulate in {BUDGET_S:.0f} s, which is all that the coordinator spends on it; ask "
    "`reshape what-if` on your machine, which takes the time that it needs."
)


def answer(live: LiveState, fields: Mapping[str, str]) -> dict[str, Any]:
    """`head` and `rows` of a table, sentences in `said`, and `times` of each job (`WhatIf.times`).

    `Rejected` for a field that makes no sense, or takes too long.
    """
    until = time.thread_time() + BUDGET_S

    def goes_on() -> bool:
        if time.thread_time() > until:
            raise Rejected(TOO_LONG)
        return True

    found = compare(live, **changes(fields), goes_on=goes_on)
    said = [*str(found).splitlines(), *found.notes]
    return {"head": found.head, "rows": found.rows, "said": said, "times": found.times}


def changes(fields: Mapping[str, str]) -> dict[str, Any]:
    """What `compare` takes; empty fields change nothing."""
    given = {name: text.strip() for name, text in fields.items()}
    count, kind = given.get("count", ""), given.get("gpu_type", "")
    if count and (not re.fullmatch(r"[+-]?[1-9][0-9]{0,4}", count) or not kind):
        raise Rejected(f"More GPUs: {count!r} {kind!r} is no count and type, such as 2 and V100, or -2 for fewer.")
    if bool(given.get("job")) != bool(given.get("deadline")):
        raise Rejected("A deadline needs a job and a time, such as 30m; fill in both or none.")
    return {
        "submit": _new_job(given),
        "gpus": [(kind, int(count))] if count else [],
        "drain": [given["node"]] if given.get("node") else [],
        "deadlines": [(given["job"], given["deadline"])] if given.get("job") else [],
        "policy": given.get("policy") or None,
        "queue_order": given.get("order") or None,
    }


def _new_job(given: Mapping[str, str]) -> list[dict[str, Any]]:
    """The document of a job that is not there yet; none where its fields are empty."""
    counts = given.get("new_gpus", "")
    length = given.get("new_iterations", "")
    if not counts and not length:
        return []
    if not counts or not re.fullmatch(r"[1-9][0-9]{0,9}", length):
        raise Rejected("A new job needs GPU counts, such as 1,2,4, and how many iterations it has, such as 5000.")
    kind = {"job_type": given["new_type"]} if given.get("new_type") else {}
    return [{"command": ["train"], "optional_num_gpus": gpu_counts(counts), "iterations": int(length), **kind}]
