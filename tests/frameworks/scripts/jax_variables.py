import jax
import jax.numpy as jnp
import optax
from asked import reached

import reshape_hooks

key, noise, optimizer = jax.random.key(0), jax.random.PRNGKey(1), optax.adam(1e-2)
kept = {"params": jnp.ones(4), "order": jax.random.key(2)}
changes = optimizer.init(kept["params"])
average, best, rows = 0.0, None, []
state = reshape_hooks.Elastic(kept=kept)
for epoch in state.epochs(5):
    key, drawn = jax.random.split(key)
    kept["order"], of_epoch = jax.random.split(kept["order"])
    for row in state.batches(jax.random.permutation(drawn, 16).reshape(4, 4)):
        noise, drawn = jax.random.split(noise)
        gradient = jax.random.normal(drawn, (4,)) * row
        update, changes = optimizer.update(gradient, changes)
        kept["params"] = optax.apply_updates(kept["params"], update)
        average = 0.9 * average + 0.1 * kept["params"].sum()
        best = average if best is None else jnp.maximum(best, average)
        rows.append([epoch, row.tolist(), float(jax.random.uniform(of_epoch))])
        reached(len(rows))
print("measured", rows, kept["params"].tolist(), float(average), float(best), jax.random.bits(key), noise, flush=True)
