"""A process that trained on a GPU ends without taking the driver down; all that a script relies on still happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
