"""Unchanged scripts of real libraries, stopped at any step and run again, end as they would have without a stop."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import reshape_hooks
from reshape_hooks.locks import violations
from tests.interpreters import python_with

SCRIPTS = Path(__file__).parent / "scripts"
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
WITHIN_S = 600
EVALUATES, AFTER = "evaluates", "after training"


class Script(NamedTuple):
    """`steps` in all; each sample is trained on `epochs` times, if its epochs are whole."""

    module: str
    file: str
    steps: int
    epochs: int | None
    arguments: tuple[str, ...] = ()


HUGGING_FACE = Script("transformers", "hf_trainer.py", 15, 3)
SPLIT = {"max_steps": 12, "val_check_interval": 4, "accumulate_grad_batches": 2}
LIGHTNING = Script("lightning", "lightning_fit.py", 27, 3, (json.dumps({"max_epochs": 3}),))
IN_STEPS = Script("lightning", "lightning_fit.py", 22, None, (json.dumps(SPLIT),))
LOOP = Script("torch", "torch_loop.py", 27, 3)
ALL = [pytest.param(one, id=one.file[:-3] + "-in-steps" * (one.epochs is None)) for one in
       (HUGGING_FACE, LIGHTNING, IN_STEPS, LOOP)]  # fmt: skip


class Run(NamedTuple):
    status: int
    steps: list[int]
    measured: list[str]
    errors: str


def run(
    script: Script, folder: Path, generation: int, stop_at: str | int | None = None,
    number: int = signal.SIGTERM, mtbf: str = "",
) -> Run:  # fmt: skip
    """One generation, on an emulated GPU; asked to stop when it prints a step or a text, and not over before it is.

    `number`: the signal for it. `mtbf`: if it is tiny, it saves after each step without being asked.
    """
    python = python_with(script.module)
    if python is None or (script.module == "torch" and not python_with("transformers")):
        pytest.skip(f"{script.module} is not installed: make test-frameworks")
    folder.mkdir(exist_ok=True)
    given = {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(STARTUP), "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "emulated-0", "RESHAPE_EMULATED_SPEED": '{"1": 0.001}',
        "RESHAPE_GPU_LOCKS": str(folder / "locks"), "RESHAPE_JOB_ID": "unchanged",
        "RESHAPE_GENERATION": str(generation), "RESHAPE_CHECKPOINTS": str(folder / "saved"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_MTBF_S": mtbf,
    }  # fmt: skip
    argv = [python, str(SCRIPTS / script.file), str(folder / "weights.pt"), *script.arguments]
    stdin = subprocess.DEVNULL if stop_at is None else subprocess.PIPE  # which the script reads after it has trained
    steps, measured = [], []
    with (folder / "errors.txt").open("w") as errors, subprocess.Popen(
        argv, cwd=folder, env=given, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"step=(\d+) total=(\d+) .*emulated=yes", line):
                steps.append(int(found[1]))
                assert int(found[2]) >= script.steps
            if line.startswith("measured"):
                measured.append(line)
            if stop_at is not None and ((found and steps[-1] == stop_at) or line.strip() == stop_at):
                process.send_signal(number)
                if stop_at == AFTER:
                    assert process.stdin is not None
                    process.stdin.close()  # which it waits for
                stop_at = None
        status = process.wait(WITHIN_S)
    return Run(status, steps, measured, (folder / "errors.txt").read_text())


def same_weights(script: Script, first: Path, second: Path) -> bool:
    code = (
        "import sys, torch; a, b = map(torch.load, sys.argv[1:]);"
        "print(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a))"
    )
    argv = [str(python_with(script.module)), "-c", code, str(first / "weights.pt"), str(second / "weights.pt")]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "True"


@pytest.mark.parametrize("script", ALL)
def test_reshaped_at_random_steps_and_while_it_evaluates_it_ends_with_the_same_bits(
    script: Script, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1)
    assert undisturbed.status == 0, undisturbed.errors
    assert undisturbed.steps == list(range(1, script.steps + 1))
    drawn = sorted(random.Random(script.file).sample(range(1, script.steps), 2))
    done: list[int] = []
    stops: list[str | int | None] = [drawn[0], EVALUATES, drawn[1], script.steps, AFTER]
    for generation, stop_at in enumerate(stops, start=1):
        if isinstance(stop_at, int) and done and done[-1] >= stop_at:
            continue  # it had gone further before it evaluated
        ended = run(script, parts, generation, stop_at, mtbf="1e-9")
        assert ended.status == (0 if stop_at == AFTER else 143), ended.errors
        done += ended.steps
    assert done == undisturbed.steps, "each step once"
    assert ended.measured == undisturbed.measured
    assert same_weights(script, whole, parts)
    trained = [(folder / "trained.txt").read_text().split() for folder in (whole, parts)]
    assert trained[0] == trained[1], "the same samples in the same order"
    if script.epochs:
        assert Counter(trained[1]) == {str(k): script.epochs for k in range(58)}
    assert (parts / "announce").read_text() == "SIGUSR1 143", "which ends with 0 when it is stopped behind its training"
    assert violations(parts / "locks") == []
    assert len(list((parts / "locks").glob("*.jsonl"))) > 2


@pytest.mark.parametrize("script", ALL)
def test_killed_it_goes_on_from_what_was_saved_without_being_asked(script: Script, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1)
    killed = run(script, parts, 1, 9, signal.SIGKILL, mtbf="1e-9")
    assert killed.status == -signal.SIGKILL
    ended = run(script, parts, 2)
    assert ended.status == 0, ended.errors
    assert 1 < ended.steps[0] <= killed.steps[-1] + 1
    assert ended.steps[-1] == script.steps
    assert ended.measured == undisturbed.measured
    assert same_weights(script, whole, parts)


def test_what_cannot_be_resumed_exactly_is_left_alone_and_says_so(tmp_path: Path) -> None:
    script = Script("transformers", "left_alone.py", 0, None)
    ended = run(script, tmp_path, 1)
    assert ended.status == 0, ended.errors
    assert not (tmp_path / "announce").exists()
    reasons = re.findall(r"reshape: .* keeps its GPUs until it ends, because (.*)", ended.errors)
    words = [
        "a stream",
        "resume_from_checkpoint",
        "handler for SIGTERM",
        "OnExceptionCheckpoint",
        "a DataLoader",
        "handler",
        "Elastic",
    ]
    assert len(reasons) == len(words)
    for reason, word in zip(reasons, words, strict=True):
        assert word in reason
