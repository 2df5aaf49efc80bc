"""A loop with Elastic whose results change by a stop, in one of the ways that the pages call lost."""

import functools
import os
import sys
import time

import reshape_hooks

state = reshape_hooks.Elastic(seen={})


@functools.lru_cache(1000)
def drawn(step):
    """Return the time of the first call with this step."""
    return time.monotonic()


if sys.argv[1] == "environment":
    os.environ["SEEN"] = "0"
    for step in state.steps(60):
        os.environ["SEEN"] = str(int(os.environ["SEEN"]) + 1)
        time.sleep(0.02)
    print("seen", os.environ["SEEN"], flush=True)
else:
    for step in state.steps(60):
        drawn(step)
        time.sleep(0.02)
    print("cached", drawn.cache_info().currsize, flush=True)
