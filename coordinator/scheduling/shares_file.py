"""Reads `shares.yaml`: queues, users, and what each may use; a broken file keeps the last good one.

Promises that a file that cannot be kept is refused as a whole, with a sentence that names the queue or user and what to
do, and that the last good one goes on to bind meanwhile, also after a restart. Called by the decision loop and the API.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from adaptive_scheduler.shares import QueueShare, Shares, UserShare
from coordinator.errors import Rejected
from coordinator.model import requirements
from coordinator.ports import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

FILE_NAME = "shares.yaml"
TABLE = "shares"
LAST_GOOD = "last good"
MOST_BYTES = 256 * 1024
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Gpus = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Duration = Annotated[float, msgspec.Meta(gt=0)] | str


class _QueueTerms(msgspec.Struct, forbid_unknown_fields=True):
    weight: Weight = 1.0
    guaranteed: Gpus = 0
    limit: Gpus | None = None
    borrow: bool = True
    user_limit: Gpus | None = None
    max_jobs: Gpus | None = None
    users: tuple[Name, ...] = ()
    owners: Literal["users", "shared"] = "users"


class _UserTerms(msgspec.Struct, forbid_unknown_fields=True):
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 1.0
    queue: str = ""


class _Terms(msgspec.Struct, forbid_unknown_fields=True):
    queues: dict[str, Any] = {}
    users: dict[str, Any] = {}
    gpu_values: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1000)]] = {}
    half_life: Duration = "24h"
    patience: Duration = "10m"
    min_run: Duration = "10m"
    turn: Annotated[float, msgspec.Meta(gt=0, le=4)] = 0.1


def parse(text: str, gpus: int | None = None) -> Shares:
    """Return the shares in the text of a `shares.yaml`. `gpus`: how many there are, if known. Raises `Rejected`."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise Rejected(f"It is no YAML{where}: {getattr(error, 'problem', None) or error}.") from None
    terms = _converted({} if given is None else given, _Terms, "The file")
    shares = Shares(
        queues={name: _queue(name, one) for name, one in terms.queues.items()},
        users={name: _user(name, one) for name, one in terms.users.items()},
        gpu_values=terms.gpu_values,
        half_life_s=_seconds("half_life", terms.half_life),
        patience_s=_seconds("patience", terms.patience),
        min_run_s=_seconds("min_run", terms.min_run),
        turn=terms.turn,
    )
    if problem := shares.problem(gpus):
        raise Rejected(problem)
    return shares


def _queue(name: str, given: Any) -> QueueShare:
    _converted(name, Name, f"The name of queue {name!r}")
    terms = _converted({} if given is None else given, _QueueTerms, f"Queue {name}")
    return QueueShare(**msgspec.structs.asdict(terms))


def _user(name: str, given: Any) -> UserShare:
    _converted(name, Name, f"The name of user {name!r}")
    terms = _converted({} if given is None else given, _UserTerms, f"User {name}")
    return UserShare(terms.weight, terms.queue)


def _converted(given: Any, kind: type[T], whose: str) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        why = str(error).replace(" - at `$.", ", at `").replace(" - at `$`", "").replace("`$`", "it")
        raise Rejected(f"{whose} is not valid: {why[:1].lower()}{why[1:]}.") from None


def _seconds(field: str, given: float | str) -> float:
    found = requirements.seconds(given)
    if found is None:
        raise Rejected(f"{field} must be a duration such as 90s, 15m or 24h, not {given!r}.")
    return found


class SharesFile:
    """The shares that bind now, and what is wrong with the file if that is not them."""

    def __init__(self, path: str, store: Store) -> None:
        """`path`: of the file, which need not exist; empty: there is none."""
        self._path = Path(path) if path else None
        self._store = store
        self._seen: object = None  # size and time of the file that was read last, and the GPUs that there were
        self.shares = Shares()
        self.problem = ""
        """Why the file does not bind, as a sentence; empty if it does, or there is none."""
        self._begun = False

    def refresh(self, gpus: int) -> None:
        """Read the file if it has changed. `gpus`: how many there are; 0: not known yet."""
        if self._path is None:
            return
        seen = *_stamp(self._path), gpus
        if self._begun and seen == self._seen:
            return
        self._seen = seen
        try:
            text = _read(self._path)
            shares = parse(text, gpus or None)
        except Rejected as refused:
            self._keep(str(refused))
            return
        if self.problem:
            log.info("%s binds again", self._path)
        if text or self._store.get(TABLE, LAST_GOOD):
            self._store.put(TABLE, {"_id": LAST_GOOD, "text": text})
        self.shares = shares
        self.problem = ""
        self._begun = True

    def _keep(self, why: str) -> None:
        if not self._begun:
            kept = self._store.get(TABLE, LAST_GOOD)
            self.shares = parse(str(kept["text"])) if kept else Shares()
            self._begun = True
        problem = f"{self._path} does not bind: {why} Until it is corrected, the last good one does."
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    def write(self, text: str, gpus: int) -> Shares:
        """Replace the file. Raises `Rejected` if it could not bind."""
        if self._path is None:
            raise Rejected("This coordinator reads no shares.yaml: set RESHAPE_SHARES to the path of one.", 409)
        shares = parse(text, gpus or None)
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            with beside.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise Rejected(f"{self._path} cannot be written: {error.strerror}.", 409) from None
        return shares


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno,)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> str:
    """Return the text of the file; empty if there is none. Raises `Rejected` for one that cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Rejected(f"it cannot be read: {error.strerror}.") from None
    if len(raw) > MOST_BYTES:
        raise Rejected(f"it is larger than {MOST_BYTES // 1024} KiB.")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Rejected("it is not written in UTF-8.") from None
