"""Which gradients are pending, and what several processes make of them. With real optimizers: tests/frameworks."""

from __future__ import annotations

from typing import Any

from reshape_hooks.adapters.gradients import Gradients, _stepped, mean


class Number:
    """Stands for a tensor: counts how often it was changed in place."""

    device, dtype = "cpu", float

    def __init__(self, value: float) -> None:
        self.value, self._version = value, 0

    def add(self, value: float) -> None:
        self.value += value
        self._version += 1

    def any(self) -> bool:
        return self.value != 0

    def clone(self) -> Number:
        return Number(self.value)

    detach = cpu = clone

    def to(self, *_: Any) -> Number:
        return self

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value)

    def __truediv__(self, count: int) -> Number:
        return Number(self.value / count)


class Parameter:
    device, dtype = "cpu", float

    def __init__(self) -> None:
        self.grad: Any = None

    def backward(self, value: float) -> None:
        if self.grad is None:
            self.grad = Number(value)
        else:
            self.grad.add(value)


class Model:
    def __init__(self, count: int) -> None:
        self.all = [Parameter() for _ in range(count)]

    def parameters(self) -> list[Parameter]:
        return self.all


class Optimizer:
    def __init__(self, model: Model) -> None:
        self.param_groups = [{"params": model.all}]


def values(state: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [one and one.value for one in gradients] for name, gradients in state.items()}


def test_gradients_that_no_step_has_used_are_kept() -> None:
    model = Model(2)
    optimizer = Optimizer(model)
    gradients = Gradients({"model": model, "optimizer": optimizer})
    assert gradients.state() == {}
    model.all[0].backward(3.0)
    assert values(gradients.state()) == {"model": [3.0, None]}, "once, though the optimizer has them, too"
    _stepped(optimizer, (), {})
    assert gradients.state() == {}, "they are used, and left behind until zero_grad"
    model.all[0].backward(1.0)
    assert values(gradients.state()) == {"model": [4.0, None]}
    model.all[0].grad = None
    model.all[0].backward(5.0)
    kept = gradients.state()
    model.all[0].backward(2.0)
    again = Model(2)
    Gradients({"model": again, "optimizer": Optimizer(again)}).restore(kept)
    assert [one.grad and one.grad.value for one in again.all] == [5.0, None], "as they were when they were saved"


def test_gradients_that_were_set_to_zero_are_none() -> None:
    model = Model(1)
    model.all[0].backward(3.0)
    model.all[0].grad.add(-3.0)
    assert Gradients({"model": model}).state() == {}


def test_another_number_of_processes_has_the_mean_of_all() -> None:
    ranks = [{"model": [Number(2.0), None]}, {"model": [Number(4.0), None]}, {}, {"model": [None, None]}]
    assert values(mean(ranks)) == {"model": [1.5, None]}
