"""A loop of which a stop changes something: `measured` says what, and which evaluations it has begun."""

import torch
from asked import reached

import reshape_hooks


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, k):
        return torch.tensor(k), torch.randn(8)  # drawn in the worker


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
large, small = torch.zeros(300_000), torch.zeros(8)
log_alpha = torch.nn.Parameter(torch.zeros(1))  # as in SAC
averages = {"weights": [torch.nn.Parameter(torch.zeros(300_000))]}
of_alpha = torch.optim.SGD([log_alpha, *averages["weights"]], 1.0)
loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1)
state = reshape_hooks.Elastic(model=model, optimizer=optimizer, of_alpha=of_alpha)
for epoch in state.epochs(2):
    for number, x in state.batches(loader):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        (-log_alpha - averages["weights"][0][0]).sum().backward()
        of_alpha.step()
        of_alpha.zero_grad()
        large += 1
        small += 1
        reached(f"step {int(small[0])}")
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in number)
    print("measured evaluation", epoch, flush=True)
    reached(f"evaluation {epoch}")
print("measured", int(large[0]), int(small[0]), log_alpha.item(), averages["weights"][0][0].item(), flush=True)
