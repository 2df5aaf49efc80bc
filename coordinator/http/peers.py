"""Tells which Unix user a connection comes from, by the kernel of this machine alone.

A Unix socket names the process that connected. Of TCP over loopback the kernel lists whose each socket is; one that is
no user's any more, as its process has closed it, stands there as root's and is not believed.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

CREDENTIALS = struct.Struct("iII")  # ucred: pid, uid, gid
CONNECTIONS = Path("/proc/net/tcp")
ESTABLISHED = "01"


def user_of(connection: socket.socket) -> int | None:
    """Return the uid of whoever is at the other end; None where that is not known, as from another machine."""
    try:
        if connection.family == socket.AF_UNIX:
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            return int(CREDENTIALS.unpack(found)[1])
        if connection.family == socket.AF_INET:
            return _user_of_tcp(connection.getpeername(), connection.getsockname())
    except OSError:  # it has just been closed
        pass
    return None


def _user_of_tcp(theirs: tuple[str, int], ours: tuple[str, int]) -> int | None:
    ends = [_as_listed(theirs), _as_listed(ours)]
    with CONNECTIONS.open(encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if words[1:3] == ends:
                living = words[3] == ESTABLISHED and words[9] != "0"
                return int(words[7]) if living else None
    return None


def _as_listed(end: tuple[str, int]) -> str:
    """Return an address as the kernel lists it: four bytes as one number of this processor, then the port."""
    return f"{int.from_bytes(socket.inet_aton(end[0]), sys.byteorder):08X}:{end[1]:04X}"
