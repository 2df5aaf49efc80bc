import sys

import torch
from lightning import LightningModule, Trainer


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _index):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **quiet)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 4)))
sys.stdout.write(f"measured {trainer.global_step}\n")
