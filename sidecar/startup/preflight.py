"""Checks whether a Python command can start, before GPUs are freed for it.

Promises: a reported fault is certain, and reported with the launch's first heartbeat; no training code is executed;
what cannot be judged, such as a shell or torchrun, or takes too long, passes. The shim itself checks the folder and the
program. On one machine only: in a pod the command is in the user's container, which may hold none of our files but the
shim. Called by `service`; runs `probe`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 15.0  # after which the command passes
HOOKS = Path(__file__).parents[2] / "reshape_hooks" / "startup"  # as the shim's `startup_folder`
LONGEST = 1000  # characters of a sentence

PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
PLAIN = "bBdEIOPqRsSuv"  # Python's one-letter options that do not change how a script starts
WITH_VALUE = "WX"


class PythonCommand(NamedTuple):
    """The script or module that a Python command line runs."""

    python: list[str]  # with its options
    kind: str  # script or module
    name: str


def python_command(command: Sequence[str], workdir: str = ".") -> PythonCommand | None:
    """Return the Python command; None if it runs no script or module. A script may name its Python itself."""
    words = [*interpreter(Path(workdir) / command[0]), *command] if "/" in command[0] else [*command]
    if not PYTHON.fullmatch(Path(words[0]).name):
        return None
    given = [words.pop(0)]
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return PythonCommand(given, "script", word) if word else None
        if word == "-" or word.startswith("--"):
            return None
        letters = re.match(rf"-([{PLAIN}]*)([{WITH_VALUE}m]?)(.*)", word, re.DOTALL)
        assert letters is not None
        plain, last, rest = letters.groups()
        if (rest and not last) or (last and not rest and not words):
            return None
        value = rest or (words.pop(0) if last else "")
        given += [f"-{plain}"] if plain else []
        if last == "m":
            return PythonCommand(given, "module", value)
        given += [f"-{last}", value] if last else []
    return None


def interpreter(script: Path) -> list[str]:
    """Return the Python, with its option, named by a script's shebang; empty if there is none."""
    try:
        with script.open("rb") as file:
            head = file.readline(256).decode()
    except (OSError, ValueError):
        return []
    words = head[2:].split(maxsplit=1) if head.startswith("#!") else []
    words = [word.strip() for word in words]
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return words if words and PYTHON.fullmatch(Path(words[0]).name) else []


async def startup_fault(
    command: Sequence[str], env: Mapping[str, str], workdir: str, patience_s: float = PATIENCE_S
) -> str:
    """Return a sentence on why this command would certainly fail at startup; empty if it may start.

    `env` and `workdir`: the trainer's.
    """
    run = python_command(command, workdir)
    if run is None:
        return ""
    text = Path(__file__).with_name("probe.py").read_text()
    try:
        probe = await asyncio.create_subprocess_exec(
            *run.python,
            "-c",
            text,
            run.kind,
            run.name,
            env=dict(env),
            cwd=workdir,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except (OSError, ValueError):  # the shim says so
        return ""
    try:
        said, _ = await asyncio.wait_for(probe.communicate(), patience_s)
        sentence = json.loads(said.splitlines()[-1])
    except (TimeoutError, ValueError, IndexError):
        return ""
    finally:
        if probe.returncode is None:
            probe.kill()
            await probe.wait()
    return sentence[:LONGEST] if isinstance(sentence, str) and probe.returncode == 0 else ""


def environment(own: Mapping[str, str], given: Mapping[str, object], hooks: bool = False) -> dict[str, str]:
    """Return the trainer's environment: ours without PYTHONPATH, which names our modules, and the `given` variables.

    `hooks`: whether the shim will load them into the trainer, which then has `reshape_hooks` wherever its Python is.
    """
    ours = {name: value for name, value in own.items() if name != "PYTHONPATH"}
    env = {**ours, **{name: str(value) for name, value in given.items()}}
    if hooks:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOKS), env.get("PYTHONPATH"))))
    return env
