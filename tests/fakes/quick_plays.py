"""Runs `reshape` with a stand-in for Ansible that carries out local playbooks in this process, in milliseconds.

Ansible keeps a core busy for a second at its start and a tenth per play; most tests that start `reshape up`
are about what happens between launches. The stand-in reads the real playbook and its rendered variables and starts
the same command with the same environment. Only `launcher.playbook._runner` is replaced: preparing, leftovers, time
limits and sentences stay the launcher's. A play with anything but `ansible.builtin.raw` is refused.
`tests/e2e/test_launcher.py`, demo, benchmarks and crashes around a launch run the real one (`Up(ansible=True)`).

Called as `python -m tests.fakes.quick_plays ARGUMENTS OF RESHAPE`. Usable without pytest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from launcher import playbook
from reshape.cli.main import main

PLAY = {"name", "hosts", "connection", "gather_facts", "tasks"}
TASK = {"name", "ansible.builtin.raw"}
POLL_S = 0.01


class Unknown(AssertionError):
    """A play with something that this stand-in does not carry out."""


@dataclass
class Ran:
    """What `launcher.playbook` asks of an `ansible_runner.Runner` that has ended."""

    rc: int = 0
    canceled: bool = False
    timed_out: bool = False
    failed: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def stdout(self) -> IO[str]:
        raise Unknown("a play of the stand-in ends with a failed task, or well")


class _Words(yaml.SafeLoader):
    """Knows Ansible's `!unsafe`: text that is never a template."""


_Words.add_constructor("!unsafe", lambda loader, node: loader.construct_mapping(node))


def runner(
    path: Path, private: Path, environment: Mapping[str, str], cancelled: Callable[[], bool]
) -> tuple[Ran, list[Mapping[str, Any]]]:
    """Carry out the playbook at `path` as `launcher.playbook._runner` does; `Unknown` where it cannot."""
    variables = yaml.load((private / "env" / "extravars").read_text(encoding="utf-8"), _Words)
    limit = time.monotonic() + json.loads((private / "env" / "settings").read_text(encoding="utf-8"))["job_timeout"]
    ran = Ran()
    for name, argv in tasks(path, variables):
        own = {**environment, "AWX_ISOLATED_DATA_DIR": f"{private}/run"}  # how leftovers are found
        ended = _command(argv, own, lambda: _stopped(ran, cancelled, limit))
        if ran.canceled or ran.timed_out:
            ran.rc = 254
            break
        if ended.returncode:
            said = {"stdout": ended.stdout.strip(), "stderr": ended.stderr.strip(), "msg": "non-zero return code"}
            ran.rc, ran.failed = 2, [{"task": name, "res": said}]
            break
    return ran, ran.failed


def tasks(path: Path, variables: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Name and rendered command of each task; `Unknown` for all that is not a plain command on this machine."""
    for play in yaml.safe_load(path.read_text(encoding="utf-8")):
        if set(play) - PLAY or (play["hosts"], play["connection"]) != ("localhost", "local") or play["gather_facts"]:
            raise Unknown(f"{path.name}: {play}")
        for task in play["tasks"]:
            if set(task) != TASK:
                raise Unknown(f"{path.name}: {task}")
            yield task["name"], ["/bin/sh", "-c", _rendered(task["ansible.builtin.raw"], variables)]


def _rendered(line: str, variables: Mapping[str, str]) -> str:
    done = re.sub(r"\{\{ (\w+) \| quote \}\}", lambda found: shlex.quote(variables[found[1]]), line)
    if re.search(r"\{[{%#]", re.sub(r"\{\{ \w+ \| quote \}\}", "", line)):
        raise Unknown(f"a template that is not one quoted variable: {line}")
    return done


def _stopped(ran: Ran, cancelled: Callable[[], bool], limit: float) -> bool:
    ran.canceled, ran.timed_out = cancelled(), time.monotonic() > limit
    return ran.canceled or ran.timed_out


def _command(
    argv: list[str], environment: Mapping[str, str], stopped: Callable[[], bool]
) -> subprocess.CompletedProcess[str]:
    """Run it in a session of its own until it ends, or until `stopped()` says to kill all of that session."""
    process = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while True:
        try:
            out, errors = process.communicate(timeout=POLL_S)
            return subprocess.CompletedProcess(argv, process.returncode, out, errors)
        except subprocess.TimeoutExpired:
            if stopped():
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    playbook._runner = runner
    main()
