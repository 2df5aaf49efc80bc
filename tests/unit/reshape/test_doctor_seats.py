"""What `doctor` says of what keeps the GPUs of pods apart, and of the way that this cluster's nodes need."""

from __future__ import annotations

from typing import Any

from reshape.doctor_seats import GPU, GPU_LABEL, SEAT, judge_seats

AGENTS = {"spec": {"template": {"spec": {"containers": [{"env": [{"name": "RESHAPE_SEATS"}]}]}}}}
FILES = {"RESHAPE_SEATS": "files"}
CDI = {"RESHAPE_SEATS": "cdi"}


def node(name: str, version: str = "2.1.0", **allocatable: str) -> dict[str, Any]:
    info = {"containerRuntimeVersion": f"containerd://{version}"}
    has = {{"gpu": GPU, "seat": SEAT}[key]: count for key, count in allocatable.items()}
    return {"metadata": {"name": name}, "status": {"allocatable": has, "nodeInfo": info}}


GOOD = node("a", gpu="4", seat="256")


def said(settings: dict[str, str], *nodes: dict[str, Any], agents: Any = AGENTS, classes: Any = ()) -> dict[str, str]:
    found = list(judge_seats(agents, settings, nodes, [{"metadata": {"name": name}} for name in classes]))
    return dict(found)


def test_without_seats_it_says_that_pods_open_every_gpu() -> None:
    (level, sentence) = next(iter(said({}, GOOD).items()))
    assert level == "warning"
    assert sentence.startswith("Pods of modes shared and pool can open all GPUs of their node")


def test_jobs_that_ask_for_seats_which_nobody_offers_are_told() -> None:
    assert "so no job with GPUs starts" in said(FILES, GOOD, agents={})["missing"]


def test_nodes_of_the_gpu_operator_count_also_without_a_device_plugin() -> None:
    labelled = node("dark") | {"metadata": {"name": "dark", "labels": {GPU_LABEL: "true"}}}
    assert said(FILES, GOOD, labelled)["missing"].startswith("Nodes dark have GPUs and offer no seats")


def test_nodes_that_offer_none_are_named() -> None:
    found = said(FILES, GOOD, node("b", gpu="8"), node("cpu"))
    assert found["missing"].startswith("Nodes b have GPUs and offer no seats")
    assert found["well"] == "Nodes whose kernel lets pods open their own GPUs only: 1 (seats by files)."
    assert said(FILES, node("cpu"))["missing"].startswith("No node offers seats")


def test_a_runtime_that_ignores_cdi_is_named() -> None:
    old = node("old", "1.6.20", gpu="4", seat="256")
    assert "ignores CDI devices" in said(CDI, GOOD, old)["missing"]
    assert "enable_cdi = true" in said(CDI, node("b", "1.7.2", gpu="4", seat="256"))["unknown"]
    assert said(FILES, old).keys() == said(CDI, GOOD).keys() == {"well"}


def test_a_runtime_class_is_asked_for_where_nvidias_runtime_is_not_the_default() -> None:
    assert "RESHAPE_RUNTIME_CLASS=nvidia" in said(FILES, GOOD, classes=["nvidia"])["warning"]
    assert said({**FILES, "RESHAPE_RUNTIME_CLASS": "nvidia"}, GOOD, classes=["nvidia"]).keys() == {"well"}
    assert said(CDI, GOOD, classes=["nvidia"]).keys() == {"well"}
