"""The Grafana dashboard and the alert rules name metrics that exist, and these say what happened."""

from __future__ import annotations

import json
import re
import subprocess
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from coordinator.model import states as s
from launcher.cluster import metrics as launcher_metrics
from launcher.cluster.metrics import LauncherMetrics
from reshape.services.coordinator import StandbyServices
from sidecar.endpoints.metrics import render
from sidecar.protocol import Progress
from sidecar.resources.usage import UsageMeter
from sidecar.service import Sample, Sidecar
from sidecar.startup.log_format import JsonLines
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.test_tidy import ROOT
from tests.unit.test_manifests import objects, pods

FOLDER = "manifests/monitoring"
MONITORING = ROOT / FOLDER
NAME = re.compile(r"\b(?:reshape|process)_\w+")
SUFFIXES = ("", "_bucket", "_sum", "_count")
LABELS = {
    "state": {*s.JOB_STATES, *s.GPU_STATES, *launcher_metrics.STATES},
    "reason": {"held", "suspended", "dependencies", "image", "pod", "resources"},
    "namespace": {"reshape-system"},
    "outcome": {"done", "failed", "cancelled", "injected", "unchanged", "refused", "unknown"},
}


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]
    return found


def expressions() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules()]


def kinds(text: str) -> dict[str, str]:
    every: list[tuple[str, str]] = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    return {name: kind for name, kind in every if not name.endswith("_created")}  # the library adds these itself


def declared(text: str) -> set[str]:
    """Names of all samples that a scrape may have, also of those that nothing was observed of yet."""
    every = kinds(text).items()
    return {name + suffix for name, kind in every for suffix in (SUFFIXES if kind == "histogram" else ("",))}


def of_the_launcher() -> str:
    return LauncherMetrics(lambda: True, lambda: 0).text().decode()


def of_a_sidecar() -> str:
    reader = SimpleNamespace(progress=Progress())
    sidecar = SimpleNamespace(reader=reader, sample=Sample(0.0), sent=1, failed=0, meter=UsageMeter())
    return render(cast(Sidecar, sidecar)).decode()


EVERY = {
    "coordinator": World().api.status.metrics().decode(), "launcher": of_the_launcher(), "sidecar": of_a_sidecar(),
}  # fmt: skip


def test_every_metric_that_dashboard_and_alerts_name_exists() -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(named) > 15
    assert named - set.union(*map(declared, EVERY.values())) == set()


def test_every_process_tells_of_itself() -> None:
    for text in [*EVERY.values(), StandbyServices().status.metrics().decode()]:
        assert "process_cpu_seconds_total " in text and "process_resident_memory_bytes " in text


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY.keys())
def test_names_follow_the_conventions_of_prometheus(text: str) -> None:
    """A counter says `_total`, nothing else does; a time is in seconds; no job is a label."""
    for name, kind in kinds(text).items():
        assert (kind == "counter") == name.endswith("_total") or name.startswith("process_"), name
        assert not re.search(r"_(ms|millis|percent|minutes|mb|mib)\b", name)
    assert not re.search(r"\{[^}]*\bjob(_id)?=", text)


def test_every_label_that_they_select_by_exists() -> None:
    for expression in expressions():
        for label, value in re.findall(r'(\w+)="([^"]*)"', expression):
            assert value in LABELS[label], expression


def test_the_rules_are_read_by_a_prometheus_without_the_operator_too() -> None:
    (command,) = re.findall(r"^#   (sed .*) > ", (MONITORING / "alerts.yaml").read_text(), re.MULTILINE)
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout) == {"groups": [{"name": "volcano-reshape", "rules": rules()}]}


def test_each_monitor_names_a_port_that_its_pods_or_its_service_have() -> None:
    ports = {
        str(port["name"]) for _, spec in pods("manifests") for c in spec["containers"] for port in c.get("ports", [])
    }
    services = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["ports"][0]["name"]
        for each in objects("manifests") if each["kind"] == "Service" and "component" in str(each["metadata"]["labels"])
    }  # fmt: skip
    seen = set[str]()
    for each in objects(FOLDER):
        seen.add(each["kind"])
        spec = each.get("spec", {})
        if each["kind"] == "ServiceMonitor":
            component = spec["selector"]["matchLabels"]["app.kubernetes.io/component"]
            assert [end["port"] for end in spec["endpoints"]] == [services[component]]
        elif each["kind"] == "PodMonitor":
            assert {end["port"] for end in spec["podMetricsEndpoints"]} <= ports | {"reshape"}
    assert seen == {"ServiceMonitor", "PodMonitor", "PrometheusRule", "NetworkPolicy", "ConfigMap"}


@pytest.mark.parametrize("folder", ["manifests", "manifests/overlays/mongodb-external"])
def test_a_cluster_without_the_operator_is_asked_for_nothing_of_it(folder: str) -> None:
    assert not [each for each in objects(folder) if "monitoring.coreos.com" in each["apiVersion"]]


def test_waits_ends_gaps_and_what_jobs_wait_for_are_counted() -> None:
    world = World.training([1, 2, 4])
    world.submit("two", [2], Behaviour(iterations=20))
    world.submit("later", [1], depends_on=["two"])
    world.submit("held", [4])
    world.tick()
    world.api.operator.suspend("held")
    world.tick()
    text = world.api.status.metrics().decode()
    assert 'reshape_pending_jobs{reason="suspended"} 1.0' in text
    assert 'reshape_pending_jobs{reason="dependencies"} 1.0' in text
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 200)
    text = world.api.status.metrics().decode()
    assert 'reshape_job_completion_seconds_count{outcome="completed"} 1.0' in text
    assert "reshape_queue_wait_seconds_count 2.0" in text
    lost = re.search(r"^reshape_lost_gpu_seconds_total (\S+)$", text, re.MULTILINE)
    assert lost is not None and float(lost[1]) > 0
    assert "reshape_gap_prediction_error_ratio_count 0.0" not in text


def test_a_reshape_that_is_given_up_is_counted_apart_from_one_that_was_done() -> None:
    world = World.training([1, 2, 4])
    world.submit("two", [2], Behaviour(unfit="there is no such program"))
    world.run(lambda w: w.states()["two"] == s.FAILED, 200)
    world.submit("three", [2], Behaviour(iterations=200))
    world.run(lambda w: w.states()["three"] == s.RUNNING, 200)
    text = world.api.status.metrics().decode()
    assert 'reshape_reshapes_total{direction="down",outcome="undone"} 1.0' in text
    assert 'reshape_reshapes_total{direction="down",outcome="done"} 1.0' in text


def test_a_log_names_job_generation_and_decision_of_each_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World.training([1, 2, 4])
    world.submit("two", [2])
    world.run(lambda w: w.states()["two"] == s.RUNNING, 200)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    (done,) = [line for line in lines if line.get("event") == "reshaped"]
    assert (done["job"], done["generation"]) == ("one", 2)
    assert world.store.get("decisions", done["decision"]) is not None
    assert {line["job"] for line in lines if "step" in line} == {"one", "two"}


def test_a_launcher_counts_its_launches_by_state_and_none_while_it_stands_by() -> None:
    acts = [True]
    metrics = LauncherMetrics(lambda: acts[0], lambda: 2)
    asked: Any = {"wanted": "launch", "failure": None}
    metrics.launches([asked, {**asked, "applied": True}, {**asked, "failure": "no image"}, {"wanted": "remove"}])
    metrics.playbook("launch", "done", 2.5)
    metrics.admission("injected", 0.02)
    text = metrics.text().decode()
    for state in launcher_metrics.STATES:
        assert f'reshape_launches{{state="{state}"}} 1.0' in text
    assert 'reshape_playbook_seconds_sum{outcome="done",verb="launch"} 2.5' in text
    assert 'reshape_admission_seconds_count{outcome="injected"} 1.0' in text
    assert "reshape_watches_out_of_step 2.0" in text
    assert "process_resident_memory_bytes " in text
    acts[0] = False
    text = metrics.text().decode()
    assert "reshape_launches{" not in text and "reshape_launcher_acts 0.0" in text
