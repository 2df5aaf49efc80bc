"""Prepares what `reshape up --shared` serves all users of a machine with: its state folder, its socket, its rights.

Promises: nobody but root reads or changes what lies in the state folder, but for each user's own folders in `jobs`; a
folder of a shared service is used by no other `reshape up`, which would run jobs of others as its own user, and none
with jobs of another kind by a shared one. Called by `up.py`.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coordinator.adapters.accounts import account_of
from coordinator.errors import Rejected
from sidecar import protocol

MARK = "shared"  # a file in the state folder of a shared service
OPEN_TO_USERS = ("jobs", "imports")  # folders in which users have folders of their own
NOBODY = 65534
WRITABLE_BY_OTHERS = 0o022
NEEDS_ROOT = (
    "`reshape up --shared` serves all users of this machine and runs each job as its user, so it runs as root: start "
    "it as a service (docs/how-to/shared-machine.md). Without --shared it serves you alone."
)
ONE_MACHINE = "--shared shares the GPUs of this machine: leave --node out."


def check_shared(nodes: object, host: str) -> None:
    """Refuse a shared service that could not keep its users apart."""
    if os.geteuid() != 0:
        raise Rejected(NEEDS_ROOT)
    if nodes:
        raise Rejected(ONE_MACHINE)
    if host not in ("127.0.0.1", "localhost"):
        raise Rejected(
            "--shared listens on 127.0.0.1 only, as nothing is encrypted: leave --host out, and use `ssh -L`."
        )
    if not _all_may_run():
        raise Rejected(
            f"Other users of this machine cannot run {sys.executable} with volcano-reshape, as their jobs have to: "
            "install it where all may read it, such as /opt/reshape (docs/how-to/service.md)."
        )


def _all_may_run() -> bool:
    """Return whether a user without any rights can start a sidecar with our interpreter."""
    package = Path(protocol.__file__).parent.parent
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", "import sidecar.service"],
            env={"PYTHONPATH": str(package)},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return tried.returncode == 0


def problem_of_own_code() -> str:
    """Return a sentence that says who besides root can change what this service runs as root; empty if nobody can."""
    return problem_of_code((Path(protocol.__file__).parent, Path(sys.executable), Path(sysconfig.get_path("purelib"))))


def problem_of_code(code: Iterable[Path]) -> str:
    """Return the same of some files and folders, and of all folders that these lie in."""
    places = {place for path in code for found in (path, path.resolve()) for place in (found, *found.parents)}
    for place in sorted(places):
        if who := who_can_change(place):
            return (
                f"{who} can change {place}, from which this service runs code as root: install volcano-reshape where "
                "only root can write, such as /opt/reshape (docs/how-to/service.md)."
            )
    return ""


def who_can_change(place: Path) -> str:
    """Return who besides root can replace a file, or what lies in a folder; empty if nobody can."""
    found = place.lstat()
    if stat.S_ISLNK(found.st_mode):  # the folder that it lies in decides
        return ""
    if found.st_uid != 0:
        account = account_of(found.st_uid)
        return f"User {account.name if account is not None else found.st_uid}"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:  # each may remove only what is theirs
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "Everybody"
    return f"Group {found.st_gid}" if found.st_gid != 0 and found.st_mode & stat.S_IWGRP else ""


def close_shared(state: Path) -> None:
    """Give up the groups of root, and close the state folder to all others, also what is made in it from now on."""
    try:
        os.setgroups([])
    except PermissionError:
        raise Rejected(
            "This root cannot act as other users, as in a container without CAP_SETGID: grant that capability."
        ) from None
    os.umask(0o077)
    mark = state / MARK
    if not mark.exists() and any((state / "jobs").glob("*-l*")):
        raise Rejected(f"{state} holds jobs of a `reshape up` of one user: name another folder with --state.")
    mark.touch(mode=0o600)
    for entry in state.iterdir():
        if entry.name not in OPEN_TO_USERS and not entry.is_symlink():
            entry.chmod(stat.S_IMODE(entry.lstat().st_mode) & 0o700)


def refuse_shared(state: Path) -> None:
    """Refuse the folder of a shared service for any other use: its jobs would run as the user of this `reshape up`."""
    if (state / MARK).exists():
        raise Rejected(
            f"{state} belongs to a shared `reshape up`: start it with --shared, or name another with --state."
        )


@contextmanager
def user_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on the Unix socket of all users, in a folder that only root can change."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # whatever our umask
    folder = path.parent.stat()
    if folder.st_uid != 0 or folder.st_mode & WRITABLE_BY_OTHERS:
        raise Rejected(f"Others can write to {path.parent} and could answer in our place: name another folder.")
    if _answers(path):
        raise Rejected(f"Another `reshape up --shared` listens on {path}.")
    path.unlink(missing_ok=True)  # of one that was killed
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(128)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            with suppress(OSError):
                path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(path))
        except OSError:
            return False
    return True
