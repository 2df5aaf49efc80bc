"""The calls of Hugging Face's `transformers` that `docs/starting.md` uses, for where it is not installed.

As the library has it: flags in `control` are looked at after each step, a checkpoint is a folder `checkpoint-STEP`.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path


class TrainerCallback:
    pass


@dataclass
class TrainingArguments:
    output_dir: str
    max_steps: int


@dataclass
class State:
    global_step: int
    max_steps: int


@dataclass
class Control:
    should_save: bool = False
    should_training_stop: bool = False


class Trainer:
    def __init__(self, model, args, train_dataset, callbacks):
        self.args, self.callbacks = args, callbacks

    def train(self, resume_from_checkpoint=None):
        begin = 0
        if resume_from_checkpoint:
            begin = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
        state, control = State(begin, self.args.max_steps), Control()
        while state.global_step < state.max_steps and not control.should_training_stop:
            time.sleep(0.01)
            state.global_step += 1
            for callback in self.callbacks:
                callback.on_step_end(self.args, state, control, model=None)
            if control.should_save:
                folder = Path(self.args.output_dir) / f"checkpoint-{state.global_step}"
                folder.mkdir(parents=True)
                (folder / "trainer_state.json").write_text(json.dumps(state.global_step))
                control.should_save = False
