"""Trainings of real libraries that were announced and then lost: they resume, or say before a stop that they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.links.shim_link import announced
from tests.depth import deep
from tests.frameworks.test_resumed_exactly import Script, run, same_weights

SFT = Script("trl", "trl_sft.py", 30, 3, itself=True)
LOOPS = Script("flax", "jax_loops.py", 20, None, itself=True)
JAX = [
    pytest.param(LOOPS._replace(arguments=("flax",)), id="flax"),
    *(deep(LOOPS._replace(arguments=(name,)), name=name) for name in ("equinox", "nnx")),
    deep(Script("jax", "jax_variables.py", 20, None, itself=True), name="variables"),
]


@pytest.mark.deep
def test_a_trainer_of_trl_that_writes_beside_its_checkpoints_resumes_exactly(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(SFT, whole, 1)
    assert undisturbed.status == 0, undisturbed.errors
    first = run(SFT, parts, 1, 13)
    assert first.status == 143, first.errors
    second = run(SFT, parts, 2)
    assert first.steps + second.steps == undisturbed.steps == list(range(1, 31)), second.errors
    assert second.measured == undisturbed.measured
    assert same_weights(SFT, whole, parts)


@pytest.mark.parametrize("script", JAX)
def test_states_of_jax_that_hold_functions_and_keys_of_the_loop_resume_exactly(script: Script, tmp_path: Path) -> None:
    undisturbed = run(script, tmp_path / "whole", 1)
    assert undisturbed.status == 0, undisturbed.errors
    first = run(script, tmp_path / "parts", 1, 7)
    assert first.status == 143, first.errors
    second = run(script, tmp_path / "parts", 2)
    assert first.steps + second.steps == undisturbed.steps == list(range(1, 21)), second.errors
    assert second.measured == undisturbed.measured


@pytest.mark.deep
def test_processes_that_a_script_spawns_stop_after_one_step_and_only_one_of_them_speaks(tmp_path: Path) -> None:
    script = Script("torch", "torch_spawn.py", 12, None, itself=True)
    undisturbed = run(script, tmp_path / "whole", 1)
    assert undisturbed.status == 0, undisturbed.errors
    assert undisturbed.steps == list(range(1, 13))
    assert undisturbed.errors.count("a batch of 7 does not divide by 2 processes: each takes 4") == 1
    first = run(script, tmp_path / "parts", 1, 5)
    assert first.status, "the parent says that its processes have ended with 143"
    second = run(script, tmp_path / "parts", 2)
    assert (first.steps, second.steps) == (list(range(1, 6)), list(range(6, 13))), second.errors
    assert second.measured == undisturbed.measured
    lines = (tmp_path / "whole" / "announce").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == ["SIGUSR1 143", "ended"]


@pytest.mark.parametrize(
    ("what", "why"), [("unpicklable", "pickle"), deep("handler", "handler for SIGTERM of its own")]
)
def test_what_lightning_cannot_save_or_be_asked_for_is_said_before_a_stop(tmp_path: Path, what: str, why: str) -> None:
    ended = run(Script("lightning", "announced_late.py", 8, None, (what,), itself=True), tmp_path, 1, 6)
    assert ended.status == 0, ended.errors
    assert ended.steps == list(range(1, 9)), "a stop all the same does not end it"
    trainer = (tmp_path / "announce").read_text().split()[-1].partition("@")[0]
    hook, withdrawn = announced(tmp_path, int(trainer))
    assert not hook
    assert why in withdrawn
