"""Finds the token by which a cluster knows its user: that of the pod, else that of the kubeconfig.

It is a secret with all rights of its user, so it goes only where nobody can read along: by https, to this machine,
where a port-forward listens, or to a Service from within the cluster. Imports only the standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TAKES_S = 30.0  # that kubectl or a credential plugin may take
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SERVICES = (".svc", ".svc.cluster.local")


def cluster_token(url: str) -> str:
    """Return the token for a coordinator at this address; empty if there is none, or if it could be read on its way."""
    return find_token() if keeps_secrets(url) else ""


def keeps_secrets(url: str) -> bool:
    """Return whether nobody can read along what is sent to this address, as far as it tells."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "https" or host in LOOPBACK or host.endswith(SERVICES)


def find_token(kubectl: Sequence[str] = ("kubectl",)) -> str:
    """Return the token of the pod that this runs in, else of the kubeconfig's current user; empty if there is none.

    `kubectl`: how it is called, with `--context` where another one is meant.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            return OF_POD.read_text("utf-8").strip()
        except OSError:
            pass
    try:
        asked = [*kubectl, "config", "view", "--minify", "--raw", "--output", "json"]
        users = json.loads(_token_said(asked, os.environ)).get("users") or []
        return next(filter(None, (_token_of(one["user"]) for one in users)), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.SubprocessError):
        return ""


def _token_of(user: Mapping[str, Any]) -> str:
    if file := user.get("tokenFile"):
        return Path(file).read_text("utf-8").strip()
    if (token := user.get("token")) or not (plugin := user.get("exec")):
        return str(token or "")
    asked = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or []}
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    answer = json.loads(_token_said([plugin["command"], *(plugin.get("args") or [])], environment))
    return str(answer["status"].get("token") or "")


def _token_said(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*command], env=dict(environment), capture_output=True, text=True, timeout=TAKES_S, check=True
    )
    return done.stdout
