"""Processes that have not met, and data that Elastic refuses: a line for each."""

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
        state = reshape_hooks.Elastic()
        for _ in state.epochs(1):
            for _ in state.batches(loader):
                raise AssertionError("it was taken")
    except SystemExit as refused:
        print(refused, flush=True)


os.environ["WORLD_SIZE"] = "2"  # as torchrun says
ask(None)
del os.environ["WORLD_SIZE"]
ask(torch.utils.data.DataLoader(Stream(), batch_size=2))
ask(tqdm(torch.utils.data.DataLoader(torch.ones(4, 2)), disable=True))
