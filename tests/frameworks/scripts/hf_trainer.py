import json
import os
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Word 0 is the number of the sentence; the others are drawn anew each time."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        generator = torch.Generator().manual_seed(k) if torch.utils.data.get_worker_info() else None
        words = torch.cat([torch.tensor([k]), torch.randint(0, 60, (7,), generator=generator)])
        return {"input_ids": words, "labels": torch.tensor(k % 2)}


def write_trained(module, args, kwargs):
    if module.training:
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in kwargs["input_ids"][:, 0])
    else:
        print("evaluates", flush=True)


config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config)
model.register_forward_pre_hook(write_trained, with_kwargs=True)
arguments = TrainingArguments(
    "out",
    num_train_epochs=3,
    per_device_train_batch_size=6,
    per_device_eval_batch_size=6,
    gradient_accumulation_steps=2,
    logging_steps=3,
    eval_strategy="epoch",
    save_strategy="steps",
    save_steps=8,
    save_total_limit=2,
    disable_tqdm=True,
    report_to=[],
    **{f"dataloader_{name}": value for name, value in json.loads(os.environ["LOADER"]).items()},
)
trainer = Trainer(model, arguments, train_dataset=Sentences(58), eval_dataset=Sentences(24))
result = trainer.train()
print("after training", flush=True)
sys.stdin.read()
logged = [
    [(name, value) for name, value in one.items() if "runtime" not in name and "second" not in name]
    for one in trainer.state.log_history[:-1]
]
print("measured", trainer.evaluate()["eval_loss"], result.training_loss, logged, sorted(os.listdir("out")), flush=True)
torch.save(model.state_dict(), sys.argv[1])
