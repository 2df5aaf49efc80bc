"""What Hugging Face's Trainer does not save by itself: values of callbacks, of a Trainer's subclass, of the script."""

import json
import os
import sys
import time

import torch
from asked import reached
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

DAY_S = 86_400.0
wall_clock = time.time
days = int(os.environ["RESHAPE_GENERATION"])
time.time = lambda: wall_clock() + days * DAY_S  # it is a day later at each start
scores = []


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, k):
        return {"x": torch.tensor([k / 24]), "labels": torch.tensor(float(k % 3))}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = torch.nn.Linear(1, 1), 0

    def forward(self, x, labels):
        self.calls += self.training
        y = self.net(x)[:, 0] / (1 + self.calls / 100)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


class History(TrainerCallback):
    def __init__(self):
        self.losses, self.steps, self.model, self.figure = [], 0, None, None
        self.made = time.time()
        self.began = 0.0

    def on_train_begin(self, args, state, control, model=None, **_):
        self.model = model
        self.began = time.time()

    def on_step_end(self, args, state, control, **_):
        self.steps += 1
        self.figure = (number for number in self.losses)  # which cannot be kept
        reached(self.steps)

    def on_log(self, args, state, control, logs=None, **_):
        self.losses += [logs["loss"]] if "loss" in logs else []

    def on_prediction_step(self, args, state, control, **_):
        reached("evaluates")


class CountingTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.terms = []

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        found = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        self.terms.append(float(found[0].detach())) if model.training else None
        return found if return_outputs else found[0]


def compute_metrics(predicted):
    scores.append(float(predicted.predictions.mean()))
    return {"worst": float(len(scores))}  # so that it is stopped early, after as many as it has patience for


net, history = Net(), History()
arguments = TrainingArguments(
    "out", num_train_epochs=9, per_device_train_batch_size=4, per_device_eval_batch_size=8, learning_rate=0.05,
    logging_steps=2, eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4, save_total_limit=2,
    load_best_model_at_end=True, metric_for_best_model="worst", greater_is_better=False, report_to=[],
    disable_tqdm=True,
)  # fmt: skip
trainer = CountingTrainer(
    net, arguments, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=compute_metrics,
    callbacks=[history, EarlyStoppingCallback(early_stopping_patience=4)],
)  # fmt: skip
result = trainer.train()
measured = [result.global_step, history.losses, history.steps, scores, trainer.terms, net.calls, history.model is net]
measured += [time.time() - history.made < DAY_S, time.time() - history.began < DAY_S]
print("measured", json.dumps(measured), flush=True)
torch.save(net.state_dict(), sys.argv[1])
