"""Runs one playbook through ansible-runner; the only module that knows Ansible.

Promises: values reach the playbook as a rendered file, never as template text (`reliability.md` 6); the
environment of this process does not; one run per folder at a time, leftovers of an earlier one are ended
first (ansible-runner issue 973); a failure is one sentence with Ansible's own message in it.
Called by the platforms in threads of their own. No exception of ansible-runner leaves this module.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.errors import Fatal, Transient

NOT_INSTALLED = (
    "jobs are started by Ansible, which is not installed here: run pip install '.[launch]' in the folder of "
    "volcano-reshape, then start again"
)
MESSAGE_LENGTH = 400  # characters of Ansible's message that go into the sentence
LOOKS_AT_CANCEL_S = 0.3

# Facts, host keys and temporary files would double the second that a playbook takes (measured).
SETTINGS = """\
[defaults]
home = home
gathering = explicit
nocows = true
nocolor = true
host_key_checking = false
localhost_warning = false
[inventory]
inventory_unparsed_warning = false
[connection]
pipelining = true
"""
INHERITED = ("HOME", "USER", "LOGNAME", "TMPDIR", "TZ")  # all else may hold secrets and would be written to disk


def run(
    playbook: Path,
    folder: Path,
    variables: Mapping[str, str],
    timeout_s: float,
    cancelled: Callable[[], bool] = lambda: False,
    inherit: tuple[str, ...] = (),
) -> None:
    """Run `playbook` on this machine; return when it succeeded. `inherit`: more variables of our environment for it.

    Works in `folder`/ansible-<playbook>, which is removed unless the playbook failed. `Transient` when
    a task failed, time ran out or `cancelled()` became true, `Fatal` when it cannot run at all; the error says
    why, to stand after a colon.
    """
    if not playbook.is_file():
        raise Fatal(f"there is no playbook {playbook}")
    private = folder / f"ansible-{playbook.stem}"
    environment = _environment(private, inherit)
    _end_leftovers(private)
    try:
        _prepare(private, variables, timeout_s)
        outcome = _Outcome(_runner(playbook, private, environment, cancelled))
    except OSError as error:
        raise Transient(f"{error.strerror or error}: {error.filename or private}") from error
    finally:
        _end_leftovers(private)
    outcome.judge(timeout_s)
    shutil.rmtree(private, ignore_errors=True)


class _Outcome:
    """The result of a finished run."""

    def __init__(self, run: tuple[Any, list[Mapping[str, Any]]]) -> None:
        self.runner, self.failed = run

    def judge(self, timeout_s: float) -> None:
        """Return if the run succeeded, else raise an error with the reason."""
        if self.runner.canceled:
            raise Transient("its playbook was stopped")
        if self.runner.timed_out:
            raise Transient(f"its playbook took longer than {timeout_s:g} s and was stopped")
        if self.failed:
            task, said = self.failed[0].get("task", "?"), _message(self.failed[0].get("res") or {})
            raise Transient(f"task '{task}' failed: {said}")
        if self.runner.rc != 0:
            raise Fatal(self._last_words())

    def _last_words(self) -> str:
        with self.runner.stdout as file:
            lines = [line for line in map(str.strip, file) if line]
        errors = [line for line in lines if re.match(r"\[?ERROR", line)]
        return _one_line((errors or lines[-1:] or [f"Ansible ended with {self.runner.rc}"])[0])


def installed() -> bool:
    """True if ansible-runner and ansible-playbook are installed."""
    there = importlib.util.find_spec("ansible_runner") is not None
    return there and shutil.which("ansible-playbook", path=search_path()) is not None


def search_path() -> str:
    """Return PATH with the bin folder of our Python first: its environment may not be activated."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _environment(private: Path, inherit: tuple[str, ...]) -> dict[str, str]:
    path = search_path()
    if shutil.which("ansible-playbook", path=path) is None:
        raise Fatal(NOT_INSTALLED)
    inherited = {name: os.environ[name] for name in (*INHERITED, *inherit) if name in os.environ}
    # Ansible refuses to start without a UTF-8 locale.
    return inherited | {"PATH": path, "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(private / "ansible.cfg")}


def _prepare(private: Path, variables: Mapping[str, str], timeout_s: float) -> None:
    shutil.rmtree(private, ignore_errors=True)
    (private / "env").mkdir(parents=True, mode=0o700)
    private.chmod(0o700)
    (private / "ansible.cfg").write_text(SETTINGS, encoding="utf-8")
    # `!unsafe` is Ansible's word for "this is text, never a template".
    values = {**variables, "ansible_python_interpreter": sys.executable}
    lines = [f"{name}: !unsafe {json.dumps(value)}\n" for name, value in values.items()]
    (private / "env" / "extravars").write_text("".join(lines), encoding="utf-8")
    settings = {"pexpect_timeout": LOOKS_AT_CANCEL_S, "job_timeout": timeout_s}
    (private / "env" / "settings").write_text(json.dumps(settings), encoding="utf-8")


def _runner(
    playbook: Path, private: Path, environment: Mapping[str, str], cancelled: Callable[[], bool]
) -> tuple[Any, list[Mapping[str, Any]]]:
    try:
        # From the package, not its modules: only this waits for another thread that is still importing it.
        from ansible_runner import AnsibleRunnerException, Runner, RunnerConfig
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    failed: list[Mapping[str, Any]] = []

    def note(event: Mapping[str, Any]) -> bool:
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
            failed.append(event.get("event_data") or {})
        return False  # no file per event

    try:
        config = RunnerConfig(str(private), playbook=str(playbook), inventory="localhost,", ident="run", quiet=True)
        config.prepare()
        own = {name: value for name, value in config.env.items() if value != os.environ.get(name)}
        config.env = {**own, **environment}
        runner = Runner(config, cancel_callback=cancelled, event_handler=note)
        runner.run()
    except AnsibleRunnerException as error:
        raise Fatal(f"ansible-runner cannot run {playbook.name}: {_one_line(str(error))}") from error
    return runner, failed


def _message(result: Mapping[str, Any]) -> str:
    """Return the failed task's message: the program's own where there is one, else Ansible's."""
    for field in ("stderr", "stdout", "module_stderr", "msg"):
        if said := str(result.get(field) or "").strip():
            return _one_line(_of_status(said) or said.splitlines()[-1])
    return "no reason was given"


def _of_status(said: str) -> str:
    """Return the API server's message if Ansible's text contains its whole answer, else nothing."""
    found = re.search(r'"message":("(?:[^"\\]|\\.)*")', said.replace("\\\\", "\\"))
    try:
        return str(json.loads(found[1])) if found else ""
    except ValueError:
        return ""


def _one_line(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"[\s\x00-\x1f]+", " ", plain).strip()[:MESSAGE_LENGTH]


def _end_leftovers(private: Path) -> None:
    """Kill processes of a run in this folder: Ansible's workers survive it, and it survives its coordinator."""
    mark = f"AWX_ISOLATED_DATA_DIR={private}/".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)
        except OSError:
            continue  # not ours, or gone meanwhile
