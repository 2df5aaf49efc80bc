"""A loop that prints like a Lightning Trainer: a bar per epoch, drawn anew, until the second file is there."""

import os
import sys
import time

BATCHES = 10
line = epoch = 0


def write_down(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\n")


while not os.path.exists(sys.argv[2]):
    for batch in range(1, BATCHES + 1):
        time.sleep(0.05)
        line += 1
        write_down(line)
        share = batch / BATCHES
        bar = "█" * int(10 * share)
        sys.stdout.write(
            f"\rEpoch {epoch}: {100 * share:3.0f}%|{bar:<10}| {batch}/{BATCHES} "
            f"[00:00<00:00, 19.87it/s, v_num=0, train_loss={1 / line:.3f}]"
        )
        sys.stdout.flush()
    print()
    epoch += 1
print(f"`Trainer.fit` stopped: `max_epochs={epoch}` reached.")
write_down("end")
