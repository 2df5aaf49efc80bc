"""Says of a job whether its image is to be built first, and what is wrong with what that is built of. Pure.

Called by intake, by what keeps such a job out of the queue, and by `launcher.image_builder`, which builds images.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.model.records import show
from coordinator.model.tables import JobRow

NOT_HERE = (
    "it has a base, but no image was built on that: `reshape containerize --submit FILE --push` builds that "
    "and submits it to a cluster; on one machine leave base and requirements out"
)
FILES = frozenset(
    {"containers-storage", "dir", "docker-archive", "docker-daemon", "oci", "oci-archive", "ostree", "sif", "tarball"}
)
"""What a base begins with that is no image of a registry, but a file of the machine where it is built."""


def is_wanted(doc: JobRow) -> bool:
    """Return whether the image of this job is still to be built."""
    return doc.get("base") is not None and doc.get("image") is None


def problems(doc: JobRow, builds: bool) -> Iterator[str]:
    """Yield a sentence for what the image cannot be built of. `builds`: whether images of records are built here."""
    if not is_wanted(doc):
        return
    if not builds:
        yield NOT_HERE
        return
    base = doc.get("base")
    if isinstance(base, str) and (base.partition(":")[0] in FILES or base != base.strip() or len(base.split()) != 1):
        yield f"base must be the name of an image in a registry, such as python:3.11-slim, not {show(base)}"
    if not doc.get("code"):
        yield "it is not said what its image is built of: write the folder with the training into `code`"
