"""A loop that prints like Hugging Face's Trainer: tqdm's bar on standard error, a dict now and then.

It ends as soon as the second file is there.
"""

import os
import random
import sys
import time

STEPS, EVERY = 20_000, 10


def write_down(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\n")


random.seed(0)
began = time.time()
for step in range(1, STEPS + 1):
    time.sleep(0.05)
    write_down(step)
    share, seconds = step / STEPS, time.time() - began
    bar = "█" * int(10 * share)
    left = seconds / step * (STEPS - step)
    sys.stderr.write(f"\r{100 * share:3.0f}%|{bar:<10}| {step}/{STEPS} [00:{seconds:02.0f}<00:{left:02.0f}, 20.0it/s]")
    sys.stderr.flush()
    if step % EVERY == 0:
        loss = round(2.0 / step + random.random() / 10, 4)
        print({"loss": loss, "grad_norm": 1.5, "learning_rate": 5e-05 * (1 - share), "epoch": round(3 * share, 2)})
    if os.path.exists(sys.argv[2]):
        break
print({"train_runtime": time.time() - began, "train_steps_per_second": 20.0, "train_loss": 0.31, "epoch": 3.0})
write_down("end")
