"""Keeps the state folder of `reshape up` from other users: whoever can read its token runs commands as its owner.

Called by `up.py`; touches nothing but modes of files that are ours.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from coordinator.errors import Rejected

SECRETS = ("api.token", "master.key")


def secret(path: Path) -> str:
    """Return a secret of this state folder, made on first use."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Rejected(f"{path} is not a regular file: remove it, then start again.")
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        text = secrets.token_hex(32)
        write_private(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} cannot be read ({error}): put a copy of it back.") from None
    if not text:
        raise Rejected(f"{path} is empty: put a copy of it back, or delete it if no job of this folder runs.")
    return text


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read. `Rejected` where the disk takes none."""
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        why = f"{path} cannot be written ({error.strerror}): make room on that disk, then try again"
        raise Rejected(f"`reshape up` cannot start: {why}.") from error


def open_to_others(state: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder and its secrets as far as others have rights there that they must not have, with their bits.

    `Rejected`: one belongs to another user, who could put another in its place.
    """
    me = os.geteuid()
    for path in (state, *(state / name for name in SECRETS)):
        try:
            there = path.lstat()
        except OSError:
            continue
        if there.st_uid != me:
            raise Rejected(
                f"{path} belongs to user {there.st_uid}, who could use it to act as you: run as that user, or name "
                "another folder with --state."
            )
        bits = there.st_mode & (0o022 if path == state else 0o077)
        shared = stat.S_ISLNK(there.st_mode) or there.st_mode & stat.S_ISVTX  # sticky: a folder for all users
        if bits and not shared:
            yield path, bits


def close_to_others(state: Path) -> Iterator[str]:
    """Take rights of others on the folder and its secrets away; yields a sentence for each. `Rejected`: not ours."""
    for path, bits in open_to_others(state):
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~bits)
        if path == state:
            yield f"Other users could write in {path}; they no longer can."
        else:
            told = "If one may have, delete it while no job runs."
            yield f"Other users could read or change {path}; they no longer can. {told}"
