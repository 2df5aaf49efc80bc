"""Asks the hook about Trainers that it leaves alone on several GPUs or in several processes; prints why, a line each.

None of them trains: this machine has no GPUs. What a Trainer would find there is set beside it.
"""

import types

import torch
from accelerate.state import PartialState
from transformers import Trainer, TrainingArguments

from reshape_hooks.adapters import session, transformers_batch, transformers_trainer


class Net(torch.nn.Module):
    config = None

    def __init__(self, *more):
        super().__init__()
        self.net = torch.nn.Sequential(*more, torch.nn.Linear(4, 1))

    def forward(self, x, labels, **items):
        return {"loss": ((self.net(x)[:, 0] - labels) ** 2).mean()}


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, *more, **named):
        return model(**inputs)["loss"]


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=2)


DATA = [{"x": torch.ones(4), "labels": torch.tensor(1.0)}] * 8


def made(kind=Trainer, model=None, gpus=1, **given):
    arguments = TrainingArguments("out", report_to=[], disable_tqdm=True, use_cpu=True, **given)
    arguments._n_gpu = gpus
    return kind(model or Net(), arguments, train_dataset=DATA)


def ask(trainer, **set_beside):
    vars(trainer).update(set_beside)
    try:
        transformers_trainer.resumable(trainer, None, (), {})
        print("taken", flush=True)
    except session.LeftAlone as why:
        print("because", why, flush=True)


def ask_processes(trainer, local=2):
    PartialState._shared_state["num_processes"] = 2
    try:
        transformers_batch.refuse(
            trainer, transformers_batch.First(2, 1, 2, 1), types.SimpleNamespace(size=2, local_size=local)
        )
        print("taken", flush=True)
    except session.LeftAlone as why:
        print("because", why, flush=True)
    finally:
        PartialState._shared_state["num_processes"] = 1


ask(made(gpus=2))
ask(made(model=Net(torch.nn.BatchNorm1d(4)), gpus=2))
ask(made(OwnLoss, gpus=2))
ask(made(gpus=2, label_smoothing_factor=0.1))
ask(made(gpus=2, average_tokens_across_devices=False))
ask(made(), is_fsdp_enabled=True)
ask(made(), is_deepspeed_enabled=True)
ask(made(), hp_search_backend="optuna")
ask_processes(made())
ask_processes(made(OwnLoss))
ask_processes(made(), local=1)
ask_processes(made(OwnLoader))
ask_processes(made(accelerator_config={"split_batches": True}))
