import json
import os
import signal
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

GPUS = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
MANY = "WORLD_SIZE" in os.environ
ROWS, KIND, GIVEN = json.loads(sys.argv[2])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, k):
        x = torch.randn(8, generator=torch.Generator().manual_seed(k))
        return {"number": torch.tensor(k), "x": x, "labels": (x.sum() > 0).long()}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def losses(self, number, x, labels):
        if self.training:
            assert len(x) <= 2, "more than at the first start"
            with open("trained.txt", "a") as file:
                file.writelines(f"{int(k)}\n" for k in number)
        return torch.nn.functional.cross_entropy(self.net(x), labels, reduction="none")


class Mean(Net):
    def forward(self, number, x, labels):
        return {"loss": self.losses(number, x, labels).mean()}


class Sum(Net):
    """Divides its loss by the samples of the whole step, as models of transformers do."""

    def forward(self, number, x, labels, num_items_in_batch=None, **kwargs):
        return {"loss": self.losses(number, x, labels).sum() / num_items_in_batch}


class Neither(Net):
    def forward(self, number, x, labels):
        return {"loss": self.losses(number, x, labels).square().mean().sqrt()}


class Norm(Mean):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))


class EmulatedDataParallel(torch.nn.Module):
    """Splits each batch as DataParallel does, which does so on GPUs only."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, num_items_in_batch=None, **batch):
        split = zip(*(one.chunk(GPUS) for one in batch.values()), strict=True)
        of_all = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch[0]}
        parts = [{**dict(zip(batch, part, strict=True)), **of_all} for part in split]
        return {"loss": torch.stack([self.module(**part)["loss"].squeeze() for part in parts])}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if str(state.global_step) == os.environ["STOP_AT"] and args.process_index == args.world_size - 1:
            os.kill(os.getppid() if MANY else os.getpid(), signal.SIGTERM)
            while not signal.getsignal(signal.SIGTERM).__self__.stopping:  # until torchrun has told it
                time.sleep(0.01)


torch.nn.DataParallel = EmulatedDataParallel
arguments = TrainingArguments(
    "out", num_train_epochs=3, per_device_train_batch_size=2, warmup_steps=4, logging_steps=3, save_strategy="no",
    learning_rate=0.01, disable_tqdm=True, report_to=[], use_cpu=True, ddp_backend="gloo" if MANY else None, **GIVEN,
)  # fmt: skip
if not MANY:
    arguments._n_gpu = GPUS  # as of so many real ones
model = {"mean": Mean, "sum": Sum, "neither": Neither, "norm": Norm}[KIND]()
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Stop()])
trainer.train()
logged = [(one["step"], one["learning_rate"]) for one in trainer.state.log_history if "learning_rate" in one]
losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
if arguments.process_index == 0:
    print("measured", trainer.state.global_step, logged, flush=True)
    torch.save({**trainer.model.state_dict(), "losses": torch.tensor(losses)}, sys.argv[1])
if MANY:
    sys.stdout.flush()
    os._exit(0)  # PyTorch sometimes aborts at exit, also without us
