"""The Grafana dashboard and the alert rules name metrics that exist, and these say what happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring"
NAME = re.compile(r"\b(?:reshape|process)_\w+")
SUFFIXES = ("", "_bucket", "_sum", "_count")


def expressions() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]


def declared(text: str) -> set[str]:
    """Names of all samples that a scrape may have, also of those that nothing was observed of yet."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    return {name + suffix for name, kind in kinds.items() for suffix in (SUFFIXES if kind == "histogram" else ("",))}


def test_every_metric_that_dashboard_and_alerts_name_exists() -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 12
    assert named - declared(World().api.metrics().decode()) == set()


def test_every_label_that_they_select_by_exists() -> None:
    known = {
        "state": {*s.JOB_STATES, *s.GPU_STATES}, "reason": {"suspended", "dependencies", "pod", "resources"},
    }  # fmt: skip
    for expression in expressions():
        for label, value in re.findall(r'(\w+)="([^"]*)"', expression):
            assert value in known[label], expression


def test_waits_ends_gaps_and_what_jobs_wait_for_are_counted() -> None:
    world = World.training([1, 2, 4])
    world.submit("two", [2], Behaviour(iterations=20))
    world.submit("later", [1], depends_on=["two"])
    world.submit("held", [4])
    world.tick()
    world.api.suspend("held")
    world.tick()
    text = world.api.metrics().decode()
    assert 'reshape_pending_jobs{reason="suspended"} 1.0' in text
    assert 'reshape_pending_jobs{reason="dependencies"} 1.0' in text
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 200)
    text = world.api.metrics().decode()
    assert 'reshape_job_completion_seconds_count{outcome="completed"} 1.0' in text
    assert "reshape_queue_wait_seconds_count 2.0" in text
    lost = re.search(r"^reshape_lost_gpu_seconds_total (\S+)$", text, re.MULTILINE)
    assert lost is not None and float(lost[1]) > 0
    assert "reshape_gap_prediction_error_ratio_count 0.0" not in text
    assert "process_cpu_seconds_total " in text
