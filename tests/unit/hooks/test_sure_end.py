"""A process that has saved ends, whatever its script waits for or catches; what still works is waited for."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).resolve().parents[3]
BEGINS = """
import atexit, multiprocessing, queue, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from reshape_hooks import plain, sure_end
sure_end.QUIET_S = 1.0
sure_end.STUCK_S = 4.0
atexit.register(print, "the script's own handler")
unclosed = open("unclosed", "w")
unclosed.write("written")
fork = multiprocessing.get_context("fork")
sys.path.append("site-packages")  # where the library below is

def leave():
    raise sure_end.see_through(143, plain.warn).to_raise()

"""
WAITS = {
    "a full queue": (
        "full = queue.Queue(1); full.put(1)\nthreading.Thread(target=full.put, args=(2,), name='feeds').start()"
    ),
    "an event": "threading.Thread(target=threading.Event().wait, name='feeds').start()",
    "a look now and then": (
        "def watch():\n    while True: time.sleep(0.2)\nthreading.Thread(target=watch, name='feeds').start()"
    ),
    "an executor": "ThreadPoolExecutor(1, thread_name_prefix='feeds').submit(threading.Event().wait)",
    "a process": "fork.Process(target=fork.Queue().get, name='feeds').start()",
}
WORKS = """
def write():
    for number in range(60):
        with open("late", "a") as file:
            file.write("x" * 1_000_000)
        time.sleep(0.1)
"""
UPLOADS = """
def upload():
    import socket
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(bytes(30_000_000))
"""
LONGER = "sure_end.QUIET_S = 3.0\n"  # for what works, and may get little of a full machine
COMPUTES = """
def compute():
    until = time.process_time() + 6.0
    while time.process_time() < until:
        pass
    open("late", "w").write("computed")
"""
CATCHES = {
    "a bare except": "try:\n    leave()\nexcept:\n    print('stopped')\n",
    "in a function": "def train():\n    try:\n        leave()\n    except BaseException as error:\n"
    "        print('stopped')\ntrain()\n",
    "a return in a finally": "def train():\n    try:\n        leave()\n    finally:\n        print('stopped')\n"
    "        return 1\ntrain()\n",
    "a with": "import contextlib\nwith contextlib.suppress(SystemExit):\n    print('stopped')\n    leave()\n",
    "tries again": "for attempt in range(3):\n    try:\n        if attempt == 0:\n            print('stopped')\n"
    "        leave()\n    except BaseException:\n        continue\n",
    "in another error's handler": "try:\n    raise ValueError\nexcept ValueError:\n    try:\n        leave()\n"
    "    except SystemExit:\n        print('stopped')\n    print('went on')\n",
    "raised as another one": "def train():\n    try:\n        leave()\n    except BaseException:\n"
    "        print('stopped')\n        raise RuntimeError('failed')\n"
    "try:\n    train()\nexcept RuntimeError:\n    pass\n",
    "a generator": "def steps():\n    yield 1\n    leave()\ntry:\n    for step in steps():\n        pass\n"
    "except BaseException:\n    print('stopped')\n",
    "a signal": "stop = plain.StopFlag()\nstop.idle = True\n"
    "try:\n    signal.raise_signal(signal.SIGTERM)\n    time.sleep(60)\nexcept BaseException:\n    print('stopped')\n",
}
TRIES_AGAIN = """
def call(function):
    try:
        function()
    except BaseException as error:
        caught = error
    print("the library goes on")
    raise caught
"""
TIDIES = {
    "its own finally": """
try:
    leave()
except BaseException:
    print("stopped")
finally:
    print("tidied")
    for name in ("twice",):
        print("tidied", name)
""",
    "a with around": """
class Lock:
    def __enter__(self):
        pass
    def __exit__(self, *_):
        print("tidied")
        print("tidied twice")
def train():
    with Lock():
        try:
            leave()
        except BaseException:
            print("stopped")
train()
""",
    "both, and what follows in them": """
import contextlib
@contextlib.contextmanager
def lock():
    try:
        yield
    finally:
        print("tidied twice")
def train():
    with lock():
        try:
            try:
                leave()
            except SystemExit:
                print("stopped")
            print("went on")
        finally:
            print("tidied")
train()
""",
    "a handler behind a handler": """
def train():
    try:
        try:
            leave()
        except BaseException:
            print("stopped")
        print("went on")
    except BaseException:
        print("tidied")
    open("result", "w").write("of an unfinished training")
def main():
    try:
        train()
    except BaseException:
        print("tidied twice")
    with open("result", "w") as file:
        file.write("of an unfinished training")
main()
""",
    "functions of its own behind a second handler": """
def tidy(words):
    for word in words:
        print(word)
def train():
    try:
        try:
            leave()
        except BaseException:
            pass
        other = 1
    except BaseException:
        other = 2
    finally:
        tidy(("stopped", "tidied"))
        tidy(("tidied twice",))
train()
""",
    "a thread that it tells to end": """
told = threading.Event()
def work():
    while not told.is_set():
        sum(range(20000))
thread = threading.Thread(target=work)
thread.start()
try:
    leave()
except BaseException:
    print("stopped")
finally:
    told.set()
    thread.join()
    print("tidied")
    print("tidied twice")
""",
}
INSTALLED = """
from reshape_hooks import plain, sure_end
def main(name):
    try:
        raise sure_end.see_through(143, plain.warn).to_raise()
    except BaseException:
        print("stopped", name)
    print("went on")
"""
ENDS_BY_ITSELF = """
class Logger:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        print("closed", error[1].code)

def train():
    try:
        with Logger(), open("late", "w") as file:
            leave()
    except ValueError:
        print("no")
    except BaseException as error:
        print("stopped", error.code)
        for number in range(3):
            print(number)
        raise
    finally:
        print("finally")
        time.sleep(0.1)
        print("tidied")
"""


def ended(
    folder: Path, script: str, code: int = 143, says: str = "the script's own handler\n"
) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    (folder / "train.py").write_text(BEGINS + script)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith(says), done
    assert (folder / "unclosed").read_text() == "written"
    return done


@pytest.mark.parametrize("starts", WAITS.values(), ids=WAITS)
def test_what_waits_does_not_keep_a_process_that_has_saved(tmp_path: Path, starts: str) -> None:
    said = ended(tmp_path, starts + "\nleave()").stderr
    assert said.startswith("reshape: this training is saved; its process ends without what only waits: ")
    assert "feeds" in said
    assert said.count("\n") == 1


def test_files_are_written_out_though_an_exit_handler_fails_and_an_object_is_gone(tmp_path: Path) -> None:
    script = """
import weakref
class Gone:
    pass
gone = Gone()
proxy = weakref.proxy(gone)
del gone
def fails():
    raise RuntimeError("in atexit")
atexit.register(fails)
"""
    assert "feeds" in ended(tmp_path, script + WAITS["an event"] + "\nleave()").stderr


def test_the_handler_of_a_group_is_done(tmp_path: Path) -> None:
    script = "try:\n    leave()\nexcept* SystemExit:\n    print('stopped')\n    print('tidied')\nprint('went on')"
    assert ended(tmp_path, script).stdout == "stopped\ntidied\nthe script's own handler\n"


def test_a_training_in_another_process_is_waited_for(tmp_path: Path) -> None:
    script = """
import os
os.environ["RESHAPE_ANNOUNCE"] = "announce"
def train():
    with open("announce", "a") as file:
        file.write(f"SIGUSR1 143 {plain.this_process()}\\n")
    time.sleep(6)
    open("announce", "w").close()
    open("late", "w").write("saved")
fork.Process(target=train).start()
leave()
"""
    assert ended(tmp_path, LONGER + script).stderr == ""
    assert (tmp_path / "late").read_text() == "saved"


def test_a_script_that_ends_by_itself_after_a_save_is_seen_through(tmp_path: Path) -> None:
    script = (
        WAITS["an event"]
        + """
from reshape_hooks.plain import Checkpoints, StopFlag
stop = StopFlag("announce")
signal.raise_signal(signal.SIGTERM)
Checkpoints("checkpoints", "job", 1).save(3, {"model": b"weights"}, report=lambda line: None)
sys.exit(143)
"""
    )
    assert "without what only waits: feeds" in ended(tmp_path, script).stderr


def test_a_thread_that_writes_is_waited_for(tmp_path: Path) -> None:
    assert ended(tmp_path, LONGER + WORKS + "threading.Thread(target=write).start()\nleave()").stderr == ""
    assert (tmp_path / "late").stat().st_size == 60_000_000


def test_a_thread_that_uploads_to_a_slow_server_is_waited_for(tmp_path: Path) -> None:
    received = []

    def serve() -> None:
        connection, _ = listener.accept()
        time.sleep(6.0)  # longer than what is taken for a wait
        with connection:
            while data := connection.recv(1 << 20):
                received.append(len(data))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        uploads = UPLOADS.replace("PORT", str(listener.getsockname()[1]))
        assert ended(tmp_path, LONGER + uploads + "threading.Thread(target=upload).start()\nleave()").stderr == ""
        server.join()
    assert sum(received) == 30_000_000


@pytest.mark.parametrize("starts", ["fork.Process(target=compute).start()", "ProcessPoolExecutor(1).submit(compute)"])
def test_a_process_that_computes_is_waited_for(tmp_path: Path, starts: str) -> None:
    ended(tmp_path, LONGER + COMPUTES + starts + "\nleave()")
    assert (tmp_path / "late").read_text() == "computed"


def test_without_any_of_these_it_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, "leave()").stderr == ""


@pytest.mark.parametrize("catches", CATCHES.values(), ids=CATCHES)
def test_a_script_does_not_go_on_after_it_has_caught_the_end(tmp_path: Path, catches: str) -> None:
    done = ended(tmp_path, catches + "\nprint('went on')\nopen('result', 'w').write('of an unfinished training')")
    assert done.stdout == "stopped\nthe script's own handler\n"
    assert not (tmp_path / "result").exists()
    assert re.search(r"this training is saved and ends at \S*train.py:\d+: its script had caught", done.stderr)


@pytest.mark.parametrize("tidies", TIDIES.values(), ids=TIDIES)
def test_a_script_that_has_caught_the_end_tidies_up(tmp_path: Path, tidies: str) -> None:
    done = ended(tmp_path, tidies + "\nopen('result', 'w').write('of an unfinished training')")
    assert done.stdout == "stopped\ntidied\ntidied twice\nthe script's own handler\n"
    assert not (tmp_path / "result").exists()


def test_a_library_that_catches_the_end_goes_on(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "tries.py").write_text(TRIES_AGAIN)
    done = ended(tmp_path, "import tries\ntries.call(leave)\nprint('went on')")
    assert done.stdout == "the library goes on\nthe script's own handler\n"
    assert done.stderr == ""


def test_a_script_that_is_installed_does_not_go_on_either(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "project"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        "import sys\nfrom project.training import main\nmain(sys.argv[1])\nprint('went on')\n"
    )
    (package / "training.py").write_text(INSTALLED)
    run = (
        "sys.argv = ['project', 'one']\nimport runpy\nrunpy.run_module('project', run_name='__main__', alter_sys=True)"
    )
    done = ended(tmp_path, run)
    assert done.stdout == "stopped one\nthe script's own handler\n"


@pytest.mark.parametrize(
    "inside",
    [
        "[leave() for _ in (1,)]",
        "{one: leave() for one in (1,)}",
        "next(leave() for _ in (1,))",
        "list(map(lambda _: leave(), (1,)))",
    ],
)
def test_a_comprehension_catches_nothing(tmp_path: Path, inside: str) -> None:
    script = f"def main():\n    try:\n        losses = {inside}\n    finally:\n        print('tidied')\nmain()"
    done = ended(tmp_path, script)
    assert done.stdout == "tidied\nthe script's own handler\n"
    assert done.stderr == ""


def test_what_a_script_does_on_the_way_to_its_end_is_done(tmp_path: Path) -> None:
    done = ended(tmp_path, ENDS_BY_ITSELF + "train()")
    lines = ["closed 143", "stopped 143", "0", "1", "2", "finally", "tidied", "the script's own handler"]
    assert done.stdout.splitlines() == lines
    assert done.stderr == ""


def test_an_exit_with_another_status_keeps_it(tmp_path: Path) -> None:
    script = "try:\n    leave()\nexcept SystemExit:\n    print('tidied')\n    sys.exit(7)"
    assert ended(tmp_path, script, code=7).stderr == ""


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("try:\n    leave()\nfinally:\n    threading.Event().wait()", "handler\n"),
        ("with ThreadPoolExecutor() as pool:\n    pool.submit(threading.Event().wait)\n    leave()", "handler\n"),
        (
            "stop = plain.StopFlag('announce')\nsignal.raise_signal(signal.SIGTERM)\n"
            "plain.Checkpoints('saved', 'job', 1).save(3, {'model': b'weights'}, report=lambda line: None)\n"
            "try:\n    sys.exit(143)\nfinally:\n    threading.Event().wait()",
            "handler\n",
        ),
        ("atexit.register(threading.Event().wait)\nleave()", ""),  # what it keeps from being called is not known
    ],
    ids=["finally", "with an executor", "of a script that saves itself", "atexit"],
)
def test_an_end_that_hangs_is_cut_short(tmp_path: Path, script: str, says: str) -> None:
    said = ended(tmp_path, script, says=says).stderr
    assert "its process ends, because it has only waited for 4 s in " in said
