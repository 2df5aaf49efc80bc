"""Touches files of a user with that user's rights alone: for a process of root that works in folders of others.

Whatever lies there, such as a link to a file of root in place of a log, opens nothing that the user could not open. The
rights are those of one thread (`setfsuid`), so that other threads go on as root meanwhile. Used by `local.py` and
`launch_records.py` on a shared machine.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any thread has the rights of another user
NOBODYS_GROUP = 65534
ASK = -1  # an id that no call sets: the answer tells which one holds


@contextmanager
def acting_as(uid: int | None, gid: int = NOBODYS_GROUP) -> Iterator[None]:
    """Let this thread open, make and remove files as this user, in this group alone; None: as the process itself does.

    Start no thread or process and import nothing within: they would begin with these rights. `PermissionError` where
    the kernel refuses, as to a process that is not of root.
    """
    if uid is None:
        yield
        return
    if os.getgroups():  # those of root would still open what they may
        raise PermissionError(0, "the process has kept groups of root")
    own = LIBC.setfsuid(ASK), LIBC.setfsgid(ASK)
    try:
        LIBC.setfsgid(gid)
        LIBC.setfsuid(uid)
        if LIBC.setfsuid(ASK) != uid or LIBC.setfsgid(ASK) != gid:
            raise PermissionError(0, f"the kernel does not let it act as user {uid}")
        yield
    finally:
        LIBC.setfsuid(own[0])
        LIBC.setfsgid(own[1])
