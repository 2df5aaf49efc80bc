"""Gives each training of a job its own checkpoints, and finds them again after a restart.

One job may train many times: in processes one after the other or side by side, and several times in one process. Each
training claims a folder: the first one the job's own, the others `training-2`, `training-3` … in it. Promises: no two
trainings of one generation share a claim; after a restart a training gets the claim of the same script and arguments,
of the same call, in the same iteration of its loops, that trains the same (parameters, optimizer), wherever in the
order it comes; a claim left by another training is never given to it. What may differ at each start is ignored (times,
temporary names), or only distinguishes trainings that are otherwise alike (variables, the folder, arguments of
functions, and what depends on the number of GPUs); a finished one is found again only by the same variables and
arguments. Called by `adapters/session`, `keras` and `keras_fit`; standard library and `plain`, Python 3.8 and newer.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reshape_hooks import plain
from reshape_hooks.claim_place import place, short

INDEX, LOCK = plain.CLAIMS, ".claims.lock"
SAME = ("process", "site", "loops", "trained")  # always equal in two generations of one training
TOLD_APART = ("settings", "arguments")  # may depend on the number of GPUs, or differ at each start
RUNS, LEFT, FINISHED = plain.RUNS, "left", "finished"  # LEFT: its process ended by itself, without an error
OF_A_START = re.compile(  # variables that say nothing about the training, or differ at each start
    "(RESHAPE|CUDA|NVIDIA|PYTHON|PET|TORCH|TORCHELASTIC|NCCL|GLOO|OMP|KMP|MKL|TF|XLA|ROLE|GROUP|LOCAL|MASTER|LC|LD)_.*"
    "|(KUBERNETES|OMPI|PMI|PMIX|SLURM|RAY|JPY|DBUS|SSH|XDG|MAKE|CONDA)[A-Z]*_.*|MAKEFLAGS|MFLAGS|INVOCATION_ID|DISPLAY"
    "|_|PWD|OLDPWD|SHLVL|PATH|RANK|WORLD_SIZE|HOSTNAME|TMPDIR|TERM|COLUMNS|LINES|PYTHON[A-Z]*|WANDB_RUN_ID"
)
PORT = re.compile(r"((?:(?<![a-z])port[=:]|localhost:|(?:\d{1,3}\.){3}\d{1,3}:|\[::1?\]:))\d{2,5}(?!\d)", re.IGNORECASE)
PORT_NAME = re.compile(r"(?:^|[-_.])port$", re.IGNORECASE)
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")  # of a process among several
MOST_READ = 1 << 20  # bytes of initial weights to read

_one_at_a_time = threading.RLock()
_files: dict[Path, int] = {}  # folder -> its lock file; closing any descriptor of it would release our locks
_ours: dict[Path, set[int]] = {}  # folder -> the claims of this process
_alone: dict[Path, list[OfTraining]] = {}  # those of them for scripts that save by themselves


class OfTraining(plain.Checkpoints):
    """The checkpoints of one training.

    `number`: of its claim. `before`: steps of the trainings that ended before it. `apart`: its script creates separate
    objects to look and to save.
    """

    known_by: Mapping[str, Any]

    def __init__(self, here: plain.Environment, number: int, before: int = 0, apart: bool = False) -> None:
        self.apart = apart
        self.root, self.number, self.before = Path(here.checkpoints), number, before
        self.name = plain.training_name(number)
        super().__init__(self.root / self.name, here.job_id, here.generation, shared=True)
        self.prefix = self.name and self.name + plain.BEHIND_TRAINING
        given, _, name = (here.prefer or "").rpartition(plain.BEHIND_TRAINING)
        self.prefer = name if name and given == self.name else None

    def finish(self, steps: int) -> None:
        """Mark the training as finished after `steps`: any further one in this generation is another one."""
        _mark(self.root, {self.number}, FINISHED, steps)


def description(
    called: str = "",
    trained: Any = "",
    settings: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    weights: int = 0,
    placed: bool = True,
) -> dict[str, Any]:
    """Return what identifies a training.

    `called`: the name under which the script has called us. `trained`: names and shapes of parameters, class of the
    optimizer. `settings`: of the optimizer. `arguments`: what else tells it from others. `weights`: a checksum of the
    initial ones. `placed`: False for a process with everything that it trains.
    """
    site, loops, given = place(called) if placed else ([], {}, {})
    given.update({f"${name}": short(value) for name, value in _own_variables().items()})
    given.update(folder=short(str(Path.cwd())), script=short(sys.argv[0] if sys.argv else ""))
    gpus = plain.environment().gpus, os.environ.get("WORLD_SIZE", "1"), os.environ.get("PET_NNODES", "1")
    return {
        "process": process(),
        "site": site,
        "loops": loops,
        "trained": short(repr(trained)),
        "settings": {name: short(repr(value)) for name, value in (settings or {}).items()},
        "arguments": {**given, **{name: short(repr(value)) for name, value in (arguments or {}).items()}},
        "gpus": " ".join([str(len(gpus[0])), *gpus[1:]]),
        "weights": weights,
    }


def checksum(arrays: Iterable[Any]) -> int:
    """Return a checksum of the content of arrays in host memory; 0 for others."""
    total, left = 0, MOST_READ
    for array in arrays:
        with contextlib.suppress(Exception):  # anything may call itself an array
            view = memoryview(array.numpy() if hasattr(array, "numpy") else array).cast("B")[:left]
            total, left = zlib.crc32(view, total), left - len(view)
        if left <= 0:
            break
    return total


def choose(mine: Mapping[str, Any], known: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the claim among `known` that belongs to this training; None if none does."""
    found = [one for one in known if _is_same(one, mine) and _may_be(one, mine)]
    found = [one for one in found if one["process"] == mine["process"]] or found
    for kind in TOLD_APART:
        for name in sorted({name for one in found for name in one[kind]}):
            values = {one[kind].get(name) for one in found}
            alike = [one for one in found if one[kind].get(name) == mine[kind].get(name)]
            if len(values) > 1 and (alike or kind == "settings"):
                found = alike
    return min(found, key=lambda one: (one["weights"] != mine["weights"], one["number"]), default=None)


def _is_same(one: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Return whether the claim agrees in what is always equal, but for ports in the command."""
    alike = _without_ports(one.get("process")) == _without_ports(mine["process"])
    return alike and all(one.get(name) == mine[name] for name in SAME if name != "process")


def _without_ports(words: Any) -> Any:
    """Return a process's words without the ports that a launcher draws at each start."""
    if not isinstance(words, list):
        return words
    named = [False, *(bool(PORT_NAME.search(word)) for word in words)]
    return ["#" if port and word.isdigit() else PORT.sub(r"\1#", word) for word, port in zip(words, named)]


def _may_be(one: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Return False if the claim differs in what cannot vary within one training.

    An unfinished training continues with what it had; a result must be that of these very arguments. Even on another
    number of GPUs it must match these variables and function arguments, by which a script that skips what it has
    finished tells its trainings apart; a rate or a batch size may depend on the number of GPUs.
    """
    if one["state"] == FINISHED and _given(one) != _given(mine):
        return False
    if one["gpus"] != mine["gpus"]:
        return True
    asked = ("settings", "arguments") if one["state"] == FINISHED else ("settings",)
    return all(one[name] == mine[name] for name in asked)


def _given(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the process's variables, `$RATE`, and the arguments of functions on its stack, `0 rate`."""
    return {name: value for name, value in one["arguments"].items() if name.startswith("$") or name[:1].isdigit()}


def claim_checkpoints(mine: dict[str, Any]) -> OfTraining:
    """Claim this training's checkpoints, which nobody else gets while this process lives."""
    here = plain.environment()
    root = Path(here.checkpoints)
    with _one_at_a_time:
        ours = _ours.setdefault(root, set())
        if not _at_end:
            _at_end.append(atexit.register(_leave))
            plain.at_end.append(_leave)
        before = 0
        apart = False
        try:
            with _index(root) as known:
                number = _claimed(mine, known, [one for one in known if _is_free(root, one, here)], here)
                command = _without_ports(mine["process"])
                ended = [one for one in known if one["state"] == FINISHED]
                alike = [one for one in ended if _without_ports(one.get("process")) == command]
                own = [one for one in alike if one["number"] in ours or one["generation"] < here.generation]
                before = sum(one.get("steps", 0) for one in own)  # including those that the script skips now
                apart = any(one.get("apart", False) for one in known if one["number"] == number)
        except OSError:  # an unwritable disk keeps nothing, but must not keep a training from running
            number = max(ours, default=0) + 1
        ours.add(number)
    return OfTraining(here, number, before, apart)


def _claimed(
    mine: dict[str, Any], known: list[dict[str, Any]], free: list[dict[str, Any]], here: plain.Environment
) -> int:
    """Return the number of the claim that is now this training's, and record it."""
    older = [one for one in free if "process" not in one]  # from a version that told trainings apart by order
    found = choose(mine, [one for one in free if "process" in one]) or next(iter(older), None)
    if found is None:
        number = max((one["number"] for one in known), default=0) + 1
        unfinished = [one["number"] for one in free if one["state"] == RUNS and one["generation"] < here.generation]
        if unfinished:
            where = ", ".join(str(Path(here.checkpoints, plain.training_name(one))) for one in unfinished)
            plain.warn(
                "reshape: this training begins at its first step: it is none of those that this job has saved and not "
                f"finished, as its script, arguments, place, model or optimizer differ; they stay in {where}"
            )
        found = {"number": number}
        known.append(found)
    elif "process" not in found:
        found["adopted"] = True
    found.update(mine, generation=here.generation, state=RUNS)
    _lock(Path(here.checkpoints), found["number"])
    return int(found["number"])


def _is_free(root: Path, one: Mapping[str, Any], here: plain.Environment) -> bool:
    """Return whether no training of this generation has, or had, this claim. Earlier generations are fenced."""
    if one["number"] in _ours[root]:
        return False
    if one["generation"] < here.generation:
        return True
    held = not _lock(root, one["number"])
    if not held:
        _unlock(root, one["number"])
    return not held and (one["state"] == RUNS or not here.announce)


def move(checkpoints: plain.Checkpoints, describe: Callable[[], dict[str, Any]]) -> None:
    """Turn the job's checkpoints, if no training has claimed them yet, into those of one training.

    This happens once: everything that the script creates from this object shares the claim.
    """
    here = plain.environment()
    if checkpoints.claimed is not None or checkpoints.folder != Path(here.checkpoints) or not here.announce:
        return
    _use(checkpoints, claim_checkpoints(describe()))
    checkpoints.claim = None


def claim_alone(checkpoints: plain.Checkpoints, mine: dict[str, Any], said: bool, looks: bool) -> bool:
    """Turn the checkpoints of a script that saves by itself into those of one training; False if they are only lent.

    The training ends where the script begins another one, or with its process. `said`: whether the script has said that
    it has its own ones. `looks`: what the object is asked for first; one that only saves belongs to the training that
    looked before, as in a script that creates an object for each call. Such a script has one training. Of several
    processes that train together the first one claims. Raises CheckpointError in another one that cannot tell which
    training is its own, and in a script that may continue from what another one has saved, and does not say so.
    """
    here = plain.environment()
    root = Path(here.checkpoints)
    if _follows() or _is_forked_by_torch():
        _refuse_unclear(root, here)
        return True
    alone = _alone.setdefault(root, [])
    last = alone[-1] if alone else None
    if last is not None and not looks:
        _mark(root, {last.number}, RUNS, apart=True)
        last.apart = True
    if last is not None and last.apart:
        _use(checkpoints, last)
        if mine["site"] == last.known_by["site"] and mine != last.known_by:
            plain.warn(
                f"reshape: {mine['process'][0]} makes its checkpoints anew for each look and save, so that all that it "
                "trains has the same ones: if it trains several times, make one plain.Checkpoints for each training"
            )
        return True
    if not said and _is_lent(checkpoints, root, mine, here, looks):
        return False
    if last is not None:  # the script has reached its next training: what it saved before is a result
        _mark(root, {last.number}, FINISHED)
    move(checkpoints, lambda: mine)
    own = checkpoints.claimed
    if own is not None:
        own.known_by = mine
        alone.append(own)
        elsewhere = last is not None and mine["site"][:1] != last.known_by["site"][:1]
        if looks and last is not None and elsewhere and last.has_any() and not own.has_any():
            plain.warn(
                f"reshape: {mine['process'][0]} looks for checkpoints at another place than before and has none there: "
                "to read those that it has saved, use the plain.Checkpoints by which it has saved them"
            )
    return True


def _use(checkpoints: plain.Checkpoints, of: OfTraining) -> None:
    checkpoints.claimed, checkpoints.folder, checkpoints.prefix = of, of.folder, of.prefix


def _is_lent(
    checkpoints: plain.Checkpoints, root: Path, mine: dict[str, Any], here: plain.Environment, looks: bool
) -> bool:
    """Let a script that has saved nothing read what another script of this job has saved, e.g. to evaluate it.

    It may also intend to continue from there, or to begin its own, which nobody can tell. So it may not train: raises
    CheckpointError. False if there is nothing to lend, or the script has trained in this job before.
    """
    try:
        known = _read(root)
    except OSError:  # nothing is there
        return False
    if any("process" not in one for one in known) or choose(mine, known) is not None:
        return False
    script = mine["process"][0]
    # A version that shared one folder may have saved there for this very training, too.
    unclear = any(one.get("adopted", False) and one["process"] != mine["process"] for one in known)
    if not unclear and any(one["process"][0] == script for one in known):
        return False
    known = [one for one in known if OfTraining(here, one["number"]).has_any()]
    if not known:
        return False
    where = ", ".join(str(root / plain.training_name(one["number"])) for one in known)
    by = ", ".join(sorted({" ".join(one["process"]) for one in known}))
    plain.Checkpoints.lent = (
        f"{script} has saved nothing in this job, but {by} has, in {where}: for it to train, say "
        "plain.Checkpoints(..., shared=True) to go on from the first of these, shared=False to begin with its own"
    )
    if not looks or plain.StopFlag.made or len(known) > 1:
        raise plain.CheckpointError(plain.Checkpoints.lent)
    _use(checkpoints, OfTraining(here, known[0]["number"]))
    plain.warn(
        f"reshape: {script} has saved nothing in this job and reads what {by} has saved; "
        "say so by plain.Checkpoints(..., shared=True)"
    )
    return True


def _follows() -> bool:
    """Return whether this process trains with others and is not the first of them."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() > 0)
    if any(os.environ.get(name, "0") not in ("", "0") for name in RANKS):
        return True
    with contextlib.suppress(ValueError, AttributeError):  # TF_CONFIG in another form
        task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task") or {}
        return task.get("type", "chief") != "chief" and str(task.get("index", 0)) != "0"
    return False


def _is_forked_by_torch() -> bool:
    """Return whether a PyTorch script may have forked this process as one of several, not connected yet."""
    started: Any = sys.modules.get("multiprocessing.process")
    if "torch" not in sys.modules or started is None or started.parent_process() is None:
        return False
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is None or not (distributed.is_available() and distributed.is_initialized())


def _refuse_unclear(root: Path, here: plain.Environment) -> None:
    """Raise CheckpointError if this job has several trainings and this process cannot tell which is its own."""
    with contextlib.suppress(OSError):  # nothing is there
        unclear = any(
            one["number"] > 1 or (one["generation"] == here.generation and one["state"] != RUNS) for one in _read(root)
        )
        if _is_forked_by_torch():
            unclear |= any(root.glob(f"g{here.generation}-s*"))
        if unclear:
            raise plain.CheckpointError(
                f"several trainings of this job save in {root}, and this process, which trains with others, cannot "
                "tell which one is its own: let rank 0 alone look for checkpoints and share what it finds"
            )


def process() -> list[str]:
    """Return what tells this process from others of its job: script and arguments."""
    script, *words = sys.argv or [""]
    return [short(word) for word in [Path(script).name, *words, *(_command() if script == "-c" else [])]]


def _command() -> list[str]:
    """Return the code of `python -c`."""
    words = Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    code = words[words.index("-c") + 1] if "-c" in words else ""
    return [] if "multiprocessing" in code else [code]


def _own_variables() -> dict[str, str]:
    """Return the variables that this process was given and the job's first process was not."""
    own = first = _environ("self")
    mark, pid = os.fsencode(f"RESHAPE_ANNOUNCE={os.environ.get('RESHAPE_ANNOUNCE', '')}"), "self"
    with contextlib.suppress(OSError, ValueError):
        while True:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pid = stat.rpartition(")")[2].split()[1]
            above = _environ(pid)
            if mark not in above:
                break
            first = above
    found = dict(os.fsdecode(one).partition("=")[::2] for one in own - first)
    return {name: value for name, value in found.items() if not OF_A_START.fullmatch(name)}


def _environ(pid: str) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


# The index: what is known of each claim in a folder. Byte ranges of one file are locked: 0 for the index, n for claim
# n. These locks end with their process, and are not inherited by a forked one.


@contextlib.contextmanager
def _index(root: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield this folder's claims, locked against changes by others. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    if root not in _files:
        _files[root] = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.lockf(_files[root], fcntl.LOCK_EX, 1, 0)
    try:
        known = _read(root)
        yield known
        new = root / f"{INDEX}.new"
        with new.open("w", encoding="utf-8") as index:
            json.dump(known, index)
            index.flush()
            os.fsync(index.fileno())
        new.replace(root / INDEX)
    finally:
        _unlock(root, 0)


def _read(root: Path) -> list[dict[str, Any]]:
    """Return the index. Without a readable one, trainings are told apart by order."""
    try:
        known: list[dict[str, Any]] = json.loads((root / INDEX).read_text(encoding="utf-8"))
        return known
    except (OSError, ValueError):
        names = [path.name for path in root.iterdir()]
    numbers = [int(name.rpartition("-")[2]) for name in names if plain.TRAINING.fullmatch(name)]
    first = [1] if any(map(plain.NAME.fullmatch, names)) else []
    return [{"number": number, "generation": -1, "state": RUNS} for number in first + sorted(numbers)]


def _lock(root: Path, number: int) -> bool:
    """Lock a claim for the life of this process; return False if another process holds it."""
    try:
        fcntl.lockf(_files[root], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _unlock(root: Path, number: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.lockf(_files[root], fcntl.LOCK_UN, 1, number)


def _mark(root: Path, numbers: set[int], state: str, steps: int = 0, **more: bool) -> None:
    with _one_at_a_time, contextlib.suppress(OSError), _index(root) as known:
        for one in known:
            if one["number"] in numbers and one["state"] != FINISHED:
                one.update(state=state, steps=steps, **more)


def _leave() -> None:
    """Mark claims at exit: unless there was an error, what was trained is over and not resumed in this generation.

    What a script has saved by itself is then its result.
    """
    if not plain.StopFlag.made:
        _tell_of_nothing_read()
    if getattr(sys, "last_type", None) is None and not plain.StopFlag.asked:
        for root, numbers in _ours.items():
            _mark(root, {own.number for own in _alone.get(root, ())}, FINISHED)
            _mark(root, numbers, LEFT)


def _tell_of_nothing_read() -> None:
    """Report at the end of a script that only looked for checkpoints and found none among the job's."""
    for root, alone in _alone.items():
        known = [one["number"] for one in _read(root)] if alone else []
        here = plain.environment()
        with contextlib.suppress(plain.CheckpointError):
            if not any(own.has_any() for own in alone) and any(OfTraining(here, one).has_any() for one in known):
                plain.warn(
                    f"reshape: {' '.join(process())} has found no checkpoint of its own in this job, whose other "
                    "trainings have some; to read those of the first one say plain.Checkpoints(..., shared=True)"
                )


_at_end: list[Any] = []
os.register_at_fork(after_in_child=_ours.clear)
os.register_at_fork(after_in_child=_alone.clear)
