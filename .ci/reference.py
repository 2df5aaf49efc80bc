"""Writes the pages of docs/reference, parts of openapi.yaml and the CRD, and field_names.py: `make reference`.

A second run changes nothing. With --check it writes nothing and ends with 1 if a file is not as it would be written;
`make check` runs that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402
from reference_pages import command_line, events, helm_values, http_api, job, metrics, settings, sidecar_api, slaml_crd  # noqa: E402

from reshape_papers.papers import page as papers  # noqa: E402

VALUES = "manifests/values.yaml"
SLAML_CRD = "manifests/base/slaml-crd.yaml"
COMMANDS, OPENAPI = "docs/reference/command-line.md", "coordinator/http/openapi.yaml"
PAPERS = "docs/papers.md"  # from the figures that `reshape paper all` kept: nothing is simulated here


def files(root: Path) -> Iterable[tuple[str, str]]:
    """Yield path and content of each generated file."""
    openapi = job.openapi((root / OPENAPI).read_text(encoding="utf-8"))
    yield OPENAPI, openapi
    yield SLAML_CRD, slaml_crd.crd_text((root / SLAML_CRD).read_text(encoding="utf-8"))
    yield "coordinator/model/field_names.py", job.field_names()
    yield "docs/reference/job.md", job.page()
    yield "docs/reference/job.schema.json", job.schema()
    yield COMMANDS, command_line.page((root / COMMANDS).read_text(encoding="utf-8"))
    yield "docs/reference/http-api.md", http_api.page(yaml.safe_load(openapi))
    yield "docs/reference/settings.md", settings.page()
    yield "docs/reference/metrics.md", metrics.page()
    yield "docs/reference/events.md", events.page()
    yield "docs/reference/sidecar-api.md", sidecar_api.page()
    yield "docs/reference/helm-values.md", helm_values.page((root / VALUES).read_text(encoding="utf-8"))
    yield PAPERS, papers.page((root / PAPERS).read_text(encoding="utf-8"))


def stale(root: Path) -> list[str]:
    """Return the files that are not as they would be written."""
    return [name for name, text in files(root) if _text(root / name) != text]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if old := stale(ROOT):
            sys.exit(f"{', '.join(old)}: not as the code says. Run `make reference` and commit what it writes.")
    else:
        for name, content in list(files(ROOT)):
            (ROOT / name).write_text(content, encoding="utf-8")
