"""Writes what an image holds as CycloneDX, run inside it by its own Python: `python - NAME VERSION <sbom.py`.

All Python distributions, all packages of Debian, and the interpreter, each with its version and package URL. Standard
library only. The same image gives the same text.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import uuid
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

DPKG = Path("/var/lib/dpkg/status")
OURS = "/opt/reshape/ours"


def document(name: str, version: str) -> dict[str, object]:
    """Return the bill of materials of this image."""
    image = {"type": "container", "name": name, "version": version, "bom-ref": f"image:{name}@{version}"}
    found = sorted([*python_distributions(), *debian_packages(), interpreter()], key=lambda each: each["purl"])
    content = hashlib.sha256(json.dumps([image, found]).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(content[:32])}",
        "version": 1,
        "metadata": {
            "component": image,
            "properties": [{"name": "reshape:architecture", "value": platform.machine()}],
        },
        "components": found,
    }


def python_distributions() -> list[dict[str, str]]:
    """Return those of the environment and our own."""
    seen = {each.metadata["Name"]: each.version for each in metadata.distributions(path=[*sys.path, OURS])}
    return [component(name, version, f"pkg:pypi/{plain(name)}@{quote(version)}") for name, version in seen.items()]


def debian_packages() -> list[dict[str, str]]:
    """Return the installed packages of the base image; none if it is not Debian's."""
    if not DPKG.is_file():
        return []
    found = []
    for text in DPKG.read_text(encoding="utf-8").strip().split("\n\n"):
        about = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
        if about.get("Status", "").endswith(" installed"):
            name = about["Package"]
            version = about["Version"]
            machine = about["Architecture"]
            found.append(component(name, version, f"pkg:deb/debian/{name}@{quote(version)}?arch={machine}"))
    return found


def interpreter() -> dict[str, str]:
    version = platform.python_version()
    return component("python", version, f"pkg:generic/python@{version}")


def component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def plain(name: str) -> str:
    """Return the name of a distribution as package URLs spell it."""
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(*sys.argv[1:3]), indent=1) + "\n")
