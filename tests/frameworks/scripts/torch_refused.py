"""Data that Elastic refuses, a line for each; and processes that have not met."""

import os

import torch
from tqdm import tqdm

import reshape_hooks


class Stream(torch.utils.data.IterableDataset):
    def __len__(self):
        return 4

    def __iter__(self):
        return iter(torch.ones(4, 2))


def ask(loader):
    try:
        for _ in reshape_hooks.Elastic().epochs(1):
            for _ in reshape_hooks.Elastic().batches(loader):
                raise AssertionError("it was taken")
    except SystemExit as refused:
        print(refused, flush=True)


ask(torch.utils.data.DataLoader(Stream(), batch_size=2))
ask(tqdm(torch.utils.data.DataLoader(torch.ones(4, 2)), disable=True))
os.environ["WORLD_SIZE"] = "2"
from reshape_hooks.adapters import session  # noqa: E402

session._sessions.clear()  # as in a process of its own
ask(None)
