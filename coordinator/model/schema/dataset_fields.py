"""Says of a job's `dataset` whether it is an address to fetch, what is wrong with that, and where it is put. Pure.

Called by intake, and by the launcher's platforms, which fetch it before the training starts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from coordinator.model.tables import JobRow

SCHEMES = ("http", "https")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
HEX = re.compile(r"[0-9a-fA-F]{64}")
NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")  # in the name of a file
NAME_LENGTH = 100
UNNAMED = "dataset"


def address(doc: JobRow) -> str | None:
    """Return the address that its data set is fetched from; None where `dataset` is none, or a path."""
    given = doc.get("dataset")
    found = SCHEME.match(given) if isinstance(given, str) else None
    return given if found and found[1].lower() in SCHEMES else None


def place(doc: JobRow) -> str | None:
    """Return the path of the fetched file below the folder of all data sets; None where none is fetched.

    One folder for each address, so that all jobs share what is there; the file keeps its name, since loaders go by
    its ending.
    """
    if (found := address(doc)) is None:
        return None
    key = hashlib.sha256(f"{found} {str(doc.get('dataset_sha256') or '').lower()}".encode()).hexdigest()[:16]
    name = NOT_PLAIN.sub("-", unquote(urlsplit(found).path).rpartition("/")[2])[-NAME_LENGTH:].lstrip(".-")
    return f"{key}/{name or UNNAMED}"


def problems(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for each field about a data set that is of the right type and cannot be what it says."""
    given, digest = doc.get("dataset"), doc.get("dataset_sha256")
    scheme = SCHEME.match(given) if isinstance(given, str) else None
    if digest is not None and address(doc) is None:
        yield "dataset_sha256 is for a dataset that is fetched from an http or https address: leave it out"
    if isinstance(given, str) and scheme and scheme[1].lower() in SCHEMES:
        yield from _of_address(given)


def _of_address(given: str) -> Iterator[str]:
    if not given.isascii() or not given.isprintable() or " " in given:
        yield "dataset is an address with a blank or a letter that is not ASCII: write these as %20 and so on"
        return
    try:
        parts = urlsplit(given)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        yield "dataset must be an address such as https://host/data.npz, or a path"
    elif "@" in parts.netloc:
        yield "dataset must not hold a user or password, which others could read: use a signed address, or a claim"
