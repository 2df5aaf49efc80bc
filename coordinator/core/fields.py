"""The fields of a job document: those that users write, and those that the coordinator and the launcher write. Pure.

One list for documents from MongoDB and over HTTP alike: intake asks `unknown`, and `Submission` of
`coordinator/http/openapi.yaml` describes PUBLIC. A field that nobody knows is a mistake of somebody's and said so, not
ignored; fields of users' own tools begin with `x_` or `_`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coordinator.core.records import show

PUBLIC = frozenset(
    {
        "job_id", "state", "schema", "command", "code", "env", "image", "framework", "job_type", "model", "dataset",
        "dataset_size", "batch_size", "hyper_parameters", "iterations", "epochs", "progress_pattern", "progress_file",
        "reshape_exit_codes", "optional_num_gpus", "num_gpus", "gpus_per_pod", "max_workers", "gpu_type", "node",
        "resources", "tasks", "sla", "estimate", "target", "target_top5", "elastic", "depends_on", "namespace", "queue",
        "checkpoint_claim", "single_container", "pod",
    }
)  # fmt: skip
"""What a user may write."""

OURS = (
    "node", "up", "down", "wanted", "wish_id", "retry_ts", "start_ts", "finish_ts", "iters_done",
    "epochs_done", "value", "value_name", "checkpoint", "reshape_cost_s", "run_ts", "ran_s", "expected_s",
    "category", "growth", "efficiency", "migrated_ts", "rebalanced", "move_refused_ts", "preempts", "yields_to",
    "moves", "newest_launch", "warnings", "cpu_limit", "limit_ts", "limits", "limit_told",
    "limits_told", "limit_by", "unlimitable",
    "held_back", "fault", "members", "depends_met", "sla_waiting_s", "missed_ts",
    "resumes", "lost", "stopped_by_us", "forced", "grew_from", "unfit",
)  # fmt: skip
"""What only the coordinator writes: what a user put there is not believed, and cleared as the job is let in."""

KEPT = frozenset(
    {
        "_id", "uid", "closed", "generation", "launch", "gpu_ids", "reshape", "problems", "submit_ts", "reshapes",
        "retries", "message", "pinned", "devices", "version", "last_op", "cancel", "origin", "volcano", "slaml",
    }
)  # fmt: skip
"""Further ones that the coordinator or the launcher writes; also a copy of a job that has ended has them."""

KNOWN = PUBLIC | KEPT | frozenset(OURS)
NOT_SUBMITTED = (KEPT | frozenset(OURS)) - PUBLIC - {"_id", "version", "origin", "volcano", "slaml"}
"""Taken out of what comes over HTTP; intake has a sentence for the others."""

THEIRS = ("x_", "_")  # how fields of users' own tools begin
CLOSE = 0.6  # from 0 to 1: how alike a word must be to be meant


def unknown(doc: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each field that nobody knows, with the one that was probably meant."""
    for field in sorted(str(field) for field in doc if field not in KNOWN):
        if not field.startswith(THEIRS) and not field.startswith("$") and "." not in field:
            yield f"there is no field {show(field)}{meant(field, PUBLIC)}; begin the name of one of your own with x_"


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean num_gpus?` or nothing, ignoring case."""
    plain = {one.lower(): one for one in sorted(known)}
    close = difflib.get_close_matches(word.lower()[:100], plain, 1, CLOSE)
    return f", did you mean {plain[close[0]]}?" if close else ""
