"""Turns a command into a job document as the user's shell or notebook would run it: program, folder and variables.

Used by `reshape submit` and `Client.submit`, so that a job trains as if started by hand. Promises to take only
variables of an allow list, none that looks like a secret, and to refuse what would not be found.
"""

from __future__ import annotations

import difflib
import operator
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast


class NotRunnable(ValueError):
    """Raised if a command cannot be run as it is written; the sentence says what to write instead."""


NAMES = frozenset(
    {
        "PATH",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "PYTHONHASHSEED",
        "LD_LIBRARY_PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "TZ",
        "LANG",
        "LANGUAGE",
        "TORCH_HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "CUDA_HOME",
        "CUDA_PATH",
        "XLA_FLAGS",
    }
)
PREFIXES = ("CONDA_", "LC_", "HF_", "KERAS_", "OMP_", "MKL_", "TFDS_")
# The rules of `coordinator.model.text_rules`, which is not there where the client is installed alone.
UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]|\{\{|\{%|\{#")
LONGEST_TEXT = 32_768  # characters
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
PYTHONS = ("python", "python3")
INTERPRETER = re.compile(r"(?P<python>python[\d.]*)|(?:ba|da|z|k)?sh")


class _Options(NamedTuple):
    """Options of an interpreter: those whose value may be a word of its own, and letters that stand for a script."""

    with_value: frozenset[str]
    instead: frozenset[str]


PYTHON_OPTIONS = _Options(frozenset({"-W", "-X", "--check-hash-based-pycs"}), frozenset("cm"))
SHELL_OPTIONS = _Options(frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}), frozenset("cs"))
FOR_A_SHELL = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!\n]|^\s*\w+=")
SCRIPT = re.compile(r"(.*)\.(?:py|sh|bash|ipynb)")
FIELDS = {  # of a job document, by the option of `reshape submit` that sets them
    "name": "job_id",
    "code": "code",
    "elastic": "elastic",
    "freeze": "freeze",
    "deadline": "sla",
    "time_limit": "time_limit",
    "queue": "queue",
    "priority": "priority",
    "weight": "weight",
    "preemption": "preemption",
    "hold": "hold",
    "notify": "notify",
    "gpu_type": "gpu_type",
    "node": "node",
    "after": "depends_on",
    "env": "env",
    "job_type": "job_type",
    "iterations": "iterations",
}
GIVEN_OTHERWISE = {  # what `Client.submit` has another place for; a field of the document would be set twice
    "gpu": "write gpus=2 or gpus=[1, 2]",
    "num_gpus": "write gpus=2",
    "optional_num_gpus": "write gpus=[1, 2]",
    "cpu": "write gpus=0 for a job on CPU",
    "command": "give the words first, such as submit(['python', 'train.py'])",
    "wait": "call wait() of the job that it returns",
    "follow": "call follow() of the job that it returns",
}
NOT_SENT = (
    "The coordinator was named by its URL, so your folder and variables were not sent: on a cluster "
    "the image has its own."
)


NOTIFY_ME = "RESHAPE_NOTIFY_ME"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a training finds programs, packages and caches; others may hold secrets."""
    wanted = {name for name in environ if name in NAMES or name.startswith(PREFIXES)}
    known = {name: environ[name] for name in sorted(wanted) if re.fullmatch(r"\w+", name, re.ASCII)}
    return {name: value for name, value in known.items() if not SECRET.search(name) and is_sent(value)}


def is_sent(value: str) -> bool:
    """Return whether a job document may hold the value of a variable."""
    return len(value) <= LONGEST_TEXT and UNFIT.search(value) is None


def program(word: str, folder: Path, environ: Mapping[str, str]) -> str:
    """The file that a shell in `folder` would run for `word`; NotRunnable says what to write instead."""
    if "/" in word:
        return _by_path(word, folder)
    if found := shutil.which(word, path=environ.get("PATH", os.defpath)):
        return found
    if re.search(r"[\s;|&<>$]", word):
        raise NotRunnable(f"{word!r} is not a program; for the syntax of a shell, write sh -c '…'.")
    if (folder / word).is_file():
        raise NotRunnable(f"{word} is not on PATH; for the file in {folder} write ./{word}{_or_python(word)}.")
    raise NotRunnable(f"There is no program {word} on PATH: look how it is written, or activate its environment.")


def _by_path(word: str, folder: Path) -> str:
    path = folder / word
    if not path.exists():
        where = "" if Path(word).is_absolute() else f" in {folder}"
        raise NotRunnable(f"There is no file {word}{where}.")
    if path.is_dir() or not os.access(path, os.X_OK):
        kind = "a folder" if path.is_dir() else "not executable"
        mend = "" if path.is_dir() else f": chmod +x {word}{_or_python(word)}"
        raise NotRunnable(f"{word} is {kind}{mend}.")
    return str(path)


def _or_python(word: str) -> str:
    return f", or python {word}" if word.endswith(".py") else ""


def script(command: Sequence[str], folder: Path) -> None:
    """Raise NotRunnable if the script that a Python or a shell is to run is not there."""
    path = _script_of(command)
    if path is None or (folder / path).exists():
        return
    raise NotRunnable(f"There is no file {path} in {folder}.{_alike(path, folder)}")


def names_its_folder(doc: Mapping[str, Any]) -> None:
    """Raise NotRunnable if a job document of this machine runs a script by a relative path and names no folder."""
    words = doc.get("command")
    is_command = isinstance(words, list | tuple) and bool(words) and all(isinstance(word, str) for word in words)
    if not is_command or doc.get("code") is not None or doc.get("image") is not None:
        return
    path = _script_of(cast(Sequence[str], words))
    if path is not None and not Path(path).is_absolute():
        raise NotRunnable(
            f'The job document does not say in which folder {path} is: add "code": "." for this one, '
            f'or call submit("{path}", gpus=1).'
        )


def _script_of(command: Sequence[str]) -> str | None:
    """Return the path of the script among the words of a command; None if it names none or is no interpreter."""
    interpreter = INTERPRETER.fullmatch(Path(command[0]).name)
    if interpreter is None:
        return None
    options = PYTHON_OPTIONS if interpreter["python"] else SHELL_OPTIONS
    words = iter(command[1:])
    for word in words:
        if word == "-" or word == "--":
            return None  # standard input, or a form that is rare enough
        if not word.startswith(("-", "+")):
            return word
        if word in options.with_value:
            next(words, None)
        elif not word.startswith("--") and word[:2] not in options.with_value and set(word[1:]) & options.instead:
            return None
    return None


def _alike(path: str, folder: Path) -> str:
    """Ask whether the file beside it with the most similar name was meant; empty if there is none."""
    wanted = folder / path
    try:
        beside = [entry.name for entry in wanted.parent.iterdir() if entry.suffix == wanted.suffix]
    except OSError:
        return ""
    names = difflib.get_close_matches(wanted.name, beside, 1)
    return f" Did you mean {Path(path).with_name(names[0])}?" if names else ""


def words_of(command: str | os.PathLike[str] | Sequence[object], python: str = sys.executable) -> list[str]:
    """Return the words that run a command given in Python: a script, a text for `sh`, or words as they are.

    A Python without a folder becomes `python`, by default the one that asks: a notebook's is seldom first on PATH. A
    text that only runs a Python or its script needs no shell. Raises `NotRunnable` for nothing, `TypeError` for others.
    """
    if isinstance(command, os.PathLike):
        path = os.fspath(command)
        words = [path if os.sep in path else f"./{path}"]  # a file, never a program on PATH
    elif isinstance(command, str):
        words = _plain_words(command)
        if len(words) != 1 and not (words and _runs_python(words[0])):
            words = ["sh", "-c", command] if command.strip() else []
    elif isinstance(command, Sequence) and not isinstance(command, bytes | bytearray):
        words = [str(word) for word in command]
    else:
        raise TypeError(
            f"{command!r} is not a job: give a script such as 'train.py', the words of a command, or a job document."
        )
    if not words or not words[0].strip():
        raise NotRunnable("The command is empty: give a script such as 'train.py', or the words of a command.")
    if words[0] in PYTHONS:
        return [python, *words[1:]]
    as_script = words[0].endswith(".py") and isinstance(command, str | os.PathLike)
    return [python, *words] if as_script else words


def _plain_words(text: str) -> list[str]:
    """Return the words of a text in which a shell would find nothing but words and quotes; else none."""
    if FOR_A_SHELL.search(text):
        return []
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return []


def _runs_python(word: str) -> bool:
    return word in PYTHONS or word.endswith(".py")


def further_words(more: Sequence[object] | Mapping[str, object]) -> list[str]:
    """Return the words that one job of a sweep has behind the others: of a dictionary `--name value` for each item."""
    if isinstance(more, Mapping):
        return [word for name, value in more.items() for word in _option_words(str(name), value)]
    if isinstance(more, Sequence) and not isinstance(more, str | bytes | bytearray):
        return [str(word) for word in more]
    raise TypeError(
        f"{more!r} does not say what to append to the command: give each job a dictionary such as {{'lr': 0.1}}, or a "
        "list of words such as ['--lr', 0.1]."
    )


def _option_words(name: str, value: object) -> list[str]:
    if value is None or isinstance(value, bool | Mapping | list | tuple | set):
        raise TypeError(f"{name}={value!r} can be written in several ways: give a list of words, such as ['--{name}'].")
    return [name if name.startswith("-") else f"--{name}", str(value)]


def gpu_counts(gpus: int | Sequence[int] | None) -> list[int]:
    """Return the GPU counts that a job can run on, ascending; of None 1. Raises `NotRunnable`."""
    given = [1] if gpus is None else list(gpus) if isinstance(gpus, Iterable) else [gpus]
    try:
        found = sorted({operator.index(count) for count in given})
    except TypeError:
        found = []
    if not found or found[0] < 0 or any(isinstance(count, bool) for count in given):
        raise NotRunnable(
            f"{gpus!r} is not a GPU count: write gpus=2, or those that the job can run on: gpus=[1, 2, 4]."
        )
    return found


def keyword_meant(fields: Iterable[str], problems: Sequence[str]) -> str:
    """Ask whether a keyword of `Client.submit` was meant by a field that the coordinator does not know; else empty.

    The coordinator itself suggests fields of a document.
    """
    keywords = ("gpus", "name", "code", "env", "dry_run", *FIELDS)
    unknown = [field for field in fields if any(p.startswith(f"there is no field {field!r};") for p in problems)]
    close = [name for field in unknown for name in difflib.get_close_matches(field, keywords, 1)]
    return f"Did you mean {close[0]}=…?" if close else ""


def webhook_named(doc: Mapping[str, Any], problems: Sequence[str]) -> str:
    """Say where a webhook that is refused was named, if not with the job; else empty."""
    if not doc.get("notify") or doc["notify"] != os.environ.get(NOTIFY_ME):
        return ""
    refused = any("notify must be" in problem or "leave notify out" in problem for problem in problems)
    return f"It is the one in the variable {NOTIFY_ME}: change it, or unset it." if refused else ""


def variables_as_texts(env: Mapping[str, object] | None) -> dict[str, str] | None:
    """Return variables as texts; None without any."""
    if env is not None and not isinstance(env, Mapping):
        raise TypeError(f"env is a dictionary of variables, such as {{'LEARNING_RATE': 0.1}}, not {env!r}.")
    for name, value in (env or {}).items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise TypeError(f"The variable {name} is {value!r}: write it as a text.")
    return {name: str(value) for name, value in env.items()} if env else None


def document(words: Sequence[str], allowed: Sequence[int], given: Mapping[str, Any], here: bool) -> dict[str, Any]:
    """Return the job document of a command that can run on each of the `allowed` GPU counts.

    `given`: values by the options of `reshape submit`, see FIELDS. `here`: the job runs on this machine, so its folder,
    program and variables are looked up; raises `NotRunnable`. `notify` is what the user has set for all own jobs.
    """
    doc = {field: given[option] for option, field in FIELDS.items() if option in given}
    doc |= {"command": list(words), "optional_num_gpus": list(allowed)}
    if webhook := os.environ.get(NOTIFY_ME):
        doc.setdefault("notify", webhook)
    if here:
        doc |= in_folder(words, Path(given.get("code", ".")), given.get("env", {}))
    return doc


def fits_some_node(nodes: Iterable[Mapping[str, Any]], allowed: Sequence[int], option: str) -> None:
    """Raise NotRunnable if each node has fewer GPUs; one machine gets no others, so the job would wait for ever.

    `option` is what the user writes before a GPU count.
    """
    fewest = min(allowed)
    most = max([int(node["gpus"]) for node in nodes], default=0)
    if most and fewest > most:
        raise NotRunnable(
            f"No node has {gpus_in_words([fewest])}; the largest has {most}: write {option}{most} or less."
        )


def gpus_in_words(allowed: Sequence[int]) -> str:
    """Return such as `1, 2 or 4 GPUs`."""
    if list(allowed) == [0]:
        return "on CPU only"
    *first, last = map(str, allowed)
    return f"{', '.join(first)}{' or ' if first else ''}{last} GPU{'s' * (allowed[-1] != 1)}"


def in_folder(command: Sequence[str], folder: Path, extra: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a job document by which `command` runs in `folder` as here; `extra` variables come first.

    Raises `NotRunnable`.
    """
    where = folder.expanduser().absolute().resolve()
    if not where.is_dir():
        raise NotRunnable(f"There is no folder {where}.")
    program(command[0], where, os.environ)
    script(command, where)
    return {"command": list(command), "code": str(where), "env": {**variables(os.environ), **extra}}


def in_words(word: str, path: str, environ: Mapping[str, str]) -> str:
    """Describe the program: a Python by its environment, anything else by its path."""
    for variable, kind in (("VIRTUAL_ENV", "virtual"), ("CONDA_PREFIX", "conda")):
        home = environ.get(variable)
        if home and Path(path).is_relative_to(home) and Path(path).name.startswith("python"):
            return f"{word} of the {kind} environment {home}"
    return path


def name(command: Sequence[str]) -> str:
    """Return a job name after the script, the module, or else the program."""
    scripts = [match[1] for word in command if (match := SCRIPT.fullmatch(Path(word).name))]
    modules = [after.rpartition(".")[2] for word, after in pairwise(command) if word == "-m"]
    found = next(iter([*scripts, *modules]), Path(command[0]).name)
    return re.sub(r"[^A-Za-z0-9]+", "-", found).strip("-")[:40] or "job"
