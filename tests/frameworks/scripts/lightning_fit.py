import json
import os
import sys

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        generator = torch.Generator().manual_seed(k) if torch.utils.data.get_worker_info() else None
        return torch.tensor(k), torch.randn(8, generator=generator) + k / self.count


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        self.validated = []

    def loss(self, batch):
        number, x = batch
        return ((self.net(x)[:, 0] - number / 50) ** 2).mean()

    def training_step(self, batch, _index):
        with open("trained.txt", "a") as file:
            file.writelines(f"{int(k)}\n" for k in batch[0])
        return self.loss(batch)

    def validation_step(self, batch, _index):
        if not self.trainer.sanity_checking:
            print("evaluates", flush=True)
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


given = {"batch_size": 7, **json.loads(os.environ["LOADER"])}
loaders = [torch.utils.data.DataLoader(Numbers(count), shuffle=count == 58, **given) for count in (58, 20)]
best = ModelCheckpoint(monitor="val_loss")
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
trainer = Trainer(accelerator="cpu", callbacks=[best, EarlyStopping("val_loss")], **quiet, **json.loads(sys.argv[2]))
net = Net()
trainer.fit(net, *loaders)
print("after training", flush=True)
sys.stdin.read()
(metrics,) = trainer.validate(net, loaders[1], verbose=False)
print(
    "measured",
    metrics["val_loss"],
    trainer.optimizers[0].param_groups[0]["lr"],
    float(best.best_model_score),
    flush=True,
)
torch.save(net.state_dict(), sys.argv[1])
