"""A Trainer one of whose callbacks changes, in a later epoch, what is trained or how."""

import sys

import torch
from asked import reached
from torch.nn.utils import prune
from transformers import Trainer, TrainerCallback, TrainingArguments

weights_file, way = sys.argv[1:]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, k):
        x = torch.randn(4, generator=torch.Generator().manual_seed(k))
        return {"x": x, "labels": x.sum()}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.drop = torch.nn.Dropout(0.0)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        return {"loss": ((self.head(self.drop(self.body(x)).relu())[:, 0] - labels) ** 2).mean()}


class Changes(TrainerCallback):
    epochs = 0

    def on_epoch_begin(self, args, state, control, model, **_):
        self.epochs += 1
        if way == "thaws":
            model.drop.p = 0.2 * self.epochs
            args.max_grad_norm = 1 / self.epochs

    def on_step_end(self, args, state, control, model, optimizer, **_):
        if state.global_step == 6:
            for parameter in model.body.parameters():
                parameter.requires_grad = True
            if way == "pruned":
                prune.l1_unstructured(model.head, "weight", 0.5)
            if way == "another group":
                optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.01})
        reached(state.global_step)


torch.manual_seed(0)
model = Net()
for parameter in model.body.parameters():
    parameter.requires_grad = False
trained = model.head if way == "another group" else model
optimizer = torch.optim.SGD(trained.parameters(), 0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
arguments = TrainingArguments(
    "out", num_train_epochs=4, per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True, report_to=[],
    use_cpu=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[Changes()], optimizers=(optimizer, scheduler))
trainer.train()
print("measured", trainer.state.global_step, flush=True)
torch.save(model.state_dict(), weights_file)
