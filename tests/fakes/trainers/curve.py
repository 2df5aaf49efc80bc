"""A training without GPUs whose measured value is a known curve; saves each step it has done on SIGTERM.

`--steps N --seconds S` says how long it is; its loss falls evenly, or with `--flat K` less and
less over about K steps, its accuracy rises to 1 with the steps. Each step is told once, so
that one that is lost or done twice shows in the output.
"""

import argparse
import math
import sys
import time
from pathlib import Path

from reshape_hooks import plain

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--seconds", type=float, default=0.05, help="of one step")
parser.add_argument("--flat", type=float, default=0.0)
parser.add_argument("--calm", action="store_true", help="wait out each step and compute nothing")
parser.add_argument("--until", type=Path, metavar="FILE", help="it ends before its last step once this is there")
parser.add_argument("--measure", choices=["loss", "accuracy"], default="loss")
options = parser.parse_args()

here = plain.environment()
if here.gpus:
    sys.exit(f"this training is not to see any GPU, but it sees {here.gpus}")
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
stop = plain.StopFlag(here.announce)
saved = checkpoints.newest(here.prefer)
done = saved.step if saved else 0
plain.say(begins_at=done)
while done < options.steps and not stop.stopping and not (options.until and options.until.exists()):
    until = time.monotonic() + options.seconds
    if options.calm:
        time.sleep(options.seconds)
    while time.monotonic() < until:  # it really computes: whoever shares its cores takes longer
        sum(range(1000))
    done += 1
    loss = math.exp(-done / options.flat) if options.flat else 1.0 - 0.0005 * done
    accuracy = done / options.steps
    plain.say(step=done, total=options.steps, **{options.measure: loss if options.measure == "loss" else accuracy})
checkpoints.save(done, {"step": str(done).encode()})
sys.exit(plain.STOPPED if stop.stopping else 0)
