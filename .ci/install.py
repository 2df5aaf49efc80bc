"""Set up .venv from requirements.lock; `make install` runs it with any Python >= 3.11, standard library only.

Promises: a second call does nothing; a set-up that was broken off starts again from nothing; where
TensorFlow cannot be installed everything else is, because the demo also trains with NumPy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / ".installing"  # there while pip works: what it left cannot be trusted
LOCK = ROOT / "requirements.lock"
PROJECTS = (ROOT, ROOT / "reshape_papers")
HEAVY = "tensorflow"
NO_VENV = "on Debian and Ubuntu install python3-venv, then run make again."


def stamp() -> Path:
    """Return the file that marks a complete set-up; its name is a hash of lock, project files and folder."""
    projects = ((project / "pyproject.toml").read_bytes() for project in PROJECTS)
    wanted = LOCK.read_bytes() + b"".join(projects) + str(ROOT).encode()
    return VENV / f".installed-{hashlib.sha256(wanted).hexdigest()[:16]}"


def without(lock: str, name: str) -> str:
    """Return the lock without `name` and without every distribution that only the removed ones require."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    gone = {name}
    while more := {name_of(b) for b in blocks if askers(b) and askers(b) <= gone} - gone:
        gone |= more
    return "".join(b for b in blocks if name_of(b) not in gone)


def askers(block: str) -> set[str]:
    """Return the names of those that require a block's distribution, listed after `# via`."""
    _, _, via = block.partition("# via")
    return set(re.findall(r"[a-z][a-z0-9._-]*", re.sub(r"\(.*?\)", "", via)))


def name_of(block: str) -> str:
    """Return the distribution that a block of the lock pins; empty for the head of the file."""
    found = re.match(r"[A-Za-z0-9._-]+(?===)", block)
    return found.group() if found else ""


def pip(*arguments: str) -> bool:
    """Run the new environment's pip, with its output on the terminal, and return True if it succeeded."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def make_venv() -> None:
    """Make an empty environment in .venv; keep an existing one that works."""
    if UNFINISHED.exists() or not works():
        shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    if not works() and subprocess.run([sys.executable, "-m", "venv", VENV], check=False).returncode:
        sys.exit(
            "Python could not make .venv (see above): on Debian and Ubuntu install python3-venv and run make again."
        )


def works() -> bool:
    """True if .venv is an environment of a new enough Python, with pip, made in this very folder."""
    script = VENV / "bin" / "pip"
    if not PYTHON.exists() or not (VENV / "pyvenv.cfg").exists() or not script.exists():
        return False
    if str(VENV / "bin") not in script.read_text(encoding="utf-8", errors="replace")[:500]:
        return False  # moved or copied: the first line of every script in bin/ names the old place
    test = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([PYTHON, "-c", test], stderr=subprocess.DEVNULL, check=False).returncode == 0


def install_lock() -> None:
    """Install all pinned distributions; if that fails, all but TensorFlow and what only it requires."""
    if pip("--require-hashes", "--no-deps", "-r", str(LOCK)):
        return
    say(f"That did not work; trying again without {HEAVY} (the demo then trains with NumPy).")
    with tempfile.TemporaryDirectory() as folder:
        smaller = Path(folder, "requirements.lock")
        smaller.write_text(without(LOCK.read_text(encoding="utf-8"), HEAVY), encoding="utf-8")
        if not pip("--require-hashes", "--no-deps", "-r", str(smaller)):
            sys.exit("The packages of requirements.lock could not be installed: see pip's message above.")


def say(sentence: str) -> None:
    """Print one line and flush it."""
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


def main() -> None:
    """Set up .venv, unless a complete set-up is there."""
    if stamp().exists() and works():
        return
    if importlib.util.find_spec("venv") is None:
        sys.exit(f"{sys.executable} has no venv module: {NO_VENV}")
    say("Setting up .venv: a few minutes the first time, nothing after that.")
    make_venv()
    install_lock()
    editable = (word for project in PROJECTS for word in ("-e", str(project)))
    if not pip("--no-build-isolation", "--no-deps", *editable):
        sys.exit("The project itself could not be installed: see pip's message above.")
    for old in VENV.glob(".installed-*"):
        old.unlink()
    stamp().touch()
    UNFINISHED.unlink()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # someone else's packages must not count as installed
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped. Run make again: it starts afresh.")
