"""Trains with state of all kinds, which counts as being on a GPU: `tests/fakes/cuda` stands for the driver."""

import time
from pathlib import Path

import torch

import reshape_hooks
from reshape_hooks.adapters import gpu_state

if Path("held").exists():
    gpu_state.on_gpu = lambda storage: True
    gpu_state.new_storage = lambda torch, size, device: torch.UntypedStorage(size)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 8), torch.nn.Linear(8, 8)
)
model = model.to(memory_format=torch.channels_last)
model.append(torch.nn.Linear(8, 8))
model[4].weight = model[3].weight  # tied
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, amsgrad=True)
average = torch.zeros(16, dtype=torch.bfloat16)
kept = {
    "whole": average,
    "view": average[4:8],  # of the same memory
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "half": torch.full((3,), 0.5, dtype=torch.float16),
    "flags": torch.tensor([True, False]),
    "complex": torch.ones(2, dtype=torch.complex64),
    "empty": torch.empty(0),
    "number": 0,
}
state = reshape_hooks.Elastic(model=model, optimizer=optimizer, kept=kept)
for step in state.steps(int(Path("steps").read_text())):
    loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept["view"] += 1  # is seen in `whole`
    kept["turned"] *= 1.5
    kept["number"] += 1
    facts = [kept["whole"].sum().item(), kept["turned"].sum().item(), kept["turned"].stride(), kept["number"]]
    facts += [kept["half"].sum().item(), kept["flags"].tolist(), kept["complex"].tolist(), kept["empty"].shape]
    facts += [model[3].weight is model[4].weight, model[0].weight.stride()]
    print(f"trained {step} {loss.item():.9e} {facts}", flush=True)
    time.sleep(0.01)
