"""`kubectl reshape`: the `reshape` command, which reaches the coordinator of a cluster by kubectl itself.

kubectl runs `kubectl-reshape` for it, and `kubectl_complete-reshape` to complete its words. A verb that asks the
coordinator starts `kubectl port-forward`, which ends with it, and reads the token from its Secret; whoever may not read
that sends the token of the kubeconfig.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO

import click

from reshape.cli.main import cli
from reshape.cli.main import run as run_command
from reshape.client import Client, CoordinatorUnreachable
from reshape.client.cluster_token import find_token
from reshape.output.terminal import ClusterDoor

NAMESPACE, SERVICE, SECRET = "reshape-system", "service/reshape-coordinator", "reshape-keys"
PORT, TOKEN = ":8080", r"jsonpath={.data.api\.token}"
ENDS_S = 5.0
NO_FILES = ":4"  # tells kubectl's completion to offer no files


def main() -> None:
    """Run the console script, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line, such as `--context a jobs`; returns the exit code."""
    try:
        context, kubeconfig, rest = _own(arguments)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    if kubeconfig:
        os.environ["KUBECONFIG"] = kubeconfig
    access = ClusterAccess(["kubectl", *(["--context", context] if context else [])])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the port-forward must end with us
    try:
        return run_command(rest, ClusterDoor(access.client, context), "kubectl reshape")
    finally:
        access.close()


def complete() -> None:
    """Print the words that may follow, as kubectl asks for them."""
    from click.shell_completion import ShellComplete

    *words, begun = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, "reshape", "").get_completions(words, begun):
        click.echo(item.value)
    click.echo(NO_FILES)


def _own(arguments: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Split kubectl's options before the verb from the rest: context, kubeconfig, the rest."""
    found: dict[str, str | None] = {"--context": None, "--kubeconfig": None}
    rest = list(arguments)
    while rest and (name := rest[0].partition("=")[0]) in found:
        first = rest.pop(0)
        if "=" not in first and not rest:
            raise click.UsageError(f"Option {name!r} requires an argument.")
        found[name] = first.partition("=")[2] if "=" in first else rest.pop(0)
    return found["--context"], found["--kubeconfig"], rest


class ClusterAccess:
    """A way to the coordinator of a cluster, opened when it is first asked for."""

    def __init__(self, kubectl: list[str]) -> None:
        self._kubectl = [*kubectl, "--namespace", NAMESPACE]
        self._forward: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    def client(self) -> Client:
        """Return the one client of this command: each port-forward is a process."""
        if self._client is None:
            try:
                token = self._token()
                self._client = Client(f"http://127.0.0.1:{self._port()}", token)
            except FileNotFoundError:
                raise CoordinatorUnreachable("There is no kubectl on PATH; install it, or use RESHAPE_URL.") from None
        return self._client

    def close(self) -> None:
        if self._forward is not None:
            self._forward.terminate()
            try:
                self._forward.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                self._forward.kill()
                self._forward.wait()

    def _token(self) -> str:
        asked = [*self._kubectl, "get", "secret", SECRET, "-o", TOKEN]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.returncode and (own := find_token(self._kubectl)):  # a tenant, who may not read it
            return own
        if found.returncode or not found.stdout:
            raise CoordinatorUnreachable(_refused(f"the token in Secret {NAMESPACE}/{SECRET}", found.stderr))
        return base64.b64decode(found.stdout).decode()

    def _port(self) -> int:
        with tempfile.TemporaryFile("w+") as errors:
            asked = [*self._kubectl, "port-forward", SERVICE, PORT]
            self._forward = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert self._forward.stdout is not None
            for line in self._forward.stdout:
                if match := re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", line):
                    threading.Thread(target=_drain, args=(self._forward.stdout,), daemon=True).start()
                    return int(match[1])
            self._forward.wait()
            errors.seek(0)
            raise CoordinatorUnreachable(_refused(f"{SERVICE} in {NAMESPACE}", errors.read()))


def _drain(lines: IO[str]) -> None:
    """Read on: it writes a line for each connection, and would stop where nobody reads."""
    for _ in lines:
        pass


def _refused(what: str, said: str) -> str:
    last = next(iter(reversed(said.strip().splitlines())), "it said nothing").rstrip(".")
    return f"kubectl does not reach {what}: {last}; `kubectl reshape doctor` says what is missing."
