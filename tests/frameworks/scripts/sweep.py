"""Trains a small model with one library and one rate, or with several rates that have no result yet."""

import os
import signal
import sys

import torch

library, *rates = sys.argv[1:]
x = torch.rand(24, 4, generator=torch.Generator().manual_seed(1))
data = [{"x": row, "labels": row.sum()} for row in x]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def forward(self, x, labels):
        return {"loss": ((self.net(x)[:, 0] - labels) ** 2).mean()}


def stop(rate, step):
    if os.environ["STOP"] == f"{rate} {step}":
        os.kill(os.getpid(), signal.SIGTERM)


def by_elastic(model, rate):
    import reshape_hooks

    optimizer = torch.optim.Adam(model.parameters(), rate)
    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    step = 0
    for _epoch in state.epochs(2):
        for batch in state.batches(loader):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            step += 1
            stop(rate, step)


def by_transformers(model, rate):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            stop(rate, state.global_step)

    given = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "save_strategy": "no", "report_to": []}
    args = TrainingArguments(f"out-{rate}", learning_rate=rate, disable_tqdm=True, use_cpu=True, **given)
    Trainer(model, args, train_dataset=data, callbacks=[Stop()]).train()


def by_lightning(model, rate):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def on_train_batch_end(self, *_):
            stop(rate, self.trainer.global_step)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), rate)

    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    lightning.Trainer(accelerator="cpu", max_epochs=2, enable_checkpointing=False, **quiet).fit(Module(), loader)


for rate in rates:
    if len(rates) > 1 and os.path.exists(f"result-{rate}"):
        continue
    torch.manual_seed(5)
    model = Net()
    {"elastic": by_elastic, "transformers": by_transformers, "lightning": by_lightning}[library](model, float(rate))
    with open(f"result-{rate}", "w") as file:
        file.write(str([float(value.sum()) for value in model.state_dict().values()]))
