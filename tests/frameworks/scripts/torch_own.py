"""What a state_dict of PyTorch does not hold: plain attributes of a module, the sums of a metric."""

import sys

import torch
import torchmetrics
from asked import reached

import reshape_hooks


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = torch.nn.Linear(1, 1), 0
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("large", torch.zeros(300_000), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.seen += len(x)
        self.large[7] += 1
        return self.net(x) / (1 + self.calls / 100)


net, mean = Net(), torchmetrics.MeanMetric()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.arange(12.0).reshape(12, 1) / 12, batch_size=3, shuffle=True)
state = reshape_hooks.Elastic(model=net, optimizer=optimizer, mean=mean)
means = []
for epoch in state.epochs(3):
    for x in state.batches(loader):
        loss = ((net(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(loss.detach())
        reached(net.calls)
    means.append(mean.compute().item())
    mean.reset()
print("measured", net.calls, net.seen.item(), net.large[7].item(), means, flush=True)
torch.save(net.state_dict(), sys.argv[1])
