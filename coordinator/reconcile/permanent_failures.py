"""Recognizes permanent failures: ends of a training that would only repeat.

Promises: reports only a training that ended soon and without a step, of a job that has never trained, and only by
messages of Python, a shell or an argument parser; any other crash is retried. Pure; called by `transitions` and
`gang_scaling`.
"""

from __future__ import annotations

import re

from coordinator.model.last_words import last_words
from coordinator.reconcile.observed_state import ObservedState
from sidecar.protocol import ShimStatus

SOON_S = 600.0  # later failures may be a machine's fault, such as a file system's

NOT_STARTED = frozenset({126, 127})  # of the shim, and of every shell: cannot be executed, not found
USAGE = 2  # of argparse, click and Python itself

NEVER_IMPORTS = re.compile(r"(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError): ")
NO_MODULE = re.compile(r".*python[\d.]*: (No module named |Error while finding module specification for )")
NO_SCRIPT = re.compile(r".*: (can't open file|can't find '__main__' module|cannot open) ")
WRONG_USE = re.compile(r"\S.*: error: |Error: ")


def is_permanent(w: ObservedState) -> bool:
    """True if its training, or the first failed one of a gang, ended for a reason that a retry cannot fix."""
    if w.shim.stop_asked or w.shim.exit_code in (None, 0):
        return False
    if w.shim.exit_code in NOT_STARTED and w.shim.exit_note:
        return True  # nothing was begun
    if _trained(w) or (w.shim.exit_at or 0.0) - (w.shim.spawn_at or 0.0) > SOON_S:
        return False
    return w.shim.exit_code in NOT_STARTED or _says_so(w.shim)


def _trained(w: ObservedState) -> bool:
    """True if it has ever trained: then its inputs existed, and may be back soon."""
    first = w.seen.progress.first_step_at if w.seen else None
    return w.job.iterations_done > 0 or (first is not None and first >= (w.shim.spawn_at or 0.0))


def _says_so(shim: ShimStatus) -> bool:
    last = last_words(shim.output_tail)
    if NEVER_IMPORTS.match(last) or NO_MODULE.match(last) or NO_SCRIPT.match(last):
        return True
    return shim.exit_code == USAGE and bool(WRONG_USE.match(last))
