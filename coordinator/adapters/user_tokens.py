"""Keeps the tokens by which users of a shared machine call over TCP: as hashes, each of one uid, each with its end.

The file is readable by root alone, and no token can be worked out from it. Times are seconds since 1970. Thread-safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from pathlib import Path
from typing import Any

from coordinator.errors import Rejected, Transient

MOST_OF_ONE = 100  # tokens of one user that have not ended; as many stay that have, by a clock that may be wrong
MARK = "rt_"  # by which people and secret scanners know one

View = dict[str, Any]


class UserTokens:
    """`path`: the file, in a folder of root's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._rows: dict[str, View] = json.loads(path.read_text("utf-8"))  # by hash
        except FileNotFoundError:
            self._rows = {}
        except (OSError, ValueError) as error:
            raise Rejected(
                f"{path} cannot be read ({error}): put a copy of it back, or delete it and all tokens."
            ) from None

    def make(self, uid: int, name: str, lasts_s: float, now: float) -> View:
        """Return a new token of this user, which nobody can read again, with its id and end."""
        token = MARK + secrets.token_urlsafe(32)
        about = {"id": secrets.token_hex(4), "uid": uid, "name": name, "ends": now + lasts_s}
        with self._lock:
            own = sorted((row["ends"], key) for key, row in self._rows.items() if row["uid"] == uid)
            ended = [key for ends, key in own if ends <= now]
            if len(own) - len(ended) >= MOST_OF_ONE:
                raise Rejected(f"You have {MOST_OF_ONE} tokens: revoke one first.")
            oldest = set(ended[:-MOST_OF_ONE])
            rows = {key: row for key, row in self._rows.items() if key not in oldest}
            self._write(rows | {_hashed(token): about | {"made": now}})
        return {"token": token, "id": about["id"], "ends": about["ends"]}

    def tokens_of_user(self, uid: int, now: float) -> list[View]:
        """Return this user's tokens that hold, oldest first, without the tokens themselves."""
        with self._lock:
            rows = [row for row in self._rows.values() if row["uid"] == uid and row["ends"] > now]
        return [{"id": row["id"], "made": row["made"], "ends": row["ends"]} for row in sorted(rows, key=_made)]

    def revoke(self, uid: int, token_id: str) -> None:
        """End a token of this user's at once. `Rejected` with status 404 if there is none of that id."""
        with self._lock:
            left = {key: row for key, row in self._rows.items() if (row["uid"], row["id"]) != (uid, token_id)}
            if len(left) == len(self._rows):
                raise Rejected(f"You have no token {token_id!r}; `reshape token list` lists yours.", 404)
            self._write(left)

    def user_of(self, token: str, now: float) -> tuple[int, str] | None:
        """Return uid and name of whose token this is; None if it is nobody's or has ended."""
        with self._lock:
            row = self._rows.get(_hashed(token))
        return (int(row["uid"]), str(row["name"])) if row is not None and row["ends"] > now else None

    def _write(self, rows: dict[str, View]) -> None:
        new = self._path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(rows, file)
            new.replace(self._path)
        except OSError as error:
            raise Transient(f"{self._path} cannot be written: {error.strerror}") from None
        self._rows = rows


def _made(row: View) -> float:
    return float(row["made"])


def _hashed(token: str) -> str:
    """The key under which a token is kept. It has 256 random bits: a slow hash would protect nothing more."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
