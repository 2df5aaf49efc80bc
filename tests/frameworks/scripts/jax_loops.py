import sys

import equinox
import flax.linen
import flax.nnx
import flax.training.train_state
import jax
import jax.numpy as jnp
import optax
from asked import reached

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


class Net(flax.nnx.Module):
    def __init__(self, rngs):
        self.first = flax.nnx.Linear(8, 4, rngs=rngs)
        self.norm = flax.nnx.BatchNorm(4, rngs=rngs)
        self.drop = flax.nnx.Dropout(0.2, rngs=rngs)
        self.last = flax.nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(self.norm(self.first(x))))


def of_nnx():
    """Train what changes in place: a model with statistics, an optimizer, a metric, keys; beside a frozen teacher."""
    nnx = flax.nnx
    keys = nnx.Rngs(data=7)
    model = Net(nnx.Rngs(0))
    teacher = nnx.Linear(8, 1, rngs=nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    mean = nnx.metrics.Average("loss")

    @nnx.jit
    def step(model, optimizer, teacher, x):
        loss, grads = nnx.value_and_grad(lambda net: ((net(x) - teacher(x)) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    state = reshape_hooks.Elastic(model=model, optimizer=optimizer, mean=mean, keys=keys)
    for step_index in state.steps(20):
        mean.update(loss=step(model, optimizer, teacher, jax.random.normal(keys.data(), (16, 8))))
        reached(step_index + 1)
    print("measured", mean.compute(), model.norm.mean[...].tolist(), model.last.kernel[...].tolist(), flush=True)


if sys.argv[2] == "nnx":
    of_nnx()
    sys.exit()
train, step = {"flax": of_flax, "equinox": of_equinox}[sys.argv[2]](jax.random.key(0))
held = {"train": train, "key": jax.random.key(1), "losses": []}
state = reshape_hooks.Elastic(held=held)
for step_index in state.steps(20):
    held["key"], drawn = jax.random.split(held["key"])
    held["train"], loss = step(held["train"], jax.random.normal(drawn, (16, 8)))
    held["losses"].append(float(loss))
    reached(step_index + 1)
print("measured", held["losses"], flush=True)
