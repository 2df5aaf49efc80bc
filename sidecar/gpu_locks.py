"""Locks each real GPU machine-wide, so that no two `reshape up`, by any users, ever give it to two trainings.

Promises: a shim that trains on a GPU holds its lock, and so does each process started by its trainer, until all have
exited; the kernel then releases it, whatever died. The lock files are where every user may create one and nobody may
remove another user's; a file that root locks belongs to root from then on. A symlink, pipe or folder in their place is
neither followed nor taken for a lock. The locks are advisory: NVML shows who else uses a GPU
(`reshape/services/local_gpus.py`). Standard library, Python 3.8: `shim.py` loads it from its own folder.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import stat

PLACES = ("/run/lock", "/tmp")  # nothing cleans up the first one
EVERYBODYS = 0o1777
TRIES = 5  # while somebody keeps removing the file


class Unusable(Exception):
    """Raised when a GPU cannot be locked; the argument is a sentence."""


def folder() -> str:
    """Return the folder of the lock files, the same for all users. Raises Unusable."""
    for place in PLACES:
        with contextlib.suppress(OSError):
            there = os.lstat(place)
            if stat.S_ISDIR(there.st_mode) and there.st_uid == 0 and there.st_mode & EVERYBODYS == EVERYBODYS:
                return place
    raise Unusable(f"GPUs cannot be locked: neither {' nor '.join(PLACES)} is root's and open to all with a sticky bit")


def path_of(gpu_id: str) -> str:
    return os.path.join(folder(), f"reshape-gpu-{hashlib.sha256(gpu_id.encode()).hexdigest()[:32]}.lock")


def take_lock(gpu_id: str) -> "int | None":
    """Return the descriptor that holds this GPU's lock; None while another process holds it. Raises Unusable."""
    path = path_of(gpu_id)
    for _ in range(TRIES):
        file = _locked(gpu_id, path)
        if file is None:
            return None
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file), os.lstat(path)):
                _keep(file)
                return file
        os.close(file)  # it was removed before we had it, and another process may lock its replacement
    raise Unusable(f"GPU {gpu_id} cannot be locked: somebody removes {path} again and again; end what does it")


def open_unlocked(name: str) -> int:
    """Return a descriptor of the lock file of this name, for another process to wait for its lock. Raises Unusable."""
    path = path_of(name)
    try:
        return _opened(path)
    except OSError as fault:
        raise Unusable(f"{path} cannot be locked: {fault.strerror}; remove it") from None


def _keep(file: int) -> None:
    """Chown a lock that root holds to root, so that nobody else can remove it."""
    if os.geteuid() == 0 and os.fstat(file).st_uid != 0:
        with contextlib.suppress(OSError):  # not our file system, or an unprivileged user namespace
            os.fchown(file, 0, 0)


def _locked(gpu_id: str, path: str) -> "int | None":
    """Return the locked file's descriptor; None while another process has locked it. Raises Unusable."""
    try:
        file = _opened(path)
    except OSError as fault:
        raise Unusable(f"GPU {gpu_id} cannot be locked: {path}: {fault.strerror}; remove it") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Unusable(f"GPU {gpu_id} cannot be locked: {path} is no file; remove it")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _opened(path: str) -> int:
    """Open the file for reading, which suffices for a lock; create it, readable by all, if it is missing."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would block
    for _ in range(2):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
                os.fchmod(file, 0o644)  # whatever the umask
                return file
    return os.open(path, flags)


def holder(gpu_id: str) -> "int | None":
    """Return the pid that holds this GPU's lock, without touching it: 0 if not visible here; None if it is free."""
    try:
        there = os.lstat(path_of(gpu_id))
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except (OSError, Unusable):
        return None
    mine = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    for words in map(str.split, lines):
        if words[1:2] == ["FLOCK"] and words[5:6] == [mine]:
            return max(0, int(words[4]))
    return None


def described(pid: int) -> str:
    """Describe a process: `process 4711 (python) of bob`."""
    name = user = ""
    with contextlib.suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        user = str(uid)
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(uid).pw_name
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
    return f"process {pid}" + (f" ({name})" if name else "") + (f" of {user}" if user else "") if pid else "a process"
