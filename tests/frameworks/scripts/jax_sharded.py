"""Arrays over all devices that there are; the variable STOP_AT names the step after which it asks itself to stop."""

import jax
import jax.numpy as jnp
import numpy as np
from asked import reached

import reshape_hooks

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
over_all = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
held = {"w": jax.device_put(jnp.zeros(8), over_all), "in": {"m": jax.device_put(jnp.zeros((8, 2)), over_all)}}
large = jnp.zeros(300_000)
state = reshape_hooks.Elastic(held=held)
for step in state.steps(8):
    held["w"] += step
    held["in"]["m"] += 1
    large += 1
    reached(step)
devices = [len(one.sharding.device_set) for one in (held["w"], held["in"]["m"])]
print("measured", float(held["w"][0]), float(held["in"]["m"][0, 0]), devices, int(large[0]), flush=True)
