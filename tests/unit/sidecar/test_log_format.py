"""The log of a process: lines for people, or JSON that names job, launch, generation and decision."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sidecar.startup import log_format


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    yield logging.getLogger("tests.log_format")
    log_format._process.clear()


def line(**given: object) -> dict[str, object]:
    """The object that a record becomes."""
    record = logging.makeLogRecord({"name": "part", "levelname": "INFO", "msg": "hello", **given})
    (text,) = log_format.JsonLines().format(record).splitlines()
    found: dict[str, object] = json.loads(text)
    return found


def test_a_line_has_time_level_logger_and_message(log: logging.Logger) -> None:
    assert line(msg="%s waits", args=("two",), created=1_700_000_000.25) == {
        "time": "2023-11-14T22:13:20.250Z", "level": "info", "logger": "part", "message": "two waits",
    }  # fmt: skip


def test_a_line_names_its_job_and_only_while_that_is_worked_on(log: logging.Logger) -> None:
    log_format.identify(node="n1")
    with log_format.about(job="two", generation=3):
        with log_format.about(generation=4, decision="two-v9"):
            inner = line(step="stop")
        outer = line()
        with ThreadPoolExecutor(1) as pool:  # another thread works on something else
            elsewhere = pool.submit(line).result()
    assert (inner["job"], inner["generation"], inner["decision"], inner["step"]) == ("two", 4, "two-v9", "stop")
    assert (outer["generation"], "decision" in outer) == (3, False)
    assert "job" not in elsewhere and elsewhere["node"] == "n1"
    assert "job" not in line()


def test_an_error_keeps_its_traceback_in_one_line_and_what_json_lacks_becomes_text(log: logging.Logger) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        found = line(exc_info=sys.exc_info(), gpu=object())
    assert "ValueError: broken" in str(found["exception"]) and str(found["gpu"]).startswith("<object")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [("RESHAPE_LOG", "loud", "must be one of DEBUG,"), ("RESHAPE_LOG_FORMAT", "xml", "must be text or json")],
)
def test_a_wrong_variable_is_one_sentence(variable: str, value: str, says: str) -> None:
    command = [
        sys.executable,
        "-m",
        "reshape",
        "agent",
        "--node",
        "n",
        "--coordinator",
        "http://c",
        "--keys",
        "/nowhere",
    ]
    environment = {**os.environ, variable: value}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{variable} {says}" in done.stderr and "Traceback" not in done.stderr
