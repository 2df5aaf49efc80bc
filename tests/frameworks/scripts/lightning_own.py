"""What Lightning does not save by itself: lists of the module and of callbacks, averaged weights, rows, means."""

import json
import os
import sys
import time

import torch
import torchmetrics
from asked import reached
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.optim.swa_utils import AveragedModel

DAY_S = 86_400.0
wall_clock = time.time
days = int(os.environ["RESHAPE_GENERATION"])
time.time = lambda: wall_clock() + days * DAY_S  # it is a day later at each start


class Rows(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.served = 0

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.arange(24.0).reshape(24, 1) / 24, batch_size=4, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)

    def on_after_batch_transfer(self, batch, _index):
        self.served += len(batch) * self.trainer.training
        return batch


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen = torchmetrics.MeanMetric()
        self.training_step_outputs, self.means, self.drawn = [], [], 0

    def training_step(self, x, _index):
        self.drawn += 1
        loss = ((self.net(x) - x * self.drawn / 9) ** 2).mean()
        self.seen.update(loss.detach())
        self.log("seen", self.seen, on_step=False, on_epoch=True)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.training_step_outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.means.append(float(torch.stack(self.training_step_outputs).mean()))
        self.training_step_outputs.clear()

    def validation_step(self, x, _index):
        if not self.trainer.sanity_checking:
            reached("evaluates")
        self.log("val_loss", (self.net(x) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


class History(Callback):
    def __init__(self):
        self.losses, self.averaged, self.figure = [], None, None
        self.made = time.time()
        self.began = None

    def on_train_start(self, _trainer, module):
        self.averaged = AveragedModel(module.net)
        self.began = time.time()

    def on_train_batch_end(self, _trainer, module, outputs, *_):
        self.losses.append(float(outputs["loss"]))
        self.averaged.update_parameters(module.net)
        self.figure = (number for number in self.losses)  # which cannot be kept
        reached(len(self.losses))


logger, history, net, rows = CSVLogger("logs", flush_logs_every_n_steps=5), History(), Net(), Rows()
print("logs in", logger.log_dir, flush=True)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 2}
logged = []
for epochs in (3, 1):
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", logger=logger, callbacks=[history], **quiet)
    trainer.fit(net, datamodule=rows)
    logged.append({name: float(value) for name, value in sorted(trainer.callback_metrics.items())})
    logger = CSVLogger("logs")  # of the next one
averaged = history.averaged.module.weight.item()
measured = [net.means, net.drawn, rows.served, len(history.losses), sum(history.losses), averaged, logged]
measured += [time.time() - history.made < DAY_S, time.time() - history.began < DAY_S]
print("measured", json.dumps(measured), logger.log_dir, flush=True)
torch.save(net.state_dict(), sys.argv[1])
