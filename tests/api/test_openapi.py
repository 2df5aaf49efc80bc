"""`openapi.yaml` says what the application does, and the application does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from coordinator.http.app import ADDRESSES, OPENAPI
from coordinator.http.base import METHODS, Handler
from tests.fakes.facade import TOKEN, Live

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,ignored_auth,unsupported_method"
)


def described() -> dict[str, set[str]]:
    paths = yaml.safe_load(OPENAPI)["paths"]
    return {re.sub(r"{\w+}", "x", p): {m.upper() for m in item if m.upper() in METHODS} for p, item in paths.items()}


def test_every_address_and_method_is_described_and_nothing_else() -> None:
    real = {}
    for pattern, handler in ADDRESSES:
        assert issubclass(handler, Handler)
        real[re.sub(r"\(.*?\)", "x", pattern).replace("\\", "")] = set(handler.allowed()) & set(METHODS)
    assert described() == real


def test_schemathesis_finds_nothing(live: Live, tmp_path: Path) -> None:
    """The stream never ends, so it cannot be fuzzed like this; `test_http_events.py` has it."""
    live.app.settings["failures"].limit = 10**9  # every call here comes from one address
    live.facade.submit({"command": ["true"], "optional_num_gpus": [1], "job_id": "a"})
    live.facade.stored_decisions = [
        {
            "decision_id": "d",
            "job_id": "a",
            "at": 1.0,
            "kind": "hold",
            "algorithm": "x",
            "sentence": "x",
            "candidates": [],
        }
    ]
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/v1/openapi.yaml",
        "--header", f"Authorization: Bearer {TOKEN}", "--checks", CHECKS, "--exclude-path", "/v1/events",
        "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "30", "--seed", "1",
        "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
