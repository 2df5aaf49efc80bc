"""Runs one playbook through ansible-runner; only this module and `warm_ansible.py` know Ansible.

Promises: values reach the playbook as a rendered file, never as template text (`reliability.md` 6); the
environment of this process does not; one run per folder at a time, leftovers of an earlier one are ended
first; a failure is one sentence with Ansible's own message in it; Ansible itself is loaded once, in a process that
ends with this one. Called by the launcher of a cluster and the image builder, in threads of their own; a launch on one
machine is a single command (`shim_command.py`). No exception of ansible-runner leaves this module.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator.errors import Fatal, Transient
from coordinator.model.last_words import COLOUR, last_lines, last_words, quoted
from launcher import playbook_leftovers, warm_client

NOT_INSTALLED = (
    "images are built and pods launched by Ansible, which is not installed here: run pip install '.[launch]' in the "
    "folder of volcano-reshape, then start again"
)
MESSAGE_LENGTH = 400  # characters of Ansible's message that go into the sentence
LOOKS_AT_CANCEL_S = 0.3
ANSWERS_S = 10.0  # in which a process that keeps Ansible loaded answers, unless it hangs

log = logging.getLogger(__name__)

WAITING = 64  # clients that the process that keeps Ansible loaded has not accepted yet

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
    lines: int = 1,
) -> None:
    """Run `playbook` on this machine; return when it succeeded. `inherit`: more variables of our environment for it.

    `lines`: how many of the last lines of a failed task's program the error quotes.
    Works in `folder`/ansible-<playbook>, which is removed unless the playbook failed. `Transient` when
    a task failed, time ran out or `cancelled()` became true, `Fatal` when it cannot run at all; the error says
    why, to stand after a colon.
    """
    if not playbook.is_file():
        raise Fatal(f"there is no playbook {playbook}")
    private = folder / f"ansible-{playbook.stem}"
    environment = _environment(inherit)
    outcome = None
    while outcome is None:
        began = time.monotonic()
        playbook_leftovers.end(private)
        try:
            _prepare(private, variables, timeout_s)
            outcome = _Outcome(_runner(playbook, private, environment, cancelled))
        except OSError as error:
            raise Transient(f"{error.strerror or error}: {error.filename or private}") from error
        except OverflowError:  # of pexpect, which waits by the wall clock: that was set back meanwhile
            outcome = None
        finally:
            playbook_leftovers.end(private)
        if outcome is not None and outcome.runner.timed_out and time.monotonic() - began < timeout_s:
            outcome = None  # ansible-runner counts by the wall clock, too: that was set forward
    outcome.judge(timeout_s, lines)
    shutil.rmtree(private, ignore_errors=True)


class _Outcome:
    """The result of a finished run."""

    def __init__(self, run: tuple[Any, list[Mapping[str, Any]]]) -> None:
        self.runner, self.failed = run

    def judge(self, timeout_s: float, lines: int) -> None:
        """Return if the run succeeded, else raise an error with the reason."""
        if self.runner.canceled:
            raise Transient("its playbook was stopped")
        if self.runner.timed_out:
            raise Transient(f"its playbook took longer than {timeout_s:g} s and was stopped")
        if self.failed:
            task = self.failed[0].get("task", "?")
            said = _message(self.failed[0].get("res") or {}, lines)
            raise Transient(f"task '{task}' failed: {said}")
        if self.runner.rc == warm_client.LOST:
            raise Transient("the process that runs playbooks has ended: see the log")
        if self.runner.rc != 0:
            raise Fatal(self._last_words())

    def _last_words(self) -> str:
        with self.runner.stdout as file:
            lines = [line for line in map(str.strip, file) if line]
        errors = [line for line in lines if re.match(r"\[?ERROR", line)]
        return _one_line((errors or lines[-1:] or [f"Ansible ended with {self.runner.rc}"])[0])


class _Warm:
    """A process that keeps Ansible loaded. It ends when its stdin closes: only this process has the other end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="reshape-ansible-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)  # it does so itself, unless it was killed
        settings = self.folder / "ansible.cfg"
        settings.write_text(SETTINGS, encoding="utf-8")
        own = {"ANSIBLE_CONFIG": str(settings), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with self._address() as address:
                listener.bind(address)
            listener.listen(WAITING)  # already here, so that clients can wait while the process starts
            command = [sys.executable, "-P", "-m", "launcher.warm_ansible", str(listener.fileno()), str(self.folder)]
            self.process = subprocess.Popen(
                command,
                env={**environment, **own},
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    @contextmanager
    def _address(self) -> Iterator[str]:
        """The address of its socket, through the folder's descriptor: the folder's path may be too long for one."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            yield f"/proc/self/fd/{descriptor}/socket"
        finally:
            os.close(descriptor)

    def usable(self) -> bool:
        """False if it has ended, or if its socket was cleared away as programs do that tidy up /tmp."""
        return self.process.poll() is None and (self.folder / "socket").exists()

    def answers(self) -> bool:
        """False if it hangs, so that no run can begin or tell its end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(ANSWERS_S)
            try:
                with self._address() as address:
                    link.connect(address)
                link.send(b"")  # no request: it hangs up
                return link.recv(1) == b""
            except (TimeoutError, BlockingIOError):
                return False
            except OSError:  # it has ended, which the next run sees
                return True

    def end(self) -> None:
        """End it with its runs, if it has not ended, and remove its folder."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.kill()  # its runs end with it, and each clears up after itself
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class _WarmAnsible:
    """The processes that keep Ansible loaded, one per environment of playbooks: in practice one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[frozenset[tuple[str, str]], _Warm] = {}

    def client(self, private: Path, environment: Mapping[str, str]) -> list[str]:
        """Return the command that, with a playbook's arguments behind it, runs that in a fork of such a process.

        Starts the process unless it runs; `environment` is that of the run in folder `private`.
        """
        lasting = _lasting(private, environment)
        with self._lock:
            found = self._started.get(lasting)
            if found is not None and not found.usable():
                found.end()
                found = None
            if found is None:
                found = self._started[lasting] = _Warm(dict(lasting))
        return [sys.executable, "-I", "-S", warm_client.__file__, str(found.folder), str(private)]

    def end_hung(self, private: Path, environment: Mapping[str, str]) -> None:
        """End the process of a run that took too long if it does not answer: each further run would take as long."""
        found = self._started.get(_lasting(private, environment))
        if found is not None and not found.answers():
            log.warning("the process that runs playbooks does not answer: the next playbook starts another one")
            with self._lock:
                found.end()


def _lasting(private: Path, environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the variables of a run in folder `private` that are the same in each run."""
    return frozenset((name, value) for name, value in environment.items() if str(private) not in value)


_warm = _WarmAnsible()


def installed() -> bool:
    """True if ansible-runner and ansible-core are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("ansible_runner", "ansible"))


def search_path() -> str:
    """Return PATH with the bin folder of our Python first: its environment may not be activated."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def as_text(variables: Mapping[str, str]) -> str:
    """Return a file of variables for Ansible in which each value is text: never a template, number or truth value."""
    values = json.dumps(dict(variables), ensure_ascii=False)
    return "!unsafe " + re.sub(r"[^\x20-\x7e]", lambda found: f"\\U{ord(found[0]):08x}", values) + "\n"


def _environment(inherit: tuple[str, ...]) -> dict[str, str]:
    if not installed():
        raise Fatal(NOT_INSTALLED)
    inherited = {name: os.environ[name] for name in (*INHERITED, *inherit) if name in os.environ}
    return inherited | {"PATH": search_path(), "LC_ALL": "C.UTF-8"}  # Ansible refuses to start without a UTF-8 locale


def _prepare(private: Path, variables: Mapping[str, str], timeout_s: float) -> None:
    shutil.rmtree(private, ignore_errors=True)
    (private / "env").mkdir(parents=True, mode=0o700)
    private.chmod(0o700)
    values = {**variables, "ansible_python_interpreter": sys.executable}
    (private / "env" / "extravars").write_text(as_text(values), encoding="utf-8")
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
        config.command = [*_warm.client(private, config.env), *config.command[1:]]
        runner = Runner(config, cancel_callback=cancelled, event_handler=note)
        runner.run()
        if runner.timed_out:
            _warm.end_hung(private, config.env)
    except AnsibleRunnerException as error:
        raise Fatal(f"ansible-runner cannot run {playbook.name}: {_one_line(str(error))}") from error
    return runner, failed


def _message(result: Mapping[str, Any], lines: int = 1) -> str:
    """Return the failed task's message: the program's own where there is one, else Ansible's."""
    for field in ("stderr", "stdout", "module_stderr", "msg"):
        output = str(result.get(field) or "")
        if said := last_words(output):
            return _one_line(said) if lines == 1 else last_lines(output, lines)
    return "no reason was given"


def _one_line(text: str) -> str:
    return quoted(re.sub(r"[\x00-\x1f]+", " ", COLOUR.sub("", text)), MESSAGE_LENGTH)
