"""Finds the processes of a launch whose shim was killed, by what a trainer's descendants inherit.

Promises: a process is found even if it has another environment, no inherited files and its own session, and even if it
was started a moment ago. Not found: what a service started for the training, such as a container, and a process that
changes its environment and also sets its own real-time CPU limit (RLIMIT_RTTIME). Standard library, Python 3.8:
`shim.py` loads it from its own folder.
"""

import contextlib
import hashlib
import os
import resource
import signal
from typing import Iterator, Optional

VARIABLE = b"RESHAPE_ANNOUNCE="
ANNOUNCE = "announce"  # the file that the variable names
LIMIT = b"Max realtime timeout"
# Microseconds, some 70,000 years: it limits nothing, and no other program has a reason to choose it.
LEAST_MARK = 1 << 61


def mark_of(folder: str) -> int:
    """Return the number that marks the processes of the launch in this folder.

    It is set as a resource limit that is never reached: unlike a variable, a child keeps it whatever its parent clears.
    """
    return LEAST_MARK + int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:7], "big")


def mark_this_process(number: int) -> None:
    """Mark this process and its descendants. Where the limit may not be set, only the variable marks them."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (number, resource.getrlimit(resource.RLIMIT_RTTIME)[1]))


def left_in(folder: str, uid: Optional[int] = None) -> "Iterator[int]":
    """Yield the processes of the launch in this folder, but for the caller and the shim.

    `uid`: only those of this user, as any user may give a process the marks of somebody else's launch.
    """
    variable = VARIABLE + os.fsencode(os.path.join(folder, ANNOUNCE))
    number = b"%d" % mark_of(folder)
    for pid in _other_processes(uid):
        if _realtime_limit(pid) == number or variable in _environment_of(pid):
            yield pid


def end_all(folder: str, uid: Optional[int] = None) -> "list[int]":
    """Kill the processes of the launch in this folder, whose shim has ended; return which. Some may not end at once.

    `uid`: only those of this user.
    """
    found = list(left_in(folder, uid))
    for pid in found:
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            _kill(pid, uid)
    return found


def _kill(pid: int, uid: Optional[int]) -> None:
    """Kill a process; where only one of a user may be, not another one that has got its number meanwhile."""
    if uid is None:
        os.kill(pid, signal.SIGKILL)
        return
    process = os.pidfd_open(pid)
    try:
        if _is_of(pid, uid):  # asked while the descriptor names it: from now on it is this one or none
            signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)


def other_folder(folder: str, uid: Optional[int] = None) -> str:
    """Return another folder in which processes of the same launch run; empty if there is none.

    `uid`: only processes of this user count.
    """
    end = os.fsencode(os.path.join(os.sep, os.path.basename(folder), ANNOUNCE))
    own = VARIABLE + os.fsencode(os.path.join(folder, ANNOUNCE))
    for pid in _other_processes(uid):
        for variable in _environment_of(pid):
            if variable.startswith(VARIABLE) and variable.endswith(end) and variable != own:
                return os.path.dirname(os.fsdecode(variable[len(VARIABLE) :]))
    return ""


def _other_processes(uid: Optional[int]) -> "Iterator[int]":
    """Yield all processes, or those of a user, but ourselves and those that have ended and are not forgotten yet."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if uid is not None and not _is_of(pid, uid):
            continue
        fields = _read_of_process(pid, "stat").rpartition(b")")[2].split()
        has_ended = fields[:1] in ([b"Z"], [b"X"])
        if pid != os.getpid() and not has_ended:
            yield pid


def _is_of(pid: int, uid: int) -> bool:
    """True if all user ids of a process are this one: none that a program with the rights of root has begun with."""
    for line in _read_of_process(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return line.split()[1:] == [b"%d" % uid] * 4
    return False


def _environment_of(pid: int) -> "list[bytes]":
    return _read_of_process(pid, "environ").split(b"\0")


def _realtime_limit(pid: int) -> bytes:
    """Return the real-time CPU limit of this process."""
    for line in _read_of_process(pid, "limits").splitlines():
        if line.startswith(LIMIT):
            return line[len(LIMIT) :].split()[0]
    return b""


def _read_of_process(pid: int, name: str) -> bytes:
    """Return a /proc file's content; empty if the process has exited or is another user's."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
    return b""
