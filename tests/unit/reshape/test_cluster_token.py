"""The token by which a cluster knows its user: where it is found, and where it is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reshape.client import Client, CoordinatorUnreachable, cluster_token

SECRET = "eyJhbGciOi.secret.token"


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`kubeconfig(user)`: kubectl tells of this user from now on."""
    for name in ("KUBERNETES_SERVICE_HOST", "RESHAPE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "kubectl"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def told(user: dict[str, Any]) -> None:
        view = json.dumps({"users": [{"name": "me", "user": user}]})
        program.write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'config view' ] && cat <<'END'\n{view}\nEND\n")
        program.chmod(0o755)

    return told


def test_it_is_the_token_of_the_kubeconfig(kubeconfig: Any, tmp_path: Path) -> None:
    kubeconfig({"token": SECRET})
    assert cluster_token.find_token() == SECRET
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    kubeconfig({"tokenFile": str(file)})
    assert cluster_token.find_token() == SECRET


def test_a_credential_plugin_is_asked(kubeconfig: Any, tmp_path: Path) -> None:
    plugin = tmp_path / "login"
    plugin.write_text(
        '#!/bin/sh\ncase "$KUBERNETES_EXEC_INFO" in *ExecCredential*) '
        'echo "{\\"status\\": {\\"token\\": \\"$1-$REGION\\"}}";; esac\n'
    )
    plugin.chmod(0o755)
    about = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "args": ["get"]}
    kubeconfig({"exec": {**about, "env": [{"name": "REGION", "value": "north"}]}})
    assert cluster_token.find_token() == "get-north"


@pytest.mark.parametrize("user", [{}, {"client-certificate-data": "x"}, {"tokenFile": "/nowhere"}, {"exec": {}}])
def test_a_user_without_a_token_has_none(kubeconfig: Any, user: dict[str, Any]) -> None:
    kubeconfig(user)
    assert cluster_token.find_token() == ""


def test_without_kubectl_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster_token.find_token() == ""


@pytest.mark.parametrize(
    ("url", "goes"),
    [
        ("https://reshape.example.org", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://reshape-coordinator.reshape-system.svc:8080", True),
        ("http://reshape.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://a.svc.example.org", False),
    ],
)
def test_it_goes_only_where_nobody_reads_along(kubeconfig: Any, url: str, goes: bool) -> None:
    kubeconfig({"token": SECRET})
    assert cluster_token.cluster_token(url) == (SECRET if goes else "")


def test_the_client_sends_it_where_no_token_was_given(kubeconfig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig({"token": SECRET})
    monkeypatch.setenv("RESHAPE_URL", "https://reshape.example.org")
    assert Client().variables["RESHAPE_TOKEN"] == SECRET
    monkeypatch.setenv("RESHAPE_TOKEN", "given")
    assert Client().variables["RESHAPE_TOKEN"] == "given"


def test_where_there_is_none_a_sentence_says_what_to_set(kubeconfig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig({})
    monkeypatch.setenv("RESHAPE_URL", "https://reshape.example.org")
    with pytest.raises(CoordinatorUnreachable, match="set RESHAPE_TOKEN"):
        Client()
