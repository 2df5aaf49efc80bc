"""What refers to something that other parts of a script hold refers to it after a stop, too.

Views of arrays, lists in a dictionary that Elastic was given, functions and methods in place of others, parts of the
training in objects that its loop has made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreters import python_of
from tests.unit.hooks.test_kept_identities import run, without_stops_and_with

VIEWS = """
import numpy
data = numpy.zeros((4, 3)); row = data[1]; flat = data.reshape(-1); other = numpy.arange(3.0); last = None
large = numpy.zeros((1000, 200)); of_large = large[5]
class Net:
    def __init__(self): self.w = numpy.zeros(4); self.bias = self.w[2:]
net = Net()
for step in state.steps(8):
    row += step
    flat[0] += 1
    last = data[step % 4]
    net.bias += 1
    of_large += 1
    work(step)
    last += 2
    other[0] += last[0]
print("end", data.tolist(), row.tolist(), flat.tolist(), last.tolist(), net.w.tolist(), net.bias.tolist(), other)
print(row.base is data, last.base is data, net.bias.base is net.w, of_large.base is large, large[5].tolist()[:3])
"""
GIVEN = """
import numpy
shared = {"numbers": [], "episodes": [], "w": numpy.zeros(3), "large": numpy.zeros(200_000)}
shared["nested"] = {"large": numpy.zeros(200_000), "small": [0]}
numbers, w, part, large = shared["numbers"], shared["w"], shared["w"][1:], shared["large"]
state = reshape_hooks.Elastic(drawn=drawn, shared=shared)
episode = None
for step in state.steps(8):
    if step % 4 == 0:
        episode = []
        shared["episodes"].append(episode)
    numbers.append(step)
    w += 1
    part += step
    large += 1
    shared["nested"]["large"] += 1
    shared["nested"]["small"][0] += 1
    work(step)
    episode.append(step)
print("end", shared["numbers"], shared["episodes"], shared["w"], part, shared["large"][0])
print(shared["nested"]["large"][0], shared["nested"]["small"])
print(numbers is shared["numbers"], episode is shared["episodes"][-1], w is shared["w"], large is shared["large"])
"""
GIVEN_IN_EPOCHS = """
shared = {"epochs": []}
state = reshape_hooks.Elastic(drawn=drawn, shared=shared)
for epoch in state.epochs(3):
    losses = []
    shared["epochs"].append(losses)
    for number in state.batches([1, 2, 3]):
        work(3 * epoch + number - 1)
        losses.append(number)
print("end", shared, losses is shared["epochs"][-1])
"""
SWITCHED = """
import math
def l1(x): return x
def l2(x): return x * x
class Config: pass
class Trainer:
    def __init__(self):
        self.config = Config()
        self.config.loss, self.config.kind = l1, Config
        self.table = {"f": l1, "g": [l1, math.sin]}
trainer = Trainer()
total = 0
for step in state.steps(8):
    if step == 2:
        trainer.config.loss, trainer.config.kind = l2, Trainer
        trainer.table["f"] = l2
        trainer.table["g"][1] = math.cos
    work(step)
    total += trainer.config.loss(step) + trainer.table["f"](step) + trainer.table["g"][1](0)
print("end", total, trainer.config.kind.__name__)
"""
METHODS = """
class Agent:
    def __init__(self): self.act = self.explore; self.n = 0
    def explore(self): self.n += 1; return 1
    def exploit(self): self.n += 10; return 2
agent, other = Agent(), Agent()
act, total = other.explore, 0
for step in state.steps(8):
    if step == 2:
        agent.act = agent.exploit
        act = agent.exploit
    work(step)
    total += agent.act() + act()
print("end", total, agent.n, other.n, agent.act.__self__ is agent, act.__self__ is agent)
"""
PARTS = """
class Part:
    def __init__(self): self.count = 0
    def state_dict(self): return {"count": self.count}
    def load_state_dict(self, state): self.count = state["count"]
part = Part()
state = reshape_hooks.Elastic(drawn=drawn, part=part)
class Agent:
    def __init__(self, part): self.part, self.seen = part, []
agent, both = None, []
for step in state.steps(8):
    if step == 2:
        agent = Agent(part)
        both = [part, {"part": part}]
    work(step)
    if agent:
        agent.part.count += 1
        agent.seen.append(step)
print("end", part.count, agent.seen, agent.part is part, both[0] is part, both[1]["part"] is part)
"""
SCRIPTS = {
    "views": VIEWS,
    "given dictionaries": GIVEN,
    "given dictionaries in epochs": GIVEN_IN_EPOCHS,
    "switched functions": SWITCHED,
    "methods": METHODS,
    "parts": PARTS,
}
CANNOT_BE_KEPT = (
    "trainer of <module> changes during training, and a restart would reset it, because it holds what cannot"
)
NAMED = {
    "a lambda": (
        "class Trainer: pass\ntrainer = Trainer()\ntrainer.table = {'f': abs}\n"
        "for step in state.steps(8):\n"
        "    if step == 1: trainer.table['f'] = lambda x: -x\n"
        "    work(step)\n    trainer.table['f'](step)\n",
        CANNOT_BE_KEPT,
    ),
    "a method of a thing of a library": (
        "import threading\nclass Trainer: pass\ntrainer = Trainer()\nevents = threading.Event(), threading.Event()\n"
        "trainer.asked = events[0].is_set\n"
        "for step in state.steps(8):\n"
        "    if step == 1: trainer.asked = events[1].is_set\n"
        "    work(step)\n    trainer.asked()\n",
        CANNOT_BE_KEPT,
    ),
}


@pytest.mark.parametrize("stops", [(2, 5), (0, 7)], ids=["within", "at-its-ends"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_what_refers_to_another_object_refers_to_it_after_a_stop(
    tmp_path: Path, script: str, stops: tuple[int, ...]
) -> None:
    whole, resumed = without_stops_and_with(tmp_path, script, stops)
    assert resumed == whole
    assert whole[-1] == "0"


@pytest.mark.parametrize("python", ["3.8", "3.13"])
@pytest.mark.parametrize("script", [METHODS, GIVEN_IN_EPOCHS], ids=["methods", "given dictionaries in epochs"])
def test_it_does_so_in_each_python(tmp_path: Path, script: str, python: str) -> None:
    whole, resumed = without_stops_and_with(tmp_path, script, (2, 5), python_of(python))
    assert resumed == whole


@pytest.mark.parametrize(("script", "said"), NAMED.values(), ids=NAMED)
def test_what_cannot_be_found_again_is_named_and_does_not_end_by_a_stop(tmp_path: Path, script: str, said: str) -> None:
    lines, errors = run(tmp_path, script, 1, stop=3)
    assert lines[-1] == "0"
    assert said in errors
