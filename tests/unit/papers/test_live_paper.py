"""An experiment of the papers as it is scaled down to this machine, and what its events come to; nothing runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_scheduler.decision import Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.settings import FlowCon, Settings, SpeCon
from coordinator.config import from_environment
from coordinator.errors import Rejected
from coordinator.policies import POLICIES
from reshape.client import CoordinatorRefused
from reshape.services.inventory import inventory
from reshape.services.temporary_system import RunFailed
from reshape_hooks import plain
from reshape_papers import report
from reshape_papers.live_paper import all_experiments, core_seconds, grows_only, outcome, scaling, trainings
from reshape_papers.live_paper.runner import LiveSystem, run, train
from reshape_papers.papers.results import LIVE
from reshape_papers.run import compare
from reshape_papers.workloads import build
from simulator.scenario import NoWorkload
from tests.unit.adaptive_scheduler.worlds import cluster, running, waiting

Event = dict[str, Any]

STEP_CPU_S = dict.fromkeys(("VAE(P)", "MNIST(P)", "MNIST(T)"), 0.01)


def event(kind: str, job: str, at: float, **more: Any) -> Event:
    return {"type": kind, "job_id": job, "at": at, **more}


def ended(job: str, came: float, began: float, end: float) -> list[Event]:
    """A job that trained; seconds."""
    return [
        event("submitted", job, came), event("launching", job, began),
        event("started", job, began + 1, stages_s={"launch": 0.25, "first step": 0.5}), event("completed", job, end),
    ]  # fmt: skip


@pytest.mark.parametrize(("folder", "figures"), [("a file", ""), ("a folder", "[]"), ("a folder", "not JSON")])
def test_a_folder_that_cannot_take_the_figures_is_refused_before_anything_trains(
    tmp_path: Path, folder: str, figures: str
) -> None:
    out = tmp_path / "out"
    if folder == "a file":
        out.touch()
    else:
        out.mkdir()
        (out / "live.json").write_text(figures)
    with pytest.raises(Rejected, match="another folder with --out"):
        run(name="elastic-w1", scale=None, runs=1, trainer="numpy", data=None, out=out, output="json")


def test_a_coordinator_that_does_not_answer_ends_a_draw_with_a_sentence_and_not_with_a_fault(tmp_path: Path) -> None:
    """A starved machine had one refuse the profiles: "busy", after which a night had a traceback in its log."""

    def refuse(*_: Any) -> int:
        raise CoordinatorRefused("The coordinator is busy or its store does not answer; try again soon.", 503)

    client: Any = SimpleNamespace(import_profiles=refuse)

    @contextlib.contextmanager
    def busy(*_: Any) -> Iterator[LiveSystem]:
        yield LiveSystem(client, violations=lambda: 0, let_move=lambda job: None)

    with pytest.raises(RunFailed, match="try again soon"):
        train([build("elastic-w1", 0, None)], 0.015, tmp_path, place=busy)


def test_figures_that_another_experiment_leaves_meanwhile_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any) -> dict[str, Any]:
        (tmp_path / LIVE).write_text(json.dumps({"other": {"figures": []}}))
        return {"experiment": "elastic-w1", "runs": 1, "figures": [], "rows": [], "off": []}

    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process is not its own
    monkeypatch.setattr("reshape_papers.live_paper.runner.train", train)
    monkeypatch.setattr(outcome, "kept", lambda result: {"figures": result["figures"]})
    run(name="elastic-w1", scale=None, runs=1, trainer="numpy", data=None, out=tmp_path, output="json")
    assert json.loads((tmp_path / LIVE).read_text()).keys() == {"other", "elastic-w1"}


def test_a_coordinator_reads_the_settings_of_a_contender_with_its_times_scaled() -> None:
    settings = Settings(
        systems=("specon", "flowcon"), allow_noop=False, reserve_after_s=0.0,
        specon=SpeCon(alpha=0.05, interval_s=20.0, accept_move="always"), flowcon=FlowCon(interval_s=60.0),
    )  # fmt: skip
    read = from_environment(Settings, scaling.variables(settings, 0.1))
    assert (read.systems, read.allow_noop, read.reserve_after_s) == (settings.systems, False, 0.0)
    assert (read.specon.interval_s, read.specon.alpha, read.specon.accept_move) == (2.0, 0.05, "always")
    assert (read.flowcon.interval_s, read.flowcon.min_dt_s) == (6.0, 0.5)
    assert from_environment(Settings, scaling.variables(settings, 1.0)) == settings


def test_the_simulated_contenders_of_each_experiment_have_a_live_one() -> None:
    names = {
        name: [c.name for c in scaling.contenders(build(name, 0, None), 0.1)]
        for name in ("elastic-w1", "specon-random-20", "flowcon-fixed", "case-study")
    }
    assert names["elastic-w1"][:2] == ["default", "termination"] and "sidecar" in names["elastic-w1"]
    assert names["specon-random-20"] == ["ds", "specon", "specon-makespan"]
    assert names["flowcon-fixed"] == ["na", "flowcon"]
    assert names["case-study"][:3] == ["default", "termination", "sidecar"]
    ds = scaling.contenders(build("specon-random-20", 0, None), 0.1)[0]
    assert from_environment(Settings, ds.variables).systems == ()


def test_beside_side_car_scheduling_the_planner_runs_live() -> None:
    by_name = {one.name: one for one in scaling.contenders(build("elastic-w1", 0, None), 0.1)}
    assert from_environment(Settings, by_name["planner"].variables).planner == "rollout"
    assert from_environment(Settings, by_name["sidecar"].variables).planner == "paper"
    assert {one.name: one.policy for one in by_name.values()} == {
        "default": "default",
        "termination": "termination",
        "sidecar-printed": "sidecar",
        "sidecar": "sidecar",
        "planner": "planner",
    }


def test_the_live_default_starts_jobs_as_they_came_as_the_simulated_one_does() -> None:
    """With the product's order, short ones first, it had a mean completion time a quarter below the simulated one."""
    workload = build("elastic-w1", 2, None)
    first = next(one for one in scaling.contenders(workload, 0.1) if one.name == "default")
    policy = POLICIES[first.policy]
    settings = dataclasses.replace(from_environment(Settings, first.variables), **policy.settings)
    setup = workload.policy_setups[0]
    fixed = tuple(dataclasses.replace(job, optional=(job.fixed_gpus,)) for job in workload.jobs)
    lived = dataclasses.replace(setup, plan=partial(decide, settings=settings), settings=settings)
    ran = [
        next(compare(one, ["default"], bounded=False)).row["mean_jct_s"]
        for one in (workload, dataclasses.replace(workload, jobs=fixed, policy_setups=(lived,)))
    ]
    assert ran[1] == pytest.approx(ran[0], rel=0.1)


def test_the_live_termination_of_the_evaluation_is_the_papers_and_that_of_the_case_study_shrinks_too() -> None:
    workload = build("elastic-w1", 0, None)
    by_name = {one.name: one for one in scaling.contenders(workload, 0.1)}
    assert (by_name["termination"].program, by_name["sidecar"].program) == (grows_only.__name__, "reshape")
    (shrinks,) = (one for one in scaling.contenders(build("case-study", 0, None), 0.1) if one.name == "termination")
    (installed,) = (one for one in scaling.contenders(workload, 0.1, programs=False) if one.name == "termination")
    assert shrinks.program == installed.program == "reshape"
    assert "shrinks" in shrinks.says and "only grows" in by_name["termination"].says


def test_the_live_termination_lets_a_newcomer_wait_where_the_scheduler_takes_gpus_from_a_job() -> None:
    world = cluster(running("J1", 4), waiting())
    assert [one.victim for one in decide(world, 0.0, Settings()) if isinstance(one, Start)] == ["J1"]
    assert grows_only.decide(world, 0.0, Settings()) == ()


@pytest.mark.parametrize("name", ["deadline-gang", "deadline-binpack"])
def test_what_needs_volcano_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(NoWorkload, match="make bench-cluster"):
        scaling.check(build(name, 0, None))


def test_emulated_cores_are_shares_of_the_real_ones_and_nodes_keep_their_proportions() -> None:
    four = build("specon-random-20", 0, None)
    core = scaling.real_cores(four, 2)
    assert core == pytest.approx(0.45)
    options = scaling.node_options(four, core)
    assert options[::2] == ["--node"] * 4
    assert [node.cores for node in inventory(None, options[1::2])] == [0.45] * 4
    assert scaling.real_cores(build("flowcon-fixed", 0, None), 2) == 1.0
    gpus = scaling.node_options(build("elastic-w1", 0, None), 1.0)
    assert [(n.name, len(n.gpus)) for n in inventory(None, gpus[1::2])] == [("v100", 8), ("p100", 8)]


def test_a_job_on_cpu_is_as_long_as_its_work_on_its_share_of_a_core() -> None:
    workload = build("specon-random-20", 0, None)
    jobs = scaling.live_jobs(workload, 0.1, 0.5, {scaling.kind(job): 0.01 for job in workload.jobs})
    for given, live in zip(workload.jobs, jobs, strict=True):
        assert given.cpu is not None
        alone_s = live.iterations * 0.01 / 0.5
        assert alone_s == pytest.approx(given.cpu.core_s * 0.1, abs=0.02)
        assert (live.arrival_s, live.node) == (given.arrival_s * 0.1, given.node)
    document = jobs[0].document(scaling.Training(("train",)), fixed=False)
    assert (document["optional_num_gpus"], document["node"]) == ([0], workload.jobs[0].node)
    assert document["command"] == ["train", "--iterations", str(jobs[0].iterations)]
    of_epochs = scaling.Training(("train",), "--epochs", 8, "Epoch ")
    in_epochs = dataclasses.replace(jobs[0], iterations=83).document(of_epochs, fixed=False)
    assert (in_epochs["command"], in_epochs["iterations"]) == (["train", "--epochs", "10"], 80)


def test_the_zoo_has_every_model_that_specon_and_flowcon_trained() -> None:
    for name in ("specon-random-50", "flowcon-random-15", "flowcon-random-5"):
        for seed in range(5):
            for job in build(name, seed, None).jobs:
                script, model, *_ = trainings.keras_zoo(scaling.kind(job)).command[1:]
                assert Path(script).is_file() and model in trainings.ZOO.values()


def test_a_job_that_uses_a_part_of_a_core_is_paced_and_its_name_is_one_that_a_job_may_have() -> None:
    workload = build("flowcon-fitted-5", 0, None)
    jobs = scaling.live_jobs(workload, 0.1, 1.0, {scaling.kind(job): 0.01 for job in workload.jobs})
    (idle,) = (job for job in jobs if job.step_s is not None)
    assert (idle.kind, idle.step_s) == ("LSTM-CFC(T)", pytest.approx(0.01 / 0.19))
    named = scaling.live_jobs(
        build("flowcon-fixed", 0, None), 0.1, 1.0, dict.fromkeys(("VAE(P)", "MNIST(P)", "MNIST(T)"), 1)
    )
    assert [job.id for job in named] == ["VAE-P", "MNIST-P", "MNIST-T"]


def test_a_job_on_gpus_takes_its_time_on_each_type_and_count_scaled() -> None:
    workload = build("elastic-w1", 0, None)
    rows = {
        (r["job_type"], r["gpu_type"], r["num_gpus"]): r["seconds_per_iteration"] for r in scaling.speed_rows(workload)
    }
    profiles = workload.policy_setups[0].profiles
    for given, live in zip(workload.jobs, scaling.live_jobs(workload, 0.01, 1.0, {}), strict=True):
        for gpu_type, count in (("V100", 1), ("V100", 8), ("P100", 2)):
            speed = profiles.speed(given.type, gpu_type, count)
            assert speed is not None
            step_s = rows[given.type, gpu_type, count]
            wanted_s = given.iterations * speed.seconds * 0.01
            assert live.iterations * step_s == pytest.approx(wanted_s, abs=0.51 * step_s), "to half an iteration"
        assert live.document(scaling.Training(("t",)), fixed=True)["optional_num_gpus"] == [given.fixed_gpus]
        assert live.document(scaling.Training(("t",)), fixed=False)["optional_num_gpus"] == [1, 2, 4, 8]


def test_measures_come_from_the_events_in_seconds_of_the_paper() -> None:
    workload = build("flowcon-fixed", 0, None)
    jobs = scaling.live_jobs(workload, 0.1, 1.0, STEP_CPU_S)
    events = [*ended("VAE-P", 100, 101, 140), *ended("MNIST-P", 104, 109, 124), *ended("MNIST-T", 108, 108, 118)]
    events += [event("limited", "VAE-P", 110, cores=0.5), event("moved", "VAE-P", 120, gap_s=0.75)]
    found = outcome.row("na", workload, 0.1, jobs, events)
    assert (found["makespan_s"], found["mean_jct_s"]) == (400.0, pytest.approx((400 + 200 + 100) / 3))
    assert (found["limits"], found["moves"], found["pending_at_last_arrival"], found["start_s"]) == (1, 1, 1, 0.75)
    assert found[report.BY_KIND] == {"MNIST(P)": 200.0, "MNIST(T)": 100.0, "VAE(P)": 400.0}
    assert found["overhead_share"] == pytest.approx(0.75 / (38 + 14 + 9))


def test_paper_simulation_and_live_stand_beside_each_other_with_the_spread_over_runs() -> None:
    draws, rows = [], []
    for seed, (na_s, ours_s) in enumerate(((100.0, 80.0), (100.0, 90.0))):
        workload = dataclasses.replace(build("flowcon-random-10", seed, None), seed=seed)
        jct = [{"jct_s": {"a": na_s}, "mean_jct_s": na_s}, {"jct_s": {"a": ours_s}, "mean_jct_s": ours_s}]
        live = outcome.with_gains(
            [
                {"policy": p, "seed": seed, "makespan_s": j["mean_jct_s"], **j}
                for p, j in zip(("na", "flowcon"), jct, strict=True)
            ]
        )
        draws.append((report.summary(workload, live), report.summary(workload, live)))
        rows += live
    found = {(f["policy"], f["measure"]): f for f in outcome.figures(draws)}
    ratio = found["flowcon", "makespan_ratio"]
    assert (ratio["paper"], ratio["live"], ratio["simulated"]) == (0.975, pytest.approx(0.85), pytest.approx(0.85))
    assert (ratio["spread"], ratio["values"]) == (pytest.approx(0.0707, abs=1e-4), pytest.approx([0.8, 0.9]))
    assert found["flowcon", "jobs_faster"]["live"] == 1.0
    result = {
        "experiment": "flowcon-random-10", "scale": 0.1, "jobs": 10, "rows": rows, "figures": list(found.values()),
        "contenders": {"na": "no limits"}, "stands_in": ["emulated: the nodes"],
    }  # fmt: skip
    kept = outcome.kept(result | {"runs": 2})
    assert kept["seeds"] == 2 and {
        "policy": "flowcon", "measure": "makespan_ratio", "against": "na", "ours": 0.85, "spread": 0.07071,
    } in kept["figures"]  # fmt: skip
    text = outcome.as_table(result)
    assert "flowcon makespan_ratio to na 0.975 0.85 0.85 ± 0.0707" in " ".join(text.split())
    assert "emulated: the nodes" in text and "GIVEN" not in text
    given = core_seconds.of_run(core_seconds.CoreSeconds(31.0, 4.0, 250.0, 400.0), 30.0)
    text = outcome.as_table(result | {"rows": [row | given for row in rows], "off": ["Draw 0 says nothing."]})
    assert "30 31 4 250 400" in " ".join(text.split()) and text.endswith("Draw 0 says nothing.")


def test_core_seconds_are_counted_by_who_used_them(tmp_path: Path) -> None:
    """Count this process among the others: what another program uses meanwhile is not the run's."""
    used = "import time\nuntil = time.process_time() + 0.7\nwhile time.process_time() < until: pass\ntime.sleep(1.5)"
    with core_seconds.CoreSecondMeter(tmp_path) as meter:
        trains = subprocess.Popen([sys.executable, "-c", used, str(tmp_path)], env={"RESHAPE_GENERATION": "1"})
        launches = subprocess.Popen([sys.executable, "-c", used], env={"RESHAPE_STATE": str(tmp_path)})
        ours = time.process_time() + 0.7
        while time.process_time() < ours:
            pass
        assert trains.wait() == launches.wait() == 0
    found = meter.found
    assert 0.65 < found.trainings < 1.5 and 0.65 < found.own < 1.5
    assert 0.6 < found.others < found.all - found.trainings - found.own + 0.1


def baseline(took_s: float, others: float, whole: float = 400.0) -> dict[str, Any]:
    return {"policy": "na", "seed": 0, "makespan_s": took_s, "others_core_s": others, "all_core_s": whole}


@pytest.mark.parametrize("took_s", [663.0, 2575.0])
def test_a_baseline_that_takes_much_longer_than_simulated_makes_a_draw_worthless_and_it_is_said_what_to_do(
    took_s: float,
) -> None:
    busy, small = (core_seconds.why_off(baseline(took_s, others), 394.0) for others in (210.0, 12.0))
    assert busy is not None and f"took {took_s:.0f} s, where 394 s are simulated" in busy
    assert busy.endswith("other programs used 210 of 400 core-seconds meanwhile: end them and run it again.")
    assert small is not None and small.endswith("take a larger --scale.")
    assert core_seconds.why_off(baseline(500.0, 210.0), 394.0) is None


def test_figures_of_a_run_whose_baseline_is_off_do_not_come_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LIVE).write_text(json.dumps({"other": {"figures": []}}))
    result = {"experiment": "elastic-w1", "runs": 1, "figures": [], "rows": [], "off": ["Draw 0 says nothing."]}
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process is not its own
    monkeypatch.setattr("reshape_papers.live_paper.runner.train", lambda *_: result)
    given = {"name": "elastic-w1", "scale": None, "runs": 1, "trainer": "numpy", "data": None, "out": tmp_path}
    assert run(**given, output="json") == 1
    assert json.loads((tmp_path / LIVE).read_text()).keys() == {"other"}
    assert json.loads((tmp_path / "elastic-w1.json").read_text())["off"] == ["Draw 0 says nothing."]
    assert "Draw 0 says nothing." in capsys.readouterr().err


def test_a_replayed_training_prints_the_loss_of_its_model_and_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    workload = build("flowcon-random-10", 0, None)
    of_kind, commands = trainings.replayed(workload), set()
    for kind, job in {scaling.kind(job): job for job in workload.jobs}.items():
        training, curve = of_kind(kind), job.cpu.curve if job.cpu else None
        commands.add(training.command)
        assert curve is not None
        folder = tmp_path / str(len(commands))
        folder.mkdir(exist_ok=True)
        variables = os.environ | {"RESHAPE_CHECKPOINTS": str(folder)}
        ended_well = subprocess.run(
            [*training.command, training.option, "20"], cwd=folder, env=variables, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        lines = [line.split() for line in ended_well.stdout.splitlines() if line.startswith(training.mark)]
        losses = [float(word.partition("=")[2]) for words in lines for word in words if word.startswith("loss=")]
        assert losses == pytest.approx([curve((step + 1) / 20) for step in range(20)], rel=0.05, abs=1e-3)
    assert len(commands) > 2, "models differ in their losses"


def test_a_stopped_replay_goes_on_at_the_step_that_it_has_saved(tmp_path: Path) -> None:
    training = trainings.replayed(build("flowcon-fixed", 0, None))("VAE(P)")
    command = [*training.command, training.option, "2000"]
    variables = os.environ | {"RESHAPE_CHECKPOINTS": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = iter(process.stdout)
        fifth = next(line for line in printed if line.startswith("step=5 "))
        process.terminate()
        last = [fifth, *(line for line in printed if line.startswith("step="))][-1]
    assert process.returncode == plain.STOPPED
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = next(line for line in process.stdout if line.startswith("step="))
        process.kill()
    step_of = [int(line.split()[0].partition("=")[2]) for line in (last, first)]
    assert step_of[1] == step_of[0] + 1


def test_a_night_goes_on_after_a_failed_experiment_and_does_not_repeat_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[str]()
    off = {"specon-fixed": ["Draw 0 says nothing."]}

    def experiment(name: str, scale: float, runs: int, trainer: str, data: Path | None) -> dict[str, Any]:
        asked.append(name)
        if name == "elastic-w1":
            raise KeyError("a fault of ours")
        kept = {"experiment": name, "scale": scale, "runs": runs, "trainer": trainer}
        return {**kept, "off": off.pop(name, []), "figures": [], "rows": []}

    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process is not its own
    monkeypatch.setattr("reshape_papers.live_paper.runner.experiment", experiment)
    names = ("specon-fixed", "elastic-w1", "flowcon-fixed")
    given = {"scale": None, "trainer": "replay", "data": None, "out": tmp_path, "output": "json", "names": names}

    def night(runs: int) -> tuple[int, list[tuple[str, str]], list[str]]:
        asked.clear()
        status = all_experiments.run(**given, runs=runs)
        said = json.loads(capsys.readouterr().out)
        return status, [(one["outcome"], one["why"]) for one in said], list(asked)

    fault = ("failed", "KeyError: 'a fault of ours'")
    assert night(3) == (1, [("refused", "Draw 0 says nothing."), fault, ("done", "")], list(names))
    assert night(3) == (1, [("done", ""), fault, ("done before", "")], list(names[:2]))
    assert night(5)[2] == list(names), "of three draws five are not known"
    monkeypatch.setattr("reshape_papers.live_paper.runner.experiment", lambda *_: pytest.fail("all is done"))
    given["names"] = names[::2]
    assert night(5) == (0, [("done before", "")] * 2, [])
