"""Two processes that the script starts itself, by `torch.multiprocessing.spawn`, without the variables of torchrun."""

import os

import torch
from asked import reached
from torch import distributed, multiprocessing

import reshape_hooks


def train(rank, size, meet):
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    state.share(7)
    for step in state.steps(12):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if rank == 0:  # which has announced itself
            reached(step + 1)
    if rank == 0:
        print("measured", sum(float(one.sum()) for one in model.parameters()), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    meet = os.path.join(os.getcwd(), f"meet-{os.getpid()}")
    multiprocessing.spawn(train, (2, meet), 2)
