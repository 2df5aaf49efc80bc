"""Sets up a process's log: text for people, or with RESHAPE_LOG_FORMAT=json one JSON object per line.

Promises: an object has time, level, logger and message, and separate fields for what the line is about: job, launch,
generation, decision (`about`, `identify`, or `extra` of one call). Called by the entry points of coordinator, launcher,
node agent, sidecar and `reshape up`; the shim has no log but a few sentences on stderr.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")
VARIABLE = "RESHAPE_LOG_FORMAT"
TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 (never changed in place)
_process: dict[str, object] = {}


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add these fields to every line that this thread or task logs meanwhile."""
    before = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(before)


def identify(**fields: object) -> None:
    """Add these fields to every line of this process from now on."""
    _process.update(fields)


def set_up(level: str, form: str) -> None:
    """Log to stderr from `level` up. Raises ValueError with the accepted values."""
    if level not in LEVELS:
        raise ValueError(f"RESHAPE_LOG must be one of {', '.join(LEVELS)}, not {level!r}")
    if form not in FORMATS:
        raise ValueError(f"{VARIABLE} must be {' or '.join(FORMATS)}, not {form!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object, without line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_process,
            **_about.get(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=repr).decode()
        except UnicodeEncodeError:  # as in a file name that is not UTF-8
            return json.dumps(line, default=repr)
