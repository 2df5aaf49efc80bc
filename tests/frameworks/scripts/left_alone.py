import signal

import torch
from accelerate import Accelerator
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelPruning, OnExceptionCheckpoint
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers import Trainer as HFTrainer


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield {"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.tensor(0)}


class Batches:
    def __iter__(self):
        return iter([torch.ones(1, 4)] * 4)

    def __len__(self):
        return 4


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _index):
        return self.net(batch[0] if isinstance(batch, list) else batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Buffers(HFTrainer):
    """As TRL's GRPOTrainer, which generates for several steps at once."""

    _buffered_inputs = None


def train(resume=None, split=None, kind=HFTrainer, **more):
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    quiet = {"report_to": [], "disable_tqdm": True, "save_steps": 2}
    arguments = TrainingArguments("out", max_steps=2, **quiet, **more)
    stream = not (resume or split or "ignore_data_skip" in more) and kind is HFTrainer
    data = Stream() if stream else [next(iter(Stream()))] * 8
    model = BertForSequenceClassification(config)
    if split:
        model.hf_device_map = split  # as `from_pretrained` notes where it puts the layers
    kind(model, arguments, train_dataset=data).train(resume)


def fit(loader, **more):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(accelerator="cpu", max_steps=2, **quiet, **more)
    trainer.fit(Net(), loader)
    trainer.save_checkpoint("out/theirs.ckpt")


loader = torch.utils.data.DataLoader(torch.ones(8, 4))
train()
train("out/checkpoint-2")
train(enable_jit_checkpoint=True)
train(split={"bert": 0, "classifier": 1})
train(kind=Buffers)
train(ignore_data_skip=True)
fit(loader, fast_dev_run=True)
fit([loader, loader])
fit(loader, callbacks=[OnExceptionCheckpoint("out")])
fit(loader, callbacks=[LearningRateFinder(num_training_steps=2, update_attr=False)])
fit(loader, callbacks=[ModelPruning("l1_unstructured")])
fit(Batches())
Trainer(accelerator="cpu", max_steps=3, logger=False).fit(Net(), loader, ckpt_path="out/theirs.ckpt")
signal.signal(signal.SIGTERM, lambda *_: None)
fit(loader)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
accelerator = Accelerator(cpu=True)
for _ in range(2):
    accelerator.backward(accelerator.prepare(torch.nn.Linear(4, 1))(torch.ones(4)).sum())
print("all trained", flush=True)
