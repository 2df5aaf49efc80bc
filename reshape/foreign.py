"""Packages of somebody else under the names of ours: found before they are imported, and named.

Our packages keep plain names (`sidecar`, `launcher`, `coordinator`), which others use, too. Called by the verbs that
start something; must import nothing but click and the standard library, since whatever else is ours may be theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import click

OURS = ("adaptive_scheduler", "coordinator", "launcher", "sidecar")
OWN = "volcano-reshape"
ALONE = "install volcano-reshape into an environment of its own"


def check(home: Path | None = None) -> None:
    """ClickException with a sentence if one of our names does not mean our package. `home`: where ours are."""
    here = home or Path(__file__).resolve().parent.parent
    if why := next(_hidden(here), None) or next(_mixed(here), None):
        raise click.ClickException(why)


def _hidden(home: Path) -> Iterator[str]:
    """What Python finds elsewhere under our names."""
    for name in OURS:
        spec = find_spec(name)
        if spec is None:
            yield f"The package {name} is missing in {home}: install volcano-reshape again."
            continue
        places = [Path(place).resolve() for place in spec.submodule_search_locations or [spec.origin or name]]
        if home / name not in places[:1]:
            mend = f"start from another folder, remove it from PYTHONPATH, or {ALONE}"
            yield f"The package {name} in {places[0]} hides that of volcano-reshape in {home}: {mend}."


def _mixed(home: Path) -> Iterator[str]:
    """Distributions that were installed into the same folders and have written over our files, or may."""
    folder = re.compile(rf"^({'|'.join(OURS)})/[^,]*\.py", re.MULTILINE)
    for other in metadata.distributions(path=[str(home)]):
        named = str(other.metadata["Name"])
        if named != OWN and (match := folder.search(other.read_text("RECORD") or "")):
            yield f"The distribution {named} has put a package {match[1]} of its own into {home}: {ALONE}."
