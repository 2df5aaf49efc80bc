"""Unchanged scripts of real libraries, stopped at any step and run again, end as they would have without a stop."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import reshape_hooks
from reshape_hooks import plain
from reshape_hooks.locks import violations
from tests.depth import deep
from tests.interpreters import python_with

SCRIPTS = Path(__file__).parent / "scripts"
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
WITHIN_S = 600
ROUNDING = 1e-5  # of sums over other numbers of GPUs, in weights below 1
EVALUATES, AFTER = "evaluates", "after training"


class Script(NamedTuple):
    """`steps` in all; each sample is trained on `epochs` times, if its epochs are whole.

    `itself`: the script, not the test, asks for a stop at the step that the variable STOP_AT names. Under torchrun it
    has a process for each GPU.
    """

    module: str
    file: str
    steps: int
    epochs: int | None
    arguments: tuple[str, ...] = ()
    itself: bool = False
    torchrun: bool = False


HUGGING_FACE = Script("transformers", "hf_trainer.py", 15, 3)
SPLIT = {"max_steps": 12, "val_check_interval": 4, "accumulate_grad_batches": 2}
LIGHTNING = Script("lightning", "lightning_fit.py", 27, 3, (json.dumps({"max_epochs": 3}),))
LATE = LIGHTNING._replace(file="lightning_late_stop.py", itself=True)
IN_STEPS = Script("lightning", "lightning_fit.py", 22, None, (json.dumps(SPLIT),))
LOOP = Script("torch", "torch_loop.py", 27, 3)
ACCUMULATION = Script("torch", "torch_accumulation.py", 27, 3)
ACCELERATE = Script("accelerate", "accelerate_loop.py", 27, 3)
DDP = Script("torch", "torch_ddp.py", 24, 3, itself=True, torchrun=True)
ALL = (HUGGING_FACE, LIGHTNING, IN_STEPS, LOOP, ACCUMULATION, ACCELERATE)
BESIDE_THE_FIRST = (IN_STEPS, ACCUMULATION, ACCELERATE)  # they do what the others do
BESIDE_THE_LOOP = (HUGGING_FACE, LIGHTNING, *BESIDE_THE_FIRST)


def named(scripts: Iterable[Script], deep_ones: Container[Script]) -> list[Any]:
    """Return rows of one script each, with short names."""
    rows = []
    for script in scripts:
        name = script.file[:-3] + "-in-steps" * (script.epochs is None)
        rows.append(deep(script, name=name) if script in deep_ones else pytest.param(script, id=name))
    return rows


class Run(NamedTuple):
    status: int
    steps: list[int]
    measured: list[str]
    errors: str


def run(
    script: Script, folder: Path, generation: int, stop_at: str | int | None = None,
    number: int = signal.SIGTERM, mtbf: str = "", gpus: int = 1, memory: str = "", loader: str = "{}",
) -> Run:  # fmt: skip
    """One generation, on emulated GPUs; asked to stop when it prints a step or a text, and not over before it is.

    `number`: the signal for it. `mtbf`: if it is tiny, it saves after each step without being asked. `memory`: a folder
    there, in which it may save. `loader`: JSON of more arguments for its DataLoader.
    """
    python = python_with(script.module)
    if python is None or (script.module == "torch" and not python_with("transformers")):
        pytest.skip(f"{script.module} is not installed: make test-frameworks")
    folder.mkdir(exist_ok=True)
    given = {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(STARTUP), "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(f"emulated-{n}" for n in range(gpus)),
        "RESHAPE_EMULATED_SPEED": json.dumps({gpus: 0.001}),
        "RESHAPE_GPU_LOCKS": str(folder / "locks"), "RESHAPE_JOB_ID": "unchanged",
        "RESHAPE_GENERATION": str(generation), "RESHAPE_CHECKPOINTS": str(folder / "saved"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_MTBF_S": mtbf, "STOP_AT": str(stop_at),
        "RESHAPE_MEMORY": memory, "LOADER": loader,
    }  # fmt: skip
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)] * script.torchrun
    argv = [python, *torchrun, str(SCRIPTS / script.file), str(folder / "weights.pt"), *script.arguments]
    stop_at = None if script.itself else stop_at
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


def same_weights(script: Script, first: Path, second: Path, within: float = 0.0) -> bool:
    code = (
        "import sys, torch; a, b = map(torch.load, sys.argv[2:]);"
        "print(a.keys() == b.keys() and all(torch.allclose(a[k], b[k], 0, float(sys.argv[1])) for k in a))"
    )
    files = [str(folder / "weights.pt") for folder in (first, second)]
    argv = [str(python_with(script.module)), "-c", code, str(within), *files]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "True"


@pytest.mark.parametrize("script", named(ALL, (LOOP, *BESIDE_THE_FIRST)))
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
    assert (parts / "announce").read_text().startswith("SIGUSR1 143 "), (
        "which ends with 0 when it is stopped behind its training"
    )
    assert violations(parts / "locks") == []
    assert len(list((parts / "locks").glob("*.jsonl"))) > 2


@pytest.mark.parametrize(
    "loader",
    [
        deep({"num_workers": 1}, name="one"),
        pytest.param({"num_workers": 2, "persistent_workers": True}, id="two-that-stay"),
    ],
)
@pytest.mark.parametrize("script", named((one for one in ALL if one != IN_STEPS), BESIDE_THE_LOOP))
def test_with_workers_each_sample_comes_once_in_each_epoch(
    script: Script, loader: dict[str, object], tmp_path: Path
) -> None:
    whole, parts, given = tmp_path / "whole", tmp_path / "parts", json.dumps(loader)
    undisturbed = run(script, whole, 1, loader=given)
    assert undisturbed.status == 0, undisturbed.errors
    assert script.epochs
    of_epoch = script.steps // script.epochs
    done: list[int] = []
    for generation, stop_at in enumerate((2, of_epoch + 4, None), 1):  # in the first epoch, and in a later one
        if stop_at is not None and done and done[-1] >= stop_at:
            continue  # it may stop later than it was asked to
        ended = run(script, parts, generation, stop_at, loader=given)
        assert ended.status == (143 if stop_at else 0), ended.errors
        done += ended.steps
    assert done == undisturbed.steps, "each step once"
    trained = [(folder / "trained.txt").read_text().split() for folder in (whole, parts)]
    assert trained[0] == trained[1], "the same samples in the same order"
    assert Counter(trained[1]) == {str(k): script.epochs for k in range(58)}
    assert ended.measured == undisturbed.measured
    assert same_weights(script, whole, parts)


@pytest.mark.deep
def test_lightning_asked_to_stop_while_it_is_looked_at_whether_to_save_stops_a_batch_later(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(LIGHTNING, whole, 1)
    first = run(LATE, parts, 1, 5, mtbf="0")
    assert (first.status, first.steps) == (143, [1, 2, 3, 4, 5, 6]), first.errors
    second = run(LATE, parts, 2, LATE.steps + 1)  # by the same script, which asks for no stop
    assert first.steps + second.steps == undisturbed.steps
    assert second.measured == undisturbed.measured
    assert same_weights(LIGHTNING, whole, parts)


@pytest.mark.parametrize("script", named((HUGGING_FACE, LIGHTNING, LOOP, ACCELERATE), BESIDE_THE_LOOP))
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


@pytest.mark.parametrize("script", named((HUGGING_FACE, LIGHTNING), (LIGHTNING,)))
def test_it_saves_in_memory_first_where_that_is_offered_and_goes_on_from_there(script: Script, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        first = run(script, parts, 1, 5, memory=memory)  # nothing is offered: to the disk
        Path(memory, plain.ROOM).write_text(str(1 << 30))
        second = run(script, parts, 2, 9, memory=memory)
        assert (first.status, second.status) == (143, 143), second.errors
        (copy,) = [path for path in Path(memory).iterdir() if path.is_dir()]
        assert copy.name == f"g2-s{second.steps[-1]}" and not (parts / "saved" / copy.name).exists()
        third = run(script, parts, 3, memory=memory)
    assert third.status == 0, third.errors
    assert first.steps + second.steps + third.steps == undisturbed.steps
    assert third.measured == undisturbed.measured
    assert same_weights(script, whole, parts)


@pytest.mark.parametrize("workers", [deep(0), 1], ids="{}-workers".format)
def test_several_processes_stop_after_one_step_and_go_on_in_more_or_fewer(workers: int, tmp_path: Path) -> None:
    script, loader = DDP, json.dumps({"num_workers": workers})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1, gpus=2, loader=loader)
    assert undisturbed.status == 0, undisturbed.errors
    assert undisturbed.steps == list(range(1, script.steps + 1)), "one of them reports"
    done: list[int] = []
    for generation, (gpus, stop_at) in enumerate(((2, 5), (1, 13), (2, None)), start=1):
        ended = run(script, parts, generation, stop_at, gpus=gpus, loader=loader)
        assert ended.status == (143 if stop_at else 0), ended.errors
        done += ended.steps
        assert done[-1] == (stop_at or script.steps)
    assert done == undisturbed.steps, "each step once"
    assert ended.measured == undisturbed.measured
    assert same_weights(script, whole, parts, ROUNDING)
    trained = [sorted((folder / "trained.txt").read_text().split()) for folder in (whole, parts)]
    assert trained[0] == trained[1], "each sample once in each epoch"
    trained = [sorted((folder / "trained.txt").read_text().split()) for folder in (whole, parts)]
    assert trained[0] == trained[1], "each sample once in each epoch"
    trained = [Counter((folder / "trained.txt").read_text().split()) for folder in (whole, parts)]
    assert trained[1] == trained[0] == {str(k): script.epochs for k in range(64)}
    assert violations(parts / "locks") == []


def test_a_batch_that_follows_the_number_of_processes_goes_on_at_the_same_sample(tmp_path: Path) -> None:
    """Each process has 4 samples: after 5 steps of two, 40 of 64 are trained, and one process has 6 steps left."""
    script = DDP._replace(arguments=("4",))
    first = run(script, tmp_path, 1, 5, gpus=2)
    assert first.status == 143, first.errors
    second = run(script, tmp_path, 2, gpus=1)
    assert second.status == 0, second.errors
    assert "a batch had 8 samples in all and has 4 on this number of GPUs" in second.errors
    trained = Counter((tmp_path / "trained.txt").read_text().split())
    assert trained == {str(k): script.epochs for k in range(64)}, "each sample once in each epoch"


def on_gpus(rows: int, kind: str, steps: int, torchrun: bool, **given: object) -> Script:
    return Script("transformers", "hf_many_gpus.py", steps, 3, (json.dumps([rows, kind, given]),), True, torchrun)


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        pytest.param(on_gpus(61, "mean", 24, False), (4, 2, 1, 4), id="data-parallel-fewer"),
        deep(on_gpus(61, "sum", 48, False, gradient_accumulation_steps=2), (1, 4, 2, 1), name="data-parallel-more"),
        deep(on_gpus(30, "neither", 45, False), (1, 4), name="data-parallel-whole"),
        deep(on_gpus(61, "mean", 48, True), (2, 1, 2), name="processes-fewer"),
        deep(on_gpus(61, "sum", 48, True, gradient_accumulation_steps=2), (1, 2, 1), name="processes-more"),
        deep(on_gpus(61, "sum", 30, True, dataloader_drop_last=True), (3, 2, 4), name="processes-uneven"),
    ],
)
def test_a_hugging_face_trainer_takes_the_same_steps_on_other_numbers_of_gpus(
    script: Script, gpus: tuple[int, ...], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1, gpus=gpus[0])
    assert undisturbed.status == 0, undisturbed.errors
    assert undisturbed.steps == list(range(1, script.steps + 1)), "one of them reports"
    drawn = sorted(random.Random(str((script, gpus))).sample(range(1, script.steps), len(gpus) - 1))
    done: list[int] = []
    for generation, (now, stop_at) in enumerate(zip(gpus, [*drawn, None], strict=True), start=1):
        ended = run(script, parts, generation, stop_at, gpus=now)
        assert ended.status == (143 if stop_at else 0), ended.errors
        done += ended.steps
        assert done[-1] == (stop_at or script.steps)
    assert done == undisturbed.steps, "each step once"
    assert ended.measured == undisturbed.measured, "the same learning rates"
    assert same_weights(script, whole, parts, ROUNDING), "and losses"
    trained = [Counter((folder / "trained.txt").read_text().split()) for folder in (whole, parts)]
    again = trained[1] - trained[0]
    assert not trained[0] - trained[1], "the same samples"
    # What two processes do not share is taken by both, each for a half: in each generation with more of them three
    # batches of 2, until it is known what kind of loss it is, and the one sample that is left of each of 3 epochs.
    more = script.torchrun and sum(now > gpus[0] for now in gpus)
    assert again.total() <= 3 * 2 * more + 3 * (script.torchrun and gpus[0] == 1)
    assert ("goes no faster on more GPUs" in ended.errors) == ("neither" in script.arguments[0])
    assert violations(parts / "locks") == []


@pytest.mark.deep  # ten trainings of each kind
@pytest.mark.parametrize(("kind", "rows"), [("mean", 61), ("sum", 61), ("neither", 61)])
def test_a_loss_of_any_kind_gives_the_same_weights_wherever_it_is_stopped(kind: str, rows: int, tmp_path: Path) -> None:
    script = on_gpus(rows, kind, 93, False)
    whole = tmp_path / "whole"
    undisturbed = run(script, whole, 1, gpus=1)
    assert undisturbed.status == 0, undisturbed.errors
    for draw in range(3):
        parts = tmp_path / f"parts-{draw}"
        stops = sorted(random.Random(f"{kind} {draw}").sample(range(1, script.steps), 2))
        for generation, (gpus, stop_at) in enumerate(zip((1, 4, 2), [*stops, None], strict=True), start=1):
            ended = run(script, parts, generation, stop_at, gpus=gpus)
            assert ended.status == (143 if stop_at else 0), ended.errors
        assert ended.measured == undisturbed.measured
        assert same_weights(script, whole, parts, 1e-6), stops


@pytest.mark.deep
def test_a_hugging_face_trainer_of_gpus_that_are_not_alike_is_left_alone(tmp_path: Path) -> None:
    ended = run(on_gpus(16, "norm", 0, False), tmp_path, 1, gpus=2)
    assert ended.status == 0, ended.errors
    assert not (tmp_path / "announce").exists()
    assert "keeps its GPUs until it ends, because each GPU keeps statistics" in ended.errors


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
        "split among several GPUs",
        "generated for several steps",
        "ignore_data_skip",
        "fast_dev_run",
        "several DataLoaders",
        "OnExceptionCheckpoint",
        "LearningRateFinder searches again",
        "ModelPruning",
        "a DataLoader",
        "ckpt_path",
        "handler",
        "Elastic",
    ]
    assert len(reasons) == len(words)
    for reason, word in zip(reasons, words, strict=True):
        assert word in reason


def test_a_hugging_face_trainer_whose_gpus_or_processes_do_not_share_as_it_does_is_left_alone(tmp_path: Path) -> None:
    python = python_with("transformers")
    if python is None:
        pytest.skip("transformers is not installed: make test-frameworks")
    given = {"PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "saved"), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [python, str(SCRIPTS / "hf_refused.py")], cwd=tmp_path, env=os.environ | given, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stdout.splitlines() if line.startswith(("taken", "because"))]
    words = [
        "taken",
        "BatchNorm",
        "outputs of all GPUs together",
        "outputs of all GPUs together",
        "average_tokens_across_devices",
        "(FSDP, DeepSpeed)",
        "(FSDP, DeepSpeed)",
        "searches for hyperparameters",
        "taken",
        "taken",
        "in several pods",
        "own DataLoader",
        "accelerator_config",
    ]
    assert len(said) == len(words), said
    for line, word in zip(said, words, strict=True):
        assert word in line


def test_what_a_stop_changes_in_a_loop_is_no_more_than_is_said(tmp_path: Path) -> None:
    script = Script("torch", "torch_changed.py", 8, None, itself=True)
    first = run(script, tmp_path, 1, "evaluation 0")
    second = run(script, tmp_path, 2, "step 6")
    third = run(script, tmp_path, 3)
    assert [one.status for one in (first, second, third)] == [143, 143, 0], third.errors
    assert [first.steps, second.steps, third.steps] == [[1, 2, 3, 4], [5, 6], [7, 8]]
    trained = (tmp_path / "trained.txt").read_text().split()
    assert sorted(trained[:16], key=int) == sorted(trained[16:], key=int) == [str(k) for k in range(16)]
    assert first.measured == ["measured evaluation 0\n"]
    assert second.measured == ["measured evaluation 0\n"], "what follows an epoch runs again"
    assert third.measured == ["measured evaluation 1\n", "measured 8 8 8.0 8.0\n"], "large tensors and parameters go on"


def test_elastic_refuses_data_without_an_order_and_processes_that_have_not_met(tmp_path: Path) -> None:
    python = python_with("torch")
    if python is None or not python_with("transformers"):
        pytest.skip("torch is not installed: make test-frameworks")
    given = {"PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(tmp_path / "saved"), "CUDA_VISIBLE_DEVICES": ""}
    argv = [python, str(SCRIPTS / "torch_refused.py")]
    ended = subprocess.run(argv, cwd=tmp_path, env=os.environ | given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    words = ["its processes have not met yet", "its data are a stream", "its data come from a tqdm"]
    said = [line for line in ended.stdout.splitlines() if line.startswith("Elastic cannot make")]
    assert len(said) == len(words), said
    for line, word in zip(said, words, strict=True):
        assert word in line
