"""The page of the Helm chart's values, from the comments of manifests/values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from reference_pages.markdown import table

HEAD = """\
# Values of the Helm chart
What `helm install --set NAME=VALUE` and `--values FILE` can change. Written by `make reference` from `manifests/values.yaml`: change
it there. How it is installed: [kubernetes.md](../kubernetes.md). A value that is not here, or makes no sense, is refused with its name.

"""
AFTER = """\

A file for a cluster with a registry and a MongoDB of its own, whose GPU nodes have a taint `team`:

```yaml title="values.yaml"
image: {registry: registry.example.com/ml, tag: 0.1.0}
imagePullSecrets: [{name: registry}]
priorityClassName: system-cluster-critical
store: {type: external}   # the Secret reshape-store is there, with the key `uri`
agent:
  runtimeClassName: nvidia
  tolerations: [{key: team, operator: Exists}]   # beside that of nvidia.com/gpu
settings: {RESHAPE_LEASE_S: 600}
queues:
  - {name: research}
  - {name: production, devices: recreate, spec: {weight: 4}}
```
"""


def page(text: str) -> str:
    """Return the text of docs/reference/helm-values.md; `text`: that of values.yaml."""
    return HEAD + table(("Value", "Default", "Meaning"), rows(text)) + AFTER


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and comment of each value; KeyError if one has no comment."""
    comments = dict(comments_of(text))
    for name, value in _leaves(yaml.safe_load(text)):
        yield f"`{name}`", f"`{json.dumps(value)}`" if value != "" else "", comments[name]


def comments_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted name of each key and the comment right above it."""
    above: list[str] = []
    said: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        depth = (len(line) - len(line.lstrip())) // 2
        if bare.startswith("#"):
            said.append(bare.removeprefix("#").strip())
        elif bare and not bare.startswith("- "):
            above = [*above[:depth], bare.partition(":")[0]]
            yield ".".join(above), " ".join(said)
            said = []
        else:
            said = []


def _leaves(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in found.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
