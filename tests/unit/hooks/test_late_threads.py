"""A process that has saved ends though threads of its script wait; those that still write are waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).resolve().parents[3]
BEGINS = """
import atexit, queue, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from reshape_hooks import late_threads, plain
late_threads.QUIET_S = 1.0
atexit.register(print, "the script's own handler")
unclosed = open("unclosed", "w")
unclosed.write("written")
"""
ENDS = """
late_threads.leave_waiting(143, plain.warn)
sys.exit(143)
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
}
WORKS = """
def write():
    for number in range(60):
        with open("late", "a") as file:
            file.write("x" * 1_000_000)
        time.sleep(0.05)
threading.Thread(target=write).start()
"""


def ended(folder: Path, threads: str) -> subprocess.CompletedProcess[str]:
    script = BEGINS + threads + ENDS
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    assert done.returncode == 143, done.stderr
    assert done.stdout == "the script's own handler\n"
    assert (folder / "unclosed").read_text() == "written"
    return done


@pytest.mark.parametrize("threads", WAITS.values(), ids=WAITS)
def test_threads_that_wait_do_not_keep_a_process_that_has_saved(tmp_path: Path, threads: str) -> None:
    said = ended(tmp_path, threads).stderr
    assert said.startswith("reshape: this training is saved; its process ends without threads that wait: feeds")
    assert said.count("\n") == 1


def test_a_thread_that_writes_is_waited_for(tmp_path: Path) -> None:
    assert ended(tmp_path, WORKS).stderr == ""
    assert (tmp_path / "late").stat().st_size == 60_000_000


def test_without_threads_it_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, "").stderr == ""
