"""Jobs that move between the nodes of a real cluster: a converged one, one as a node runs idle, and onto more GPUs.

The one that converges is a model of the zoo in PyTorch; beside it are trainings whose loss falls evenly by a formula.
The newcomer comes up while the job trains on; then it saves, stops and goes on there. Steps and the time between two of
them are read from what the trainings printed, on the claim that both nodes see; pods from the API server. The scene is
played once, several tests look at it.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import steps_job, training_images
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_network import NODES
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed, answered
from tests.cluster.plays import ENDLESS, Moved, check_moved, cross_host, in_order

Doc = dict[str, Any]
STEP = re.compile(r"^step=(\d+) .*\btime=([0-9.]+)", re.MULTILINE)
SAVED = re.compile(r"^checkpoint=g(\d+)-s(\d+) ", re.MULTILINE)
ZOO = ["python", "torch_zoo.py", "gru", "--samples", "256", "--batch-size", "256", "--epochs", str(ENDLESS)]
SCRIPTS = {"keras": "keras_digits.py", "torch": "torch_digits.py"}
MOVES_S = 90.0  # within which a move is decided and made
CONVERGES_S = 240.0  # some hundred epochs


@dataclass(frozen=True)
class Journey:
    """One move of a job, seen from outside."""

    before: Doc  # the job as it was shown
    after: Doc
    pods: tuple[Object, Object]
    event: Doc
    why: str  # as explained

    @property
    def nodes(self) -> tuple[str, str]:
        return self.pods[0]["spec"]["nodeName"], self.pods[1]["spec"]["nodeName"]


def curve(*options: str, until_file: str = "") -> list[str]:
    """A training on CPU whose loss is a known curve; it waits out its steps and computes nothing."""
    ends = ["--until", f"/gpu-locks/{until_file}"] if until_file else []
    return ["python3", "/steps/curve.py", "--steps", str(ENDLESS), "--seconds", "0.1", "--calm", *options, *ends]


class Scene:
    """Jobs on CPU, inserted one after the other; those that `complete` may end without being cancelled."""

    def __init__(self, installed: Installed) -> None:
        self.on, self.made = installed, list[str]()
        self.file = f"end-{uuid.uuid4().hex[:6]}"

    def insert(self, name: str, *options: str, ends: bool = False, **more: Any) -> str:
        asked = {"job_type": "curve", "command": curve(*options, until_file=self.file if ends else ""), **more}
        job = self.on.insert(name, ENDLESS, [0], checkpoint_claim=steps_job.CLAIM, **asked)
        self.made.append(job)
        self.on.until(job, "running")
        return job

    def complete(self, *jobs: str) -> None:
        (self.on.shared / "gpu-locks" / self.file).touch()
        for job in jobs:
            self.on.until(job, "completed")

    def moved(self, job: str, moves: int, before: Doc, pod: Object) -> Journey:
        """Once it has moved so often, and nothing is left of it where it was."""
        answered(f"job {job} has moved", lambda: self.on.job(job)["moves"] == moves, MOVES_S)
        after = self.on.until(job, "running")
        until("its old pod is gone", lambda: len(self.on.pods(job)) == 1)
        told = [event for event in self.on.events(job, "moved", moves) if event["type"] == "moved"]
        why = next(text for text in self.on.explained(job) if f"[{told[-1]['decision_id']}]" in text)
        return Journey(before, after, (pod, self.on.pod(job)), told[-1], why)

    def close(self) -> None:
        print(self.on.words("coordinator"), self.on.words("launcher"))
        self.on.end(*self.made)
        (self.on.shared / "gpu-locks" / self.file).unlink(missing_ok=True)


@dataclass(frozen=True)
class Play:
    job: str
    speculative: Journey
    rebalanced: Journey
    steps: list[tuple[int, float]]
    begun: list[int]  # the step after which it went on, of each move
    kinds: list[str]  # of all events of the job


@pytest.fixture(scope="module")
def play(installed: Installed) -> Play:
    """Two that progress beside a GRU: converged, it moves to where one trains; then both end, and it moves back."""
    installed.bed.provide(training_images.archive("torch"))
    scene = Scene(installed)
    # With a core asked for, its prediction hangs on who trains beside it. Without, it may have the whole node once they
    # end, and as it is the last one to end, only the size of the nodes counts.
    asked = {"image": training_images.name_of("torch"), "resources": {"cores": 1.0}}
    try:
        job = scene.insert("gru", job_type="gru", command=ZOO, **asked)
        before, pod = installed.job(job), installed.pod(job)
        here, there = before["node"], next(node for node in NODES if node != before["node"])
        scene.insert("mate", node=there)
        beside = [scene.insert(name, ends=True, node=here) for name in ("one", "two")]
        answered("it has converged", lambda: installed.job(job)["category"] == "CC", CONVERGES_S)
        speculative = scene.moved(job, 1, installed.job(job) | {"node": here}, pod)
        before = installed.job(job)
        pod = installed.pod(job)
        scene.complete(*beside)
        rebalanced = scene.moved(job, 2, before, pod)
        steps = [(int(n), float(at)) for n, at in STEP.findall(installed.told(job))]
        saved = {int(launch): int(step) for launch, step in SAVED.findall(installed.told(job))}
        begun = [step for _, step in sorted(saved.items())[:2]]
        kinds = [event["type"] for event in installed.events(job, "moved", 2)]
        return Play(job, speculative, rebalanced, steps, begun, kinds)
    finally:
        scene.close()


def downtimes(play: Play) -> list[float]:
    """Between the last step of a launch and the first one of the next."""
    at = dict(play.steps)
    return [at[after + 1] - at[after] for after in play.begun]


def test_a_converged_job_moves_to_a_node_where_it_disturbs_less(play: Play, report: Report) -> None:
    moved = play.speculative
    with report.scenario("a converged job moves to another node") as figures:
        steps = [number for number, _ in play.steps]
        figures |= {"downtime_s": downtimes(play)[0], "newcomer_ready_s": moved.event["stages_s"]["newcomer ready"]}
        figures |= {"resumes_after_step": play.begun[0], "steps_monotonic": in_order(steps)}
        figures |= {"category_before": moved.before["category"], "category_after": moved.after["category"]}
        assert moved.nodes == (moved.before["node"], moved.after["node"])
        assert len(set(moved.nodes)) == 2
        assert in_order(steps), "no step was lost or done again"
        assert (moved.before["category"], moved.after["category"]) == ("CC", "CC")
        first = [kind for kind in play.kinds if kind in ("launching", "stop sent", "removing", "start sent")][2:]
        assert first[:4] == ["launching", "stop sent", "removing", "start sent"], "its pod came up while it trained on"
        assert "has converged and moves from" in moved.why


def test_a_job_that_had_moved_goes_to_a_node_that_has_run_idle_as_others_completed(play: Play, report: Report) -> None:
    moved = play.rebalanced
    with report.scenario("rebalance after a completion") as figures:
        figures |= {"downtime_s": downtimes(play)[1], "steps_monotonic": in_order([n for n, _ in play.steps])}
        figures |= {"category": moved.after["category"]}
        assert moved.nodes == play.speculative.nodes[::-1]
        assert moved.after["category"] == "CC"
        assert "which has too few" in moved.why


@pytest.fixture(scope="module")
def grown(installed: Installed) -> dict[str, Moved]:
    """A training of each framework, grown onto the other node; played once for both."""
    images = {kind: training_images.name_of(kind) for kind in SCRIPTS}
    for kind in SCRIPTS:
        installed.bed.provide(training_images.archive(kind))
    scripts = {kind: ["python", script, "--iterations", str(ENDLESS)] for kind, script in SCRIPTS.items()}
    return cross_host(installed, {kind: {"image": images[kind], "command": scripts[kind]} for kind in SCRIPTS})


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_training_of_each_framework_grows_onto_another_node(
    grown: dict[str, Moved], installed: Installed, report: Report, kind: str
) -> None:
    with report.scenario(f"growth onto another node ({kind})") as figures:
        figures |= grown[kind].figures
        check_moved(installed, grown[kind])
