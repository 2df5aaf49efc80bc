"""Images that the test bed makes itself, without a registry and without a container engine: the pause image.

A docker-archive holds a manifest, a configuration and one layer; the layer holds one static program.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

PAUSE = "reshape.local/pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_pause(program: Path, archive: Path) -> None:
    """The archive of the pause image, whose only file is the program."""
    layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65534:65534"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()  # fmt: skip
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(_tar({"manifest.json": manifest, name: config, "layer.tar": layer}))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()
