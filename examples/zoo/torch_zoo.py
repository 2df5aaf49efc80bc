"""Trains a small model in PyTorch: an ordinary loop, made elastic by three lines, those with `state`.

The models are those that SpeCon and FlowCon trained, with the digits of MNIST: `python torch_zoo.py vae`. See README.md
beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import zoo_data

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: models this small lose by threads

import reshape_hooks

try:
    import torch
except ImportError as error:
    sys.exit(f"PyTorch is not installed ({error}): pip install torch, or use keras_zoo.py")
from torch import nn
from torch.nn import functional

LETTERS = len(zoo_data.LETTERS)
Made = tuple[nn.Module, Callable[..., torch.Tensor], list[Any]]
"""A model, its loss (of what the model returns, then of the last of the data), and the data: its inputs, then that."""


class Encoder(nn.Module):
    """The variational autoencoder; returns the image that it makes again, and the moments of what it drew."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.hidden, self.moments = nn.Linear(pixels, 256), nn.Linear(256, 16)
        self.again = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, pixels))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_var = self.moments(torch.relu(self.hidden(x))).chunk(2, -1)
        return self.again(mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)), mean, log_var


def vae(samples: int, seed: int) -> Made:
    """Its loss is that of the reconstruction, summed over pixels, and the divergence of what it draws from N(0, 1)."""
    x = zoo_data.digits(samples, seed)[0].reshape(samples, -1)

    def loss(made: Any, x: torch.Tensor) -> torch.Tensor:
        again, mean, log_var = made
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
        return functional.binary_cross_entropy_with_logits(again, x, reduction="sum") / len(x) + divergence

    return Encoder(x.shape[1]), loss, [x, x]


class Last(nn.Module):
    """A recurrent layer, and a dense one on what it returns after the last value of each sequence."""

    def __init__(self, layer: nn.RNNBase, out: int) -> None:
        super().__init__()
        self.layer = layer
        self.dense = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), out)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        given: Any = x
        if lengths is not None:
            given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.layer(given)
        hidden = last[0] if isinstance(last, tuple) else last  # of an LSTM; it has a cell state, too
        return self.dense(hidden.transpose(0, 1).flatten(1))


def gru(samples: int, seed: int) -> Made:
    """Predicts the next value of a sine wave; its loss is quadratic."""
    return Last(nn.GRU(1, 32, batch_first=True), 1), functional.mse_loss, list(zoo_data.waves(samples, seed))


def rnn(samples: int, seed: int) -> Made:
    """Reads a digit row by row."""
    return _of_rows(nn.RNN(zoo_data.SIDE, 64, batch_first=True), samples, seed)


def birnn(samples: int, seed: int) -> Made:
    """Reads a digit from above and from below."""
    return _of_rows(nn.LSTM(zoo_data.SIDE, 48, batch_first=True, bidirectional=True), samples, seed)


def _of_rows(layer: nn.RNNBase, samples: int, seed: int) -> Made:
    return Last(layer, 10), functional.cross_entropy, list(zoo_data.digits(samples, seed))


def dynamic_rnn(samples: int, seed: int) -> Made:
    """Tells sequences of several lengths that rise from those in random order."""
    return Last(nn.LSTM(1, 32, batch_first=True), 2), functional.cross_entropy, list(zoo_data.sequences(samples, seed))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(LETTERS, 16), nn.LSTM(16, 64, batch_first=True)
        self.dense = nn.Linear(64, LETTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.lstm(self.embedding(x))[0]).transpose(1, 2)


def lstm(samples: int, seed: int) -> Made:
    """Predicts the next character of a text."""
    return Text(), functional.cross_entropy, list(zoo_data.text(samples, seed))


def lenet(samples: int, seed: int) -> Made:
    """LeNet-5, a convolutional network."""
    layers = [
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    ]  # fmt: skip
    return _of_images(layers, samples, seed)


class Residual(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.past = nn.Conv2d(before, width, 1, stride)
        self.block = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.block(x) + self.past(x))


def resnet(samples: int, seed: int) -> Made:
    """A residual network of three stages with one block each."""
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return _of_images([*first, Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2), *_mean(32)], samples, seed)


class Inception(nn.Module):
    """Convolutions of 1, 3 and 5 pixels and a pooling beside each other, each `width` channels."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.beside = nn.ModuleList([nn.Conv2d(before, width, 1)])
        self.beside.append(nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(before, width, 1)))
        for pixels in (3, 5):
            small = nn.Conv2d(before, width // 2, 1)
            self.beside.append(nn.Sequential(small, nn.ReLU(), nn.Conv2d(width // 2, width, pixels, padding="same")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(torch.relu(torch.cat([one(x) for one in self.beside], 1)), 2)


def inception(samples: int, seed: int) -> Made:
    """Two Inception blocks."""
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers = [*first, Inception(8, 8), Inception(32, 16), nn.Dropout(0.2), *_mean(64)]
    return _of_images(layers, samples, seed)


def _mean(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


def _of_images(layers: list[nn.Module], samples: int, seed: int) -> Made:
    x, y = zoo_data.digits(samples, seed)
    return nn.Sequential(*layers), functional.cross_entropy, [x[:, None], y]


MODELS: dict[str, Callable[[int, int], Made]] = {
    "vae": vae, "gru": gru, "rnn": rnn, "birnn": birnn, "dynamic-rnn": dynamic_rnn, "lstm": lstm,
    "lenet": lenet, "resnet": resnet, "inception": inception,
}  # fmt: skip


def main(given: zoo_data.Options) -> None:
    torch.manual_seed(given.seed)
    model, loss_of, data = MODELS[given.model](given.samples, given.seed)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    samples = torch.utils.data.TensorDataset(*map(torch.from_numpy, data))
    loader = torch.utils.data.DataLoader(samples, given.batch_size, shuffle=True)
    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    for epoch in state.epochs(given.epochs):
        for *x, y in state.batches(loader):
            loss = loss_of(model(*x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch={epoch} loss={loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main(zoo_data.options("PyTorch"))
