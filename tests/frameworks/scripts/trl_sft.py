import sys

import datasets
import torch
from asked import reached
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Stopped(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        reached(state.global_step)


words = {f"w{k}": k for k in range(60)} | {"<pad>": 60, "<eos>": 61}
inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
rows = datasets.Dataset.from_dict({"text": [" ".join(f"w{(k * 7 + n) % 60}" for n in range(8)) for k in range(58)]})
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=62, n_positions=32, n_embd=16, n_layer=1, n_head=2))
arguments = SFTConfig(
    "out", num_train_epochs=3, per_device_train_batch_size=6, report_to=[], disable_tqdm=True, logging_steps=5,
    save_strategy="no", use_cpu=True, bf16=False,
)  # fmt: skip
trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Stopped()])
trainer.train()
logged = ("loss", "num_tokens", "mean_token_accuracy", "entropy")  # the last ones from sums of TRL's own
print("measured", [[one[name] for name in logged] for one in trainer.state.log_history if "loss" in one], flush=True)
torch.save(model.state_dict(), sys.argv[1])
