"""`openapi.yaml` says what the application does, and the application does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.http.app import ADDRESSES, OPENAPI
from coordinator.http.base import METHODS, Handler
from coordinator.model import states as s
from tests.depth import drawn
from tests.fakes.coordinator_api import TOKEN, serve
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "ignored_auth", "unsupported_method",
)  # fmt: skip


def described() -> dict[str, set[str]]:
    paths = yaml.safe_load(OPENAPI)["paths"]
    return {re.sub(r"{\w+}", "x", p): {m.upper() for m in item if m.upper() in METHODS} for p, item in paths.items()}


def test_every_address_and_method_is_described_and_nothing_else() -> None:
    real = {}
    for pattern, handler in ADDRESSES:
        assert issubclass(handler, Handler)
        real[re.sub(r"\(.*?\)", "x", pattern).replace("\\", "")] = set(handler.allowed()) & set(METHODS)
    assert described() == real


# Documents as somebody with access to MongoDB may write them: what is shown of them has the shape that is described.
ODD: list[dict[str, Any]] = [
    {"_id": "nothing"},
    {"_id": "shapes", "state": ["x"], "job_id": {"a": 1}, "num_gpus": "x", "gpu_ids": 3, "message": 5, "fault": [1]},
    {"_id": "counts", "state": "submitted", "reshapes": "x", "moves": {}, "gpus_per_pod": "2", "problems": "x"},
    {
        "_id": "lists",
        "state": "submitted",
        "warnings": 3,
        "yields_to": "x",
        "unlimitable": 5,
        "problems": [{"a": 1}, 2],
    },
    {
        "_id": "numbers",
        "state": "submitted",
        "iterations": 1e300,
        "iters_done": "x",
        "epochs": [],
        "sla": {},
        "value": {},
    },
]


@pytest.fixture
def world() -> World:
    """A coordinator with a job that trains, one that has taken GPUs from it, one that waits, and odd documents."""
    world = World()
    for doc in ODD:
        world.users.insert("jobs", doc)
    world.submit("a", [1, 2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["a"] == s.RUNNING)
    world.submit("b", [2], Behaviour(iterations=4_000))
    world.submit(3, [4], sla="10s")
    world.run(lambda w: w.states()["b"] == s.RUNNING)
    world.c.trouble = ""  # as after a turn of its loop
    return world


def generated(world: World, folder: Path, checks: Sequence[str], examples: int) -> str:
    """What is wrong with the answers to generated requests, the same in each run; empty if nothing.

    The stream never ends, so it cannot be asked like this; `test_http_events.py` has it.
    """
    with serve(world.api) as live:
        live.app.settings["failures"].limit = 10**9  # every call here comes from one address
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/v1/openapi.yaml",
            "--header", f"Authorization: Bearer {TOKEN}", "--checks", ",".join(checks), "--exclude-path", "/v1/events",
            "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(examples), "--seed", "1",
            "--generation-deterministic", "--suppress-health-check", "all",
            "--continue-on-failure", "--no-color",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert re.search(r"[0-9]{3,} generated", done.stdout), done.stdout[-3000:] + done.stderr[-2000:]
    return "" if done.returncode == 0 else done.stdout[-6000:] + done.stderr[-2000:]


def test_the_answers_to_generated_requests_are_those_that_are_described(world: World, tmp_path: Path) -> None:
    assert generated(world, tmp_path, CHECKS, drawn(4, 10)) == ""


@pytest.mark.deep
def test_a_store_that_does_not_answer_is_described_wherever_it_shows(world: World, tmp_path: Path) -> None:
    world.store.down = True
    checks = [check for check in CHECKS if check != "not_a_server_error"]  # 503 is one
    assert generated(world, tmp_path, checks, examples=3) == ""


def test_what_is_shown_of_odd_documents_has_the_shape_that_is_described(world: World) -> None:
    """Each field of each job that the description has a type for."""
    fields = yaml.safe_load(OPENAPI)["components"]["schemas"]["Job"]["properties"]
    typed = {name: schema for name, schema in fields.items() if "type" in schema}
    views = world.api.jobs.list_jobs(include_ended=True)
    assert len(views) == len(ODD) + 3
    odd = [(v["job_id"], name, v[name]) for v in views for name, schema in typed.items() if not _fits(v[name], schema)]
    assert odd == []


TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    if value is None:
        return bool(schema.get("nullable"))
    inner = schema.get("items", {})
    parts = value if isinstance(value, list) and "type" in inner else []
    return isinstance(value, TYPES[schema["type"]]) and all(_fits(part, inner) for part in parts)
