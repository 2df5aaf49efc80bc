"""The calls of Lightning that `docs/starting.md` uses, for where it is not installed.

As the library has it: an exception of a callback ends `fit`, and `ckpt_path` goes on at the saved step.
"""

import json
import time
from pathlib import Path


class Callback:
    pass


class Trainer:
    def __init__(self, max_steps, callbacks):
        self.max_steps, self.callbacks, self.global_step = max_steps, callbacks, 0

    def save_checkpoint(self, path):
        Path(path).write_text(json.dumps(self.global_step))

    def fit(self, module, data, ckpt_path=None):
        if ckpt_path:
            self.global_step = json.loads(Path(ckpt_path).read_text())
        while self.global_step < self.max_steps:
            time.sleep(0.01)
            self.global_step += 1
            for callback in self.callbacks:
                callback.on_train_batch_end(self, module, None, None, 0)
