import sys

import equinox
import flax.linen
import flax.training.train_state
import jax
import jax.numpy as jnp
import optax

import reshape_hooks


def of_flax(key):
    model = flax.linen.Dense(1)
    train = flax.training.train_state.TrainState.create(
        apply_fn=model.apply, params=model.init(key, jnp.ones((1, 8))), tx=optax.adam(1e-2)
    )

    @jax.jit
    def step(train, x):
        def of(params):
            return ((train.apply_fn(params, x) - x.sum(1, keepdims=True)) ** 2).mean()

        loss, grads = jax.value_and_grad(of)(train.params)
        return train.apply_gradients(grads=grads), loss

    return train, step


def of_equinox(key):
    optimizer = optax.adam(1e-2)
    model = equinox.nn.MLP(8, 1, 4, 1, key=key)

    def of(model, x):
        return ((jax.vmap(model)(x) - x.sum(1, keepdims=True)) ** 2).mean()

    @equinox.filter_jit
    def step(train, x):
        model, kept = train
        loss, grads = equinox.filter_value_and_grad(of)(model, x)
        updates, kept = optimizer.update(grads, kept, equinox.filter(model, equinox.is_array))
        return (equinox.apply_updates(model, updates), kept), loss

    return (model, optimizer.init(equinox.filter(model, equinox.is_array))), step


train, step = {"flax": of_flax, "equinox": of_equinox}[sys.argv[2]](jax.random.key(0))
held = {"train": train, "key": jax.random.key(1), "losses": []}
state = reshape_hooks.Elastic(held=held)
for _ in state.steps(20):
    held["key"], drawn = jax.random.split(held["key"])
    held["train"], loss = step(held["train"], jax.random.normal(drawn, (16, 8)))
    held["losses"].append(float(loss))
print("measured", held["losses"], flush=True)
