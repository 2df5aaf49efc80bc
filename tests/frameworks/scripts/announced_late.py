"""Trainings that cannot be saved as they are, or that take SIGTERM while they train: the second word says which."""

import signal
import sys

import torch
from asked import reached
from lightning import Callback, LightningModule, Trainer


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _index):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Stopped(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        reached(batch_idx + 1)


class Unpicklable(Stopped):
    def state_dict(self):
        return {"file": open(__file__)}


class TakesSignal(Stopped):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 3:
            signal.signal(signal.SIGTERM, lambda *_: print("theirs", flush=True))
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)


callback = {"unpicklable": Unpicklable, "handler": TakesSignal}[sys.argv[2]]()
loader = torch.utils.data.DataLoader(torch.ones(8, 4))
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
Trainer(accelerator="cpu", max_steps=8, callbacks=[callback], **quiet).fit(Net(), loader)
print("all trained", flush=True)
