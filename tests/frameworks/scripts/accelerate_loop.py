import json
import os
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration

import reshape_hooks


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 58

    def __getitem__(self, k):
        generator = torch.Generator().manual_seed(k) if torch.utils.data.get_worker_info() else None
        return torch.tensor(k), torch.randn(8, generator=generator) + k / 50


accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3),
)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
loader = torch.utils.data.DataLoader(Numbers(), batch_size=7, shuffle=True, **json.loads(os.environ["LOADER"]))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
history = {"losses": []}
state = reshape_hooks.Elastic(model=model, optimizer=optimizer, history=history)
for epoch in state.epochs(3):
    for number, x in state.batches(loader):
        with accelerator.accumulate(model):
            loss = ((model(x)[:, 0] - number / 50) ** 2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in number)
    print("evaluates", flush=True)
    history["losses"].append(float(model(torch.ones(1, 8)).detach()))
print("after training", flush=True)
sys.stdin.read()
print("measured", history["losses"], torch.rand(1).item(), flush=True)
torch.save(model.state_dict(), sys.argv[1])
