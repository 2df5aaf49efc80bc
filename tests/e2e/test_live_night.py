"""The experiments of one night, `reshape paper all --live`: real trainings of experiments that are cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reshape_papers.live_paper import all_experiments, core_seconds, runner
from tests.e2e.test_live_paper import two_jobs
from tests.e2e.up import ROOT, WITHIN_S, of_folder, wait_for
from tests.patience import patient

SCALE = 0.004
NAMES = ("flowcon-random-15", "no-experiment", "flowcon-random-10")
NIGHT = f"""\
import sys
from pathlib import Path
from reshape_papers.live_paper import all_experiments, core_seconds, runner
from tests.e2e import test_live_night, test_live_paper
core_seconds.FARTHEST = 1e9  # starts weigh as much as the trainings here
runner.draw = lambda name, seed, data: test_live_paper.two_jobs(name)
sys.exit(all_experiments.run(
    scale={SCALE}, runs=1, trainer="replay", data=None, out=Path("out"), output="json", names=sys.argv[1:],
))
"""


def night(names: tuple[str, ...], out: Path, output: str = "json") -> int:
    return all_experiments.run(scale=SCALE, runs=1, trainer="replay", data=None, out=out, output=output, names=names)


def outcomes(said: str) -> dict[str, str]:
    found: list[dict[str, Any]] = json.loads(said[said.index("[\n") :])
    return {one["experiment"]: one["outcome"] for one in found}


@pytest.fixture
def cut_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cut experiments to two jobs, and leave the signals of this process alone."""
    monkeypatch.setattr(runner, "draw", lambda name, seed, data: two_jobs(name))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.deep
@pytest.mark.usefixtures("cut_short")
def test_a_failed_experiment_does_not_end_the_others_and_what_is_done_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core_seconds, "FARTHEST", 1e9)
    out = tmp_path / "out"
    assert night(NAMES, out, "table") == 1
    told = capsys.readouterr().out
    assert "flowcon-random-15 live: 2 jobs" in told and "flowcon-random-10 live: 2 jobs" in told
    assert "no-experiment: there is no workload 'no-experiment'" in told
    assert told.rstrip().endswith(all_experiments.AGAIN)
    assert json.loads((out / "live.json").read_text()).keys() == {"flowcon-random-15", "flowcon-random-10"}
    trained = (out / "flowcon-random-15.json").stat().st_mtime_ns
    (out / "flowcon-random-10.json").write_text('{"experiment": "flowcon')  # its writing was interrupted
    assert night(NAMES, out) == 1
    found = outcomes(capsys.readouterr().out)
    assert found == {"flowcon-random-15": "done before", "no-experiment": "failed", "flowcon-random-10": "done"}
    assert (out / "flowcon-random-15.json").stat().st_mtime_ns == trained
    assert night((NAMES[0], NAMES[2]), out) == 0
    assert of_folder(tmp_path) == {}, "all that it started has ended"


@pytest.mark.deep
@pytest.mark.usefixtures("cut_short")
def test_an_experiment_whose_baseline_is_off_is_refused_with_the_reason_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core_seconds, "FARTHEST", 0.0)
    for _ in range(2):
        assert night(("flowcon-random-15",), tmp_path / "out", "table") == 1
        told = capsys.readouterr().out
        assert "flowcon-random-15  refused" in told and "flowcon-random-15: Draw 0 says nothing of the policies" in told
    assert not (tmp_path / "out" / "live.json").exists()


@pytest.mark.deep
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on_where_it_was(tmp_path: Path) -> None:
    names = ("flowcon-random-15", "flowcon-random-10", "specon-random-20")
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", NIGHT]
    process = subprocess.Popen(
        [*command, *names], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        logs = "reshape-live-*/*/state/jobs/job-*/output.log"
        first = tmp_path / "out" / f"{names[0]}.json"
        wait_for(
            lambda: first.is_file() and list(tmp_path.glob(logs)), 4 * WITHIN_S, what="the second experiment trains"
        )
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=patient(WITHIN_S))
    finally:
        process.terminate()  # ends its jobs, too
    expected = dict(zip(names, ("done", "interrupted", "not begun"), strict=True))
    assert outcomes(said) == expected
    assert of_folder(tmp_path) == {}
    again = subprocess.run(
        [*command, *names[:2]], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert outcomes(again.stdout) == {names[0]: "done before", names[1]: "done"}, again.stderr
    assert again.returncode == 0
