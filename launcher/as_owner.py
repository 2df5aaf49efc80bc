"""Becomes one user of this machine for good, then runs a program in place of itself.

`as_owner.py UID GROUP PROGRAM ...`: GROUP is the file by which it enters a control group that its user cannot leave;
empty for none. `shim_command.py` starts and ends the shims of a shared machine by it. Promises: the program has that
user's uid, gid and groups and no right of root left, or it is not run: each step is checked, and one that fails ends
this with a sentence. Standard library only, as it runs with `-I -S`; it opens no file of the user and reads nothing of
the user's.
"""

import os
import pwd
import sys

FAILED = 1


def become(uid: int) -> None:
    """Give up all rights but those of this user. OSError or KeyError where that does not work."""
    account = pwd.getpwuid(uid)
    os.umask(0o077)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(uid, uid, uid)
    check(uid, account.pw_gid)


def check(uid: int, gid: int) -> None:
    """Raise PermissionError unless this process is that user in every respect, and can be no other."""
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise PermissionError(0, "the kernel left it another user or group")
    if uid == 0:
        return
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise PermissionError(0, "it could become root again")


def enter(group: str) -> None:
    """Let this process and all that it starts be in a control group."""
    entrance = os.open(group, os.O_WRONLY)
    os.write(entrance, b"0")
    os.close(entrance)


def main() -> int:
    uid = int(sys.argv[1])
    group = sys.argv[2]
    program = sys.argv[3:]
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # whatever a process of root had open
        if group:
            enter(group)
        become(uid)
        os.execv(program[0], program)
    except KeyError:
        why = "it has no account on this machine any more"
    except OSError as fault:
        why = str(fault.strerror)
    print(f"cannot run {program[0]} as user {uid}: {why}", file=sys.stderr)  # noqa: T201
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
