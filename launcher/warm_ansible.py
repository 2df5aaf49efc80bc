"""Keeps Ansible loaded in one process and forks from it for each playbook: only the first pays for the start.

Why the launcher of a cluster has this: launches come in bursts, as after a restart or when many jobs are moved, and a
start of Ansible keeps a core busy for 1.9 s where a fork costs 0.2 s. Ten launches at once took 34 s without it, 7 s
with it, on two busy cores.

`python -m launcher.warm_ansible LISTENER FOLDER`: LISTENER is the descriptor of the listening socket. `playbook.py`
starts it with the environment that its playbooks see, and `warm_client.py` calls it.
Promises: a run has the environment, folder and streams of its client; when stdin closes, which is when the owner has
ended in whatever way, this process ends with all its runs and removes FOLDER. It loads nothing that depends on a run.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import marshal
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from launcher import playbook_leftovers

LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
LONGEST = 1 << 20  # bytes of a request
PATIENCE_S = 5.0  # for a client that has connected to send its request, which it does at once
PLUGINS = (
    "cache.memory",
    "callback.default",
    "callback.junit",
    "callback.minimal",
    "callback.oneline",
    "callback.tree",
    "connection.local",
    "shell.sh",
    "strategy.linear",
    "vars.host_group_vars",
)
CLUSTER = {"KUBECONFIG", "KUBERNETES_SERVICE_HOST"}  # variables of a process whose playbooks call Kubernetes


class _Request(NamedTuple):
    """What a client asks for."""

    cwd: str
    words: Sequence[str]
    """The folder of the run, then the arguments of ansible-playbook."""
    environ: Mapping[str, str]
    streams: Sequence[int]

    @property
    def folder(self) -> Path:
        return Path(self.words[0])


class _Run(NamedTuple):
    """A playbook that runs."""

    pid: int
    folder: Path
    client: socket.socket


class _Server:
    """Answers clients until stdin closes."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._runs: dict[int, _Run] = {}  # by the pidfd of their first process
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return self._end()
                if key.fd in self._runs:
                    self._answer(key.fd)
                else:
                    self._accept()

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        client.settimeout(PATIENCE_S)
        try:
            data, streams, _, _ = socket.recv_fds(client, LONGEST, 3)
        except OSError:
            data, streams = b"", []
        if not data:
            client.close()
            return
        cwd, words, environ = marshal.loads(data)
        request = _Request(cwd, words, environ, streams)
        if (pid := os.fork()) == 0:
            self._become(request, client)
        for stream in streams:
            os.close(stream)
        watched = os.pidfd_open(pid)
        self._runs[watched] = _Run(pid, request.folder, client)
        self._selector.register(watched, selectors.EVENT_READ)

    def _answer(self, watched: int) -> None:
        """Tell the client how its playbook ended; a signal is told as a shell does."""
        run = self._runs.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])
        with suppress(OSError):
            run.client.send(str(code if code >= 0 else 128 - code).encode())
        run.client.close()

    def _end(self) -> None:
        self._listener.close()
        for run in self._runs.values():
            playbook_leftovers.end(run.folder)

    def _become(self, request: _Request, client: socket.socket) -> NoReturn:
        """Turn the forked process into that playbook; it ends with this process."""
        code = 1
        try:
            server = os.getppid()
            os.setsid()
            Path("/proc/self/comm").write_text(playbook_leftovers.mark(request.folder))
            LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            # A client that was ended while it waited has an owner who looked for leftovers before this one had a mark.
            if os.getppid() == server and not _hung_up(client):
                for number, stream in enumerate(request.streams):
                    os.dup2(stream, number)
                for stream in (*request.streams, *self._runs):
                    os.close(stream)
                self._selector.close()
                for link in (client, self._listener, *(run.client for run in self._runs.values())):
                    link.close()
                code = _play(request)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)


def _hung_up(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, 0)
    return bool(poll.poll(0))


def _play(request: _Request) -> int:
    from ansible.cli.playbook import PlaybookCLI

    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environ)
    try:
        PlaybookCLI.cli_executor(["ansible-playbook", *request.words[1:]])
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _load() -> None:
    """Import what each playbook needs and nothing that reads the environment of one run."""
    sys.argv = ["ansible-playbook"]
    importlib.import_module("ansible.cli.playbook")
    with suppress(ImportError, AttributeError):  # of another version of Ansible, which only takes longer then
        _warm_up()
    if CLUSTER & os.environ.keys():
        with suppress(ImportError):
            importlib.import_module("kubernetes.dynamic")
    gc.freeze()  # so that a collection in a fork copies no page


def _warm_up() -> None:
    """Load what each playbook of ours asks for, and what Ansible looks at in any case."""
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins import loader

    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")
    loader.init_plugin_loader()
    InventoryManager(DataLoader(), "localhost,")
    for kind in (loader.connection_loader, loader.shell_loader, loader.become_loader):
        list(kind.all(class_only=True))  # as PlaybookExecutor does
    for name in PLUGINS:
        importlib.import_module(f"ansible.plugins.{name}")
    # Their settings stand in their documentation, which takes longer to read than the rest of a short playbook. Not all
    # callbacks: that of ansible-runner knows the folder of its run.
    for kind, name in (plugin.split(".") for plugin in PLUGINS if not plugin.startswith("vars.")):
        getattr(loader, f"{kind}_loader").get(name, class_only=True)


def main() -> None:
    listener, folder = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    try:
        _load()
        _Server(listener).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
