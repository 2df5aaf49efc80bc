"""Trainings of real libraries that were announced and then lost: they resume, or say before a stop that they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.links.shim_link import announced
from tests.frameworks.test_resumed_exactly import Script, run, same_weights

SFT = Script("trl", "trl_sft.py", 30, 3)
JAX = [pytest.param(Script("flax", "jax_loops.py", 20, None, (name,)), id=name) for name in ("flax", "equinox")]


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
def test_states_of_jax_that_hold_functions_resume_exactly(script: Script, tmp_path: Path) -> None:
    undisturbed = run(script, tmp_path / "whole", 1)
    assert undisturbed.status == 0, undisturbed.errors
    first = run(script, tmp_path / "parts", 1, 7)
    assert first.status == 143, first.errors
    second = run(script, tmp_path / "parts", 2)
    assert first.steps + second.steps == undisturbed.steps == list(range(1, 21)), second.errors
    assert second.measured == undisturbed.measured


@pytest.mark.parametrize(("what", "why"), [("unpicklable", "pickle"), ("handler", "handler for SIGTERM of its own")])
def test_what_lightning_cannot_save_or_be_asked_for_is_said_before_a_stop(tmp_path: Path, what: str, why: str) -> None:
    ended = run(Script("lightning", "announced_late.py", 8, None, (what,)), tmp_path, 1, 6)
    assert ended.status == 0, ended.errors
    assert ended.steps == list(range(1, 9)), "a stop all the same does not end it"
    trainer = (tmp_path / "announce").read_text().split()[-1].partition("@")[0]
    hook, withdrawn = announced(tmp_path, int(trainer))
    assert not hook
    assert why in withdrawn
