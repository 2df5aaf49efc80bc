"""Reads `shares.yaml`: queues, users, and what each may use; a broken file keeps the last good one.

Promises that a file that cannot be kept is refused as a whole, with a sentence that names the queue or user and what to
do, and that the last good one goes on to bind meanwhile, also after a restart. Called by the decision loop and the API.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from adaptive_scheduler.shares import MOST_MAKESPAN_WEIGHT, GpuBudget, QueueShare, Shares, UserShare
from coordinator.errors import Rejected
from coordinator.model import requirements
from coordinator.model.owner_names import OWNER, OWNER_WORDS
from coordinator.ports import Store
from coordinator.scheduling.shares_words import refusal
from coordinator.unique_names import refuse_repeated_names

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)

FILE_NAME = "shares.yaml"
TABLE = "shares"
LAST_GOOD = "last good"
MOST_BYTES = 256 * 1024
QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
QUEUE_NAME_WORDS = "up to 64 letters, digits and any of . _ @ -, of which the first is a letter or digit"
Weight = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Gpus = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
UserName = Annotated[str, msgspec.Meta(pattern=rf"^{OWNER.pattern}$")]
Duration = Annotated[float, msgspec.Meta(gt=0)] | str


class _BudgetTerms(msgspec.Struct, forbid_unknown_fields=True):
    gpu_hours: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    per: Literal["week", "month"] = "month"
    warn_at: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8

    def budget(self) -> GpuBudget:
        return GpuBudget(self.gpu_hours, self.per, self.warn_at)


class _QueueTerms(msgspec.Struct, forbid_unknown_fields=True):
    weight: Weight = 1.0
    guaranteed: Gpus | dict[str, Gpus] = 0
    limit: Gpus | None = None
    borrow: bool = True
    user_limit: Gpus | None = None
    max_jobs: Gpus | None = None
    users: tuple[UserName, ...] = ()
    operators: tuple[UserName, ...] = ()
    owners: Literal["users", "shared"] = "users"
    makespan_weight: Annotated[float, msgspec.Meta(ge=0, le=MOST_MAKESPAN_WEIGHT)] | None = None
    budget: _BudgetTerms | None = None


class _UserTerms(msgspec.Struct, forbid_unknown_fields=True):
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 1.0
    queue: str = ""
    budget: _BudgetTerms | None = None


class _Terms(msgspec.Struct, forbid_unknown_fields=True):
    queues: dict[str, Any] = {}
    users: dict[str, Any] = {}
    gpu_values: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1000)]] = {}
    half_life: Duration = "24h"
    patience: Duration = "10m"
    min_run: Duration = "10m"
    most_reserved: Duration = "24h"
    turn: Annotated[float, msgspec.Meta(gt=0, le=4)] = 0.1


def parse(text: str, gpus: Mapping[str, int] | None = None, stored: bool = False) -> Shares:
    """Return the shares in the text of a `shares.yaml`. `gpus`: how many there are of each type, if known. Raises
    `Rejected`.

    `stored`: it is what another version took and stored. Of a name that is given twice the last one counts, and
    settings that this version does not know are left out.
    """
    try:
        if not stored:
            refuse_repeated_names(text)
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Rejected(_unreadable(error)) from None
    terms = _converted(given, _Terms, "The file", stored)
    shares = Shares(
        queues={name: _queue(name, one, stored) for name, one in terms.queues.items()},
        users={name: _user(name, one, stored) for name, one in terms.users.items()},
        gpu_values=terms.gpu_values,
        half_life_s=_seconds("half_life", terms.half_life),
        patience_s=_seconds("patience", terms.patience),
        min_run_s=_seconds("min_run", terms.min_run),
        most_reserved_s=_seconds("most_reserved", terms.most_reserved),
        turn=terms.turn,
    )
    if problem := shares.problem(gpus):
        raise Rejected(problem)
    return shares


def _queue(name: str, given: Any, stored: bool) -> QueueShare:
    if not QUEUE_NAME.fullmatch(name):
        raise Rejected(f"{name!r} cannot be the name of a queue: write {QUEUE_NAME_WORDS}.")
    terms = _converted(given, _QueueTerms, f"Queue {name}", stored)
    budget = None if terms.budget is None else terms.budget.budget()
    given_types = terms.guaranteed if isinstance(terms.guaranteed, dict) else {}
    guaranteed_types = {gpu_type: count for gpu_type, count in given_types.items() if count}
    guaranteed = terms.guaranteed if isinstance(terms.guaranteed, int) else 0
    as_given = msgspec.structs.asdict(terms)
    return QueueShare(**{**as_given, "guaranteed": guaranteed, "guaranteed_types": guaranteed_types, "budget": budget})


def _user(name: str, given: Any, stored: bool) -> UserShare:
    if not OWNER.fullmatch(name):
        raise Rejected(f"{name!r} cannot be the name of a user: write {OWNER_WORDS}.")
    terms = _converted(given, _UserTerms, f"User {name}", stored)
    return UserShare(terms.weight, terms.queue, None if terms.budget is None else terms.budget.budget())


def _converted(given: Any, kind: type[T], whose: str, stored: bool) -> T:
    given = {} if given is None else given
    if stored and isinstance(given, dict):
        given = {name: value for name, value in given.items() if name in kind.__struct_fields__}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise Rejected(refusal(error, given, kind, whose)) from None


def _unreadable(error: yaml.YAMLError) -> str:
    """Return where a file is no YAML, and what to look for: what the parser expected there helps nobody."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "The file has characters that YAML forbids."
    if isinstance(error, yaml.constructor.ConstructorError):
        return f"Line {mark.line + 1} of the file has a value that is not read: write plain text, numbers and lists."
    return (
        f"Line {mark.line + 1} of the file is no YAML: look there, and just above, for a bracket, colon or quotation "
        "mark that is missing, or a line that is indented differently."
    )


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
        self._lost = False  # the last good one cannot be read

    def refresh(self, gpus: Mapping[str, int]) -> None:
        """Read the file if it has changed. `gpus`: how many there are of each type; empty: not known yet."""
        if self._path is None:
            return
        seen = *_stamp(self._path), gpus
        if self._begun and seen == self._seen:
            return
        self._seen = seen
        try:
            text = _read(self._path)
            shares = parse(text, gpus)
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
        self._lost = False

    def _keep(self, why: str) -> None:
        if not self._begun:
            self._read_last_good()
            self._begun = True
        meanwhile = "no shares do: the last good ones are refused, too" if self._lost else "the last good one does"
        problem = f"{self._path} does not bind: {why} Until it is corrected, {meanwhile}."
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    def _read_last_good(self) -> None:
        """Read what bound before a restart. Jobs are decided on even where this version cannot read it."""
        kept = self._store.get(TABLE, LAST_GOOD)
        try:
            self.shares = parse(str(kept.get("text", "")), stored=True) if kept else Shares()
        except Rejected as refused:
            log.warning("the last good shares.yaml cannot be read by this version: %s", refused)
            self.shares = Shares()
            self._lost = True

    def write(self, text: str, gpus: Mapping[str, int]) -> Shares:
        """Replace the file. Raises `Rejected` if it could not bind. `gpus`: as of `refresh`."""
        if self._path is None:
            raise Rejected("This coordinator reads no shares.yaml: set RESHAPE_SHARES to the path of one.", 409)
        shares = parse(text, gpus)
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
