"""Build wheels and sdists of all distributions into dist/, and try them in fresh environments; `make dist` runs it.

Each wheel is installed by the pip of each Python of `VERSIONS` that is found, on PATH or in pyenv, and used as a
stranger does who has nothing else of this repository; each sdist by the newest of these Pythons. Ends with 1 if one
does not work. Standard library only, but for hatchling, which builds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {
    "volcano_reshape": ROOT,
    "reshape_client": ROOT / "reshape",
    "reshape_hooks": ROOT / "reshape_hooks",
    "reshape_papers": ROOT / "reshape_papers",
}
NEEDS = {"reshape_papers": "volcano_reshape"}  # of ours, whose wheel is installed with it
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LIMIT_S = 1_200  # for one command; pip may have to build a package for a new Python


class Trial(NamedTuple):
    """A command of an installed distribution, and what it has to print."""

    words: tuple[str, ...]  # the first is a program of the environment
    wanted: str  # a regular expression
    code: int = 0


CLIENT = "import reshape; print(reshape.Client, reshape.__version__)"
HOOKS = "from reshape_hooks import plain; print(plain.StopFlag)"
TRIALS = {
    "volcano_reshape": (
        Trial(("reshape", "--help"), r"(?s)Usage: reshape .*submit"),
        Trial(("reshape", "doctor"), r"well +No other distribution hides"),
        Trial(("reshape", "up", "--detach", "--gpus", "1xV100", "--port", "0"), r"http://127\.0\.0\.1:\d+"),
        Trial(("reshape", "submit", "--wait", "--", "true"), r"completed"),
        Trial(("reshape", "down"), r""),
        Trial(("reshape", "paper", "case-study"), r"It comes with reshape-papers, which is not installed: run `pip", 1),
        Trial(("python", "-c", CLIENT), r"Client"),
    ),
    "reshape_client": (Trial(("python", "-c", CLIENT), r"Client"),),
    "reshape_hooks": (Trial(("python", "-c", HOOKS), r"StopFlag"),),
    "reshape_papers": (
        Trial(("reshape", "--help"), r"(?s)Science:.*paper +Rerun a published experiment"),
        Trial(("reshape", "paper", "case-study", "--seeds", "1"), r"case-study"),
        Trial(
            ("reshape", "simulate", "--workload", "case-study", "--seeds", "1", "--plot", "p"),
            r"run `pip install matplotlib`",
            1,
        ),
        Trial(("reshape", "profile", "import-trace", "--help"), r"FORMAT and its folder"),
    ),
}


def main() -> int:
    """Build, try, and say of each Python what became of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build-only", action="store_true", help="do not try what was built")
    given = parser.parse_args()
    built = build(ROOT / "dist")
    for path in built:
        print_line(f"built    {path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.2f} MB")
    return 0 if given.build_only else try_all(built)


def print_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def build(folder: Path) -> list[Path]:
    """Build a wheel and an sdist of each distribution into `folder`; what lay there of them before is removed."""
    found = list[Path]()
    for name, project in PROJECTS.items():
        for old in folder.glob(f"{name}-*"):
            old.unlink()
        command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
        found += sorted(folder.glob(f"{name}-*"))
    return found


def try_all(built: Sequence[Path]) -> int:
    """Try each wheel in each Python, each sdist in the newest; return 1 if one does not work."""
    pythons = {version: found for version in VERSIONS if (found := python_of(version))}
    for version in VERSIONS:
        if version not in pythons:
            print_line(f"missing  Python {version} is not here, on PATH or in pyenv: not tried with it")
    if not pythons:
        return 1
    wrong = list[str]()
    newest = list(pythons)[-1]
    for version, python in pythons.items():
        for package in built:
            if package.suffix == ".whl" or version == newest:
                faults = list(faults_of(package, python))
                print_line(f"{'broken' if faults else 'works':<8} {package.name} with Python {version}")
                wrong += faults
    return print_faults(wrong)


def print_faults(wrong: Sequence[str]) -> int:
    """Print what is wrong, whole; return the exit code."""
    for fault in wrong:
        print_line(f"\n{fault}")
    return 1 if wrong else 0


def python_of(version: str) -> str | None:
    """Return the Python of that version that runs and has venv; None if there is none."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (*map(str, reversed(pyenv)), shutil.which(f"python{version}")):
        if python and _output_of([python, "-c", "import venv, ensurepip, sys; print(sys.version)"]).startswith(version):
            return python
    return None


def _output_of(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def faults_of(package: Path, python: str) -> Iterator[str]:
    """Install it into a new environment, try it there, and yield what does not work."""
    name = next(name for name in PROJECTS if package.name.startswith(f"{name}-"))
    with tempfile.TemporaryDirectory(prefix="reshape-dist-") as made:
        here = Path(made)
        subprocess.run([python, "-m", "venv", str(here / "venv")], check=True)
        programs = here / "venv" / "bin"
        beside = sorted(package.parent.glob(f"{NEEDS[name]}-*.whl")) if name in NEEDS else []
        packages = [str(package), *map(str, beside)]
        install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages]
        installed = _run_as_stranger([str(programs / "python"), *install], here)
        if installed.returncode:
            yield f"{package.name} cannot be installed with {python}:\n{installed.stdout}{installed.stderr}"
            return
        for trial in TRIALS[name]:
            done = _run_as_stranger([str(programs / trial.words[0]), *trial.words[1:]], here)
            said = done.stdout + done.stderr
            if done.returncode != trial.code or not re.search(trial.wanted, said):
                wanted = f"exit code {trial.code} and {trial.wanted!r}"
                yield f"{package.name} with {python}: {' '.join(trial.words)}: {done.returncode}, not {wanted}:\n{said}"


def _run_as_stranger(command: Sequence[str], here: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a stranger: in a folder and with a home of its own, without variables that name our packages."""
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "LANG", "HTTP", "http"))}
    env = {**kept, "PATH": f"{here / 'venv' / 'bin'}:/usr/bin:/bin", "HOME": str(here), "COLUMNS": "80"}
    return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
