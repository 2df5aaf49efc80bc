"""A loop that changes what is trained and by what, from its third epoch on, in one of the ways that scripts do."""

import sys

import torch
from asked import reached
from torch.nn.utils import prune

import reshape_hooks


class Prepared(torch.optim.Optimizer):
    """As accelerate's: stands for the optimizer that it is given."""

    def __init__(self, optimizer):
        self.optimizer, self.step, self.zero_grad = optimizer, optimizer.step, optimizer.zero_grad


class Loss(torch.nn.Module):
    """Counts, as losses that anneal a weight do."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, given, wanted):
        self.calls += 1
        return ((given - wanted) ** 2).mean() / self.calls


class Grows(torch.nn.Module):
    """Keeps one number more for each step, and loads as many as were saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.detach().mean()[None]])
        return x

    def _load_from_state_dict(self, state_dict, prefix, *others):
        self.seen = torch.empty_like(state_dict[prefix + "seen"])
        super()._load_from_state_dict(state_dict, prefix, *others)


weights_file, way = sys.argv[1:]
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1) if way != "shaped later" else torch.nn.LazyLinear(1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1, momentum=0.9)
if way in ("thaws", "another group"):
    for parameter in body.parameters():
        parameter.requires_grad = False
if way == "another group":
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
samples = torch.randn(12, 4)
loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)
drop = torch.nn.Dropout(0.0)
body = torch.nn.Sequential(body, drop, *([Grows()] if way == "shaped later" else []))
state = reshape_hooks.Elastic(body=body, head=head, optimizer=optimizer, scheduler=scheduler)
if way == "thaws what was frozen behind it":
    for parameter in body.parameters():
        parameter.requires_grad = False
    drop.p = 0.3
teacher = torch.nn.Linear(4, 1)
if way == "evaluates":
    drop.p = 0.5
    teacher = torch.nn.Sequential(teacher, torch.nn.Dropout(0.5))
    body.eval()
of_loss = Loss()
beside = torch.nn.Linear(4, 1)
if way == "a model around it":
    head = torch.nn.Sequential(torch.nn.ReLU(), head)
if way == "an optimizer around it":
    optimizer = Prepared(optimizer)
steps = 0
for epoch in state.epochs(4):
    if epoch == 2 and way == "thaws":
        drop.p = 0.5
    if epoch == 2 and way == "thaws what was frozen behind it":
        drop.p = 0.0
    if epoch == 2 and way in ("thaws", "thaws what was frozen behind it", "another group"):
        for parameter in body.parameters():
            parameter.requires_grad = True
    if epoch == 2 and way == "another group":
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.01})
    if epoch == 2 and way == "another optimizer":
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 0.01)
    if epoch == 2 and way == "another scheduler":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    if epoch == 2 and way == "another layer":
        body[0] = torch.nn.Linear(4, 8)
    if epoch == 2 and way == "of another type":
        body.double()
        head.double()
    if epoch == 2 and way == "pruned":
        prune.l1_unstructured(head, "weight", 0.5)
    if way == "shaped later":
        body[1] = torch.nn.Dropout(0.0)  # which saves nothing
    if epoch == 2 and way == "another model":
        head = torch.nn.Linear(8, 1)
    for x in state.batches(loader):
        wanted = x.sum(1) + teacher(x)[:, 0].detach()
        loss = of_loss(head(body(x.to(body[0].weight.dtype)).relu())[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == 2 and way == "one that was not given":
            beside.weight.data -= loss.item() * beside.weight
        steps += 1
        if way == "evaluates" and steps == 4:
            body.train()
        if way == "evaluates" and steps == 7:
            body.eval()
            teacher.eval()
        reached(steps)
    scheduler.step()
print("measured", loss.item(), flush=True)
torch.save(
    {**body.state_dict(prefix="body."), **head.state_dict(prefix="head."), **beside.state_dict(prefix="b.")},
    weights_file,
)
