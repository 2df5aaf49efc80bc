"""A trainer that a waiting interpreter becomes is like one that was started anew, and without it nothing is lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reshape_hooks import early, record
from sidecar import leftovers, warm
from tests.fakes.shim_client import TRAINERS, ShimProcess, marked, running_shim
from tests.interpreters import python_of
from tests.patience import eventually

ENDS = ["143", "none", "text", "raise", "signal", "interrupt"]
SOON_S, NEVER_S = "0.2", "1e9"  # after the announcement an interpreter begins to wait


def until_ready(shim: ShimProcess) -> None:
    eventually(lambda: shim.client.status()["warm"].startswith("ready"), "an interpreter waits")


def waiting(shim: ShimProcess) -> int:
    """The pid of the interpreter that waits."""
    (found,) = set(shim.left()) - {shim.client.status()["trainer_pid"]}
    return found


@contextmanager
def warm_shim(folder: Path, command: list[str], env: dict[str, str] | None = None, **launch: Any) -> Iterator[Any]:
    # The saboteurs keep the folder of a script off its path, where these scripts have a module.
    env = {"RESHAPE_WARM": SOON_S, "PYTHONPATH": "", "PYTHONSAFEPATH": "", **(env or {})}
    with running_shim(folder, command, env=env, **{"hooks": True, "workdir": str(folder), **launch}) as shim:
        yield shim


def generation(shim: ShimProcess, number: int, warm: bool) -> dict[str, Any]:
    """Start a generation of the probe, stop it, and return what it saw and how it ended."""
    before = shim.output.stat().st_size if shim.output.exists() else 0
    shim.client.start(number, ["A", "B"][: number % 2 + 1], env={"RANK": str(number)})
    saw = shim.folder / f"probe-{number}.json"
    eventually(lambda: f"generation {number}\n" in (shim.output.read_text() if shim.output.exists() else ""), "it runs")
    if warm:
        until_ready(shim)
    shim.client.stop(number)
    status = shim.client.wait("exited")
    text = json.dumps([json.loads(saw.read_text()), shim.output.read_text()[before:]])
    for name in ("RESHAPE_MEMORY", "RESHAPE_OUTPUT"):  # each process prints to a pipe of its own
        text = text.replace(json.loads(saw.read_text())["environ"][name], name)
    seen, output = json.loads(text.replace(str(shim.folder), "FOLDER").replace(shim.mark, "MARK"))
    seen["environ"].pop("RESHAPE_WARM")
    return {**seen, "output": output, "exit": [status["exit_code"], status["exit_note"]]}


@pytest.fixture
def counting(tmp_path: Path) -> list[str]:
    """The command of a script with a module of its own; both write down each time that they are run."""
    (tmp_path / "mine.py").write_text("open('mine', 'a').write('x')\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return [sys.executable, "script.py"]


SCRIPT = """
import os, signal, sys, time
if os.path.exists("changes"):
    os.environ["OMP_NUM_THREADS"] = os.environ["RESHAPE_GENERATION"]
import decimal, mine, wave
open("runs", "a").write("x")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open(os.environ["RESHAPE_ANNOUNCE"], "w").write("SIGUSR1")
print("runs", os.environ["RESHAPE_GENERATION"], os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not os.path.exists("complete"):
    time.sleep(0.01)
"""


def runs(shim: ShimProcess, number: int) -> None:
    """Start a generation of the counting script and wait until it runs, with its GPUs, once."""
    assert shim.client.start(number, ["A"] * (number % 2))["ok"]
    line = f"runs {number} {'A' * (number % 2)}\n"
    eventually(lambda: line in (shim.output.read_text() if shim.output.exists() else ""), line)
    assert (shim.folder / "runs").read_text() == (shim.folder / "mine").read_text() == "x" * number


def frozen(shim: ShimProcess) -> int:
    """The pid of an interpreter that waits and does nothing any more; the trainer beside it has been stopped."""
    runs(shim, 1)
    until_ready(shim)
    one = waiting(shim)
    os.kill(one, signal.SIGSTOP)
    stopped(shim, 1)
    return one


def stopped(shim: ShimProcess, number: int) -> None:
    shim.client.stop(number)
    assert shim.client.wait("exited")["exit_code"] == 143


@pytest.mark.parametrize("how", ["script", "module", "options", "first line"])
def test_a_trainer_that_waited_is_like_one_that_was_started_anew(tmp_path, how):
    ends = ENDS if how == "script" else ENDS[:2]
    with ExitStack() as stack:
        sides = []
        for name, soon in (("cold", NEVER_S), ("warm", SOON_S)):
            folder = tmp_path / name
            folder.mkdir()
            shutil.copy(TRAINERS / "probe.py", folder / "probe.py")
            (folder / "probe.py").chmod(0o755)
            command = {
                "script": [sys.executable, "probe.py"],
                "module": [sys.executable, "-m", "probe"],
                "options": [sys.executable, "-X", "utf8", "-W", "default", "-OO", "-u", str(folder / "probe.py")],
                "first line": ["./probe.py"],
            }[how]
            env = {"RESHAPE_WARM": soon, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
            sides.append(stack.enter_context(warm_shim(folder, [*command, *ends], env)))
        cold, warm = sides
        for number in range(1, len(ends) + 1):
            anew, waited = generation(cold, number, False), generation(warm, number, True)
            for side, seen in ((cold, anew), (warm, waited)):
                assert seen["limits"][resource.RLIMIT_RTTIME].pop(0) == leftovers.mark_of(str(side.folder))
            if number > 1:
                assert waited["environ"]["RESHAPE_GENERATION"] == str(number)
            assert {key: value for key, value in waited.items() if value != anew[key]} == {}, number
        assert "imports everything anew" not in (warm.folder / "stderr").read_text()


def test_the_waiting_interpreter_becomes_the_trainer_and_runs_nothing_of_the_users_before(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            until_ready(shim)
            one = waiting(shim)
            assert b"CUDA_VISIBLE_DEVICES=\0" in Path(f"/proc/{one}/environ").read_bytes()
            assert (tmp_path / "mine").read_text() == "x" * number
            stopped(shim, number)
            assert shim.left() == [one]
        runs(shim, 4)
        assert shim.client.status()["trainer_pid"] == one
        assert shim.client.status()["cold"] == ""


def test_sets_have_one_order_in_all_generations_of_a_job_and_another_one_in_the_next_job(
    tmp_path, counting, monkeypatch
):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    words = "print('order', *{str(number) for number in range(99)}, flush=True)\n"
    (tmp_path / "script.py").write_text(SCRIPT.replace('open("runs"', f'{words}open("runs"'))

    def order(place: str, env: dict[str, str], **launch: Any) -> set[str]:
        """The orders seen in two generations, the second one in an interpreter that waited where there are hooks."""
        shutil.copytree(tmp_path, tmp_path / place, ignore=lambda *_: {"runs", "mine", *places})
        with warm_shim(tmp_path / place, counting, env, **launch) as shim:
            for generation in (1, 2):
                runs(shim, generation)
                if launch.get("hooks", True):
                    until_ready(shim)
                stopped(shim, generation)
            return {line for line in shim.output.read_text().splitlines() if line.startswith("order")}

    places = ("here", "there", "given", "other", "without")
    (first,) = order("here", {})
    assert order("there", {}) == {first}
    (other,), (given,) = order("other", {}, uid="another job"), order("given", {"PYTHONHASHSEED": "7"})
    assert len({first, other, given}) == 3
    assert len(order("without", {}, hooks=False)) == 2


def test_a_killed_waiting_interpreter_costs_nothing(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        runs(shim, 1)
        until_ready(shim)
        os.kill(waiting(shim), signal.SIGKILL)
        eventually(lambda: "ended" in shim.client.status()["warm"], "the shim notices")
        stopped(shim, 1)
        runs(shim, 2)
        assert shim.client.status()["cold"] == "the waiting interpreter ended"


def test_from_the_announcement_on_it_says_that_one_begins_to_wait_and_then_how_long_that_took(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        runs(shim, 1)
        until_ready(shim)
        said = [event["status"]["warm"] for event in shim.client.events if event["event"] == "status"]
        assert "begins to wait" in said
        assert shim.client.status()["warm_s"] > 0
        stopped(shim, 1)
        assert shim.client.start(2)["status"]["warm_s"] > 0


def test_a_start_without_one_says_why_unless_it_is_the_first_of_the_job(tmp_path, counting):
    with warm_shim(tmp_path, counting, {"RESHAPE_WARM": NEVER_S}) as shim:
        runs(shim, 1)
        assert shim.client.status()["cold"] == ""
        stopped(shim, 1)
        runs(shim, 2)
        assert shim.client.status()["cold"] == warm.NONE_YET
    with warm_shim(tmp_path / "moved", counting, workdir=str(tmp_path)) as shim:
        assert shim.client.start(3, checkpoint="g2-s9")["status"]["cold"] == warm.NEW


def test_a_waiting_interpreter_that_dies_before_the_trainer_began_is_replaced_by_a_new_process(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        one = frozen(shim)
        assert shim.client.start(2)["status"]["trainer_pid"] == one
        os.kill(one, signal.SIGKILL)
        eventually(lambda: "runs 2 \n" in shim.output.read_text(), "it runs")
        assert shim.client.status()["trainer_pid"] not in (None, one)
        assert shim.client.status()["cold"] == "the waiting interpreter ended"
        assert (tmp_path / "runs").read_text() == "xx"


def test_a_stop_before_the_trainer_began_starts_nothing(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        one = frozen(shim)
        shim.client.start(2)
        shim.client.stop(3)
        os.kill(one, signal.SIGCONT)
        assert shim.client.wait("exited")["stop_asked"]
        eventually(lambda: shim.left() == [], "nothing is left")
        assert (tmp_path / "runs").read_text() == "x"


def test_nothing_is_left_of_it_when_the_shim_is_killed(tmp_path, counting):
    with warm_shim(tmp_path, counting) as shim:
        runs(shim, 1)
        until_ready(shim)
        shim.process.kill()
        eventually(lambda: marked(shim.mark) == [], "nothing is left")


@pytest.mark.parametrize("end", ["completed", "end", "SIGTERM"])
def test_it_ends_with_the_training_and_with_the_shim(tmp_path, counting, end):
    with warm_shim(tmp_path, counting) as shim:
        runs(shim, 1)
        until_ready(shim)
        if end == "completed":
            (tmp_path / "complete").touch()
            assert shim.client.wait("exited")["exit_code"] == 0
        elif end == "end":
            shim.client.ask("end")
        else:
            shim.process.terminate()
        eventually(lambda: shim.left() == [], "nothing is left")


def test_a_script_that_changes_its_environment_otherwise_than_the_last_time_gets_what_it_asks_for(tmp_path, counting):
    (tmp_path / "changes").touch()
    show = "open('threads', 'a').write(os.environ['OMP_NUM_THREADS'])\n"
    (tmp_path / "script.py").write_text(SCRIPT.replace('open("runs"', f'{show}open("runs"'))
    with warm_shim(tmp_path, counting) as shim:
        runs(shim, 1)
        until_ready(shim)
        stopped(shim, 1)
        runs(shim, 2)
        assert (tmp_path / "threads").read_text() == "12"
        reason = "before it imports decimal the script sets OMP_NUM_THREADS, unlike the last time"
        eventually(lambda: shim.client.status()["warm"] == reason, "early imports end with a sentence")
        assert shim.left() == [shim.client.status()["trainer_pid"]]


@pytest.mark.parametrize("command", ["-I", "sh", "RESHAPE_WARM"])
def test_no_interpreter_waits_for_a_command_that_does_not_load_our_hooks_or_is_no_python(tmp_path, counting, command):
    env = {"RESHAPE_WARM": "0"} if command == "RESHAPE_WARM" else {}
    python, script = counting
    alone = f"import sys; sys.path.insert(0, ''); exec(open({script!r}).read())"
    line = {"-I": [python, "-I", "-c", alone], "sh": ["sh", "-c", f"{python} {script}; exit $?"]}.get(command, counting)
    with warm_shim(tmp_path, line, env) as shim:
        runs(shim, 1)
        if command != "RESHAPE_WARM":
            eventually(lambda: "no Python" in shim.client.status()["warm"], "the shim says so")
        shim.client.stop(1)
        shim.client.wait("exited")
        runs(shim, 2)
        assert shim.client.status()["cold"] == (
            "early imports are switched off"
            if command == "RESHAPE_WARM"
            else "the command is no Python that loads our hooks"
        )
        environs = [Path(f"/proc/{pid}/environ").read_bytes() for pid in shim.left()]
        assert b"RESHAPE_WAIT" not in b"".join(environs)


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_it_waits_in_the_python_of_the_image(tmp_path, counting, version):
    python = python_of(version)
    with warm_shim(tmp_path, [python, *counting[1:]], python=python) as shim:
        for number in (1, 2):
            runs(shim, number)
            until_ready(shim)
            stopped(shim, number)
        assert "anew" not in (tmp_path / "stderr").read_text()


def test_each_module_is_imported_as_the_last_run_did_and_seen_by_the_script_when_it_imports_it(tmp_path, counting):
    """One module is hidden from another one; one sets a variable; one of them lies in the user's folder, too."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "hidden.py").write_text("")
    (installed / "library.py").write_text(
        "import os, importlib.util\ntry:\n    import hidden\nexcept ImportError:\n    hidden = None\n"
        "os.environ['LIBRARY'] = 'set'\nassert importlib.util.find_spec('not_installed') is None\n"
    )
    show = """
before = sys.modules.get("library"), os.environ.get("LIBRARY")
sys.modules["hidden"] = None
import library
del sys.modules["hidden"]
import hidden
print("saw", os.environ["RESHAPE_GENERATION"], before, library.hidden, os.environ["LIBRARY"], hidden.__name__)
"""
    (tmp_path / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", f"import decimal, mine{show}"))
    with warm_shim(tmp_path, counting, {"PYTHONPATH": str(installed)}) as shim:
        for number in (1, 2, 3):
            runs(shim, number)
            assert f"saw {number} (None, None) None set hidden\n" in shim.output.read_text()
            until_ready(shim)
            stopped(shim, number)


def test_what_came_without_being_asked_for_is_imported_early_the_next_time_too(tmp_path, counting):
    """As PyTorch's compiler, which an interpreter that has it imports within `import torch`, and another one later."""
    # One more comes last: `wave` is known as a root once something is asked for behind it, and it brings `decimal`.
    asks = 'if int(os.environ["RESHAPE_GENERATION"]) % 2:\n    import decimal\nimport mine, wave, colorsys'
    (tmp_path / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", asks))
    with warm_shim(tmp_path, counting) as shim:
        lengths = []
        for number in (1, 2, 3, 4, 5, 6):
            runs(shim, number)
            until_ready(shim)
            (record,) = shim.folder.rglob(warm.RECORD)
            lines = record.read_text().splitlines()
            assert any(line.startswith("('root', 'decimal',") for line in lines), number
            lengths.append(len(lines))
            stopped(shim, number)
    assert lengths[5] == lengths[3]  # the second knows fewer roots: of what the first, which was cold, imported


def test_what_was_imported_early_is_not_looked_through_for_garbage_again(tmp_path, counting):
    """Python does so at the end of a process, for which the next trainer waits."""
    asks = "import gc, decimal, mine, wave\nprint('kept', gc.get_freeze_count() > len(vars(decimal)), flush=True)"
    (tmp_path / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", asks))
    with warm_shim(tmp_path, counting) as shim:
        for number in (1, 2):
            runs(shim, number)
            until_ready(shim)
            stopped(shim, number)
        assert [line for line in shim.output.read_text().splitlines() if "kept" in line] == ["kept False", "kept True"]


def test_a_module_that_a_package_has_by_an_import_of_its_own_is_no_attribute_of_it_before(tmp_path, counting):
    """Else `from package import module` finds it without an import, and nobody finds it in `sys.modules`."""
    asks = (
        "import xml, mine\n"
        'first = "sax" in vars(xml), "xml.sax" in sys.modules\n'
        "from xml import sax\n"
        "import wave, xml.dom.minidom\n"
        'print("saw", *first, sax is sys.modules["xml.sax"] is xml.sax, xml.dom is sys.modules["xml.dom"], flush=True)'
    )
    (tmp_path / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", asks))
    with warm_shim(tmp_path, counting) as shim:
        for number in (1, 2, 3, 4):
            runs(shim, number)
            until_ready(shim)
            lines = next(shim.folder.rglob(warm.RECORD)).read_text().splitlines()
            assert any(line.startswith("('root', 'xml.sax',") for line in lines), number
            stopped(shim, number)
        assert shim.output.read_text().count("saw False False True True\n") == 4


TRIES = """
import atexit, importlib.util, os
assert importlib.util.find_spec(f"tried_{os.getpid()}") is None  # another one each time
try:
    import fx2trt_oss
except ImportError:
    fx2trt_oss = None
"""


def test_a_module_that_a_library_only_tries_to_import_and_that_is_nowhere_ends_no_warm_start(tmp_path, counting):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "library.py").write_text(TRIES)
    (tmp_path / "script.py").write_text(SCRIPT.replace("import decimal", "import library, decimal"))
    with warm_shim(tmp_path, counting, {"PYTHONPATH": str(installed)}) as shim:
        for number in (1, 2, 3, 4):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            stopped(shim, number)


def test_early_imports_find_what_was_recorded_and_what_is_pythons_own_and_nothing_else():
    only = early.RecordedOnly({"decimal", "nowhere"}, record.library_folders())
    assert only.find_spec("decimal") is not None and only.find_spec("atexit") is not None
    assert only.find_spec("nowhere") is None and only.find_spec("nowhere_too") is None
    spec = only.find_spec("pytest")  # it is installed, and the last run did without: it may be looked for
    assert spec is not None and spec.loader is not None
    with pytest.raises(ModuleNotFoundError):
        module_from_spec(spec)


@pytest.mark.parametrize("where", ["installed", "elsewhere"])
def test_what_was_edited_while_an_interpreter_waited_is_imported_anew(tmp_path, counting, where):
    folders = {"installed": tmp_path / "apart" / "site-packages", "elsewhere": tmp_path / "apart" / "elsewhere"}
    job = tmp_path / "job"
    job.mkdir()
    for folder in folders.values():
        (folder / "inside").mkdir(parents=True)
    package = folders[where] / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("VALUE = 1\n")
    (folders["installed"] / "library.py").write_text("import package.part\n")  # as torch imports pynvml
    asks = "import library, package.part, decimal, mine, wave\nprint('value', package.part.VALUE, flush=True)"
    for name in ("mine.py",):
        shutil.copy(tmp_path / name, job / name)
    (job / "script.py").write_text(SCRIPT.replace("import decimal, mine, wave", asks))
    path = os.pathsep.join(map(str, folders.values()))
    with warm_shim(job, counting, {"PYTHONPATH": path}) as shim:
        for number in (1, 2):
            runs(shim, number)
            assert shim.client.status()["cold"] == ""
            until_ready(shim)
            stopped(shim, number)
        (package / "part.py").write_text("VALUE = 22\n")
        runs(shim, 3)
        assert shim.client.status()["cold"] == f"{package / 'part.py'} was edited meanwhile"
        values = [line for line in shim.output.read_text().splitlines() if line.startswith("value")]
        assert values == ["value 1", "value 1", "value 22"]
        until_ready(shim)
        stopped(shim, 3)
        runs(shim, 4)
        assert shim.client.status()["cold"] == "", "warm again, with the new code"


def test_the_users_own_modules_are_imported_by_no_interpreter_that_waits(tmp_path, counting, monkeypatch):
    """Those in a folder of PYTHONPATH that is the job's own, or holds it."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path.parent / f"{tmp_path.name}-other"
    for path, apart in ((tmp_path, False), (tmp_path.parent, False), (tmp_path / "src", False), (other, True)):
        monkeypatch.setenv("PYTHONPATH", f"{path}{os.pathsep}relative")
        assert record.shared_folders() == ((f"{path}/",) if apart else ())


def test_one_that_opens_a_device_while_it_waits_is_ended_and_no_other_waits(tmp_path, monkeypatch):
    device = tmp_path / "nvidia-like"
    monkeypatch.setattr(warm, "DEVICES", (str(device),))
    shim = SimpleNamespace(launch=SimpleNamespace(hooks=True, env={}), trainer=None, ending=False, tick_s=0.1)
    shim.status, shim.memory = {"trainer": "running"}, lambda: (0, None, False)
    waits = warm.WaitingInterpreter(shim, None, lambda _: None)
    for name, said in (("another", ""), ("nvidia-like", f"the waiting interpreter has opened a device ({device})")):
        with (tmp_path / name).open("w") as file:
            child = subprocess.Popen(["sleep", "600"], stdout=file, start_new_session=True)
        waits.child, waits.ready, waits.looked_at = child, True, 0.0
        waits.tick(warm.boottime())
        assert (waits.off, shim.status.get("warm", "")) == (said, said)
        assert waits.child is (None if said else child)
        if not said:
            child.kill()
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("limit", "spare", "whole"), [(2 << 30, warm.SPARE, False), (2 << 30, 512 << 20, True), (1 << 29, warm.SPARE, True)]
)
def test_no_interpreter_waits_where_its_container_has_too_little_memory(tmp_path, limit, spare, whole):
    """More stays free where the kernel ends all of a container (`whole`) that needs more than its limit."""
    asked = SimpleNamespace(launch=SimpleNamespace(hooks=True, env={}, command=["python", "x.py"]))
    waits = warm.WaitingInterpreter(asked, lambda *_: None, lambda _: None)
    waits.memory = 100 << 20
    (tmp_path / warm.RECORD).write_text(f"('begin', {os.getpid()}, ['/usr/bin/python3', 'x.py'])\n")
    with chdir(tmp_path):
        for used, why in [(limit - spare - waits.memory + 1, "there is too little memory for a waiting interpreter"),
                          (limit - spare - waits.memory, "")]:  # fmt: skip
            asked.memory = lambda used=used: (limit, used, whole)
            assert waits.unfit(SimpleNamespace(pid=os.getpid())) == why
            assert waits.off == ""


@pytest.mark.parametrize(
    ("command", "begun", "same"),
    [
        (["python", "a.py", "-x"], ["/usr/bin/python3.11", "a.py", "-x"], True),
        (["python", "-m", "a"], ["python", "-m", "a"], True),
        (["./a.py", "1"], ["/usr/bin/python3", "./a.py", "1"], True),
        (["python", "a.py"], ["python", "-m", "wrapper", "a.py"], False),
        (["./run.sh", "1"], ["python", "a.py", "1"], False),
        (["env", "A=1", "python", "a.py"], ["python", "a.py"], False),
        (["python", "a.py"], ["python", "b.py"], False),
    ],
)
def test_a_command_line_is_the_command_only_if_no_other_program_ran_before_it(command, begun, same):
    assert warm.is_python(command, begun) is same
