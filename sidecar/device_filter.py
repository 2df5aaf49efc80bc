"""Restricts a training's processes to its own NVIDIA GPUs, with a BPF device program on their control group.

Promises: a process in the group gets EPERM when it opens any GPU that is not currently permitted, whatever its
environment says; a new set takes effect at once, while it runs; open descriptors stay usable; no other device is
affected, and creating device nodes is not blocked. All state is in the kernel: the permitted minors are encoded in the
program's name (`bpftool cgroup tree` shows it), and the program disappears with its group. Where no filter can be set
up, nothing is refused and a sentence says why. Needs root, control groups v2 (alongside v1 is fine) and kernel 5.6. It
guards against scripts that pick a GPU themselves: root can leave its group.

`GpuFilter` belongs to the shim of a launch on this machine, which loads this file from its own folder. In pods the node
agent sets the filters (`resources/pod_filters.py`). Standard library, Python 3.8.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

MAJOR = 195  # NVIDIA's device major (linux/Documentation/admin-guide/devices.txt); low minors are GPUs
CONTROL = 254  # the first minor that is not a GPU: nvidia-modeset 254, nvidiactl 255
GROUP = "reshape-"  # prefix of our groups, as in `resources/usage.py`
NOTE = "gpu.group"  # in the launch's folder: names the group's folder, for cleanup after a killed shim
PREFIX = "rs"  # of our programs' names; then the lowest minor (2 hex digits) and a mask from it upward (11)
MOST_APART = 44  # bits of that mask
LOOK_S = 5.0  # how often to check what is in force
TRIES = 20  # to remove a group whose processes fork or have not quite exited
PAUSE_S = 0.05  # between two tries
OWN = "only its own GPUs (device filter)"
ANY = "any GPU of this machine: "  # and why
MIG = "MIG-"  # prefix of a MIG slice's id

# linux/include/uapi/linux/bpf.h: enum bpf_cmd, enum bpf_prog_type, enum bpf_attach_type, flags of BPF_PROG_ATTACH
PROG_LOAD, PROG_ATTACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 5, 8, 13, 15, 16
TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE, ALLOW_MULTI, REPLACE = 15, 6, 1 << 1, 1 << 2
CALL = {"x86_64": 321, "aarch64": 280}  # __NR_bpf
CHARACTER = 2  # BPF_DEVCG_DEV_CHAR
READ_OR_WRITE = 2 | 4  # BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE
MOST_PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS

LIBC = ctypes.CDLL(None, use_errno=True)


class Unable(Exception):
    """Raised when no filter can be in force; the argument says why, without a full stop."""


def bpf(command: int, attributes: bytes) -> "tuple[int, bytes]":
    """Make the `bpf` system call with a `union bpf_attr`; return its result and the union afterwards."""
    number = CALL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    union = ctypes.create_string_buffer(attributes, 128)
    result = LIBC.syscall(number, command, union, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, union.raw


def instruction(code: int, to: int = 0, source: int = 0, jump: int = 0, value: int = 0) -> bytes:
    """Return a `struct bpf_insn`: __u8 code; __u8 dst_reg:4, src_reg:4; __s16 off; __s32 imm."""
    return struct.pack("<BBhi", code, source << 4 | to, jump, value)


def program(major: int, minors: "Iterable[int]") -> bytes:
    """Return a program that denies reading or writing character devices `major`:minor, except these and CONTROL upward.

    It gets a `struct bpf_cgroup_dev_ctx`: __u32 access_type (access << 16 | type), __u32 major, __u32 minor.
    """
    code = [
        instruction(0x61, 4, 1, 0),  # r4 = access_type
        instruction(0xBF, 5, 4),  # r5 = r4
        instruction(0x54, 4, value=0xFFFF),  # r4: the type
        instruction(0x74, 5, value=16),
        instruction(0x54, 5, value=READ_OR_WRITE),  # r5: 0 for mknod only
        instruction(0x61, 2, 1, 4),  # r2 = major
        instruction(0x61, 3, 1, 8),  # r3 = minor
    ]
    let = [(0x15, 5, 0), (0x55, 4, CHARACTER), (0x55, 2, major), (0x35, 3, CONTROL)]  # ==, !=, !=, >=
    let += [(0x15, 3, minor) for minor in sorted(minors)]
    for index, (test, register, value) in enumerate(let):
        code.append(instruction(test, register, jump=len(let) - index + 1, value=value))
    for answer in (0, 1):
        code += [instruction(0xB7, 0, value=answer), instruction(0x95)]  # r0 = answer, exit
    return b"".join(code)


def name_of(minors: "Iterable[int]") -> str:
    """Return the name of the program that permits these. Raises Unable."""
    permitted = sorted(minors)
    first = permitted[0] if permitted else 0
    if permitted and (permitted[-1] >= CONTROL or permitted[-1] - first >= MOST_APART):
        raise Unable("the device numbers of its GPUs are too far apart")
    return f"{PREFIX}{first:02x}{sum(1 << (minor - first) for minor in permitted):011x}"


def minors_in(name: str) -> "frozenset[int] | None":
    """Return the minors in a program's name; None if it is not one of ours."""
    if len(name) != 15 or not name.startswith(PREFIX):
        return None
    try:
        first = int(name[2:4], 16)
        mask = int(name[4:], 16)
    except ValueError:
        return None
    return frozenset(first + bit for bit in range(MOST_APART) if mask >> bit & 1)


def load_program(code: bytes, name: str) -> int:
    """Load a program; return its descriptor."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    # prog_type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, prog_flags, prog_name
    attributes = struct.pack(
        "<IIQQIIQII16s",
        TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        name.encode(),
    )
    return bpf(PROG_LOAD, attributes)[0]


@contextlib.contextmanager
def _our_programs(folder: int) -> "Iterator[dict[int, str]]":
    """Yield descriptor -> name of our programs attached directly to a group."""
    ids = (ctypes.c_uint32 * MOST_PROGRAMS)()
    # target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt
    given = struct.pack("<IIIIQI", folder, ATTACH_CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), MOST_PROGRAMS)
    _, answer = bpf(PROG_QUERY, given)
    found: dict[int, str] = {}
    try:
        for one in ids[: struct.unpack_from("<I", answer, 24)[0]]:
            program_fd = bpf(PROG_GET_FD_BY_ID, struct.pack("<I", one))[0]
            found[program_fd] = ""
            info = ctypes.create_string_buffer(256)  # a struct bpf_prog_info, with `name` at offset 64
            bpf(OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", program_fd, len(info), ctypes.addressof(info)))
            found[program_fd] = info.raw[64:80].rstrip(b"\0").decode("ascii", "replace")
        yield {fd: name for fd, name in found.items() if minors_in(name) is not None}
    finally:
        for program_fd in found:
            os.close(program_fd)


@contextlib.contextmanager
def _opened_group(group: str) -> "Iterator[int]":
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def permitted(group: str) -> "frozenset[int] | None":
    """Return the minors that this group's program permits, according to the kernel; None if it has none of ours."""
    try:
        return read_permitted(group)
    except OSError:
        return None


def read_permitted(group: str) -> "frozenset[int] | None":
    """Return the same; OSError where the kernel does not say."""
    with _opened_group(group) as folder, _our_programs(folder) as programs:
        return next((minors_in(name) for name in programs.values()), None)


def permit(group: str, major: int, minors: "Iterable[int]") -> None:
    """Attach a program that permits these minors, atomically replacing the present one. Raises OSError, Unable."""
    wanted = set(minors)
    new = load_program(program(major, wanted), name_of(wanted))
    try:
        with _opened_group(group) as folder, _our_programs(folder) as programs:
            old = next(iter(programs), None)
            flags = ALLOW_MULTI | (0 if old is None else REPLACE)
            # target_fd, attach_bpf_fd, attach_type, attach_flags, replace_bpf_fd
            bpf(PROG_ATTACH, struct.pack("<IIIII", folder, new, ATTACH_CGROUP_DEVICE, flags, old or 0))
    finally:
        os.close(new)


def own_group() -> str:
    """Return the folder of our own v2 control group. Raises Unable."""
    with contextlib.suppress(OSError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            ours = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
        with open("/proc/self/mounts", encoding="utf-8") as file:
            mounts = [words[1] for words in map(str.split, file) if len(words) > 2 and words[2] == "cgroup2"]
        for mount in mounts if ours else ():
            folder = os.path.join(mount, ours[0].lstrip("/")).rstrip("/")
            if os.path.exists(os.path.join(folder, "cgroup.procs")):
                return folder
    raise Unable("no control groups v2 are mounted here")


def remove_group(group: str) -> bool:
    """Remove a group, and with it its program, moving its processes to the parent. Return whether it is gone."""
    above = os.path.join(os.path.dirname(group), "cgroup.procs")
    for _ in range(TRIES):
        with contextlib.suppress(OSError), open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
            for pid in file.read().split():
                with contextlib.suppress(OSError), open(above, "w", encoding="ascii") as entrance:
                    entrance.write(pid)
        with contextlib.suppress(OSError):
            os.rmdir(group)
        if not os.path.isdir(group):
            return True
        time.sleep(PAUSE_S)
    return False


def remove_group_of(launch: str) -> bool:
    """Remove the group made by the shim of this launch's folder, if it still exists. Return whether it is gone."""
    note = os.path.join(launch, NOTE)
    try:
        with open(note, encoding="utf-8") as file:
            group = file.read().strip()
    except OSError:
        return True
    if not os.path.basename(group).startswith(GROUP) or not remove_group(group):
        return False
    with contextlib.suppress(OSError):
        os.unlink(note)
    return True


def unable() -> str:
    """Return why no filter can be in force on this machine, found by trying; empty if it can."""
    if os.geteuid() != 0:
        return "`reshape up` does not run as root"
    try:
        group = os.path.join(own_group(), f"{GROUP}try-{os.getpid()}")
        try:
            os.mkdir(group)
            permit(group, MAJOR, [])
            permit(group, MAJOR, [0])  # replacing the first one
        finally:
            remove_group(group)
    except Unable as fault:
        return str(fault)
    except OSError as fault:
        return why_refused(fault)
    return ""


def try_program(group: str) -> None:
    """Load a program and look at those of a group, without attaching any. Raises OSError where that is refused."""
    os.close(load_program(program(MAJOR, ()), name_of(())))
    with _opened_group(group) as folder, _our_programs(folder):
        pass


def why_refused(fault: OSError) -> str:
    """Return why the kernel refused, in words."""
    what = "control groups cannot be made here" if fault.filename else "this kernel permits no device program (BPF)"
    return f"{what}: {fault.strerror}"


class GpuFilter:
    """The filter of one launch: a process in its group opens only the GPUs permitted last."""

    def __init__(self, launch: "argparse.Namespace", status: "dict[str, Any]") -> None:
        """Set up the filter of one launch.

        `launch`: the contents of `launch.json`; its folder is the shim's. `status`: receives what is in force.
        """
        self.folder = os.getcwd()
        self.major: int = launch.gpu_major
        self.minors: "dict[str, int]" = launch.gpu_minors
        self.why: str = launch.unfiltered  # why there can be none; empty if there can
        self.status = status
        self.group = ""
        self.look_at = 0.0
        self.wanted: "frozenset[int]" = frozenset()

    @property
    def entrance(self) -> str:
        """Return the file through which a process enters the group; empty without a filter."""
        return os.path.join(self.group, "cgroup.procs") if self.group else ""

    def permit(self, gpu_ids: "Iterable[str]") -> None:
        """Permit these GPUs and no others. On failure all are open, and the status says why."""
        self.look_at = 0.0
        if self.why:
            return
        try:
            self.wanted = frozenset(map(self._minor, gpu_ids))
            self._make()
            permit(self.group, self.major, self.wanted)
        except Unable as fault:
            self._withdraw(str(fault))
        except OSError as fault:
            self._withdraw(why_refused(fault))

    def _minor(self, gpu_id: str) -> int:
        if gpu_id.startswith(MIG):
            raise Unable("the parts of a GPU (MIG) share one device file")
        if gpu_id not in self.minors:
            raise Unable(f"NVML does not say which device file is that of GPU {gpu_id}")
        return self.minors[gpu_id]

    def _make(self) -> None:
        """Make the group, or find the one that an earlier shim of this launch left with its program."""
        if self.group:
            return
        group = os.path.join(own_group(), GROUP + os.path.basename(self.folder))
        note = os.path.join(self.folder, NOTE)
        if os.path.exists(note) and not os.path.isdir(group):
            remove_group_of(self.folder)  # it is elsewhere
        with open(note, "w", encoding="utf-8") as file:
            file.write(group + "\n")
        with contextlib.suppress(FileExistsError):
            os.mkdir(group)
        self.group = group

    def _withdraw(self, why: str) -> None:
        """Release all processes: a training continues, or starts, as without a filter."""
        self.why = why
        remove_group_of(self.folder)
        self.group = ""

    def tick(self, now: float) -> None:
        """Report now and then which GPUs the trainer can open, according to the kernel."""
        if now >= self.look_at:
            self.look_at = now + LOOK_S
            self.status["gpu_access"] = self._access(self.status["trainer_pid"])

    def _access(self, pid: "int | None") -> str:
        if self.why:
            return ANY + self.why
        if not self.group:  # nothing has started yet
            return ""
        if permitted(self.group) != self.wanted:
            return ANY + "somebody else has removed its device filter or changed it"
        if pid is not None and not self._inside(pid):
            return ANY + "the training has left its control group"
        return OWN

    def _inside(self, pid: int) -> bool:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            return any(
                line.startswith("0::") and line.rstrip("\n").endswith("/" + os.path.basename(self.group))
                for line in file
            )
        return True  # it has ended

    def end(self) -> None:
        """Remove the group once it is empty. The launcher removes what is left (`remove_group_of`)."""
        remove_group_of(self.folder)
