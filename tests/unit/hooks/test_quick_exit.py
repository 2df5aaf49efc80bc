"""A process that trained on a GPU ends without taking the driver down; all that a script relies on still happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# `torch` stands for one that has used a GPU; its teardown for what CUDA registers with the C library.
SCRIPT = """
import atexit, ctypes, sys, types
libc = ctypes.CDLL(None)
libc["__cxa_atexit"](ctypes.cast(libc["puts"], ctypes.c_void_p), ctypes.c_char_p(b"torn down"), None)
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].cuda = types.SimpleNamespace(is_initialized=lambda: USED)
from reshape_hooks.adapters import quick_exit
atexit.register(print, "the script's own handler")
class Last:
    def __del__(self):
        print("the script's own finalizer", flush=True)
last = Last()
unclosed = open("unclosed", "w")
unclosed.write("written")
libc["printf"](b"of C, ")
quick_exit.leave_driver_as_it_is()
raise SystemExit(143)
"""
OWN = ["the script's own handler", "the script's own finalizer"]


def ended(folder: Path, used: bool, **env: str) -> list[str]:
    """What the process printed, line by line."""
    given = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **env}
    script = SCRIPT.replace("USED", str(used))
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=given, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (143, "")
    assert (folder / "unclosed").read_text() == "written"
    return run.stdout.replace("of C, ", "of C\n").splitlines()


def test_the_driver_is_left_as_it_is_after_all_that_python_does(tmp_path: Path) -> None:
    assert sorted(ended(tmp_path, used=True)) == sorted([*OWN, "of C"])


def test_all_is_as_without_us_where_no_gpu_was_used_or_a_tool_writes_late(tmp_path: Path) -> None:
    assert sorted(ended(tmp_path, used=False)) == sorted([*OWN, "of C", "torn down"])
    assert sorted(ended(tmp_path, used=True, LLVM_PROFILE_FILE="x")) == sorted([*OWN, "of C", "torn down"])


# A process that ends with a circle of objects, which only a search for garbage would find. `MADE` makes it.
CIRCLE = """
import gc, os
frozen = gc.get_freeze_count()
from reshape_hooks.adapters import quick_exit
class Circle:
    def __init__(self, **kept):
        vars(self).update(kept, itself=self)
MADE
quick_exit.leave_garbage()
print("left" if gc.get_freeze_count() > frozen else "searched", flush=True)
"""
FINALIZED = """
class Last:
    def __del__(self, write=os.write):
        write(1, b"finalized")
circle = Circle(last=Last())
"""
ROWS_IN_A_TRY = """
def rows(write=os.write):
    try:
        yield
    finally:
        write(1, b"finalized")
circle = Circle(rows=rows())
"""
ROWS = """
def rows():
    yield
circle = Circle(rows=rows())
"""
FIRST_ROW = "next(circle.rows)"
BUFFERED = """
circle = Circle(file=open("written", "w"))
circle.file.write("all of it")
"""


def ended_with(made: str, folder: Path) -> str:
    """Return what a process printed that ends with this circle."""
    script, given = CIRCLE.replace("MADE", made), {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=given, capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    return run.stdout


@pytest.mark.parametrize("made", [FINALIZED, ROWS_IN_A_TRY + FIRST_ROW], ids=["finalizer", "suspended in a try"])
def test_garbage_is_searched_where_some_of_it_has_more_to_do_than_to_free_memory(tmp_path: Path, made: str) -> None:
    assert ended_with(made, tmp_path) == "searched\nfinalized"


@pytest.mark.parametrize("made", [ROWS_IN_A_TRY, ROWS + FIRST_ROW, ROWS], ids=["never begun", "no try", "neither"])
def test_garbage_is_left_where_all_of_it_only_frees_memory(tmp_path: Path, made: str) -> None:
    assert ended_with(made, tmp_path) == "left\n"


def test_what_a_file_in_a_circle_has_buffered_is_written_where_garbage_is_left(tmp_path: Path) -> None:
    assert ended_with(BUFFERED, tmp_path) == "left\n"
    assert (tmp_path / "written").read_text() == "all of it"
