"""A loop of plain Python with three lines more is stopped after a step and goes on with the next one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reshape_hooks
from tests.interpreters import python_of

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
# Asks itself to stop when it comes to the step that STOP names, as the shim would; or dies behind it.
BEGIN = """
import os, random, reshape_hooks
drawn = {"numbers": []}
state = reshape_hooks.Elastic(drawn=drawn)
def work(step):
    drawn["numbers"].append((step, random.random()))
    if str(step) == os.environ.get("STOP"):
        os.kill(os.getpid(), 15)
    if f"dies at {step}" == os.environ.get("STOP"):
        os.kill(os.getpid(), 9)
"""
STEPS = "for step in state.steps(6): work(step)\nprint('end', drawn)"
EPOCHS = """
for epoch in state.epochs(3):
    for number in state.batches([1, 2, 3]):
        work(epoch * 10 + number)
    work(epoch * 10)
print('end', drawn)
"""


def run(
    folder: Path, script: str, generation: int, stop: object = None, python: str = sys.executable, mtbf: str = "",
    begin: str = BEGIN,
) -> list[str]:  # fmt: skip
    """Return the lines that it prints, the last of them its exit status."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "STOP": str(stop), "RESHAPE_JOB_ID": "loop"}
    env |= {"RESHAPE_CHECKPOINTS": str(folder), "RESHAPE_GENERATION": str(generation), "RESHAPE_MTBF_S": mtbf}
    argv = [python, "-c", begin + script]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert not ended.stderr, ended.stderr
    return [*ended.stdout.splitlines(), str(ended.returncode)]


def steps(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"step=(\d+) total=\d+ ", line))]


def test_what_must_be_done_once_is_done_at_the_first_start_only(tmp_path: Path) -> None:
    once = "print('first', state.first_start)\nif state.first_start: os.kill(os.getpid(), 15)\n" + STEPS
    asked_before_its_first_step, again = run(tmp_path, once, 1), run(tmp_path, once, 2)
    assert (asked_before_its_first_step[0], asked_before_its_first_step[-1]) == ("first True", "143")
    assert (again[0], steps(again), again[-1]) == ("first False", [1, 2, 3, 4, 5, 6], "0")


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_it_goes_on_with_the_next_step_and_the_next_random_number(tmp_path: Path, python: str) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    whole = run(tmp_path / "whole", STEPS, 1, python=program)
    first = run(tmp_path / "parts", STEPS, 1, stop=2, python=program)
    second = run(tmp_path / "parts", STEPS, 2, python=program)
    assert (first[-1], second[-1]) == ("143", "0")
    assert steps(first) + steps(second) == steps(whole) == [1, 2, 3, 4, 5, 6]
    assert second[-2] == whole[-2]


@pytest.mark.parametrize("stop", [2, 13, 10, 20], ids=["in-an-epoch", "at-its-last-batch", "after-it", "at-the-end"])
def test_it_goes_on_within_an_epoch_and_does_what_follows_it_once(tmp_path: Path, stop: int) -> None:
    whole = run(tmp_path / "whole", EPOCHS, 1)
    first = run(tmp_path / "parts", EPOCHS, 1, stop)
    second = run(tmp_path / "parts", EPOCHS, 2)
    assert (first[-1], second[-1]) == ("143", "0")
    assert steps(first) + steps(second) == steps(whole) == list(range(1, 10))
    assert second[-2] == whole[-2]


def test_a_signal_that_comes_while_the_processes_agree_is_answered_at_the_next_step(tmp_path: Path) -> None:
    late = """
any_, asked = state._run.ranks.any, []
def late(*flags):
    if len(asked) < 2:
        asked.append(os.kill(os.getpid(), (15, 10)[len(asked)]))  # behind the flags' reading
    return any_(*flags)
state._run.ranks.any = late
print(state._run.asked(), state._run.stop.stopping)
print(state._run.asked(), state._run.stop.saving)
print(state._run.asked())
"""
    assert run(tmp_path, late, 1) == ["(False, False) True", "(True, False) True", "(True, True)", "0"]


def test_a_stop_behind_the_last_step_lets_the_script_finish_and_started_again_it_trains_no_more(tmp_path: Path) -> None:
    kill = "\nif os.environ['STOP'] == 'late': os.kill(os.getpid(), 15)\nprint(random.random())"
    first, second = run(tmp_path, STEPS + kill, 1, stop="late"), run(tmp_path, STEPS + kill, 2)
    assert first[-3].startswith("end")
    assert first[-1] == "0"
    assert steps(second) == []
    assert first[-3:] == second[-3:], "the random numbers go on where they were"


def test_a_process_that_the_script_forks_ends_by_sigterm(tmp_path: Path) -> None:
    fork = """
if not (child := os.fork()):
    os.kill(os.getpid(), 15)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(tmp_path, fork, 1) == ["-15", "0"]


def test_a_disk_that_is_full_at_the_end_does_not_take_the_result(tmp_path: Path) -> None:
    full = "class Full:\n    def state_dict(self): raise OSError(28, 'No space left on device')\n"
    full += "    def load_state_dict(self, _): pass\n"
    script = full + "state = reshape_hooks.Elastic(full=Full())\nfor step in state.steps(2): pass\nprint('end')"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "full")}
    argv = [sys.executable, "-c", f"import reshape_hooks\n{script}"]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("end\n")
    assert "this training could not be saved and goes on: [Errno 28] No space left on device" in ended.stderr


@pytest.mark.parametrize("python", ["3.8", "ours"])
def test_saving_itself_again_and_again_changes_nothing_and_a_crash_then_costs_little(
    tmp_path: Path, python: str
) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    whole = run(tmp_path / "whole", STEPS, 1, python=program)
    assert not any(line.startswith("checkpoint=") and "step=6 " not in line for line in whole)
    often = run(tmp_path / "often", STEPS, 1, python=program, mtbf="1e-9")
    assert often[-2:] == whole[-2:]
    assert len([line for line in often if line.startswith("checkpoint=")]) > 1
    first = run(tmp_path / "parts", STEPS, 1, stop="dies at 4", python=program, mtbf="1e-9")
    assert first[-1] == "-9"
    second = run(tmp_path / "parts", STEPS, 2, python=program)
    assert steps(second)[0] > 1 and steps(second)[-1] == 6
    assert second[-2] == whole[-2]


def test_what_cannot_be_kept_is_refused_with_a_sentence() -> None:
    with pytest.raises(TypeError, match="keeps dictionaries, and objects that have a state_dict"):
        reshape_hooks.Elastic(model=[1, 2])


def test_what_the_loop_itself_imports_goes_on_with_its_next_random_number_too(tmp_path: Path) -> None:
    script = """
for step in state.steps(4):
    import numpy
    drawn["numbers"].append(float(numpy.random.rand()))
    work(step)
print('end', drawn)
"""
    whole = run(tmp_path / "whole", script, 1)
    assert run(tmp_path / "parts", script, 1, stop=1)[-1] == "143"
    assert run(tmp_path / "parts", script, 2)[-2:] == whole[-2:]


# What scripts keep in variables of their loop: each of them ends by printing it.
MEANS = """
def train(epoch):
    total, count = 0.0, 0
    for number in state.batches([1, 2, 3]):
        loss = number * 1.5 + epoch
        total += loss
        count += 1
        work(epoch * 10 + number)
    return total / count, loss
best, history, since_best = 1e9, [], 0
for epoch in state.epochs(3):
    mean, loss = train(epoch)
    since_best = 0 if mean < best else since_best + 1
    best = min(best, mean)
    history.append((mean, loss))
    work(epoch * 10)
print('end', drawn, history, best, since_best, mean)
"""
OBJECTS = """
import array, collections, datetime
class Meter:
    def __init__(self):
        self.sums, self.recent, self.held = collections.defaultdict(float), collections.deque(maxlen=2), shared
    def add(self, name, value):
        self.sums[name] += value
        self.recent.append(value)
shared = [0]
meter, own, seen, elsewhere = Meter(), random.Random(5), set(), {"shared": shared}
numbers, letters = array.array("d"), bytearray()
phase, longest = "warm", datetime.timedelta()
for epoch in state.epochs(3):
    if epoch == 1:
        phase = "hot"
    for number in state.batches([1, 2, 3]):
        meter.add(phase, own.random())
        seen.add((epoch, number))
        shared.append(number)
        numbers.append(number)
        letters += b"x"
        shared[0] += number
        longest = max(longest, datetime.timedelta(seconds=number))
        work(epoch * 10 + number)
    work(epoch * 10)
same = meter.held is shared and elsewhere["shared"] is shared
kept = numbers, letters, phase, longest
print('end', drawn, dict(meter.sums), meter.recent, sorted(seen), shared, same, kept, own.random())
"""
COUNTS = """
def wrapped(batches):
    for number, batch in enumerate(batches):
        yield number, batch
def flat():
    for epoch in state.epochs(3):
        for number in state.batches([1, 2, 3]):
            yield epoch * 10 + number
counted = []
if os.environ.get("FLAT"):
    for count, step in enumerate(flat(), 1):
        counted.append((count, step))
        work(step)
else:
    for count, epoch in enumerate(state.epochs(3), 5):
        for each, (inner, number) in enumerate(wrapped(state.batches([1, 2, 3]))):
            counted.append((count, epoch, each, inner, number, list(enumerate("ab"))))
            work(epoch * 10 + number)
        work(epoch * 10)
print('end', drawn, counted, enumerate)
"""
FLAT_COUNTS = "os.environ['FLAT'] = 'yes'" + COUNTS


@pytest.mark.parametrize("script", [MEANS, OBJECTS, COUNTS], ids=["means", "objects", "counts"])
@pytest.mark.parametrize("stop", [1, 3, 10, 12, 13, 20, 23], ids="stop-at-{}".format)
def test_its_variables_are_as_they_were_within_an_epoch_and_behind_it(tmp_path: Path, script: str, stop: int) -> None:
    whole = run(tmp_path / "whole", script, 1)
    first = run(tmp_path / "parts", script, 1, stop)
    second = run(tmp_path / "parts", script, 2)
    assert (whole[-1], first[-1], second[-1]) == ("0", "143", "0")
    assert steps(first) + steps(second) == list(range(1, 10))
    assert second[-2] == whole[-2]


@pytest.mark.parametrize("python", ["3.8", "3.10", "3.12", "3.13"])
def test_variables_are_kept_over_several_stops_by_each_python(tmp_path: Path, python: str) -> None:
    program = python_of(python)
    whole = run(tmp_path / "whole", MEANS, 1, python=program)
    stops = [2, 3, 12, 20, None]
    ended = [run(tmp_path / "parts", MEANS, n, stop, program) for n, stop in enumerate(stops, start=1)]
    assert [lines[-1] for lines in ended] == ["143", "143", "143", "143", "0"]
    assert ended[-1][-2] == whole[-2]


def test_what_counts_all_steps_of_all_epochs_counts_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", FLAT_COUNTS, 1)
    assert run(tmp_path / "parts", FLAT_COUNTS, 1, stop=12)[-1] == "143"
    assert run(tmp_path / "parts", FLAT_COUNTS, 2)[-2] == whole[-2]


def test_a_stop_before_the_loop_goes_on_takes_nothing_of_what_was_saved(tmp_path: Path) -> None:
    early = "if os.environ['STOP'] == 'early': os.kill(os.getpid(), 15)\n"
    for name, script in {"means": MEANS, "objects": OBJECTS}.items():
        whole = run(tmp_path / "whole" / name, early + script, 1)
        parts = tmp_path / name
        assert run(parts, early + script, 1, stop=12)[-1] == "143"
        again = run(parts, early + script, 2, stop="early")
        assert (steps(again), again[-1]) == ([], "143")
        assert run(parts, early + script, 3)[-2] == whole[-2]


def test_what_the_loop_does_not_change_is_as_the_new_start_makes_it(tmp_path: Path) -> None:
    script = """
generation, total = int(os.environ["RESHAPE_GENERATION"]), 0
for step in state.steps(4):
    total += generation
    work(step)
print('end', total)
"""
    assert run(tmp_path, script, 1, stop=1)[-1] == "143"
    assert run(tmp_path, script, 2)[-2] == "end 6"


PREPARES = """
class Schedule:
    rate = 1.0
    def state_dict(self): return dict(vars(self))
    def load_state_dict(self, state): vars(self).update(state)
schedule, given, numbers = Schedule(), {"seed": 5, "all": []}, random.Random(3)
state = reshape_hooks.Elastic(drawn=drawn, schedule=schedule, given=given)
for epoch in state.epochs(3):
    given["seed"] = given["seed"] * 7 % 1000
    given["all"].append(given["seed"])
    schedule.rate *= 0.5
    numbers.shuffle(given["all"])
    with open(os.environ["RESHAPE_CHECKPOINTS"] + ".txt", "a") as file:
        file.write(f"epoch {epoch} {given} {schedule.rate}\\n")
    for number in state.batches(random.sample(range(1, 9), 3)):
        work(number + 10 * len(drawn["numbers"]) + given["seed"] * 100)
        if os.environ["STOP"] == f"after {len(drawn['numbers'])}": os.kill(os.getpid(), 15)
print('end', drawn, given, schedule.rate, numbers.random(), open(file.name).read())
"""


@pytest.mark.parametrize("stops", [(1,), (2, 5), (3, 4, 9), (6, 8)], ids=str)
def test_what_an_epoch_prepares_before_its_batches_is_done_once(tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole = run(tmp_path / "whole", PREPARES, 1)
    for generation, stop in enumerate(stops, 1):
        assert run(tmp_path / "parts", PREPARES, generation, f"after {stop}")[-1] == "143"
    assert run(tmp_path / "parts", PREPARES, len(stops) + 1)[-5:] == whole[-5:]


LARGE = BEGIN.replace("state = ", "import numpy\nparams = {'w': numpy.full(1 << 18, 1.0)}\nif False: ")
MADE_ANEW = {
    "variable": """
state = reshape_hooks.Elastic(drawn=drawn, params=params)
for step in state.steps(6):
    work(step)
    params = {"w": params["w"] * 0.5 + step}
print('end', params["w"].sum())
""",
    "function": """
def train(params):
    state = reshape_hooks.Elastic(drawn=drawn, weights=params)
    for step in state.steps(6):
        work(step)
        params = {"w": params["w"] * 0.5 + step}
    return params
print('end', train(params)["w"].sum())
""",
    "attribute": """
class Trainer:
    def __init__(self):
        self.params = params
        self.state = reshape_hooks.Elastic(drawn=drawn, params=self.params)
    def train(self):
        for step in self.state.steps(6):
            work(step)
            self.params = {"w": self.params["w"] * 0.5 + step}
trainer = Trainer()
del params
trainer.train()
print('end', trainer.params["w"].sum())
""",
    "epochs": """
state = reshape_hooks.Elastic(drawn=drawn, params=params)
for epoch in state.epochs(2):
    for step in state.batches(range(epoch * 3, epoch * 3 + 3)):
        work(step)
        params = {"w": params["w"] * 0.5 + step}
print('end', params["w"].sum())
""",
}


@pytest.mark.parametrize("way", MADE_ANEW)
@pytest.mark.parametrize("stop", [0, 3, 5], ids="stop-at-{}".format)
def test_a_dictionary_that_each_step_makes_anew_goes_on(tmp_path: Path, way: str, stop: int) -> None:
    whole = run(tmp_path / "whole", MADE_ANEW[way], 1, begin=LARGE)
    first = run(tmp_path / "parts", MADE_ANEW[way], 1, stop, begin=LARGE)
    second = run(tmp_path / "parts", MADE_ANEW[way], 2, begin=LARGE)
    assert (whole[-1], first[-1], second[-1]) == ("0", "143", "0")
    assert steps(first) + steps(second) == [1, 2, 3, 4, 5, 6]
    assert second[-2] == whole[-2]


UNCLEAR = {
    "variable": ("at_first = params\nfor step", "it is not clear which dictionary is now the params"),
    "function": ("params = dict(params)\n    for step", "weights is made anew between Elastic"),
    "epochs": ("params = dict(params)\n    for step", "params is made anew between Elastic, or the beginning"),
}


@pytest.mark.parametrize("way", UNCLEAR)
def test_one_that_would_not_go_on_is_not_saved_which_is_said_before_the_first_stop(tmp_path: Path, way: str) -> None:
    code, said = UNCLEAR[way]
    with pytest.raises(AssertionError, match=f"could not be saved and goes on: {said}"):
        run(tmp_path, MADE_ANEW[way].replace("for step", code, 1), 1, begin=LARGE)
    assert not list(tmp_path.glob("g*"))


def test_numpys_generators_and_arrays_go_on(tmp_path: Path) -> None:
    script = """
import numpy
class Data:
    def __init__(self, numbers):
        self.numbers = numbers
numbers, old, average = numpy.random.default_rng(0), numpy.random.RandomState(1), numpy.zeros(3)
data, best = Data(numbers), numpy.float32(0)
for step in state.steps(6):
    average *= 0.9
    average += data.numbers.random(3)
    best = max(best, numpy.float32(old.rand()))
    work(step)
print('end', average, best, numbers.random(), old.rand(), data.numbers is numbers)
"""
    whole = run(tmp_path / "whole", script, 1)
    assert run(tmp_path / "parts", script, 1, stop=3)[-1] == "143"
    assert run(tmp_path / "parts", script, 2)[-2:] == whole[-2:]


DEFINITIONS = """
def made():
    calls, seen = 0, []
    def of_closure():
        nonlocal calls
        calls += 1
        seen.append(calls)
        return calls, sum(seen)
    return of_closure
of_closure = made()
def of_attribute():
    of_attribute.calls += 1
    return of_attribute.calls
of_attribute.calls = 0
def of_default(seen=[]):
    seen.append(1)
    return len(seen)
class Annealed:
    value = 1.0
    history = []
    @classmethod
    def step(cls):
        cls.value *= 0.9
        cls.history.append(cls.value)
        return sum(cls.history)
class Colour(enum.Enum):
    RED = 1
def decorated(function):
    calls = []
    @functools.wraps(function)
    def inner():
        calls.append(1)
        return len(calls), function()
    return inner
@decorated
def of_decorated():
    return Colour.RED
for step in state.steps(6):
    work(step)
    values = of_closure(), of_attribute(), of_default(), Annealed.step(), of_decorated()
print('end', *values)
"""


def test_what_functions_and_classes_keep_between_their_calls_goes_on(tmp_path: Path) -> None:
    script = "import enum, functools\n" + DEFINITIONS
    whole = run(tmp_path / "whole", script, 1)
    assert run(tmp_path / "parts", script, 1, stop=3)[-1] == "143"
    assert run(tmp_path / "parts", script, 2, stop=5)[-1] == "143"
    assert run(tmp_path / "parts", script, 3)[-2:] == whole[-2:]


EVERY_NAME = """
class Config(dict):
    def __getattr__(self, name): return self.get(name)
    def __setattr__(self, name, value): self[name] = value
class Fields:
    def __init__(self): self.__dict__["held"] = {"seen": 0}
    def __getattr__(self, name): return self.held.get(name)
config, fields = Config(rate=1.0), Fields()
for step in state.steps(6):
    work(step)
    config.rate *= 0.5
    fields.held["seen"] += 1
print('end', config, fields.seen)
"""


def test_objects_that_answer_to_every_name_go_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", EVERY_NAME, 1)
    assert run(tmp_path / "parts", EVERY_NAME, 1, stop=3)[-1] == "143"
    resumed = run(tmp_path / "parts", EVERY_NAME, 2)
    assert resumed[-2:] == whole[-2:] == ["end {'rate': 0.015625} 6", "0"]


ELSEWHERE = {
    "the environment": (
        "import os\nos.environ['COUNT'] = '0'\ndef count():\n    os.environ['COUNT'] += '1'\n"
        "    return os.environ['COUNT']"
    ),
    "a cache": (
        "import functools\n@functools.lru_cache\ndef half(of):\n    return of / 2\n"
        "def count():\n    half(step)\n    return half.cache_info().misses"
    ),
}


@pytest.mark.parametrize("count", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_in_no_variable_of_the_loop_begins_anew(tmp_path: Path, count: str) -> None:
    script = f"{count}\nfor step in state.steps(6):\n    work(step)\n    value = count()\nprint('end', value)\n"
    whole = run(tmp_path / "whole", script, 1)
    assert run(tmp_path / "parts", script, 1, stop=3)[-1] == "143"
    resumed = run(tmp_path / "parts", script, 2)
    assert (whole[-1], resumed[-1]) == ("0", "0")
    assert whole[-2] != resumed[-2]


DRAWS = """
source = iter(range(100))
for step in state.steps(6):
    drawn["numbers"].append(next(source))
    work(step)
"""
IN_A_FUNCTION = """
class Batches:
    pass
def main():
    batches = Batches()
    for step in state.steps(6):
        if step == 0:
            batches.left = (number for number in range(100))
        drawn["numbers"].append(next(batches.left))
        work(step)
main()
"""
READS = """
lines = open(os.__file__)
for step in state.steps(6):
    drawn["numbers"].append(lines.readline())
    work(step)
"""
NO_MORE_ASKED = """
def main():
    source = iter(range(100))
    print(next(source))
    numbered = enumerate(state.steps(6))
    while True:
        count, step = next(numbered, (6, 6))
        if step == 6:
            return
        work(step)
main()
"""


IN_A_CLOSURE = """
def made(source):
    return lambda: next(source)
draw = made(iter(range(100)))
for step in state.steps(6):
    drawn["numbers"].append(draw())
    work(step)
"""
IN_A_CLASS = """
class Names:
    numbers = iter(range(100))
for step in state.steps(6):
    drawn["numbers"].append(next(Names.numbers))
    work(step)
"""
PARTIAL = """
import functools
draw = functools.partial(next, iter(range(100)))
for step in state.steps(6):
    drawn["numbers"].append(draw())
    work(step)
"""


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (DRAWS, "source"),
        (IN_A_FUNCTION, "batches.left"),
        (READS, "lines"),
        (IN_A_CLOSURE, "draw.source"),
        (IN_A_CLASS, "Names.numbers"),
        (PARTIAL, "draw.args"),
    ],
    ids=["variable", "attribute", "file", "closure", "class", "partial"],
)
def test_one_that_draws_from_an_iterator_of_its_own_is_refused_before_the_first_stop(
    tmp_path: Path, script: str, name: str
) -> None:
    ended = ends(tmp_path, script)
    assert ended.returncode == 1
    assert f"because the place of {name} is not found again: let state.batches(...) draw" in ended.stderr
    assert len(steps(ended.stdout.splitlines())) <= 1


SIDE_BY_SIDE = """
import itertools
def shown(loop):
    for one in loop:
        yield one
for step in {loop}:
    work(step)
"""


@pytest.mark.parametrize(
    "loop",
    [
        "zip(state.steps(6), range(6))",
        "zip(itertools.count(), state.steps(6))",
        "zip(shown(state.steps(6)), [1, 2, 3, 4, 5, 6])",
        "shown(zip(state.steps(6), range(6)))",
        "itertools.zip_longest(state.steps(6), range(6))",
        "map(lambda step, other: step, state.steps(6), range(6))",
        "itertools.islice(state.steps(6), 3)",
    ],
)
def test_a_loop_that_is_read_beside_another_iterator_is_refused_before_the_first_stop(
    tmp_path: Path, loop: str
) -> None:
    ended = ends(tmp_path, SIDE_BY_SIDE.replace("{loop}", loop))
    assert ended.returncode == 1
    assert "around its loop would begin anew with what is read beside the loop" in ended.stderr
    assert len(steps(ended.stdout.splitlines())) <= 1


def test_an_object_that_is_gone_ends_no_training_that_is_looked_at(tmp_path: Path) -> None:
    gone = "import weakref\nclass Gone: pass\ngone = Gone()\nproxy = weakref.proxy(gone)\ndel gone\n"
    beside = "others = zip(map(int, [1]), [proxy])\n"
    ended = ends(tmp_path, gone + beside + SIDE_BY_SIDE.replace("{loop}", "state.steps(6)"))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "loop", ["shown(state.steps(6))", "map(int, state.steps(6))", "(one for one, _ in enumerate(state.steps(6)))"]
)
def test_what_only_shows_or_changes_what_a_loop_gives_is_not(tmp_path: Path, loop: str) -> None:
    ended = ends(tmp_path, SIDE_BY_SIDE.replace("{loop}", loop))
    assert ended.returncode == 0, ended.stderr


def ends(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(folder / "saved")}
    argv = [sys.executable, "-c", BEGIN + script]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_an_iterator_that_is_asked_no_more_is_no_reason_to_leave_it_alone(tmp_path: Path) -> None:
    assert run(tmp_path, NO_MORE_ASKED, 1, stop=2)[-1] == "143"


SHUFFLES = """
class Loader:
    def __len__(self): return 3
    def __iter__(self): return iter(random.sample([1, 2, 3], 3))
"""
BY_NUMBER = """
class Loader:
    def __len__(self): return 3
    def __getitem__(self, k): return [1, 2, 3][k]
"""


def test_batches_whose_order_may_be_another_one_are_refused_before_the_first_stop(tmp_path: Path) -> None:
    """Also `tqdm(loader)`, which hides the DataLoader; what is asked for by number goes on."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "saved")}
    argv = [sys.executable, "-c", SHUFFLES + BEGIN + EPOCHS.replace("[1, 2, 3]", "Loader()")]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "because its data come from a Loader, which may give them in another order after a stop" in ended.stderr
    assert steps(ended.stdout.splitlines()) == []
    by_number = BY_NUMBER + EPOCHS.replace("[1, 2, 3]", "Loader()")
    assert run(tmp_path / "parts", by_number, 1, 12)[-1] == "143"
    assert run(tmp_path / "parts", by_number, 2)[-2:] == run(tmp_path / "whole", by_number, 1)[-2:]


@pytest.mark.parametrize("python", ["3.8", "ours"])
@pytest.mark.parametrize("within", ["Elastic", "its loop"])
def test_one_in_a_thread_is_refused_and_its_process_fails(tmp_path: Path, within: str, python: str) -> None:
    code = """
import atexit, threading, reshape_hooks
atexit.register(print, "cleaned up")
state = reshape_hooks.Elastic() if within == "its loop" else None
def train():
    for step in (state or reshape_hooks.Elastic()).steps(3): pass
thread = threading.Thread(target=train)
thread.start()
thread.join()
atexit.register(print, "said goodbye")
print("the main thread has ended")
"""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "saved")}
    program = sys.executable if python == "ours" else python_of(python)
    argv = [program, "-c", f"within = {within!r}\n{code}"]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    said = "Elastic cannot make this training elastic, because it trains in a thread that is not the main one"
    assert f"RuntimeError: {said}" in ended.stderr
    assert ended.stdout.splitlines() == ["the main thread has ended", "said goodbye", "cleaned up"]
    assert ended.returncode == 1


def test_a_script_that_handles_sigterm_itself_is_refused(tmp_path: Path) -> None:
    code = "import signal, reshape_hooks\nsignal.signal(15, lambda *_: None)\nreshape_hooks.Elastic()"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "saved")}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Elastic cannot make this training elastic, because it has a handler for SIGTERM of its own" in ended.stderr


@pytest.mark.parametrize("size", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"])
def test_one_of_several_processes_that_have_not_met_is_refused_also_without_pytorch(tmp_path: Path, size: str) -> None:
    """They would stop at different steps, and those that wait for another one would end without having saved."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')")
    paths = os.pathsep.join([str(STARTUP), str(tmp_path)])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "RESHAPE_CHECKPOINTS": str(tmp_path / "saved")}
    argv = [sys.executable, "-c", "import reshape_hooks\nreshape_hooks.Elastic()"]
    ended = subprocess.run(argv, env={**env, size: "2"}, capture_output=True, text=True, check=False)
    said = "Elastic cannot make this training elastic, because its processes have not met yet"
    assert said in ended.stderr
    assert ended.returncode == 1
    alone = subprocess.run(argv, env={**env, size: "1"}, capture_output=True, text=True, check=False)
    assert (alone.stderr, alone.returncode) == ("", 0)


OWN_CLASSES = """
import collections
class Log(list):
    def append(self, one): super().append(-one)
class Table(dict): pass
class Named(collections.OrderedDict): pass
class Counts(collections.Counter): pass
class Groups(collections.defaultdict): pass
class Seen(set): pass
class Recent(collections.deque): pass
class Best(float): pass
class Text(str): pass
class Pair(tuple): pass
class Slots:
    __slots__ = ("_a", "__private", "unset")
    def __init__(self): self._a, self.__private = 0, []
    def add(self, one): self._a += one; self.__private.append(one)
    def now(self): return self._a, self.__private, hasattr(self, "unset")
class More(Slots):
    __slots__ = ("more",)
    def __init__(self): super().__init__(); self.more = 0
    def add(self, one): super().add(one); self.more += 2 * one
class Both(More): pass
log, table, named, counts, seen = Log(), Table(), Named(), Counts(), Seen()
groups, recent = Groups(list), Recent(maxlen=3)
best, text, pair, slots, both = Best(9), Text(), Pair(), More(), Both()
held = {"log": log, "slots": slots}
log.name = "first"
users = collections.UserDict()
"""
OF_OWN_CLASSES = """
for step in state.steps(6):
    work(step)
    log.append(step); table[step] = [step]; named[step] = step; counts[step % 2] += 1; seen.add(step)
    groups[step % 2].append(step); recent.append(step); best = Best(min(best, 5 - step)); text = Text(text + str(step))
    pair = Pair((*pair, step)); slots.add(step); both.add(step); both.other = step; log.name = str(step)
    users[step] = 1
print([log, log.name, table, named, counts, seen, dict(groups), recent, recent.maxlen, best, text, pair])
print(slots.now(), slots.more, both.now(), both.more, both.other, users)
print([type(one).__name__ for one in (log, table, named, counts, seen, groups, recent, best, text, pair, slots, both)])
print(held["log"] is log, held["slots"] is slots, groups.default_factory)
"""


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_lists_numbers_and_slots_of_the_scripts_own_classes_go_on(tmp_path: Path, python: str) -> None:
    interpreter = sys.executable if python == "ours" else python_of(python)
    begin = OWN_CLASSES + BEGIN
    whole = run(tmp_path / "whole", OF_OWN_CLASSES, 1, python=interpreter, begin=begin)
    run(tmp_path / "parts", OF_OWN_CLASSES, 1, 2, python=interpreter, begin=begin)
    run(tmp_path / "parts", OF_OWN_CLASSES, 2, 4, python=interpreter, begin=begin)
    parts = run(tmp_path / "parts", OF_OWN_CLASSES, 3, python=interpreter, begin=begin)
    assert whole[-5:] == parts[-5:]
    assert whole[-2:] == ["True True <class 'list'>", "0"]


LIBRARY = """
class Meter:
    def __init__(self):
        self.name = "loss"
        self.sum = 0.0
        self.count = 0
"""
METER = """
import sys
sys.path.insert(0, FOLDER)
import meters
meter = meters.Meter()
"""
OF_METER = """
for step in state.steps(6):
    work(step)
    meter.sum += step; meter.count += 1
print(meter.sum, meter.count)
"""


def test_a_meter_of_a_library_goes_on(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "meters.py").write_text(LIBRARY)
    begin = METER.replace("FOLDER", repr(str(installed))) + BEGIN
    whole = run(tmp_path / "whole", OF_METER, 1, begin=begin)
    run(tmp_path / "parts", OF_METER, 1, 2, begin=begin)
    assert run(tmp_path / "parts", OF_METER, 2, begin=begin)[-2] == whole[-2] == "15.0 6"


# All clocks are a day ahead more with each generation, and by what the script says: no test waits.
CLOCKS = """
import datetime as dates, os, time
DAY, typed = 86_400.0, 1_500_000_000.25
days = [int(os.environ["RESHAPE_GENERATION"])]
def move(name, read):
    unit = 1_000_000_000 if name.endswith("_ns") else 1
    setattr(time, name, lambda: read() + days[0] * 86_400 * unit)
for name in ("time", "monotonic", "perf_counter", "time_ns", "perf_counter_ns", "monotonic_ns"):
    move(name, getattr(time, name))
now = lambda: dates.datetime.fromtimestamp(time.time())
"""
BUDGETS = {
    "a variable": ("start = time.time()", "time.time() - start"),
    "another clock": ("start = time.perf_counter()", "time.perf_counter() - start"),
    "nanoseconds": ("start = time.monotonic_ns()", "(time.monotonic_ns() - start) / 1e9"),
    "a date": ("start = now()", "(now() - start).total_seconds()"),
    "an attribute": (
        "class Budget: pass\nbudget = Budget()\nbudget.start = time.time()", "time.time() - budget.start",
    ),
    "a time ahead": ("end = time.time() + 2 * DAY", "time.time() + 2 * DAY - end"),
    "read in the loop": ("last = time.time()", "time.time() - last"),
    "another clock, read in the loop": ("last = time.monotonic()", "time.monotonic() - last"),
}  # fmt: skip
TIMED = """
for step in state.steps(8):
    work(step)
    passed = PASSED
    if step in (2, 5) and "last" in globals(): last = time.monotonic() if last < 1e9 else time.time()
print(passed < 3_600.0, typed)
"""


def timed(folder: Path, way: str, generation: int, stop: object = None) -> list[str]:
    read, passed = BUDGETS[way]
    return run(folder, TIMED.replace("PASSED", passed), generation, stop, begin=CLOCKS + read + BEGIN)


@pytest.mark.parametrize("way", BUDGETS)
def test_time_that_a_script_measures_goes_on_without_the_pauses(tmp_path: Path, way: str) -> None:
    assert timed(tmp_path, way, 1, stop=3)[-1] == "143"
    assert timed(tmp_path, way, 2, stop=6)[-1] == "143"
    assert timed(tmp_path, way, 3)[-2:] == ["True 1500000000.25", "0"]


def test_a_reading_is_known_though_we_had_no_processor_between_two_looks_at_a_clock(tmp_path: Path) -> None:
    slow = """
time.reads = 0
def slow(read=time.monotonic):
    time.reads += 1
    return read() + 0.001 * time.reads**3
time.monotonic = slow
"""
    begin = CLOCKS + slow + "last = time.monotonic()" + BEGIN
    script = TIMED.replace("PASSED", "time.monotonic() - last")
    assert run(tmp_path, script, 1, stop=3, begin=begin)[-1] == "143"
    assert run(tmp_path, script, 2, stop=6, begin=begin)[-1] == "143"
    assert run(tmp_path, script, 3, begin=begin)[-2:] == ["True 1500000000.25", "0"]


def test_time_that_has_passed_before_a_stop_has_passed_after_it(tmp_path: Path) -> None:
    script = """
for step in state.steps(4):
    work(step)
    days[0] += 1
print(round((time.time() - start) / DAY))
"""
    old = "from reshape_hooks.adapters import clock_readings\nclock_readings._age_s = lambda: 10 * DAY\n"
    begin = CLOCKS + old + "start = time.time()" + BEGIN
    assert run(tmp_path, script, 1, stop=1, begin=begin)[-1] == "143"
    assert run(tmp_path, script, 2, begin=begin)[-2:] == ["4", "0"]


def test_a_loss_is_no_reading_of_the_clock_of_a_machine_that_was_booted_a_minute_ago(tmp_path: Path) -> None:
    young = """
booted_ns = time.monotonic_ns() - (days[0] - 1) * 86_400 * 10**9 - 60 * 10**9
read_ns = time.monotonic_ns
time.monotonic_ns = lambda: read_ns() - booted_ns
time.monotonic = lambda: time.monotonic_ns() / 1e9
from reshape_hooks.adapters import clock_readings
clock_readings._age_s = lambda: 40.0
loss, count = 50.1234567, 50_123_456_789
"""
    script = """
for step in state.steps(6):
    work(step)
    loss = loss * 0.99
    count += 1
    score = 30.0123456 + step
print(loss, count, score)
"""
    begin = CLOCKS + young + BEGIN
    whole = run(tmp_path / "whole", script, 1, begin=begin)
    assert run(tmp_path / "parts", script, 1, stop=3, begin=begin)[-1] == "143"
    assert run(tmp_path / "parts", script, 2, begin=begin)[-2:] == whole[-2:]


def test_a_deadline_that_is_the_same_at_each_start_stays_where_it_is(tmp_path: Path) -> None:
    limit = """
from pathlib import Path
limit = Path(os.environ["RESHAPE_CHECKPOINTS"], "limit")
limit.exists() or limit.write_text(repr(time.time() + 20 * DAY))
end = float(limit.read_text())
"""
    script = "for step in state.steps(6): work(step)\nprint(end == float(limit.read_text()))"
    assert run(tmp_path, script, 1, stop=2, begin=CLOCKS + limit + BEGIN)[-1] == "143"
    assert run(tmp_path, script, 2, stop=4, begin=CLOCKS + limit + BEGIN)[-1] == "143"
    assert run(tmp_path, script, 3, begin=CLOCKS + limit + BEGIN)[-2:] == ["True", "0"]


def test_values_that_no_clock_gives_are_left_as_they_are(tmp_path: Path) -> None:
    odd = """
import datetime
odd = [datetime.datetime.min.replace(microsecond=1), float("nan"), float("inf"), 10 ** 400, -1, True, 1_500_000_000.25]
first, second, third, fourth, fifth, sixth, seventh = odd
"""
    script = (
        "for step in state.steps(6): work(step)\nprint([first, second, third, fourth, fifth, sixth, seventh] == odd)"
    )
    assert run(tmp_path, script, 1, stop=2, begin=odd + BEGIN)[-1] == "143"
    assert run(tmp_path, script, 2, begin=odd + BEGIN)[-2:] == ["True", "0"]
