"""Looks up the Unix users of this machine, and who of them administers a shared `reshape up`.

A directory of users that answers over the network is asked about one user once in `LASTS_S` seconds.
"""

from __future__ import annotations

import grp
import pwd
import threading
import time
from typing import NamedTuple

from coordinator.caller import UnixUser

ADMINS = "reshape-admin"  # the group whose members may do everything
LASTS_S = 5.0
UNKNOWN = 65_534  # nobody: the kernel gives it for users that it cannot name, such as those of containers
MOST = 10_000  # callers that are remembered


class UnixAccount(NamedTuple):
    """A user of this machine."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """Return the variables that a login sets."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def account_of(uid: int) -> UnixAccount | None:
    """Return the account of a uid; None if this machine has none."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return None
    return UnixAccount(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell or "/bin/sh")


def administers(account: UnixAccount) -> bool:
    """Return whether the user is root or a member of the group `reshape-admin`."""
    if account.uid == 0:
        return True
    try:
        group = grp.getgrnam(ADMINS)
    except KeyError:
        return False
    return account.gid == group.gr_gid or account.name in group.gr_mem


class Callers:
    """Answers who a uid is. Thread-safe."""

    def __init__(self, others_seen: bool) -> None:
        """`others_seen`: whether users see names and GPU counts of others' jobs."""
        self._others_seen = others_seen
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, UnixUser | None]] = {}

    def caller(self, uid: int) -> UnixUser | None:
        """Return who calls; None for a uid without an account, who may nothing."""
        now = time.monotonic()
        with self._lock:
            at, found = self._known.get(uid, (-LASTS_S, None))
        if now < at + LASTS_S:
            return found
        account = account_of(uid) if uid != UNKNOWN else None
        found = account and UnixUser(account.name, administers(account), self._others_seen, account.uid)
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[uid] = now, found
        return found
