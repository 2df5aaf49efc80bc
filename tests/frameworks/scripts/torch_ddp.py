import json
import os
import signal
import sys
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import reshape_hooks


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, k):
        return torch.tensor(k), torch.randn(8, generator=torch.Generator().manual_seed(k)) + k / 50


distributed.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
history = {"losses": [], "steps": 0}
state = reshape_hooks.Elastic(model=model, optimizer=optimizer, scheduler=scheduler, history=history)
sampler = DistributedSampler(Numbers(), seed=3)
share = int(sys.argv[2]) if len(sys.argv) > 2 else state.share(8)
loader = DataLoader(Numbers(), batch_size=share, sampler=sampler, **json.loads(os.environ["LOADER"]))
for epoch in state.epochs(3):
    sampler.set_epoch(epoch)
    for number, x in state.batches(loader):
        loss = ((model(x)[:, 0] - number / 50) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history["steps"] += 1
        last = distributed.get_rank() == distributed.get_world_size() - 1
        if last and str(history["steps"]) == os.environ["STOP_AT"]:
            os.kill(os.getppid(), signal.SIGTERM)
            while not signal.getsignal(signal.SIGTERM).__self__.stopping:  # until torchrun has told it
                time.sleep(0.01)
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in number)
    scheduler.step()
    history["losses"].append(float(model(torch.ones(1, 8)).detach()))
if distributed.get_rank() == 0:
    print("measured", scheduler.get_last_lr(), len(history["losses"]), flush=True)
    torch.save(model.module.state_dict(), sys.argv[1])
