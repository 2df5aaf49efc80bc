import json
import os
import sys

import torch

import reshape_hooks


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 58

    def __getitem__(self, k):
        generator = torch.Generator().manual_seed(k) if torch.utils.data.get_worker_info() else None
        return torch.tensor(k), torch.randn(8, generator=generator) + k / 50


model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3)
loader = torch.utils.data.DataLoader(Numbers(), batch_size=7, shuffle=True, **json.loads(os.environ["LOADER"]))
noise = torch.Generator().manual_seed(5)
average = torch.zeros(8)
state = reshape_hooks.Elastic(model=model, optimizer=optimizer, scheduler=scheduler)
means = []
for epoch in state.epochs(3):
    total = 0.0
    for k, (number, x) in enumerate(state.batches(loader)):
        average = 0.9 * average + 0.1 * x.mean(0)
        loss = ((model(x + torch.randn(8, generator=noise))[:, 0] - number / 50) ** 2).mean()
        (loss / 4).backward()
        total += loss.item()
        if (k + 1) % 4 == 0 or k + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in number)
    print("evaluates", flush=True)
    means.append((total / (k + 1), loss.item()))
    scheduler.step(means[-1][0])
print("after training", flush=True)
sys.stdin.read()
print("measured", means, average, scheduler.get_last_lr(), torch.rand(1).item(), flush=True)
torch.save(model.state_dict(), sys.argv[1])
