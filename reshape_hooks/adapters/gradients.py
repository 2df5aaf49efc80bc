"""Keeps gradients that a loop has accumulated but not yet applied, as over several batches.

Promises: a stop between a `backward` and the optimizer step that uses it loses nothing; with several processes each
keeps its own, and on another number of processes all get their mean, which yields the same sum. Called by `elastic` and
`lightning_trainer`; from Python 3.8 on, PyTorch only where the script imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Gradients:
    """The gradients of the parameters of these parts: models and optimizers."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        optimizers = sys.modules.get("torch.optim.optimizer")
        if optimizers is not None and hasattr(optimizers, "register_optimizer_step_post_hook"):
            optimizers.register_optimizer_step_post_hook(_stepped)

    def state(self) -> dict[str, list[Any]]:
        """Return the pending gradients, None for all others."""
        found = {}
        for name, parameters in self._parameters():
            gradients = [_pending(parameter) for parameter in parameters]
            if any(one is not None for one in gradients):
                found[name] = gradients
        return found

    def restore(self, saved: Mapping[str, list[Any]]) -> None:
        """Set what `state` returned."""
        for name, parameters in self._parameters():
            for parameter, gradient in zip(parameters, saved.get(name, ())):
                if gradient is not None:
                    parameter.grad = gradient.to(parameter.device, parameter.dtype)

    def _parameters(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each parameter once, even if an optimizer shares a model's."""
        seen: set[int] = set()
        for name, part in self._parts.items():
            found = [one for one in _of_part(part) if id(one) not in seen]
            seen.update(map(id, found))
            yield name, found


def mean(of_ranks: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the mean of several ranks' gradients; one that is not pending counts as 0."""
    found = {}
    for name in {name: None for one in of_ranks for name in one}:
        columns = zip(*[one[name] for one in of_ranks if name in one])
        there = [[one for one in column if one is not None] for column in columns]
        found[name] = [sum(some[1:], some[0]) / len(of_ranks) if some else None for some in there]
    return found


def _stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Mark the gradients that a step has used: the next backward pass replaces or changes them."""
    for parameter in _of_groups(optimizer):
        if parameter.grad is not None:
            parameter.grad._reshape_used = parameter.grad._version


def _pending(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient is None or getattr(gradient, "_reshape_used", None) == gradient._version or not gradient.any():
        return None
    return gradient.detach().cpu().clone()


def _of_part(part: Any) -> list[Any]:
    if hasattr(part, "param_groups"):
        return _of_groups(part)
    return list(part.parameters()) if hasattr(part, "parameters") else []


def _of_groups(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
