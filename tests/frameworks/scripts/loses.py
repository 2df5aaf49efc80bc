"""A loop with Elastic whose results change by a stop, in one of the ways that the pages call lost."""

import sys
import time

import reshape_hooks

LARGE = (1 << 26) + 1  # numbers of four bytes: more than what is kept of a variable
state = reshape_hooks.Elastic(seen={})
if sys.argv[1] == "torch":
    import torch

    mean = torch.zeros(LARGE)
    memory = [object()]
    for step in state.steps(60):
        mean += step
        memory.append(step)
        time.sleep(0.02)
    print("mean", mean.mean().item(), flush=True)
    print("memory", len(memory), flush=True)
else:
    import jax.numpy as jnp

    weights = jnp.zeros(LARGE)
    for step in state.steps(60):
        weights = weights + step
        time.sleep(0.02)
    print("weights", weights.mean().item(), flush=True)
