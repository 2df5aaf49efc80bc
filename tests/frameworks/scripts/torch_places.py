"""Stops at each place of an epoch, for many kinds of DataLoaders, and prints from where it goes on otherwise."""

import io
import json
import random

import torch
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from reshape_hooks.adapters import order

EPOCHS = 3
ENDED = "ended"  # the place behind the last batch, once the loop has come to its end


class Numbers(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, k):
        return k, 0 if torch.utils.data.get_worker_info() else random.random()


class Episodes:
    """As few-shot learning draws its classes: one episode at a time, from the numbers that dropout draws from."""

    def __len__(self):
        return 5

    def __iter__(self):
        for _ in range(len(self)):
            yield torch.randperm(12)[:4]


def loader(kind):
    generator = torch.Generator().manual_seed(3)
    data = Numbers(kind.get("samples", 12))
    arguments = {"batch_size": 4, **kind.get("arguments", {})}
    if kind.get("own_generator"):
        arguments["generator"] = generator
    sampler = kind.get("sampler")
    if sampler == "replacement":
        arguments["sampler"] = RandomSampler(data, replacement=True, num_samples=70, generator=generator)
    elif sampler == "part":
        arguments["sampler"] = RandomSampler(data, num_samples=18, generator=generator)
    elif sampler == "weighted":
        arguments["sampler"] = WeightedRandomSampler([1.0 + k for k in range(len(data))], 14, generator=generator)
    elif sampler == "episodes":
        return DataLoader(data, batch_sampler=Episodes(), num_workers=arguments.get("num_workers", 0))
    else:
        arguments["shuffle"] = True
    return DataLoader(data, **arguments)


def epochs(made, at, seen, done=0, place=None, first=0):
    """Train; return the place at which it was stopped, or None at the end. `at`: an epoch, and a place in it."""
    for epoch in range(first, EPOCHS):
        cursor = order.Cursor(lambda one: one is made, place)
        place = None
        with cursor:
            batches = iter(made)
            for numbers, drawn in batches:
                seen.append((epoch, numbers.tolist(), drawn.tolist(), torch.rand(1).item(), random.random()))
                done += 1
                if at == (epoch, done):
                    return cursor.state(done)
        if at == (epoch, ENDED):
            return cursor.state(done)
        done = 0
    return None


def begin(kind):
    torch.manual_seed(5)
    random.seed(6)
    return loader(kind)


def stopped(kind, at, batches):
    seen = []
    place = epochs(begin(kind), at, seen)
    assert place is not None
    file = io.BytesIO()
    torch.save(place, file)
    file.seek(0)
    torch.manual_seed(99)  # the new process
    random.seed(99)
    made = loader(kind)
    epoch, done = at
    epochs(made, None, seen, batches if done == ENDED else done, torch.load(file, weights_only=False), epoch)
    return seen


KINDS = {
    "whole batches": {},
    "whole batches, a generator": {"own_generator": True},
    "a smaller last batch, a generator": {"samples": 14, "own_generator": True},
    "the last batch dropped, a generator": {"samples": 14, "own_generator": True, "arguments": {"drop_last": True}},
    "drawn with replacement": {"sampler": "replacement"},
    "more samples than data": {"sampler": "part"},
    "drawn by weight": {"sampler": "weighted"},
    "episodes": {"sampler": "episodes"},
    "episodes that workers ask for ahead": {"sampler": "episodes", "arguments": {"num_workers": 2}},
    "two workers, a generator": {"samples": 14, "own_generator": True, "arguments": {"num_workers": 2}},
    "a worker that stays, a generator": {
        "samples": 14, "own_generator": True, "arguments": {"num_workers": 1, "persistent_workers": True},
    },
}  # fmt: skip

wrong = []
stops = 0
for name, kind in KINDS.items():
    undisturbed = []
    epochs(begin(kind), None, undisturbed)
    batches = len(undisturbed) // EPOCHS
    for epoch in (0, 1):
        for place in (*range(1, batches + 1), ENDED):
            stops += 1
            if stopped(kind, (epoch, place), batches) != undisturbed:
                wrong.append(f"{name}: epoch {epoch}, {place} of {batches}")
print(json.dumps({"stops": stops, "wrong": wrong}))
