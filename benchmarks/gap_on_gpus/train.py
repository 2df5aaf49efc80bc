"""Train one model in a plain loop: the script that `python -m benchmarks gap --gpu` stops and starts again.

`train.py MODEL gpu|cpu`: the second word says where the model is made; it is trained on the GPU if there is one. Beside
its steps it prints a sum over the bits of weights, buffers and optimizer state, equal only where they are.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn

import reshape_hooks

GPTS = {  # layers, width, words, tokens of a sequence
    "tiny": (2, 128, 1000, 32),
    "124m": (12, 768, 50304, 512),
    "350m": (24, 1024, 50304, 512),
    "1.3b": (24, 2048, 50304, 512),
}
SEQUENCES = 4  # of a batch
IMAGES = 64  # of a batch
ENDLESS = 10_000_000  # steps


class Gpt(nn.Module):  # type: ignore[misc]
    """A language model whose head shares the weights of its embedding."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        heads = max(2, width // 64)
        blocks = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        self.embedding = nn.Embedding(words, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def make(model: str) -> Any:
    if model == "resnet50":
        import torchvision

        return torchvision.models.resnet50()
    layers, width, words, _ = GPTS[model]
    return Gpt(layers, width, words)


def batch(model: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and what is to be predicted of them."""
    if model == "resnet50":
        return torch.randn(IMAGES, 3, 224, 224, device=device), torch.randint(0, 1000, (IMAGES,), device=device)
    _, _, words, length = GPTS[model]
    tokens = torch.randint(0, words, (SEQUENCES, length), device=device)
    return tokens, tokens.view(-1)


def state_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Weights, buffers and what the optimizer keeps, each once."""
    kept = [value for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
    return [*network.parameters(), *network.buffers(), *kept]


def contents(tensors: list[torch.Tensor], device: str) -> torch.Tensor:
    """The sum over the bits of each tensor, in any order the same; it is computed while the caller goes on."""
    sums = [
        (one.detach().view(torch.int32) if one.dtype == torch.float32 else one.detach()).sum(dtype=torch.int64)
        for one in tensors
    ]
    return torch.stack([one.to(device, non_blocking=True) for one in sums])


def joined(sums: torch.Tensor) -> int:
    """One number of these sums, other than that of the same sums in another order."""
    return sum(place * value for place, value in enumerate(sums.tolist(), 1))


def train(model: str, made_on: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device if made_on == "gpu" else "cpu"):
        network = make(model)
    network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)
    state = reshape_hooks.Elastic(model=network, optimizer=optimizer)  # type: ignore[operator]
    print(f"trains={model} device={device} made_on={made_on}", flush=True)
    for step in state.steps(ENDLESS):
        before = contents(state_tensors(network, optimizer), device)
        inputs, wanted = batch(model, device)
        with torch.autocast(device, torch.bfloat16):
            found = network(inputs)
        loss = nn.functional.cross_entropy(found.float().view(wanted.numel(), -1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step={step} loss={loss.item():.4f} time={time.clock_gettime(time.CLOCK_BOOTTIME):.6f}", flush=True)
        tensors = state_tensors(network, optimizer)
        size = sum(one.numel() * one.element_size() for one in tensors)
        print(f"before={joined(before)} after={joined(contents(tensors, device))} bytes={size}", flush=True)


if __name__ == "__main__":
    train(*sys.argv[1:])
