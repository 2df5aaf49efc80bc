"""Reports that a loop with `Accelerator()` is left alone, and how to make it elastic.

Only the loop itself knows where a step ends, so nothing else is done. Called by `on_import` when a script imports
accelerate, which transformers does, too.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from reshape_hooks.adapters import session

LIBRARIES = ("transformers", "lightning", "trl")  # whose trainers create an Accelerator
WHY = session.LeftAlone("it is a loop of its own: reshape_hooks.Elastic makes it elastic in three lines")


def adapt(module: ModuleType) -> None:
    """Report it at the first backward pass by the script itself, unless the script has created an Elastic."""
    accelerator: Any = module.Accelerator
    theirs = accelerator.backward

    @functools.wraps(theirs)
    def backward(self: Any, *args: Any, **kwargs: Any) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] not in LIBRARIES:
            accelerator.backward = theirs
            if "reshape_hooks.adapters.elastic" not in sys.modules:
                session.tell_left_alone(WHY)
        theirs(self, *args, **kwargs)

    accelerator.backward = backward
