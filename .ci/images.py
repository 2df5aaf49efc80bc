"""Builds the image for several architectures, with a list of what is in it and a digest: `make images`.

`images.py NAME [--architectures amd64,arm64] [--push] [-- OPTIONS OF BUILDAH]`. Writes an OCI archive of
the manifest list, `sbom-ARCHITECTURE.cdx.json` and `digest` into build/images, and pushes all of it if asked. Another
architecture than the machine's needs qemu-user-static, whose programs the kernel starts by itself.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "images"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
VERSION = ROOT / "reshape" / "__init__.py"


class Refused(Exception):
    """Raised when nothing was built; says why, and what to do."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make images", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="such as registry.example.com/ml/volcano-reshape:0.1.0")
    parser.add_argument("--architectures", default="amd64,arm64")
    parser.add_argument("--push", action="store_true")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = parser.parse_args(arguments[:end])
    try:
        architectures = known(given.architectures)
        sys.stdout.write(build(with_tag(given.name), architectures, given.push, arguments[end + 1 :]) + "\n")
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


def known(text: str) -> list[str]:
    """Return the architectures, all of which this machine can run; Refused says which it cannot."""
    found = [word for word in text.replace(",", " ").split() if word]
    for name in found:
        if name not in MACHINES:
            raise Refused(f"Architecture {name} is not known: give some of {', '.join(MACHINES)}.")
        machine = MACHINES[name]
        if machine != platform.machine() and not (BINFMT / f"qemu-{machine}").is_file():
            raise Refused(
                f"This machine cannot run programs of {name}: install qemu-user-static (Debian: apt-get install "
                f"qemu-user-static binfmt-support), or build on one that can, or leave it out: ARCHITECTURES=amd64."
            )
    if shutil.which("buildah") is None:
        raise Refused("buildah was not found: install it (Debian: apt-get install buildah).")
    return found


def with_tag(name: str) -> str:
    """Return the name with our version as its tag, if it has none."""
    version = VERSION.read_text(encoding="utf-8").partition('__version__ = "')[2].partition('"')[0]
    return name if ":" in name.rpartition("/")[2] else f"{name}:{version}"


def build(name: str, architectures: list[str], push: bool, options: list[str]) -> str:
    """Build, describe, and push if asked; return sentences for people."""
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir(parents=True)
    subprocess.run(["buildah", "manifest", "rm", name], capture_output=True, check=False)
    buildah("manifest", "create", name)
    for architecture in architectures:
        image = f"{name}-{architecture}"
        buildah("build", "--quiet", "--layers", "--platform", f"linux/{architecture}", *options, "-t", image, str(ROOT))
        buildah("manifest", "add", name, f"containers-storage:{image}")
        (BUILT / f"sbom-{architecture}.cdx.json").write_text(bill_of(image, name), encoding="utf-8")
    digest = BUILT / "digest"
    where = f"docker://{name}" if push else f"oci-archive:{BUILT / 'image.oci.tar'}"
    buildah("manifest", "push", "--all", "--quiet", "--format", "oci", "--digestfile", str(digest), name, where)
    repository = name[: -len(name.rpartition(":")[2]) - 1]
    lines = [
        f"{name} for {' and '.join(architectures)}{' was pushed' if push else f': {BUILT.name}/image.oci.tar'}.",
        f"Bills of materials: {', '.join(sorted(path.name for path in BUILT.glob('sbom-*')))} in {BUILT}.",
        f"helm install ... --set image.repository={repository} --set image.digest={digest.read_text().strip()}",
    ]
    return "\n".join(lines)


def bill_of(image: str, name: str) -> str:
    """Return what is in an image, as CycloneDX."""
    container = buildah("from", image)
    try:
        version = name.rpartition(":")[2]
        program = (ROOT / ".ci" / "sbom.py").read_text(encoding="utf-8")
        run = ("run", container, "--", "/opt/reshape/bin/python", "-", name, version)
        return buildah(*run, stdin=program) + "\n"
    finally:
        buildah("rm", container)


def buildah(*arguments: str, stdin: str | None = None) -> str:
    """Run it; what it printed. Refused with its last words."""
    done = subprocess.run(["buildah", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"buildah {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
