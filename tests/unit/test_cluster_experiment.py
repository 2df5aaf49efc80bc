"""`make bench-cluster EXPERIMENT=…`, as far as it needs no cluster: its policies, job documents and refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_scheduler.settings import Settings
from benchmarks.cluster_experiment import __main__ as on_cluster
from coordinator.model.document_validation import validate
from coordinator.policies import POLICIES
from reshape.services.coordinator import settings_from
from reshape_papers.live_paper import scaling, trainings
from reshape_papers.workloads import build


def test_coordinators_of_a_cluster_act_as_reshape_up_does_with_each_policy() -> None:
    for contender in scaling.contenders(build("elastic-w1", 0, None), on_cluster.SCALE):
        config, settings = settings_from(on_cluster.variables(contender))
        of_config, of_settings = POLICIES[contender.policy]
        assert {name: getattr(config, name) for name in of_config} == of_config
        assert {name: getattr(settings, name) for name in of_settings} == of_settings
        if contender.name == "sidecar":
            assert settings.cooldown_factor == Settings().cooldown_factor, "the test bed's own is 0"


def test_a_job_is_the_training_of_the_live_run_in_a_pod(tmp_path: Path) -> None:
    workload = build("elastic-w1", 0, None)
    on: Any = SimpleNamespace(shared=tmp_path)
    place = on_cluster.Pods(on)
    for job in scaling.live_jobs(workload, on_cluster.SCALE, 1.0, {}):
        doc = place.document(job.document(trainings.paced_digits(job.kind), fixed=False))
        assert not validate("jobs", {"_id": job.id, **doc}).invalid_fields
        words = ["python", "numpy_digits.py", "--save-every", "0", "--iterations", str(job.iterations)]
        assert doc["command"] == words
        assert doc["checkpoint_claim"], "the termination baseline resumes in another pod"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["specon-random-20"], "reshape paper specon-random-20 --live"),
        (["deadline-gang"], "make bench-cluster"),
        (["elastic-w1", "--only", "best"], "default, termination, sidecar-printed, sidecar"),
        (["nonsense"], "elastic-w1"),
    ],
)
def test_what_cannot_run_in_pods_is_refused_before_a_test_bed_is_brought_up(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_cluster, "BUILD", tmp_path)
    assert on_cluster.main(words) == 1
    assert says in capsys.readouterr().err
