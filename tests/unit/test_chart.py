"""The Helm chart's own files agree with each other and with the code.

What it renders: tests/cluster/test_helm_chart.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from launcher.cluster.controllers.volcano_job import MODES
from reshape import __version__
from reshape.doctor import OLDEST_KUBERNETES
from sidecar.resources.agent import EMULATED
from tests.test_tidy import ROOT

CHART = ROOT / "manifests"

Doc = dict[str, Any]


def schema() -> Doc:
    return dict(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))


def values() -> Doc:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def names_of_values(found: Doc, above: str = "") -> Iterator[str]:
    for name, value in found.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from names_of_values(value, f"{above}{name}.")


def names_of_schema(found: Doc, above: str = "") -> Iterator[str]:
    for name, value in found.get("properties", {}).items():
        yield f"{above}{name}"
        if name != "resources":
            yield from names_of_schema(value, f"{above}{name}.")


def test_each_value_has_its_schema_and_each_schema_its_default() -> None:
    given = set(names_of_schema(schema()))
    inner = {"global", *(f"certificate.issuerRef.{name}" for name in ("name", "kind", "group"))}  # no default of ours
    assert given - inner == set(names_of_values(values()))


def test_the_schema_knows_the_words_that_the_code_knows() -> None:
    found = schema()["properties"]
    modes = tuple(found["queues"]["items"]["properties"]["devices"]["enum"])
    assert modes == MODES, "name the new mode in values.schema.json, and in the comment of `queues` in values.yaml"
    assert (
        found["emulatedGPUs"]["additionalProperties"]["pattern"]
        == "^" + EMULATED.pattern.replace("(", "").replace(")", "") + "$"
    )


def test_chart_kustomization_and_code_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (image,) = yaml.safe_load((CHART / "base" / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert {chart["version"], chart["appVersion"], image["newTag"]} == {__version__}
    assert values()["image"]["repository"] == image["newName"]
    assert chart["kubeVersion"] == ">={}.{}.0-0".format(*OLDEST_KUBERNETES)


def test_the_page_shows_each_value_with_its_meaning() -> None:
    page = (ROOT / "docs" / "reference" / "helm-values.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert [row for row in rows if len(row.split(" | ")[2]) < 20] == []
