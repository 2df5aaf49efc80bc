"""A Trainer of Lightning one of whose callbacks changes, in a later epoch, what is trained or how."""

import random
import sys

import lightning
import torch
from asked import reached
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from torch.nn.utils import prune

weights_file, way = sys.argv[1:]


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.drop = torch.nn.Dropout(0.0)
        self.head = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        (x,) = batch
        return ((self.head(self.drop(self.body(x)).relu())[:, 0] - x.sum(1)) ** 2).mean()

    def on_train_batch_end(self, *_):
        reached(self.trainer.fit_loop.total_batch_idx + 1)

    def configure_optimizers(self):
        trained = self.head if way in ("finetuning", "another group") else self
        return torch.optim.SGD(trained.parameters(), 0.05, momentum=0.9)


class ByHand(Net):
    """Steps once in two batches: it may be stopped with gradients that no step has used."""

    automatic_optimization = False

    def training_step(self, batch, number):
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, number))
        if self.trainer.fit_loop.total_batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()


class Thaws(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2:
            for parameter in module.body.parameters():
                parameter.requires_grad = True
            module.drop.p = 0.4
            if way == "pruned":
                prune.l1_unstructured(module.head, "weight", 0.5)
            if way == "evaluates":
                module.drop.eval()
            if way == "another group":
                trainer.optimizers[0].add_param_group({"params": list(module.body.parameters()), "lr": 0.01})


class Finetuning(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.body)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.body, optimizer, lr=0.01)


class Draws(lightning.LightningDataModule):
    """Gives other rows each time that it is asked for a loader."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        self.numbers = random.Random(1)
        self.asked = 0

    def drawn(self, count):
        self.asked += 1
        rows = self.numbers.sample(range(len(self.samples)), count)
        return torch.utils.data.Subset(self.samples, rows)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.drawn(9), 3, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.drawn(4), 4)


class Validates(Net):
    def __init__(self):
        super().__init__()
        self.validated = []

    def validation_step(self, batch, _):
        self.log("validated", super().training_step(batch, _))

    def on_validation_epoch_end(self):
        self.validated.append(round(self.trainer.callback_metrics["validated"].item(), 6))

    def on_fit_end(self):
        print("measured", self.validated, self.trainer.datamodule.asked, flush=True)


torch.manual_seed(0)
makes_loaders = way.startswith("loaders")
model = (ByHand if way == "by hand" else Validates if makes_loaders else Net)()
if way in ("thaws", "another group"):
    for parameter in model.body.parameters():
        parameter.requires_grad = False
callback = {
    "finetuning": Finetuning,
    "accumulates": lambda: GradientAccumulationScheduler({0: 1, 1: 2}),
    "averages": lambda: StochasticWeightAveraging(0.02, swa_epoch_start=1, annealing_epochs=4),
    "by hand": Callback,
    "loaders made anew": Callback,
    "loaders made once": Callback,
}.get(way, Thaws)()
batch = 2 if way == "accumulates" else 4
samples = torch.utils.data.TensorDataset(torch.randn(12, 4))
trainer = lightning.Trainer(
    max_epochs=batch, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    reload_dataloaders_every_n_epochs=2 if way == "loaders made anew" else 0, check_val_every_n_epoch=2,
)  # fmt: skip
if makes_loaders:
    trainer.fit(model, datamodule=Draws(samples))
else:
    trainer.fit(model, torch.utils.data.DataLoader(samples, batch, shuffle=True))
print("measured", trainer.global_step, flush=True)
torch.save(model.state_dict(), weights_file)
