"""Breaks copies of the project line by line, and looks whether the tests notice: `make sabotage ARGS="-k lease"`.

First all named tests run on a copy that nobody broke, where they must pass. Then each saboteur is applied to a copy
and its tests must fail. Prints a table, and ends with 1 if one was missed, cannot be applied, or nothing ran.
The work tree is only read. At most two saboteurs are at work at once.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.saboteurs.saboteur import ROOT, Outdated, Saboteur, saboteurs

WORKERS = 2
TEST_S = 300  # after which a test that a break made hang counts as failed
QUIET = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]


class Copy:
    """A copy of the project's files, of which one at a time is broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def test(self, tests: Sequence[str], more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run them here, and end at the first one that fails."""
        command = [sys.executable, "-m", "pytest", *QUIET, *more, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}
        return subprocess.run(command, cwd=self.folder, env=environment, check=False, capture_output=True, text=True)

    def outcome(self, saboteur: Saboteur) -> str:
        """`caught by` a test, `missed`, or why it could not be tried."""
        path = self.folder / saboteur.file
        sound, at = path.read_text(encoding="utf-8"), path.stat().st_mtime
        try:
            path.write_text(saboteur.applied(sound), encoding="utf-8")
        except Outdated as fault:
            return str(fault)
        os.utime(path, (at + 1000, at + 1000))  # what is compiled is told apart by size and time of its source
        try:
            done = self.test(saboteur.tests)
        finally:
            path.write_text(sound, encoding="utf-8")
            os.utime(path, (at, at))
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()
        if done.returncode == 0:
            return "missed"
        first = re.search(r"^FAILED \S*?(\w+\.py::\w+)", done.stdout, re.MULTILINE)
        return f"caught by {first[1]}" if first else f"no test ran: {(done.stdout + done.stderr)[-400:]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.saboteurs", description=__doc__)
    parser.add_argument("-k", metavar="WORDS", default="", help="only those with these words in name, file or promise")
    wanted = parser.parse_args().k
    chosen = [one for one in saboteurs() if wanted in f"{one.name} {one.file} {one.promise}"]
    if not chosen:
        sys.exit(f"no saboteur has {wanted!r} in its name, file or promise")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="saboteurs-") as folder:
        Path(folder).chmod(0o711)  # tests of a shared machine run what is here as other users, too
        copies = [Copy(Path(folder) / str(number)) for number in range(min(WORKERS, len(chosen)))]
        tests = sorted({test for one in chosen for test in one.tests})
        print(f"{len(chosen)} saboteurs; their tests on an unbroken copy:", flush=True)
        sound = copies[0].test(tests, ["-n", str(WORKERS), "--dist", "loadscope"])
        if sound.returncode:
            sys.exit(f"{sound.stdout[-4000:]}{sound.stderr[-1000:]}\nA test fails without any saboteur.")
        print(sound.stdout.strip().splitlines()[-1], flush=True)
        missed = _run(chosen, copies)
    print(f"{len(chosen) - missed} of {len(chosen)} caught in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


def _run(chosen: Sequence[Saboteur], copies: Sequence[Copy]) -> int:
    """Try them; returns how many were not caught."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def attempt(one: Saboteur) -> tuple[str, float]:
        copy, began = free.get(), time.monotonic()
        try:
            return copy.outcome(one), time.monotonic() - began
        finally:
            free.put(copy)

    missed = 0
    with ThreadPoolExecutor(len(copies)) as pool:
        for one, (outcome, took_s) in zip(chosen, pool.map(attempt, chosen), strict=True):
            caught = outcome.startswith("caught")
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'} {took_s:5.1f} s  {one.name} ({one.promise})", flush=True)
            print(f"{'':16}{one.file}: {outcome}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
