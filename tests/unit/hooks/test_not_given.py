"""What a loop changes and Elastic was not given is named before the first stop; what a new start makes again is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.hooks.test_elastic import STARTUP

BEGIN = """
import copy, reshape_hooks
class Part:
    def __init__(self, numbers): self.numbers = numbers
    def state_dict(self): return {"numbers": self.numbers}
    def load_state_dict(self, state): self.numbers = state["numbers"]
    def step(self): self.numbers = [one + 1 for one in self.numbers]
class Wraps(Part):
    def __init__(self, part): self.part = part
    numbers = property(lambda self: self.part.numbers)
class Copies(Part):
    def state_dict(self): return {"numbers": list(self.numbers), "more": object()}
class Holds(Part):
    def __init__(self, numbers): self.numbers, self.inner = numbers, Part([1])
    def state_dict(self): return {"inner": self.inner.state_dict(), **super().state_dict()}
class Agent:
    def __init__(self): self.inner = {"all": [Part([5])]}
given, other, best, copies, holds = Part([0]), Part([7]), None, Copies([1]), Holds([2])
within = holds.inner
wraps = Wraps(given)
state = reshape_hooks.Elastic(given=given, holds=holds)
agent = Agent()
"""
LOOP = """
for epoch in state.epochs(3):
    meter_of_epoch = Part([0])
    for number in state.batches([1, 2, 3]):
        given.step()
        {}
print(given.numbers, other.numbers, best and best.numbers)
"""
SWITCHES = """
slow, fast = Part([0]), Part([0])
state, now = reshape_hooks.Elastic(slow=slow, fast=fast), slow
for epoch in state.epochs(3):
    {}
    for number in state.batches([1, 2, 3]):
        now.step()
print(slow.numbers, fast.numbers)
"""
LIBRARY = """
import threading
import numpy
class Estimator:
    def __init__(self): self.means = None
    def partial_fit(self, step): self.means = numpy.full(3, step)
class Table:
    def __init__(self, rows): self.rows = rows
    def joined(self, row): return Table([*self.rows, row])
class Locked(Table):
    def __init__(self): self.rows, self.lock = [], threading.Lock()
class Smoother:
    def __init__(self): self.mean = 0.0
    def __call__(self, step): self.mean = 0.9 * self.mean + 0.1 * step
class Large(Table):
    def __getstate__(self):
        library_values = __import__("sys").modules["reshape_hooks.adapters.library_values"]
        return b"a" * (library_values.MOST_PICKLED + 1)
"""
WITH_A_LIBRARY = """
import collections, configparser, contextvars, functools, hashlib, io, multiprocessing, queue, random, re, threading
import numpy
from library import Estimator, Large, Locked, Smoother, Table
class Shuffler(random.Random):
    calls = 0
class Listed(random.Random):
    def getstate(self): return list(super().getstate())
class Secret(random.Random):
    def getstate(self): raise RuntimeError("not told")
class Trainer:
    def __init__(self): self.models = [Estimator(), Estimator()]
class Slotted:
    __slots__ = ("model",)
    shared = Estimator()
    def __init__(self): self.model = Estimator()
def closure():
    model = Estimator()
    return lambda number: model.partial_fit(number)
fit, slotted, by_name = closure(), Slotted(), collections.defaultdict(Estimator)
by_name["one"].means = None
alone, table, locked, trainer = Estimator(), Table([1]), Locked(), Trainer()
masked, chained, settings = numpy.ma.array([1.0, 2.0]), collections.ChainMap({{}}), configparser.ConfigParser()
text, digits, counted = io.StringIO(), re.compile("[0-9]"), multiprocessing.Value("i", 0)
waiting, queues = queue.Queue(), [queue.SimpleQueue()]
smooth, shuffler, machine, double = Smoother(), Shuffler(3), random.SystemRandom(), functools.partial(max, 2)
listed, secret = Listed(3), Secret(3)
digest, at, local = hashlib.sha256(), contextvars.ContextVar("at", default=0), threading.local()
places, warmed, lock = threading.Semaphore(9), threading.Event(), threading.Lock()
beside, fitted = Estimator(), Estimator()
kept = {{"model": Estimator(), "rows": [Table([])], "beside": beside}}
fitted.partial_fit(7)
result = {{}}
state = reshape_hooks.Elastic(result=result, kept=kept)
for epoch in state.epochs(3):
    of_epoch = Estimator()
    of_epoch.partial_fit(epoch)
    for number in state.batches([1, 2, 3]):
        result["steps"] = result.get("steps", 0) + 1
        {}
print(result, alone, beside, fitted, trainer)
"""
LOST_OF_LIBRARIES = {
    "a variable": ("alone.partial_fit(number)", "alone (Estimator)"),
    "within an object of the script": ("trainer.models[1].partial_fit(number)", "trainer.models[1] (Estimator)"),
    "in a slot": ("slotted.model.partial_fit(number)", "slotted.model (Estimator)"),
    "in a class": ("Slotted.shared.partial_fit(number)", "Slotted.shared (Estimator)"),
    "in a function": ("fit(number)", "fit.model (Estimator)"),
    "in a mapping": ("by_name['one'].partial_fit(number)", "by_name['one'] (Estimator)"),
    "another one with more in it": ("table = table.joined(2)", "table (Table)"),
    "a variable beside the dictionary": ("beside.partial_fit(number)", "beside (Estimator)"),
    "a masked array": ("masked += number", "masked (MaskedArray)"),
    "a mapping of Python": ("chained[number] = 1", "chained (ChainMap)"),
    "text in memory": ("text.write('row')", "text (StringIO)"),
    "one that is called": ("smooth(number)", "smooth (Smoother)"),
    "a generator of a class of its own": ("shuffler.random()", "shuffler (Shuffler)"),
    "a generator whose state is a list": ("listed.random()", "listed (Listed)"),
    "settings": ("settings.read_dict({str(number): {}})", "settings (ConfigParser)"),
}
KEPT_OF_LIBRARIES = {
    "what does not change": "fitted.means.sum()",
    "what each step makes": "made = Estimator(); made.partial_fit(number)",
    "what each epoch makes": "of_epoch.means.sum()",
    "what is in a given dictionary": "kept['model'].partial_fit(number); kept['rows'][0] = kept['rows'][0].joined(1)",
    "what cannot be pickled and stays": "assert not locked.rows",
    "a queue that is emptied in each step": "waiting.put(number); waiting.get(); assert waiting.empty()",
    "a generator that does not tell its state": "secret.random()",
    "a generator that takes its numbers from the machine": "machine.random(); double(number)",
    "locks and signals that are as before": "places.acquire(); places.release(); lock.acquire(); lock.release()",
    "what is set for a step": "token = at.set(number); at.get(); at.reset(token); warmed.set(); warmed.clear()",
    "a hash of each step": "hashlib.sha256(str(number).encode()).hexdigest(); digest.hexdigest()",
    "what Python's own objects hold and stays": "assert digits.match('1') and not (chained or text.getvalue())",
}
LOST_BY_OTHER_ADVICE = {
    "what cannot be pickled": ("locked.rows.append(number)", "locked (Locked)", "as it cannot be saved, create it"),
    "a number that processes share": ("counted.value += 1", "counted (Synchronized)", "as it cannot be saved"),
    "a hash": ("digest.update(b'row')", "digest (HASH)", "as it cannot be saved"),
    "a context variable": ("at.set(at.get() + 1)", "at (ContextVar)", "as it cannot be saved"),
    "a semaphore": ("places.acquire()", "places (Semaphore)", "as it cannot be saved"),
    "a signal": ("warmed.set()", "warmed (Event)", "as it cannot be saved"),
    "what a thread holds": ("local.step = number", "local (_local)", "as it cannot be saved"),
    "a queue": ("waiting.put(number); len(waiting.queue)", "waiting (Queue)", "empty it in each step"),
    "a queue that does not show what it holds": (
        "queues[0].put(number)",
        "queues[0] (SimpleQueue)",
        "empty it in each",
    ),
}
WITH_MEMORY = """
import ctypes, mmap, sqlite3, tempfile
from multiprocessing import shared_memory
import numpy
class Counts(ctypes.Structure):
    _fields_ = [("steps", ctypes.c_int64)]
folder = tempfile.TemporaryDirectory()
file = open(folder.name + "/bytes", "w+b")
file.truncate(64)
counts, numbers, number_of_c, alone = Counts(), (ctypes.c_int64 * 4)(), ctypes.c_double(0), mmap.mmap(-1, 64)
mapped, copied = mmap.mmap(file.fileno(), 64), mmap.mmap(file.fileno(), 64, access=mmap.ACCESS_COPY)
array_of_file, copy_of_file = (numpy.memmap(file.name, mode=mode, dtype="u1") for mode in ("r+", "c"))
shared, viewed = (shared_memory.SharedMemory(create=True, size=64) for _ in range(2))
view, seen = numpy.ndarray((8,), "i8", viewed.buf), (ctypes.c_int64 * 4)()
of_c = numpy.frombuffer(seen, "i8")
rows, in_memory = sqlite3.connect(folder.name + "/rows"), sqlite3.connect(":memory:")
for one in (rows, in_memory):
    one.execute("CREATE TABLE rows (step)")
    one.commit()
state = reshape_hooks.Elastic(given=given)
for epoch in state.epochs(3):
    for number in state.batches([1, 2, 3]):
        given.step()
        {}
print(given.numbers, counts.steps, numbers[0], alone[0], shared.buf[0])
del view
for one in (shared, viewed):
    one.close()
    one.unlink()
"""
IN_AN_ARRAY = "keep its numbers in an array or a dictionary that Elastic is given, or in a file"
COMMIT = "commit in each step, to a data base in a file"
LOST_MEMORY = {
    "a structure of C": ("counts.steps += 1", "counts (Counts)", IN_AN_ARRAY),
    "numbers of C": ("numbers[0] += 1", "numbers (c_long_Array_4)", IN_AN_ARRAY),
    "a number of C": ("number_of_c.value += 1", "number_of_c (c_double)", IN_AN_ARRAY),
    "a mapping without a file": ("alone[0] += 1", "alone (mmap)", IN_AN_ARRAY),
    "a copy of a mapped file": ("copied[0] = number", "copied (mmap)", IN_AN_ARRAY),
    "an array in a copy of a mapped file": ("copy_of_file[0] += 1", "copy_of_file (memmap)", IN_AN_ARRAY),
    "shared memory": ("shared.buf[0] += 1", "shared (SharedMemory)", IN_AN_ARRAY),
    "rows that are not committed": ("rows.execute('INSERT INTO rows VALUES (1)')", "rows (Connection)", COMMIT),
    "a data base in memory": (
        "in_memory.execute('INSERT INTO rows VALUES (1)'); in_memory.commit()",
        "in_memory (Connection)",
        COMMIT,
    ),
}
WITH_LARGE_MEMORY = """
import tempfile
from multiprocessing import shared_memory
import numpy
from reshape_hooks.adapters import raw_memory
raw_memory.MOST_BYTES = 1 << 20
folder = tempfile.TemporaryDirectory()
numpy.zeros(3 << 20, "u1").tofile(folder.name + "/rows")
rows = numpy.memmap(folder.name + "/rows", "u1", "c")
cache = shared_memory.SharedMemory(create=True, size=3 << 20)
shown = numpy.ndarray((3 << 20,), "u1", cache.buf)
state = reshape_hooks.Elastic(given=given)
for epoch in state.epochs(3):
    for number in state.batches([1, 2, 3]):
        given.step()
        {}
assert not (rows[1:].any() or shown[1:].any())
del shown
cache.close()
cache.unlink()
"""
KEPT_LARGE_MEMORY = {
    "what is read of a copy of a mapped file": "rows.sum()",
    "what an array shows": "shown[0] += 1; assert cache",
}
KEPT_MEMORY = {
    "what does not change": "assert not (counts.steps or numbers[0] or alone[0] or copied[0] or shared.buf[0])",
    "what goes to a file": "mapped[0] = number; array_of_file[1] = number",
    "what an array shows": "view[0] += 1; of_c[0] += 1; assert viewed and seen",
    "rows that are committed": "rows.execute('INSERT INTO rows VALUES (1)'); rows.commit()",
    "what is read": "assert not in_memory.execute('SELECT * FROM rows').fetchall()",
    "what each step makes": "made = Counts(); made.steps += 1",
}
LOST = {
    "a variable": ("other.step()", "other (Part)"),
    "within an object": ("agent.inner['all'][0].step()", "agent.inner['all'][0] (Part)"),
    "a copy": ("best = copy.deepcopy(given)", "best (Part)"),
    "another one": ("other = Part(given.numbers)", "other (Part)"),
}
KEPT = {
    "what does not change": "other.state_dict()",
    "what is made before it is used": "made = Part([0]); made.step()",
    "what is put around a part": "wraps.state_dict()",
    "what gives a copy of its state": "copies.state_dict()",
    "what a part holds and keeps": "within.step()",
}


def ended(folder: Path, change: str, loop: str = LOOP) -> tuple[str, str]:
    """Return what a loop with this change prints, and what it is told."""
    packages = folder / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "library.py").write_text(LIBRARY)
    paths = os.pathsep.join([str(STARTUP), str(packages)])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "RESHAPE_JOB_ID": "loop", "RESHAPE_GENERATION": "1"}
    env |= {"RESHAPE_CHECKPOINTS": str(folder), "RESHAPE_ANNOUNCE": str(folder / "announce")}
    script = BEGIN + loop.format(change)
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(("change", "name"), LOST.values(), ids=LOST)
def test_what_changes_and_was_not_given_is_named_once_and_never_announced(
    change: str, name: str, tmp_path: Path
) -> None:
    printed, told = ended(tmp_path, change)
    assert told.splitlines() == [
        f"reshape: this training could not be saved and goes on: {name} changes during training, and a restart would "
        "reset it: give it to Elastic, too"
    ]
    assert "[9]" in printed.splitlines()[-1], "it trains to its end"
    assert not [line for line in (tmp_path / "announce").read_text().splitlines() if line.startswith("SIGUSR1")]


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_a_new_start_makes_again_is_no_reason_to_keep_gpus(change: str, tmp_path: Path) -> None:
    _, told = ended(tmp_path, change)
    assert not told
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1")


def test_a_loop_whose_epochs_have_a_meter_of_their_own_can_be_stopped_between_them(tmp_path: Path) -> None:
    printed, told = ended(tmp_path, "meter_of_epoch.step(); assert meter_of_epoch.numbers")
    assert "meter_of_epoch (Part) changes during training" in told
    lines = [line.split()[0] for line in (tmp_path / "announce").read_text().splitlines()]
    assert "SIGUSR1" in lines
    assert printed


def test_a_part_that_takes_the_place_of_another_for_good_is_said(tmp_path: Path) -> None:
    printed, told = ended(tmp_path / "once", "if epoch == 1: now = fast", SWITCHES)
    assert "could not be saved and goes on: now (Part) is not what it was when training began" in told
    assert printed.splitlines()[-1] == "[3] [6]"
    _, told = ended(tmp_path / "in each epoch", "now = fast if epoch else slow", SWITCHES)
    assert not told


@pytest.mark.parametrize(("change", "name"), LOST_OF_LIBRARIES.values(), ids=LOST_OF_LIBRARIES)
def test_an_object_of_a_library_that_changes_is_named_and_never_announced(
    change: str, name: str, tmp_path: Path
) -> None:
    printed, told = ended(tmp_path, change, WITH_A_LIBRARY)
    assert (
        f"reshape: this training could not be saved and goes on: {name} changes during training, and a restart would "
        "reset it: keep it in a dictionary that Elastic is given, and use it from there only"
    ) in told.splitlines()
    assert "{'steps': 9}" in printed.splitlines()[-1], "it trains to its end"
    assert not [line for line in (tmp_path / "announce").read_text().splitlines() if line.startswith("SIGUSR1")]


@pytest.mark.parametrize(("change", "name", "advice"), LOST_BY_OTHER_ADVICE.values(), ids=LOST_BY_OTHER_ADVICE)
def test_an_object_that_cannot_be_put_into_a_dictionary_is_named_with_other_advice(
    change: str, name: str, advice: str, tmp_path: Path
) -> None:
    _, told = ended(tmp_path, change, WITH_A_LIBRARY)
    assert f"{name} changes during training, and a restart would reset it: {advice}" in told
    assert not [line for line in (tmp_path / "announce").read_text().splitlines() if line.startswith("SIGUSR1")]


def test_an_object_that_is_too_large_to_be_compared_keeps_its_gpus(tmp_path: Path) -> None:
    whole = WITH_A_LIBRARY.replace("beside, fitted =", "large = Large([]); beside, fitted =")
    _, told = ended(tmp_path, "assert large", whole)
    assert "large (Large) changes during training, and a restart would reset it: it is too large to be compared" in told


@pytest.mark.parametrize("change", KEPT_OF_LIBRARIES.values(), ids=KEPT_OF_LIBRARIES)
def test_an_object_of_a_library_that_stays_or_is_kept_is_no_reason_to_keep_gpus(change: str, tmp_path: Path) -> None:
    _, told = ended(tmp_path, change, WITH_A_LIBRARY)
    assert not told
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1")


@pytest.mark.parametrize(("change", "name", "advice"), LOST_MEMORY.values(), ids=LOST_MEMORY)
def test_memory_that_changes_and_that_nothing_keeps_is_named_and_never_announced(
    change: str, name: str, advice: str, tmp_path: Path
) -> None:
    printed, told = ended(tmp_path, change, WITH_MEMORY)
    assert f"{name} changes during training, and a restart would reset it: {advice}" in told
    assert "[9]" in printed.splitlines()[-1], "it trains to its end"
    assert not [line for line in (tmp_path / "announce").read_text().splitlines() if line.startswith("SIGUSR1")]


@pytest.mark.parametrize("change", KEPT_MEMORY.values(), ids=KEPT_MEMORY)
def test_memory_that_a_file_or_an_array_keeps_is_no_reason_to_keep_gpus(change: str, tmp_path: Path) -> None:
    _, told = ended(tmp_path, change, WITH_MEMORY)
    assert "changes during training" not in told  # that its file has no rows at its end is another matter
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1")


@pytest.mark.parametrize("change", KEPT_LARGE_MEMORY.values(), ids=KEPT_LARGE_MEMORY)
def test_memory_that_is_too_large_to_compare_is_no_reason_to_keep_gpus_where_none_is_lost(
    change: str, tmp_path: Path
) -> None:
    _, told = ended(tmp_path, change, WITH_LARGE_MEMORY)
    assert not told
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1")


def test_a_large_copy_of_a_mapped_file_that_changes_is_named(tmp_path: Path) -> None:
    _, told = ended(tmp_path, "rows[0] += 1", WITH_LARGE_MEMORY)
    assert "rows (memmap) changes during training" in told
