"""Finds packages of other projects that stand where ours should, before they are imported.

Our packages keep plain names (`sidecar`, `launcher`, `simulator`), which others use, too. Called by the verbs that
start something or simulate. Imports nothing but click and the standard library, since a package of ours may be theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import click

SERVICES = ("adaptive_scheduler", "coordinator", "launcher", "sidecar", "simulator")
OWN = "volcano-reshape"
ALONE = "install volcano-reshape into an environment of its own"


def check(names: Sequence[str] = SERVICES, home: Path | None = None) -> None:
    """Raise ClickException with a sentence if one of `names` does not mean our package. `home`: where ours are."""
    here = home or Path(__file__).resolve().parent.parent
    if why := next(_hidden(names, here), None) or next(_mixed(names, here), None):
        raise click.ClickException(why)


def _hidden(names: Sequence[str], home: Path) -> Iterator[str]:
    """A sentence for each name under which Python finds nothing, or something elsewhere."""
    for name in names:
        spec = find_spec(name)
        if spec is None:
            yield f"The package {name} is missing in {home}: install volcano-reshape again."
            continue
        places = [Path(place).resolve() for place in spec.submodule_search_locations or [spec.origin or name]]
        if home / name not in places[:1]:
            mend = f"start from another folder, remove it from PYTHONPATH, or {ALONE}"
            yield f"The package {name} in {places[0]} hides that of volcano-reshape in {home}: {mend}."


def _mixed(names: Sequence[str], home: Path) -> Iterator[str]:
    """A sentence for each distribution that is installed into the same folders and may have written over our files."""
    folder = re.compile(rf"^({'|'.join(names)})/[^,]*\.py", re.MULTILINE)
    for other in metadata.distributions(path=[str(home)]):
        named = str(other.metadata["Name"])
        if named != OWN and (match := folder.search(other.read_text("RECORD") or "")):
            yield f"The distribution {named} has put a package {match[1]} of its own into {home}: {ALONE}."
